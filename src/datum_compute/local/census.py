"""The instances of a local federation as they are now, in numbers. Entry point: `census`."""

import msgspec
from msgspec import Struct

from datum_compute.kube.transport import Call
from datum_compute.local.projects import asking
from datum_compute.local.state import Running

OVERVIEW = "/local/v1/endpoints"


class EngineState(Struct, frozen=True):
    name: str
    address: str
    unenforced: tuple[str, ...] = ()  # limits that it ignores


class _Endpoint(Struct, frozen=True):
    available: bool


class _Overview(Struct, frozen=True):
    summary: str
    engine: EngineState | None
    endpoints: tuple[_Endpoint, ...]


class Census(Struct, frozen=True):
    summary: str  # what runs them
    engine: EngineState | None
    running: int
    wanted: int


def census(running: Running, seconds: float) -> Census:
    """Counts the instances of all projects; raises `LocalError` if the federation does not answer."""
    with asking(running, seconds) as ask:
        overview = msgspec.json.decode(ask(Call("GET", OVERVIEW)), type=_Overview)
    available = sum(endpoint.available for endpoint in overview.endpoints)
    return Census(overview.summary, overview.engine, available, len(overview.endpoints))
