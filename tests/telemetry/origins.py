"""Containers, lives and readers for tests."""

from datum_compute.federation.lines import STDOUT, Line, Origin
from datum_compute.federation.lives import Life
from datum_compute.telemetry.sources import Reader

SECOND = 1_000_000_000
START = 1_780_000_000 * SECOND
READER = Reader("demo")


def origin(
    instance: str = "api-default-dfw-0",
    *,
    generation: str = "uid-1",
    project: str = "demo",
    namespace: str = "default",
    container: str = "app",
    city: str = "DFW",
    workload: str = "api",
) -> Origin:
    return Origin(project, namespace, workload, "default", city, instance, generation, container)


def life(of: Origin, start: int = START, *, crashes: bool = False, port: int = 0) -> Life:
    return Life(of, start, "example.com/api:1", port, crashes)


def line(number: int, text: str = "", *, stream: str = STDOUT) -> Line:
    return Line(START + number * SECOND, stream, text or f"line {number}")
