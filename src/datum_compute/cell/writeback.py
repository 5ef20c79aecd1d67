"""Keeps the hub's copy of each Instance like the Instance itself. Entry point: `WriteBack`."""

import asyncio
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import structlog

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT, WorkloadDeployment
from datum_compute.api.instance import INSTANCE, READY, Instance
from datum_compute.api.labels import (
    COMPUTE_LABELS,
    DEPLOYMENT_NAME,
    INSTANCE_FINALIZER,
    SOURCE_CLUSTER,
    UPSTREAM_CLUSTER,
    UPSTREAM_GENERATION,
    UPSTREAM_NAMESPACE,
    UPSTREAM_UID,
)
from datum_compute.api.reasons import HUB_REFUSED, LABELS_MISSING
from datum_compute.cell.events import COMPONENT, FEDERATED, new_warnings
from datum_compute.cell.instance import concerns_us, in_namespace, is_identified
from datum_compute.cell.metrics import Metrics
from datum_compute.cell.quota import CellName
from datum_compute.cell.readiness import Decided
from datum_compute.cell.serving import is_instance_served_elsewhere, serving_changes
from datum_compute.cell.stopping import is_stopping
from datum_compute.cell.write_delay import WriteDelay
from datum_compute.federation.roles import CELL, HUB
from datum_compute.federation.scope import CELL_NAMESPACES
from datum_compute.kube import conditions
from datum_compute.kube.client import Client
from datum_compute.kube.errors import ApiError, NamespaceTerminating, NotFound
from datum_compute.kube.kinds import NAMESPACE, Namespace
from datum_compute.kube.meta import Condition, Json, as_dict, controller_reference
from datum_compute.kube.patches import changes
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
    Unfinished,
    itself,
)

HOLD_SECONDS = 1.0

_log = structlog.get_logger(__name__)


class WriteBack:
    """Owns the hub's copies of Instances, and Federated, which an Instance has only while it cannot be copied.

    It writes only differences, and nothing for a deployment that the hub no longer has. `named` says that the cell's
    name was given to it and to no other. Only then can copies be told from those of other cells, and an Instance go
    without the hub, its copy to be swept later. Without a name of its own an Instance is held until the hub has
    removed its copy, whatever the hub answers meanwhile, because nobody would find the copy afterwards.
    """

    name = "write-back"
    component = COMPONENT
    sweep_role = CELL  # a hub that comes later tells of every copy by itself
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
        self._refused: set[Request] = set()  # removals that the hub refuses, and that were told

    def sources(self) -> Sequence[Source[Any]]:
        return (
            Source(CELL, INSTANCE, itself, when=concerns_us, scope=CELL_NAMESPACES),
            Source(CELL, NAMESPACE, in_namespace, when=is_identified),
            serving_changes(),
            Source(HUB, NAMESPACE),
            Source(HUB, WORKLOAD_DEPLOYMENT, self._of_owner),
            Source(HUB, INSTANCE, self._of_copy),
        )

    def group(self, request: Request) -> Hashable:
        return HUB  # which is what its passes wait for, whatever cell they are about

    def sweep(self, plane: Plane) -> Iterable[Request]:
        """Copies that were left behind when their Instance went, and Instances that have lost theirs."""
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
            # A state that is about to change would only be written twice, here and in the project.
            left = self._delay.left(request, None if self._is_current(pass_, instance) else READY)
            if left > 0:
                pass_.no_later_than(left)
            else:
                await self._copy(pass_, instance)

    # Copies of what is there

    async def _copy(self, pass_: Pass, instance: Instance) -> None:
        missing = [key for key in COMPUTE_LABELS if not instance.metadata.labels.get(key)]
        problems = Problems()
        if not missing:
            with problems.collect(""):
                if await self._write(pass_, instance):
                    self._metrics.reached_hub(asyncio.get_running_loop().time() - pass_.since)
        # An outage says nothing about the Instance, and of one that goes nobody need be warned.
        if not instance.metadata.deleting and (not problems or problems.refusals()):
            with problems.collect(""):
                await self._tell(pass_, instance, _federated(missing, problems.refusals()))
        problems.raise_worst()

    async def _tell(self, pass_: Pass, copied: Instance, decided: Decided | None) -> None:
        """Writes what keeps an Instance from being shown into its status, or that nothing does any more."""
        instance = pass_.informer(INSTANCE).get(copied.namespace, copied.name)  # the hub may have taken its time
        if instance is None or instance.metadata.uid != copied.metadata.uid:
            return
        before = conditions.of(instance)
        told = conditions.find(before, FEDERATED)
        if _is_known(told, decided):
            return
        if decided is None:
            after = tuple(condition for condition in before if condition is not told)
        else:
            generation, now = instance.metadata.generation, pass_.now()
            told = conditions.condition(*msgspec.structs.astuple(decided), generation=generation, now=now)
            after = conditions.updated(before, [told])
        status = as_dict(instance.status_json) | {"conditions": conditions.to_json(after)}
        written = await pass_.write.status(instance, status)
        for reason, message in new_warnings(instance, written):
            pass_.events.warning(written, reason, message)

    async def _write(self, pass_: Pass, instance: Instance) -> bool:
        """Whether there was anything to write."""
        hub = pass_.on(HUB)
        owner = hub.informer(WORKLOAD_DEPLOYMENT).get(instance.namespace, instance.metadata.labels[DEPLOYMENT_NAME])
        if owner is None or owner.metadata.deleting:
            return False  # the project has withdrawn it; a copy must not come back
        namespace = await self._namespace(hub, instance.namespace)
        if namespace is None or namespace.metadata.deleting:
            return False
        labels = self._labels(namespace, pass_.plane, instance)
        seen = copy = hub.informer(INSTANCE).get(instance.namespace, instance.name)
        if copy is None or not _is_owned(copy, owner):
            owner = await self._owner(hub, owner)
            if owner is None or owner.metadata.deleting:
                return False
        if copy is not None and not _is_of(copy, instance):
            await hub.write.delete(copy)  # it tells the age of an earlier one; its end brings us back
            return True
        if copy is None and instance.metadata.deleting:
            return False  # what was not shown so far need not be any more
        if copy is None:
            try:
                copy = await hub.write.ensure(INSTANCE, _new_copy(instance, labels, owner))
            except NamespaceTerminating:
                return False  # since we last heard of it
        if copy.metadata.deleting:
            return False
        if not _may_own(copy, owner):
            _log.warning("hub copy belongs to something else", copy=f"{copy.namespace}/{copy.name}")
            return False
        owners = () if _is_owned(copy, owner) else [controller_reference(owner)]
        annotations = _annotations(instance)
        if patch := changes(copy, labels=labels, annotations=annotations, owners=owners, spec=instance.spec_json):
            copy = await hub.write.patch_if_unchanged(copy, patch)
        copy = await hub.write.status(copy, as_dict(instance.status_json))
        return copy is not seen

    # Copies of what goes or is gone

    async def _remove(self, pass_: Pass, instance: Instance | None) -> None:
        try:
            await self._delete(pass_, is_gone=instance is None)
        except ApiError as error:
            self._tell_of_leftover(pass_, instance, error)
            raise
        self._refused.discard(pass_.request)
        if instance is not None and not self._named:
            await pass_.write.remove_finalizers(instance, INSTANCE_FINALIZER)

    async def _delete(self, pass_: Pass, *, is_gone: bool) -> None:
        """Deletes the copy, if it is of this cell."""
        if is_gone and not self._named:
            return  # the copy went before it, or was another cell's
        hub, request = pass_.on(HUB), pass_.request
        copy = hub.informer(INSTANCE).get(request.namespace, request.name)
        if copy is None and not self._named:
            copy = await self._read(hub.client, request)  # what the cache missed, nobody would sweep
        if copy is None or copy.metadata.deleting or not self._is_ours(pass_.plane, copy):
            return
        if is_gone and await self._read(pass_.client, request) is not None:
            return  # by the word of the cell itself: our cache may have missed it
        await hub.write.delete(copy)

    def _tell_of_leftover(self, pass_: Pass, instance: Instance | None, error: ApiError) -> None:
        """A refusal is told once, about the Instance or, when that is gone, about its deployment."""
        request = pass_.request
        if request in self._refused or not Problem("", error).is_refusal:
            return
        self._refused.add(request)
        sentence = f"The hub refuses to remove what it shows of instance {request.name}: {error}"
        if instance is not None:
            pass_.events.warning(instance, HUB_REFUSED, sentence)
            return
        copy = pass_.on(HUB).informer(INSTANCE).get(request.namespace, request.name)
        name = copy.metadata.labels.get(DEPLOYMENT_NAME, "") if copy is not None else ""
        deployment = pass_.informer(WORKLOAD_DEPLOYMENT).get(request.namespace, name)
        if deployment is not None:
            pass_.events.warning(deployment, HUB_REFUSED, sentence)

    async def _read(self, client: Client, request: Request) -> Instance | None:
        try:
            return await client.get(INSTANCE, request.name, request.namespace)
        except NotFound:
            return None

    async def _owner(self, hub: Handle, seen: WorkloadDeployment) -> WorkloadDeployment | None:
        """As it is now: a copy given to an owner that is gone is collected at once, and would be made again.

        Where the two caches disagree either may be behind, as after the hub was restored from a backup.
        """
        try:
            return await hub.client.get(WORKLOAD_DEPLOYMENT, seen.name, seen.namespace)
        except NotFound:
            return None

    def _left_behind(self, hub: Plane, cell: Plane) -> Iterable[Request]:
        for copy in hub.informer(INSTANCE).all():
            is_left = cell.informer(INSTANCE).get(copy.namespace, copy.name) is None
            if is_left and self._is_ours(cell, copy):
                yield Request(cell.name, copy.namespace, copy.name)

    async def _namespace(self, hub: Handle, name: str) -> Namespace | None:
        namespace = hub.informer(NAMESPACE).get("", name)
        if namespace is None:
            with suppress(NotFound):
                namespace = await hub.client.get(NAMESPACE, name)
        return namespace

    def _labels(self, namespace: Namespace, cell: Plane, instance: Instance) -> dict[str, str]:
        """The ten labels of a copy. Who it belongs to is said by the hub namespace alone; nothing is made up."""
        identity = {key: namespace.metadata.labels.get(key, "") for key in (UPSTREAM_CLUSTER, UPSTREAM_NAMESPACE)}
        if missing := [key for key, value in identity.items() if not value]:
            raise Unfinished(f"hub namespace {instance.namespace} has no label {', '.join(missing)}")
        own = {key: instance.metadata.labels[key] for key in COMPUTE_LABELS}
        return own | identity | {SOURCE_CLUSTER: self._cell_name(cell)}

    def _is_ours(self, cell: Plane, copy: Instance) -> bool:
        return copy.metadata.labels.get(SOURCE_CLUSTER) == self._cell_name(cell)

    def _of_copy(self, hub: Plane, change: Change[Instance]) -> Iterable[Request | Drop]:
        """From a hub copy to the Instance it is of: edits are repaired, copies without an Instance swept.

        Also a copy that bears another cell's name, where the Instance is here: the name may be what was edited.
        """
        namespace, name = change.object.namespace, change.object.name
        sides = [copy for copy in (change.before, change.after) if copy is not None]
        for cell in self._fleet.of_role(CELL):
            is_here = cell.informer(INSTANCE).get(namespace, name) is not None
            if is_here or any(self._is_ours(cell, copy) for copy in sides):
                yield Request(cell.name, namespace, name)

    def _of_owner(self, hub: Plane, change: Change[WorkloadDeployment]) -> Iterable[Request | Drop]:
        """A hub deployment that appeared: the copies that waited for it can be written."""
        if change.before is None and change.after is not None:
            for cell in self._fleet.of_role(CELL):
                for instance in cell.informer(INSTANCE).all(change.after.namespace):
                    if instance.metadata.labels.get(DEPLOYMENT_NAME) == change.after.name:
                        yield Request(cell.name, instance.namespace, instance.name)


def _federated(missing: Sequence[str], refusals: Sequence[Problem]) -> Decided | None:
    """Why an Instance is not shown in its project: labels that it lacks, or what the hub objects to."""
    if missing:
        sentence = f"The instance cannot be shown in its project: it has no label {', '.join(missing)}"
        return Decided(FEDERATED, "False", LABELS_MISSING, sentence)
    for problem in refusals:
        return Decided(FEDERATED, "False", HUB_REFUSED, f"{_refusal(problem)}: {problem.error}")
    return None


def _refusal(problem: Problem) -> str:
    kind = problem.error.reason if isinstance(problem.error, ApiError) else ""
    return f"The hub refuses to show the instance in its project ({kind})"


def _is_known(told: Condition | None, decided: Decided | None) -> bool:
    """Whether a condition says it already. Of a refusal the beginning counts: the rest may differ from try to try."""
    if told is None or decided is None:
        return told is None and decided is None
    if told.reason == decided.reason == HUB_REFUSED:
        return told.message.partition(":")[0] == decided.message.partition(":")[0]
    return (told.reason, told.message) == (decided.reason, decided.message)


def _new_copy(instance: Instance, labels: dict[str, str], owner: WorkloadDeployment) -> Json:
    body = INSTANCE.body(
        instance.name,
        instance.namespace,
        labels=labels,
        annotations=_annotations(instance),
        ownerReferences=[controller_reference(owner)],
    )
    return body | {"spec": instance.spec_json}


def _annotations(instance: Instance) -> dict[str, str]:
    """The generation in the cell: the copy's own counts differently, so no status could be held against that."""
    return {UPSTREAM_GENERATION: str(instance.metadata.generation), UPSTREAM_UID: instance.metadata.uid}


def _is_of(copy: Instance, instance: Instance) -> bool:
    """Whether it is a copy of this very Instance, and not of one whose name it inherited."""
    return copy.metadata.annotations.get(UPSTREAM_UID, instance.metadata.uid) == instance.metadata.uid


def _is_owned(copy: Instance, owner: WorkloadDeployment) -> bool:
    controller = copy.metadata.controller
    return controller is not None and controller.uid == owner.metadata.uid


def _may_own(copy: Instance, owner: WorkloadDeployment) -> bool:
    """An unowned copy is adopted; one that something else controls is left alone."""
    controller = copy.metadata.controller
    return controller is None or (controller.name == owner.name and controller.kind == WORKLOAD_DEPLOYMENT.name)
