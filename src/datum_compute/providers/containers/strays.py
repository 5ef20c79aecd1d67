"""Finds and removes containers of this federation that no Instance has any more. Entry point: `Strays`.

Such are left by a create that nobody waited for, or by a state that was restored from a backup.
"""

import asyncio

import structlog

from datum_compute.api.instance import INSTANCE, Instance
from datum_compute.api.labels import CONTAINER_INSTANCE_UID, CONTAINERS_FINALIZER
from datum_compute.federation.roles import CELL
from datum_compute.providers.containers import removal as container_removal
from datum_compute.providers.containers.shape import Owner
from datum_compute.providers.engine.interface import ContainerEngine, Refused, Summary
from datum_compute.runtime import Fleet

PATIENCE_SECONDS = 30.0
_SYNC_SECONDS = 1.0

_log = structlog.get_logger(__name__)


class Strays:
    """A container is a stray if all cells are known, and twice, with some time in between, none has its Instance."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._suspected = asyncio.Event()

    def suspect(self) -> None:
        """There may be strays."""
        self._suspected.set()

    async def run(self, engine: ContainerEngine, fleet: Fleet) -> None:
        while True:
            await self._suspected.wait()
            self._suspected.clear()
            before = {summary.id for summary in await self._find(engine, fleet)}
            if not before:
                continue
            await asyncio.sleep(PATIENCE_SECONDS)
            found = await self._find(engine, fleet)
            await self._remove(engine, [summary for summary in found if summary.id in before])
            if any(summary.id not in before for summary in found):
                self.suspect()

    async def _find(self, engine: ContainerEngine, fleet: Fleet) -> list[Summary]:
        while not _is_synced(fleet):  # noqa: ASYNC110 - nobody reports it, and it takes a moment at startup
            await asyncio.sleep(_SYNC_SECONDS)
        # Listed before the Instances are read: an Instance is always known before its first container is created.
        summaries = await container_removal.owned(engine, self._owner)
        instances = [instance for plane in fleet.of_role(CELL) for instance in plane.informer(INSTANCE).all()]
        uids = {instance.metadata.uid for instance in instances if not is_released(instance)}
        if not _is_synced(fleet):
            return []
        return [summary for summary in summaries if summary.labels.get(CONTAINER_INSTANCE_UID) not in uids]

    async def _remove(self, engine: ContainerEngine, strays: list[Summary]) -> None:
        for stray in strays:
            _log.warning("stray container removed", container=stray.name, uid=stray.labels.get(CONTAINER_INSTANCE_UID))
        try:
            await container_removal.remove(engine, strays)
        except Refused as error:
            _log.warning("stray container not removed", error=str(error))


def is_released(instance: Instance) -> bool:
    """Whether an Instance that is being deleted has no containers any more; one that appears is a late one."""
    return instance.metadata.deleting and CONTAINERS_FINALIZER not in instance.metadata.finalizers


def _is_synced(fleet: Fleet) -> bool:
    """Whether every cell is followed, so that an Instance which is not known does not exist."""
    cells = fleet.known(CELL)
    return bool(cells) and all(fleet.up(cell.name) for cell in cells)
