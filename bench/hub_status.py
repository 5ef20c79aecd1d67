"""How long does a status take from the hub to the project? Prints one table.

Run with `.venv/bin/python -m bench.hub_status` for the embedded engine, or with `--kubeconfigs .engine/kubeconfigs` for
a running real one: the directory holds one file per plane.

Statuses are written on the hub at a steady rate, over as many deployments as there are changes per second, in a city
that no site serves, so that nobody else answers for them. Each is timed from the server's answer on the hub to an event
of a watch on the project. The raw write is that same write on the hub, in the same run.
"""

import argparse
import asyncio
import logging
import random
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import structlog
from msgspec import Struct

from bench import parser
from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT, WorkloadDeployment
from datum_compute.federation.roles import HUB, PROJECT
from datum_compute.kube.access.kubeconfig import load
from datum_compute.kube.client import Client
from datum_compute.kube.errors import AlreadyExists, Conflict, NotFound
from datum_compute.kube.http import HttpTransport
from datum_compute.kube.inprocess import InProcess
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.kube.meta import Json
from datum_compute.kube.transport import Transport
from datum_compute.local.engine import compute_engine
from datum_compute.management.federator import Federator
from datum_compute.runtime import Fleet, Manager, Plane, SystemClock, Writes

CITY = "BENCH"
NAMES = "hub-status-"


class Planes(Struct):
    """Two transports to each plane: what is measured must not wait behind the one who measures."""

    project: tuple[Transport, Transport]
    hub: tuple[Transport, Transport]


@asynccontextmanager
async def embedded() -> AsyncIterator[Planes]:
    engine = compute_engine()
    servers = {name: engine.serve(name, role) for name, role in {"project": PROJECT, "hub": HUB}.items()}
    running = asyncio.create_task(engine.run())
    transports = {name: (InProcess(server), InProcess(server)) for name, server in servers.items()}
    try:
        yield Planes(**transports)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        engine.close()


@asynccontextmanager
async def real(directory: Path, project: str, hub: str) -> AsyncIterator[Planes]:
    opened = {
        plane: (HttpTransport(load([directory / f"{name}.yaml"])), HttpTransport(load([directory / f"{name}.yaml"])))
        for plane, name in {"project": project, "hub": hub}.items()
    }
    try:
        yield Planes(**opened)
    finally:
        for pair in opened.values():
            for transport in pair:
                await transport.close()


def deployment(number: int) -> Json:
    template = {
        "spec": {
            "runtime": {
                "resources": {"instanceType": "datumcloud/d1-standard-2"},
                "sandbox": {"containers": [{"name": "web", "image": "registry.example/hello:1"}]},
            },
            "networkInterfaces": [{"network": {"name": "default"}}],
        },
    }
    spec = {
        "workloadRef": {"name": "hub-status", "uid": "made-by-hand"},
        "placementName": "main",
        "cityCode": CITY,
        "template": template,
        "scaleSettings": {"minReplicas": 1, "instanceManagementPolicy": "OrderedReady"},
    }
    return WORKLOAD_DEPLOYMENT.body(f"{NAMES}{number}", "default") | {"spec": spec}


def status(change: int) -> Json:
    zeros = dict.fromkeys(("currentReplicas", "updatedReplicas", "desiredReplicas", "readyReplicas"), 0)
    return zeros | {"replicas": change}


class Measured:
    """When each change was answered on the hub, and when it was seen in the project."""

    def __init__(self) -> None:
        self.raw: list[float] = []
        self.answered: dict[tuple[str, int], float] = {}
        self.seen: dict[tuple[str, int], float] = {}

    def arrived(self, change: tuple[str, int]) -> float | None:
        """When it was seen, or what came after it on the same deployment: nobody misses what was overtaken."""
        name, number = change
        return min((at for (other, later), at in self.seen.items() if other == name and later >= number), default=None)

    def hops(self) -> list[float]:
        arrivals = {change: self.arrived(change) for change in self.answered}
        return sorted(at - self.answered[change] for change, at in arrivals.items() if at is not None)


async def follow(project: Client, resource_version: str, measured: Measured) -> None:
    async with project.watch(WORKLOAD_DEPLOYMENT, resource_version, timeout_seconds=3600) as events:
        async for event in events:
            if event.object is not None and event.object.status is not None:
                measured.seen.setdefault((event.object.name, event.object.status.replicas), time.perf_counter())


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while True:
            if await condition():
                return
            await asyncio.sleep(0.05)


async def measure(planes: Planes, rate: int, seconds: int) -> Measured:
    project, hub = Client("project", planes.project[0]), Client("hub", planes.hub[0])
    with suppress(AlreadyExists):
        await project.create(NAMESPACE, NAMESPACE.body("default"))
    home = f"ns-{(await project.get(NAMESPACE, 'default')).metadata.uid}"
    fleet, writes = Fleet(), Writes()
    for name, role, transport in (("project", PROJECT, planes.project[1]), ("hub", HUB, planes.hub[1])):
        fleet.add(Plane(name, role, transport, writes=writes, generator=random.Random(1)))
    running = asyncio.create_task(Manager(fleet, [Federator(fleet)], SystemClock()).run())
    measured = Measured()
    following: asyncio.Task[None] | None = None
    try:
        for number in range(rate):
            await project.create(WORKLOAD_DEPLOYMENT, deployment(number))

        async def on_the_hub() -> dict[str, WorkloadDeployment]:
            deployments = (await hub.list(WORKLOAD_DEPLOYMENT, home)).items
            return {item.name: item for item in deployments if item.name.startswith(NAMES)}

        async def all_there() -> bool:
            return len(await on_the_hub()) == rate

        await until(all_there)
        copies = await on_the_hub()
        listing = await project.list(WORKLOAD_DEPLOYMENT, "default")
        following = asyncio.create_task(follow(project, listing.resource_version, measured))
        began = time.perf_counter()
        for change in range(1, rate * seconds + 1):
            await asyncio.sleep(max(0.0, began + change / rate - time.perf_counter()))
            name = f"{NAMES}{change % rate}"
            sent = time.perf_counter()
            try:
                copies[name] = await hub.replace_status(WORKLOAD_DEPLOYMENT, copies[name], status(change))
            except Conflict:  # the hub puts marks of its own on it; this change is left out
                copies[name] = await hub.get(WORKLOAD_DEPLOYMENT, name, home)
                continue
            answered = time.perf_counter()
            measured.raw.append(answered - sent)
            measured.answered[name, change] = answered

        async def all_seen() -> bool:
            return len(measured.hops()) == len(measured.answered)

        await until(all_seen)
    finally:
        for number in range(rate):
            with suppress(NotFound):
                await project.delete(WORKLOAD_DEPLOYMENT, f"{NAMES}{number}", "default")

        async def all_gone() -> bool:
            left = (await project.list(WORKLOAD_DEPLOYMENT)).items
            return not [item for item in left if item.name.startswith(NAMES)]

        await until(all_gone)
        ended = [task for task in (following, running) if task is not None]
        for task in ended:
            task.cancel()
        await asyncio.gather(*ended, return_exceptions=True)
    return measured


async def main(arguments: argparse.Namespace) -> None:
    directory: Path | None = arguments.kubeconfigs
    opened = embedded() if directory is None else real(directory, arguments.project, arguments.hub)
    async with opened as planes:
        measured = await measure(planes, arguments.rate, arguments.seconds)
    raw, hops = statistics.median(measured.raw), measured.hops()
    median, worst = statistics.median(hops), hops[int(len(hops) * 0.99)]
    print(f"{len(hops)} changes at {arguments.rate} per second, {'embedded' if directory is None else 'real'} engine")
    print(f"{'raw write on the hub, median':36}{raw * 1000:>8.2f} ms")
    print(f"{'hub status to project status, median':36}{median * 1000:>8.2f} ms{median / raw:>8.2f} x raw")
    print(f"{'hub status to project status, p99':36}{worst * 1000:>8.2f} ms{worst / raw:>8.2f} x raw")


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument(
        "--kubeconfigs", type=Path, help="directory with one kubeconfig per plane; embedded without it"
    )
    options.add_argument("--project", default="control-plane", help="the project's file in it, without .yaml")
    options.add_argument("--hub", default="downstream", help="the hub's file in it, without .yaml")
    options.add_argument("--rate", type=int, default=50, help="changes per second")
    options.add_argument("--seconds", type=int, default=20)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    asyncio.run(main(options.parse_args()))
