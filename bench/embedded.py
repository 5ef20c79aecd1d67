"""How fast is the embedded engine? Prints one table: start to the first list, and writes a second.

Run with `.venv/bin/python bench/embedded.py`. Medians of several rounds in one run; machines are noisy.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from datum_compute.api.workload import WORKLOAD
from datum_compute.embedded.engine import Engine
from datum_compute.embedded.log import Log
from datum_compute.federation.roles import PROJECT
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.kube.meta import Json

ROUNDS = 5
WRITES = 2000


def workload(number: int) -> Json:
    template = {
        "metadata": {"labels": {"app": "hello"}},
        "spec": {
            "runtime": {
                "resources": {"instanceType": "datumcloud/d1-standard-2"},
                "sandbox": {"containers": [{"name": "web", "image": "registry.example/hello:1"}]},
            },
            "networkInterfaces": [{"network": {"name": "default"}}],
        },
    }
    placements = [{"name": "main", "cityCodes": ["DFW", "AMS"], "scaleSettings": {"minReplicas": 2}}]
    return WORKLOAD.body(f"web-{number}", "default") | {"spec": {"template": template, "placements": placements}}


async def first_list(path: Path | None) -> float:
    began = time.perf_counter()
    engine = Engine(Log(path))
    engine.serve("demo", PROJECT)
    await engine.client("demo").list(WORKLOAD)
    taken = time.perf_counter() - began
    engine.close()
    return taken * 1000


async def writes(path: Path | None) -> float:
    engine = Engine(Log(path))
    engine.serve("demo", PROJECT)
    client = engine.client("demo")
    await client.create(NAMESPACE, NAMESPACE.body("default"))
    began = time.perf_counter()
    for number in range(WRITES):
        await client.create(WORKLOAD, workload(number))
    taken = time.perf_counter() - began
    engine.close()
    return WRITES / taken


def median(measure: Callable[[Path | None], Coroutine[Any, Any, float]], *, file: bool) -> float:
    results: list[float] = []
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as directory:
            results.append(asyncio.run(measure(Path(directory, "log.db") if file else None)))
    return statistics.median(results)


if __name__ == "__main__":
    asyncio.run(first_list(None))  # imports and schema compilation happen once a process
    print(f"{'':28}{'memory':>10}{'file':>10}")
    for label, measure in (("first list after start, ms", first_list), ("creates a second, one by one", writes)):
        print(f"{label:28}{median(measure, file=False):>10.1f}{median(measure, file=True):>10.1f}")
