"""Claims that a cell had to abandon, recorded until it may delete them. Entry points: `Ledger`, `AbandonedClaim`.

A ConfigMap on the cell, outside every project's namespaces, so that it survives restarts and deleted namespaces.
"""

from collections.abc import Iterable
from hashlib import sha256

import msgspec
import structlog
from msgspec import Struct

from datum_compute.api.names import claim_name
from datum_compute.api.permissions import LEDGER as NAME
from datum_compute.kube.kinds import CONFIG_MAP, ConfigMap
from datum_compute.kube.meta import decode, encode
from datum_compute.runtime import Plane, Unfinished

MOST = 1000  # about a fifth of what a ConfigMap may hold

_log = structlog.get_logger(__name__)


class AbandonedClaim(Struct, frozen=True, order=True, rename="camel"):
    """A claim on a project's plane, and the Instance of the cell that it was created for."""

    project: str
    namespace: str
    instance_namespace: str
    instance: str

    @property
    def name(self) -> str:
        return claim_name(self.instance)

    @property
    def key(self) -> str:
        return sha256(encode(self)).hexdigest()[:32]


class Ledger:
    """Adds and removes single entries, so that concurrent writers do not overwrite each other."""

    def __init__(self, namespace: str, controller: str, *, most: int = MOST) -> None:
        self._most = most
        self._namespace = namespace
        self._controller = controller
        self._projects: dict[str, frozenset[str]] = {}  # by cell, as last read

    def projects(self) -> set[str]:
        """The projects with a recorded claim, as far as the ledger has been read."""
        return {project for projects in self._projects.values() for project in projects}

    async def read(self, cell: Plane) -> list[AbandonedClaim]:
        return self._remember(cell, await self._find(cell))

    async def add(self, cell: Plane, claim: AbandonedClaim) -> None:
        """Raises if the claim cannot be recorded: it must not be abandoned then."""
        config_map = await self._find(cell)
        write = cell.writer(self._controller)
        entry = {claim.key: encode(claim).decode()}
        if config_map is None:
            body = CONFIG_MAP.body(NAME, self._namespace) | {"data": entry}
            config_map = await write.ensure(CONFIG_MAP, body)
        if claim.key in config_map.data:
            self._remember(cell, config_map)
            return
        if len(config_map.data) >= self._most:
            message = f"ConfigMap {self._namespace}/{NAME} already records {self._most} claims; no more are abandoned"
            raise Unfinished(message)
        self._remember(cell, await write.patch(config_map, {"data": entry}))

    async def remove(self, cell: Plane, claims: Iterable[AbandonedClaim]) -> None:
        config_map = await self._find(cell)
        removed = {claim.key: None for claim in claims if config_map is not None and claim.key in config_map.data}
        if config_map is not None and removed:
            self._remember(cell, await cell.writer(self._controller).patch(config_map, {"data": removed}))

    async def _find(self, cell: Plane) -> ConfigMap | None:
        return await cell.client.find(CONFIG_MAP, NAME, self._namespace)

    def _remember(self, cell: Plane, config_map: ConfigMap | None) -> list[AbandonedClaim]:
        claims = sorted(self._entries(config_map)) if config_map is not None else []
        self._projects[cell.name] = frozenset(claim.project for claim in claims)
        return claims

    def _entries(self, config_map: ConfigMap) -> Iterable[AbandonedClaim]:
        for key, text in config_map.data.items():
            try:
                yield decode(text.encode(), AbandonedClaim)
            except msgspec.MsgspecError as error:
                _log.warning("entry cannot be read", config_map=f"{self._namespace}/{NAME}", key=key, error=str(error))
