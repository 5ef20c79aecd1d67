"""How long does it take from a workload's creation until it is Available in its project, hop by hop? Prints one table.

Run with `.venv/bin/python -m bench.hops` while the real engine is up. Our side is compute-managers under the generated
roles, as in the scenarios, with the simulated provider, which takes no time of its own.

One workload with one instance at a time, in a project that has another one there already: the first of all also waits
for the cell to connect to the project, and for its network. Each hop is timed by the event that a watch brings here;
what Karmada does between hub and cell is measured in the same run and subtracted.
"""

import asyncio
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog
from msgspec import Struct

from bench import parser
from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import AVAILABLE, INSTANCE, QUOTA_GRANTED, READY
from datum_compute.api.workload import WORKLOAD
from datum_compute.kube import conditions
from datum_compute.kube.client import Client
from datum_compute.kube.kinds import Kind
from engine.harness import Engine
from tests.scenarios.federation import Federation
from tests.scenarios.managers import Managers
from tests.scenarios.real import RealFederation

CITY = "DFW"
NAMES = "hops-"
AIM_MS = 300

Seen = Callable[[Any], bool]


class Hop(Struct, frozen=True):
    what: str
    plane: str
    kind: Kind[Any]
    seen: Seen
    karmada: bool = False


def _there(object_: Any) -> bool:
    return True


def _says(condition: str) -> Seen:
    return lambda object_: object_.status is not None and conditions.is_true(object_.status.conditions, condition)


def _all_ready(object_: Any) -> bool:
    return object_.status is not None and object_.status.ready_replicas == 1 and _says(AVAILABLE)(object_)


# On the way, each after the one before.
WAY = (
    Hop("deployment in the project", "project", WORKLOAD_DEPLOYMENT, _there),
    Hop("deployment on the hub", "hub", WORKLOAD_DEPLOYMENT, _there),
    Hop("deployment in the cell", "cell", WORKLOAD_DEPLOYMENT, _there, karmada=True),
    Hop("instance in the cell", "cell", INSTANCE, _there),
    Hop("quota granted in the cell", "cell", INSTANCE, _says(QUOTA_GRANTED)),
    Hop("instance ready in the cell", "cell", INSTANCE, _says(READY)),
    Hop("deployment available in the cell", "cell", WORKLOAD_DEPLOYMENT, _all_ready),
    Hop("deployment available on the hub", "hub", WORKLOAD_DEPLOYMENT, _all_ready, karmada=True),
    Hop("deployment available in the project", "project", WORKLOAD_DEPLOYMENT, _all_ready),
    Hop("workload available", "project", WORKLOAD, _all_ready),
)

# Beside it: what the user sees of the instance itself, counted from its being ready in the cell.
BESIDE = (
    Hop("instance ready on the hub", "hub", INSTANCE, _says(READY)),
    Hop("instance ready in the project", "project", INSTANCE, _says(READY)),
)


class Watches:
    """When each hop of each workload was first seen."""

    def __init__(self, planes: dict[str, Client]) -> None:
        self._planes = planes
        self.seen: dict[tuple[str, str], float] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        kinds = {(hop.plane, hop.kind.name): hop.kind for hop in (*WAY, *BESIDE)}
        for (plane, _), kind in kinds.items():
            version = (await self._planes[plane].list(kind)).resource_version
            hops = [hop for hop in (*WAY, *BESIDE) if (hop.plane, hop.kind) == (plane, kind)]
            self._tasks.append(asyncio.create_task(self._follow(plane, kind, version, hops)))

    async def _follow(self, plane: str, kind: Kind[Any], version: str, hops: list[Hop]) -> None:
        async with self._planes[plane].watch(kind, version, timeout_seconds=3600) as events:
            async for event in events:
                if event.object is None or event.type == "DELETED":
                    continue
                now = time.perf_counter()
                workload = event.object.name.partition("-main-")[0]  # what all names of it begin with
                for hop in hops:
                    if hop.seen(event.object):
                        self.seen.setdefault((workload, hop.what), now)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def measure(engine: Engine, managers: Managers, count: int) -> tuple[dict[str, float], Watches]:
    real = RealFederation(engine, managers)
    await real.start()
    federation = Federation(real)
    project = federation.project()
    watches = Watches({"project": project.client, "hub": federation.hub, "cell": federation.cell(CITY).client})
    began: dict[str, float] = {}
    try:
        await project.deploy("standing", [CITY])
        await project.until_ready("standing", 1)
        await watches.start()
        for number in range(count):
            name = f"{NAMES}{number}"
            began[name] = time.perf_counter()
            await project.deploy(name, [CITY])

            async def all_seen(name: str = name) -> bool:
                return all((name, hop.what) in watches.seen for hop in (*WAY, *BESIDE))

            await federation.until(all_seen, f"{name} has gone its whole way")
            await project.delete(name)
            await project.until_gone(name)
    finally:
        await watches.stop()
        await real.stop()
    return began, watches


def report(began: dict[str, float], watches: Watches) -> None:
    def line(what: str, seconds: list[float], note: str = "") -> None:
        worst = sorted(seconds)[int(len(seconds) * 0.9)]
        print(f"{what:40}{statistics.median(seconds) * 1000:>8.0f} ms{worst * 1000:>8.0f} ms  {note}".rstrip())

    names = sorted(began)
    load = os.getloadavg()[0]
    print(f"{len(names)} workloads, one at a time; load {load:.1f} on {os.cpu_count()} processors")
    print(f"{'':40}{'median':>11}{'p90':>11}")
    ours, karmadas = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0)
    before = began
    for hop in WAY:
        now = {name: watches.seen[name, hop.what] for name in names}
        took = {name: now[name] - before[name] for name in names}
        whose = karmadas if hop.karmada else ours
        for name in names:
            whose[name] += took[name]
        line(hop.what, list(took.values()), "Karmada" if hop.karmada else "")
        before = now
    ready = {name: watches.seen[name, "instance ready in the cell"] for name in names}
    for hop in BESIDE:
        line(f"beside: {hop.what}", [watches.seen[name, hop.what] - ready[name] for name in names])
    line("all of it", [ours[name] + karmadas[name] for name in names])
    line("Karmada's part", list(karmadas.values()))
    line("our part", list(ours.values()), f"aim: {AIM_MS} ms")


def main(count: int) -> None:
    engine = Engine()
    engine.admit()
    with tempfile.TemporaryDirectory(prefix="hops-") as directory:
        managers = Managers(engine, Path(directory))
        try:
            report(*asyncio.run(measure(engine, managers, count)))
        finally:
            managers.close()


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("--workloads", type=int, default=20)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    main(arguments.parse_args().workloads)
