"""The claims that a cell had to let go of, kept until it may remove them. Entry points: `Ledger`, `AbandonedClaim`.

A ConfigMap on the cell, outside of everything that belongs to a project, so that it outlives restarts and namespaces.
"""

from collections.abc import Iterable
from hashlib import sha256

import msgspec
import structlog
from msgspec import Struct

from datum_compute.api.names import claim_name
from datum_compute.api.permissions import LEDGER as NAME
from datum_compute.kube.errors import NotFound
from datum_compute.kube.kinds import CONFIG_MAP, ConfigMap
from datum_compute.kube.meta import decode, encode
from datum_compute.runtime import Plane, Unfinished

MOST = 1000  # about a fifth of what a ConfigMap may hold

_log = structlog.get_logger(__name__)


class AbandonedClaim(Struct, frozen=True, order=True, rename="camel"):
    """A claim on a project's plane, and the Instance of the cell that it was made for."""

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
    """Entries are added and removed one by one, so that nobody who writes beside us is overwritten."""

    def __init__(self, namespace: str, controller: str, *, most: int = MOST) -> None:
        self._most = most
        self._namespace = namespace
        self._controller = controller
        self._projects: dict[str, frozenset[str]] = {}  # by cell, as last read

    def projects(self) -> set[str]:
        """Those that a claim is kept of, as far as the ledger has been read."""
        return {project for projects in self._projects.values() for project in projects}

    async def read(self, cell: Plane) -> list[AbandonedClaim]:
        return self._noted(cell, await self._find(cell))

    async def add(self, cell: Plane, claim: AbandonedClaim) -> None:
        """Raises when the claim cannot be kept: it must not be let go of then."""
        found = await self._find(cell)
        write = cell.writer(self._controller)
        entry = {claim.key: encode(claim).decode()}
        if found is None:
            body = CONFIG_MAP.body(NAME, self._namespace) | {"data": entry}
            found = await write.ensure(CONFIG_MAP, body)
        if claim.key in found.data:
            self._noted(cell, found)
            return
        if len(found.data) >= self._most:
            sentence = f"ConfigMap {self._namespace}/{NAME} keeps {self._most} claims already; no more are let go of"
            raise Unfinished(sentence)
        self._noted(cell, await write.patch(found, {"data": entry}))

    async def remove(self, cell: Plane, claims: Iterable[AbandonedClaim]) -> None:
        found = await self._find(cell)
        gone = {claim.key: None for claim in claims if found is not None and claim.key in found.data}
        if found is not None and gone:
            self._noted(cell, await cell.writer(self._controller).patch(found, {"data": gone}))

    async def _find(self, cell: Plane) -> ConfigMap | None:
        try:
            return await cell.client.get(CONFIG_MAP, NAME, self._namespace)
        except NotFound:
            return None

    def _noted(self, cell: Plane, found: ConfigMap | None) -> list[AbandonedClaim]:
        claims = sorted(self._entries(found)) if found is not None else []
        self._projects[cell.name] = frozenset(claim.project for claim in claims)
        return claims

    def _entries(self, found: ConfigMap) -> Iterable[AbandonedClaim]:
        for key, text in found.data.items():
            try:
                yield decode(text.encode(), AbandonedClaim)
            except msgspec.MsgspecError as error:
                _log.warning("entry cannot be read", config_map=f"{self._namespace}/{NAME}", key=key, error=str(error))
