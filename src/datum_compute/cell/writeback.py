"""Keeps the hub's copy of each Instance like the Instance itself. Entry point: `WriteBack`."""

from collections.abc import Iterable

import structlog

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT, WorkloadDeployment
from datum_compute.api.instance import INSTANCE, Instance
from datum_compute.api.labels import (
    COMPUTE_LABELS,
    DEPLOYMENT_NAME,
    SOURCE_CLUSTER,
    UPSTREAM_CLUSTER,
    UPSTREAM_NAMESPACE,
)
from datum_compute.cell.quota import CellName
from datum_compute.federation.roles import CELL, HUB
from datum_compute.kube.errors import AlreadyExists, NotFound
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.kube.meta import Json, missing_or_different, owner_reference, plain, same_json
from datum_compute.kube.patches import difference
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.informer import Change
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.requests import Drop, Request, Unfinished

_log = structlog.get_logger(__name__)


class WriteBack:
    """Writes only differences, and nothing for a deployment that the hub no longer has.

    `named` says that the cell's name was given to it and to no other. Only then can copies be told from those of other
    cells, and an Instance go without the hub, its copy to be swept later (R22).
    """

    def __init__(self, fleet: Fleet, cell_name: CellName, controller: str, *, named: bool = True) -> None:
        self.named = named
        self._fleet = fleet
        self._cell_name = cell_name
        self._controller = controller

    async def write(self, cell: Plane, instance: Instance) -> bool:
        """Whether there was anything to write."""
        hub = self._fleet.only(HUB)
        labels = await self._labels(hub, cell, instance)
        owner = hub.informer(WORKLOAD_DEPLOYMENT).get(instance.namespace, labels[DEPLOYMENT_NAME])
        if owner is None or owner.metadata.deleting:
            return False  # the project has withdrawn it; a copy must not come back
        write = hub.writer(self._controller)
        seen = copy = hub.informer(INSTANCE).get(instance.namespace, instance.name)
        if copy is None:
            owner = await self._owner(hub, owner)
            if owner is None or owner.metadata.deleting:
                return False
            try:
                copy = await write.create(INSTANCE, _new_copy(instance, labels, owner))
            except AlreadyExists:
                copy = await hub.client.get(INSTANCE, instance.name, instance.namespace)
        if copy.metadata.deleting:
            return False
        if not _may_own(copy, owner):
            _log.warning("hub copy belongs to something else", copy=f"{copy.namespace}/{copy.name}")
            return False
        if patch := _changes(copy, instance, labels, owner):
            copy = await write.patch_seen(INSTANCE, copy, patch)
        copy = await write.status(INSTANCE, copy, plain(instance.status_json))
        return copy is not seen

    async def remove(self, cell: Plane, namespace: str, name: str) -> None:
        """Deletes the copy of an Instance that goes or is gone; one of another cell is left alone."""
        hub = self._fleet.only(HUB)
        copy = hub.informer(INSTANCE).get(namespace, name)
        if copy is None and not self.named:
            copy = await self._read(hub, namespace, name)  # what the cache missed, nobody would sweep
        if copy is not None and not copy.metadata.deleting and self._is_ours(cell, copy):
            await hub.writer(self._controller).delete(INSTANCE, copy)

    async def sweep(self, cell: Plane, namespace: str, name: str) -> None:
        """Deletes a copy whose Instance is gone, by the word of the cell itself: our cache may have missed it."""
        copy = self._fleet.only(HUB).informer(INSTANCE).get(namespace, name)
        if copy is not None and self._is_ours(cell, copy) and await self._read(cell, namespace, name) is None:
            await self.remove(cell, namespace, name)

    async def _read(self, plane: Plane, namespace: str, name: str) -> Instance | None:
        try:
            return await plane.client.get(INSTANCE, name, namespace)
        except NotFound:
            return None

    async def _owner(self, hub: Plane, seen: WorkloadDeployment) -> WorkloadDeployment | None:
        """As it is now: a copy made for an owner that is gone is collected at once, and would be made again."""
        try:
            return await hub.client.get(WORKLOAD_DEPLOYMENT, seen.name, seen.namespace)
        except NotFound:
            return None

    def left_behind(self, cell: Plane) -> Iterable[Request]:
        """The Instances that are gone while a copy of them is left; nothing where names do not tell cells apart."""
        for hub in self._fleet.of_role(HUB) if self.named else ():
            for copy in hub.informer(INSTANCE).all():
                is_left = cell.informer(INSTANCE).get(copy.namespace, copy.name) is None
                if is_left and self._is_ours(cell, copy):
                    yield Request(cell.name, copy.namespace, copy.name)

    def missing_labels(self, instance: Instance) -> list[str]:
        """What an Instance lacks to be copied, as far as can be told without asking anybody."""
        return [key for key in COMPUTE_LABELS if not instance.metadata.labels.get(key)]

    async def _labels(self, hub: Plane, cell: Plane, instance: Instance) -> dict[str, str]:
        """The ten labels of a copy. Who it belongs to is said by the hub namespace alone; nothing is made up."""
        namespace = hub.informer(NAMESPACE).get("", instance.namespace)
        if namespace is None:
            namespace = await hub.client.get(NAMESPACE, instance.namespace)
        identity = {key: namespace.metadata.labels.get(key, "") for key in (UPSTREAM_CLUSTER, UPSTREAM_NAMESPACE)}
        if missing := [key for key, value in identity.items() if not value]:
            raise Unfinished(f"hub namespace {instance.namespace} has no label {', '.join(missing)}")
        if missing := self.missing_labels(instance):
            raise Unfinished(f"instance {instance.namespace}/{instance.name} has no label {', '.join(missing)}")
        own = {key: instance.metadata.labels[key] for key in COMPUTE_LABELS}
        return own | identity | {SOURCE_CLUSTER: self._cell_name(cell)}

    def _is_ours(self, cell: Plane, copy: Instance) -> bool:
        return copy.metadata.labels.get(SOURCE_CLUSTER) == self._cell_name(cell)

    def of_copy(self, hub: Plane, change: Change[Instance]) -> Iterable[Request | Drop]:
        """From a hub copy to the Instance it is of: edits are repaired, copies without an Instance swept."""
        for cell in self._fleet.of_role(CELL):
            if self._is_ours(cell, change.object):
                yield Request(cell.name, change.object.namespace, change.object.name)

    def of_owner(self, hub: Plane, change: Change[WorkloadDeployment]) -> Iterable[Request | Drop]:
        """A hub deployment that appeared: the copies that waited for it can be written."""
        if change.before is None and change.after is not None:
            for cell in self._fleet.of_role(CELL):
                for instance in cell.informer(INSTANCE).all(change.after.namespace):
                    if instance.metadata.labels.get(DEPLOYMENT_NAME) == change.after.name:
                        yield Request(cell.name, instance.namespace, instance.name)


def _owner(owner: WorkloadDeployment) -> Json:
    return owner_reference(WORKLOAD_DEPLOYMENT.api_version, WORKLOAD_DEPLOYMENT.name, owner.metadata, controller=True)


def _new_copy(instance: Instance, labels: dict[str, str], owner: WorkloadDeployment) -> Json:
    body = INSTANCE.body(instance.name, instance.namespace, labels=labels, ownerReferences=[_owner(owner)])
    return body | {"spec": instance.spec_json}


def _may_own(copy: Instance, owner: WorkloadDeployment) -> bool:
    """An unowned copy is adopted; one that something else controls is left alone."""
    controller = copy.metadata.controller
    return controller is None or (controller.name == owner.name and controller.kind == WORKLOAD_DEPLOYMENT.name)


def _changes(copy: Instance, instance: Instance, labels: dict[str, str], owner: WorkloadDeployment) -> Json:
    metadata: Json = {}
    if changed := missing_or_different(labels, copy.metadata.labels):
        metadata["labels"] = changed
    if copy.metadata.controller is None or copy.metadata.controller.uid != owner.metadata.uid:
        metadata["ownerReferences"] = [_owner(owner)]
    patch: Json = {"metadata": metadata} if metadata else {}
    if not same_json(copy.spec_json, instance.spec_json):
        patch["spec"] = difference(plain(copy.spec_json), plain(instance.spec_json))
    return patch
