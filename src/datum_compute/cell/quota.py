"""What the quota gate needs of a quota system. Entry points: `Quota`, `Disabled`."""

from datetime import timedelta
from typing import Protocol

import structlog
from msgspec import Struct

from datum_compute.api import reasons
from datum_compute.api.instance import Instance
from datum_compute.cell.verdict import Verdict
from datum_compute.runtime import Plane, Request

_log = structlog.get_logger(__name__)


class LeftBehind(Struct, frozen=True):
    """Why something stays in a quota system after its Instance was deleted."""

    reason: str
    message: str


class Quota(Protocol):
    async def evaluate(self, cell: Plane, instance: Instance, age: timedelta) -> Verdict:
        """The verdict on an Instance of that age. Never raises an API error."""
        ...

    def forget(self, request: Request) -> None:
        """Drops what is remembered about an Instance that no longer exists."""
        ...

    async def sweep(self, cell: Plane, request: Request) -> None:
        """Gives back what an Instance that no longer exists still holds."""
        ...

    async def release(self, cell: Plane, instance: Instance) -> LeftBehind | None:
        """Gives back what the Instance holds; raising keeps its finalizer."""
        ...


class Disabled:
    """Grants everything, because no credential for a quota system is configured."""

    def __init__(self) -> None:
        _log.error("quota is not enforced: no credential for it is configured")

    async def evaluate(self, cell: Plane, instance: Instance, age: timedelta) -> Verdict:
        return Verdict("True", reasons.QUOTA_DISABLED, "Quota enforcement disabled: no credential configured")

    def forget(self, request: Request) -> None: ...

    async def sweep(self, cell: Plane, request: Request) -> None: ...

    async def release(self, cell: Plane, instance: Instance) -> LeftBehind | None:
        return None
