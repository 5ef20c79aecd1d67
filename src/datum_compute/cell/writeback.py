"""Keeps the hub's copy of each Instance like the Instance itself. Entry point: `WriteBack`."""

import asyncio
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import msgspec
import structlog

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT, WorkloadDeployment
from datum_compute.api.instance import INSTANCE, READY, Instance
from datum_compute.api.labels import COMPUTE_LABELS, DEPLOYMENT_NAME, INSTANCE_FINALIZER, SOURCE_CLUSTER
from datum_compute.api.reasons import HUB_REFUSED, LABELS_MISSING
from datum_compute.cell.events import COMPONENT, FEDERATED, new_warnings
from datum_compute.cell.hub_copy import copy_body, copy_changes, copy_labels, is_copy_of, is_owned, may_own
from datum_compute.cell.instance import has_other_identity, instances_of_namespace, is_relevant
from datum_compute.cell.metrics import Metrics
from datum_compute.cell.name_lease import CellName
from datum_compute.cell.readiness import Decided
from datum_compute.cell.serving import is_instance_served_elsewhere, serving_changes
from datum_compute.cell.stopping import is_stopping
from datum_compute.cell.write_delay import WriteDelay
from datum_compute.federation.roles import CELL, HUB
from datum_compute.federation.scope import CELL_NAMESPACES
from datum_compute.kube import conditions
from datum_compute.kube.errors import ApiError, NamespaceTerminating
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.kube.meta import Condition, as_dict
from datum_compute.runtime import (
    Change,
    Drop,
    Fleet,
    Handle,
    Pass,
    Plane,
    Problem,
    Problems,
    Request,
    Source,
    itself,
)

HOLD_SECONDS = 1.0

_log = structlog.get_logger(__name__)


class WriteBack:
    """Owns the hub's copies of Instances, and Federated, which an Instance has only while it cannot be copied.

    It writes only differences, and nothing for a deployment that the hub no longer has. `named` means that the cell's
    name was configured, so that no other cell has it. Only then can its copies be told from those of other cells, and
    an Instance be deleted without the hub, leaving its copy to a later sweep. Otherwise an Instance is held until the
    hub has deleted its copy, whatever the hub answers meanwhile, because nobody would find the copy afterwards.
    """

    name = "write-back"
    component = COMPONENT
    sweep_role = CELL  # a hub that is engaged later lists every copy
    sweep_seconds = 600.0

    def __init__(
        self,
        fleet: Fleet,
        cell_name: CellName,
        *,
        named: bool = True,
        is_current: Callable[[Handle, Instance], bool] = lambda cell, instance: True,
        metrics: Metrics | None = None,
    ) -> None:
        self._fleet = fleet
        self._cell_name = cell_name
        self._named = named
        self._is_current = is_current
        self._metrics = metrics or Metrics()
        self._delay = WriteDelay(HOLD_SECONDS)
        self._refused: set[Request] = set()  # deletions that the hub refuses, already reported

    def sources(self) -> Sequence[Source[Any]]:
        return (
            Source(CELL, INSTANCE, itself, when=is_relevant, scope=CELL_NAMESPACES),
            Source(CELL, NAMESPACE, instances_of_namespace, when=has_other_identity),
            serving_changes(),
            Source(HUB, NAMESPACE),
            Source(HUB, WORKLOAD_DEPLOYMENT, self._of_owner),
            Source(HUB, INSTANCE, self._of_copy),
        )

    def group(self, request: Request) -> Hashable:
        return HUB  # passes wait for the hub, whatever their cell

    def sweep(self, plane: Plane) -> Iterable[Request]:
        """Copies without an Instance, and Instances without a copy."""
        for hub in self._fleet.of_role(HUB):
            if self._named:
                yield from self._left_behind(hub, plane)
            for instance in plane.informer(INSTANCE).all():
                if hub.informer(INSTANCE).get(instance.namespace, instance.name) is None:
                    yield Request(plane.name, instance.namespace, instance.name)

    async def reconcile(self, pass_: Pass) -> None:
        request, cell = pass_.request, pass_.plane
        instance = pass_.get(INSTANCE)
        if instance is None or (instance.metadata.deleting and not is_stopping(instance)):
            self._delay.forget(request)
            await self._remove(pass_, instance)
        elif INSTANCE_FINALIZER in instance.metadata.finalizers and not is_instance_served_elsewhere(cell, instance):
            self._refused.discard(request)
            # A state that is about to change would be written twice, to the hub and to the project.
            delay = self._delay.remaining(request, None if self._is_current(pass_, instance) else READY)
            if delay > 0:
                pass_.no_later_than(delay)
            else:
                await self._copy(pass_, instance)

    # Copies of existing Instances

    async def _copy(self, pass_: Pass, instance: Instance) -> None:
        missing = [key for key in COMPUTE_LABELS if not instance.metadata.labels.get(key)]
        problems = Problems()
        if not missing:
            with problems.collect(""):
                if await self._write(pass_, instance):
                    self._metrics.reached_hub(asyncio.get_running_loop().time() - pass_.since)
        # An outage says nothing about the Instance, and one that is being deleted needs no warning.
        if not instance.metadata.deleting and (not problems or problems.refusals()):
            with problems.collect(""):
                await self._report(pass_, instance, _federated(missing, problems.refusals()))
        problems.raise_worst()

    async def _report(self, pass_: Pass, copied: Instance, decided: Decided | None) -> None:
        """Sets or removes the condition that says why an Instance cannot be copied."""
        instance = pass_.informer(INSTANCE).get(copied.namespace, copied.name)  # the hub may have taken long
        if instance is None or instance.metadata.uid != copied.metadata.uid:
            return
        before = conditions.of(instance)
        current = conditions.find(before, FEDERATED)
        if _is_same(current, decided):
            return
        if decided is None:
            left = [condition for condition in before if condition is not current]
            status = as_dict(instance.status_json) | {"conditions": conditions.to_json(left)}
        else:
            generation, now = instance.metadata.generation, pass_.now()
            wanted = conditions.condition(*msgspec.structs.astuple(decided), generation=generation, now=now)
            status = conditions.status_with(instance, [wanted])
        after = await pass_.write.status(instance, status)
        for reason, message in new_warnings(instance, after):
            pass_.events.warning(after, reason, message)

    async def _write(self, pass_: Pass, instance: Instance) -> bool:
        """Returns whether there was anything to write."""
        hub = pass_.on(HUB)
        owner = hub.informer(WORKLOAD_DEPLOYMENT).get(instance.namespace, instance.metadata.labels[DEPLOYMENT_NAME])
        if owner is None or owner.metadata.deleting:
            return False  # withdrawn; a copy must not come back
        name = instance.namespace
        namespace = hub.informer(NAMESPACE).get("", name) or await hub.client.find(NAMESPACE, name)
        if namespace is None or namespace.metadata.deleting:
            return False
        labels = copy_labels(instance, namespace, self._cell_name(pass_.plane))
        before = copy = hub.informer(INSTANCE).get(instance.namespace, instance.name)
        if copy is None or not is_owned(copy, owner):
            # Ask the server: a copy with an owner that is gone would be garbage-collected at once and written again.
            # Where the two caches disagree either may be behind, as after the hub was restored from a backup.
            owner = await hub.client.find(WORKLOAD_DEPLOYMENT, owner.name, owner.namespace)
            if owner is None or owner.metadata.deleting:
                return False
        if copy is not None and not is_copy_of(copy, instance):
            await hub.write.delete(copy)  # it has the age of an earlier Instance; its deletion starts the next pass
            return True
        if copy is None and instance.metadata.deleting:
            return False  # not worth a copy any more
        if copy is None:
            try:
                copy = await hub.write.ensure(INSTANCE, copy_body(instance, labels, owner))
            except NamespaceTerminating:
                return False  # since it was cached
        if copy.metadata.deleting:
            return False
        if not may_own(copy, owner):
            _log.warning("hub copy belongs to something else", copy=f"{copy.namespace}/{copy.name}")
            return False
        if patch := copy_changes(copy, instance, labels, owner):
            copy = await hub.write.patch_if_unchanged(copy, patch)
        copy = await hub.write.status(copy, as_dict(instance.status_json))
        return copy is not before

    # Copies of deleted Instances

    async def _remove(self, pass_: Pass, instance: Instance | None) -> None:
        try:
            await self._delete_copy(pass_, is_gone=instance is None)
        except ApiError as error:
            self._report_refusal(pass_, instance, error)
            raise
        self._refused.discard(pass_.request)
        if instance is not None and not self._named:
            await pass_.write.remove_finalizers(instance, INSTANCE_FINALIZER)

    async def _delete_copy(self, pass_: Pass, *, is_gone: bool) -> None:
        """Deletes the copy, if it is this cell's."""
        if is_gone and not self._named:
            return  # the copy was deleted before it, or is another cell's
        hub, request = pass_.on(HUB), pass_.request
        copy = hub.informer(INSTANCE).get(request.namespace, request.name)
        if copy is None and not self._named:
            copy = await hub.client.find(INSTANCE, request.name, request.namespace)  # nobody would sweep it
        if copy is None or copy.metadata.deleting or not self._is_ours(pass_.plane, copy):
            return
        if is_gone and await pass_.client.find(INSTANCE, request.name, request.namespace) is not None:
            return  # our cache of the cell missed it
        pass_.about(copy)
        await hub.write.delete(copy)

    def _report_refusal(self, pass_: Pass, instance: Instance | None, error: ApiError) -> None:
        """Emits one warning about the Instance or, once that is gone, about its deployment."""
        request = pass_.request
        if request in self._refused or not Problem("", error).is_refusal:
            return
        self._refused.add(request)
        message = f"The hub refuses to delete its copy of instance {request.name}: {error}"
        if instance is not None:
            pass_.events.warning(instance, HUB_REFUSED, message)
            return
        copy = pass_.on(HUB).informer(INSTANCE).get(request.namespace, request.name)
        name = copy.metadata.labels.get(DEPLOYMENT_NAME, "") if copy is not None else ""
        deployment = pass_.informer(WORKLOAD_DEPLOYMENT).get(request.namespace, name)
        if deployment is not None:
            pass_.events.warning(deployment, HUB_REFUSED, message)

    def _left_behind(self, hub: Plane, cell: Plane) -> Iterable[Request]:
        for copy in hub.informer(INSTANCE).all():
            is_left = cell.informer(INSTANCE).get(copy.namespace, copy.name) is None
            if is_left and self._is_ours(cell, copy):
                yield Request(cell.name, copy.namespace, copy.name)

    def _is_ours(self, cell: Plane, copy: Instance) -> bool:
        return copy.metadata.labels.get(SOURCE_CLUSTER) == self._cell_name(cell)

    def _of_copy(self, hub: Plane, change: Change[Instance]) -> Iterable[Request | Drop]:
        """From a hub copy to its Instance, so that edits are repaired and copies without an Instance swept.

        Even with another cell's name, if the Instance is here: the name may have been edited.
        """
        namespace, name = change.object.namespace, change.object.name
        sides = [copy for copy in (change.before, change.after) if copy is not None]
        for cell in self._fleet.of_role(CELL):
            is_here = cell.informer(INSTANCE).get(namespace, name) is not None
            if is_here or any(self._is_ours(cell, copy) for copy in sides):
                yield Request(cell.name, namespace, name)

    def _of_owner(self, hub: Plane, change: Change[WorkloadDeployment]) -> Iterable[Request | Drop]:
        """The Instances of a new hub deployment, whose copies may have waited for it."""
        if change.before is None and change.after is not None:
            for cell in self._fleet.of_role(CELL):
                for instance in cell.informer(INSTANCE).all(change.after.namespace):
                    if instance.metadata.labels.get(DEPLOYMENT_NAME) == change.after.name:
                        yield Request(cell.name, instance.namespace, instance.name)


def _federated(missing: Sequence[str], refusals: Sequence[Problem]) -> Decided | None:
    """Why an Instance is not shown in its project: missing labels, or a refusal by the hub; None when it is shown."""
    if missing:
        message = f"The instance cannot be shown in its project: it has no label {', '.join(missing)}"
        return Decided(FEDERATED, "False", LABELS_MISSING, message)
    for problem in refusals:
        return Decided(FEDERATED, "False", HUB_REFUSED, f"{_refusal(problem)}: {problem.error}")
    return None


def _refusal(problem: Problem) -> str:
    kind = problem.error.reason if isinstance(problem.error, ApiError) else ""
    return f"The hub refuses to show the instance in its project ({kind})"


def _is_same(current: Condition | None, decided: Decided | None) -> bool:
    """Whether the condition stays as it is. Of a refusal only the start counts: the rest may differ each time."""
    if current is None or decided is None:
        return current is None and decided is None
    if current.reason == decided.reason == HUB_REFUSED:
        return current.message.partition(":")[0] == decided.message.partition(":")[0]
    return (current.reason, current.message) == (decided.reason, decided.message)
