"""Who may read logs. Entry points: `Access`, `open_access`."""

from collections.abc import Awaitable, Mapping
from typing import Any, Protocol

from datum_compute.telemetry.sources import Reader


class Access(Protocol):
    def __call__(self, plane: str, scope: Mapping[str, Any], /) -> Awaitable[Reader]:
        """Who a request is from and what they may read, asked again every minute while they follow.

        `plane` is the plane that the path of the request names, and `scope` the request as ASGI has it. Raises an
        `ApiError`: `Unauthorized`, `Forbidden`, or `Unavailable` if that cannot be found out.
        """
        ...


async def open_access(plane: str, scope: Mapping[str, Any]) -> Reader:
    """For a server whose one token may do everything."""
    return Reader(plane)
