"""Which instance answers a request to a workload. Entry points: `parse_host`, `candidates`, `goes_on`."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum

from msgspec import Struct

from datum_compute.local.endpoints import Endpoint

DOMAIN = "localhost"

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_CITY = re.compile(r"[a-z][a-z0-9]{1,7}")
_PORT = re.compile(r"[0-9]{1,5}")
_REPEATABLE = ("GET", "HEAD")


class Wanted(Struct, frozen=True):
    """The workload that a request is for, and the city to begin in; empty for the first one of its placements."""

    workload: str
    city: str = ""


def parse_host(host: str) -> Wanted | None:
    """What `api.localhost:8088` or `ams.api.localhost` asks for; None for any other Host.

    The port does not count, because a tunnel may have another one.
    """
    name, colon, port = host.lower().partition(":")
    if colon and not _PORT.fullmatch(port):
        return None
    match name.split("."):
        case [workload, "localhost"] if _LABEL.fullmatch(workload):
            return Wanted(workload)
        case [city, workload, "localhost"] if _LABEL.fullmatch(workload) and _CITY.fullmatch(city):
            return Wanted(workload, city.upper())
    return None


def url(workload: str, port: int, city: str = "") -> str:
    return f"http://{'.'.join(filter(None, (city.lower(), workload, DOMAIN)))}:{port}/"


class Turns:
    """Lets the instances of each city answer in turn."""

    def __init__(self) -> None:
        self._next: Counter[tuple[str, str]] = Counter()

    def take(self, workload: str, city: str) -> int:
        turn = self._next[workload, city]
        self._next[workload, city] += 1
        return turn


def ordered_cities(cities: Sequence[str], first: str) -> list[str]:
    """The cities as the placements list them, after the one to begin in."""
    return [*(city for city in cities if city == first), *(city for city in cities if city != first)]


def candidates(endpoints: Sequence[Endpoint], cities: Sequence[str], turn: Callable[[str], int]) -> Iterator[Endpoint]:
    """The instances to ask, one after the other: city by city, and in each those that are available in turn.

    A turn is taken only in a city that is reached.
    """
    for city in cities:
        available = [each for each in endpoints if each.city == city and each.available and each.web is not None]
        if available:
            start = turn(city) % len(available)
            yield from available[start:] + available[:start]


class Outcome(Enum):
    """How a request to an instance ended without an answer."""

    UNREACHED = "refused the connection"
    BROKEN = "broke off before it answered"
    SILENT = "did not answer in time"


def goes_on(outcome: Outcome, method: str, *, body_sent: bool) -> bool:
    """Whether the next instance may be asked: only if this one did not get the request, or it can be repeated."""
    match outcome:
        case Outcome.UNREACHED:
            return True
        case Outcome.BROKEN:
            return method in _REPEATABLE and not body_sent
        case Outcome.SILENT:
            return False


def explanation(
    workload: str, cities: Sequence[str], endpoints: Sequence[Endpoint], failures: Mapping[str, Outcome]
) -> str:
    """Why nobody answered, with a line for each city; `failures` are by instance."""
    return "\n".join([f"{workload} does not answer.", *(_line(city, endpoints, failures) for city in cities), ""])


def _line(city: str, endpoints: Sequence[Endpoint], failures: Mapping[str, Outcome]) -> str:
    here = [endpoint for endpoint in endpoints if endpoint.city == city]
    if not here:
        return f"  {city}: there is no instance"
    return f"  {city}: {', '.join(_reason(endpoint, failures.get(endpoint.instance)) for endpoint in here)}"


def _reason(endpoint: Endpoint, failure: Outcome | None) -> str:
    if failure is not None:
        return f"{endpoint.instance} {failure.value}"
    if endpoint.web is None:
        return f"{endpoint.instance} has no TCP port (deploy with --port)"
    if endpoint.available:
        return f"{endpoint.instance} was not asked"
    return f"{endpoint.instance} is not available: {endpoint.state}"
