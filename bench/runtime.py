"""How much does the runtime itself cost? Prints one table, each figure next to its aim.

Run with `.venv/bin/python -m bench.runtime`, or with the names of what to measure. Rates and ratios are of CPU time,
because machines are noisy; each measurement has a process of its own.
"""

import asyncio
import gc
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import msgspec
import structlog

from bench import chosen
from bench.api import instance
from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE
from datum_compute.api.karmada import CLUSTER
from datum_compute.embedded.engine import Engine
from datum_compute.embedded.storage.log import Log
from datum_compute.federation.roles import CELL, HUB, PROJECT
from datum_compute.kube.inprocess import InProcess
from datum_compute.kube.kinds import NAMESPACE, Kind
from datum_compute.kube.meta import Json, encode
from datum_compute.kube.transport import Answer, Call, Transport
from datum_compute.local.engine import compute_engine
from datum_compute.management.federator import Federator
from datum_compute.runtime import Controller, Fleet, Pass, Plane, Reconciler, Source, SystemClock, Writes, itself
from datum_compute.runtime.testing.faults import Faults, calls
from datum_compute.runtime.testing.simulation import Simulation

OBJECTS = 20_000
PLANES = 50
IDLE_SECONDS = 70.0  # with a bookmark on every watch
DEPLOYMENTS = 300
ROUNDS = 3
CALL_SECONDS = 0.02


def plane(name: str, role: str, transport: Transport) -> Plane:
    return Plane(name, role, transport, writes=Writes(), generator=random.Random(1))


class Trivial:
    """Only reads the object."""

    name = "trivial"

    def __init__(self) -> None:
        self.seen = 0

    def sources(self) -> Sequence[Source[Any]]:
        return [Source(CELL, INSTANCE, itself, {"owner": _owner})]

    async def reconcile(self, pass_: Pass) -> None:
        assert pass_.get(INSTANCE) is not None
        self.seen += 1


def _owner(object_: Any) -> list[str]:
    return [owner.uid for owner in object_.metadata.owner_references]


class Replay:
    """A server with a list in pages, and one watch that brings `lines` once `go` is set."""

    def __init__(self, number: int, lines: Sequence[bytes] = ()) -> None:
        self.go = asyncio.Event()
        self._number = number
        self._news = lines

    async def call(self, call: Call) -> Answer:
        start, size = int(call.query.get("continue", 0)), int(call.query["limit"])
        end = min(start + size, self._number)
        page = b",".join(instance(number) for number in range(start, end))
        goes_on = str(end) if end < self._number else ""
        head = encode({"resourceVersion": "2000000", "continue": goes_on})
        return Answer(200, b'{"metadata":' + head + b',"items":[' + page + b"]}")

    @asynccontextmanager
    async def stream(self, call: Call) -> AsyncIterator[AsyncIterator[bytes]]:
        yield self._lines()

    async def _lines(self) -> AsyncIterator[bytes]:
        await self.go.wait()
        for number, line in enumerate(self._news):
            if number % 16 == 0:
                await asyncio.sleep(0)  # about as many come in one read of a socket
            yield line
        await asyncio.get_running_loop().create_future()


def _changed(data: bytes, version: int) -> bytes:
    before = b'"resourceVersion":"'
    at = data.index(before) + len(before)
    return b'{"type":"MODIFIED","object":' + data[:at] + str(version).encode() + data[at + 7 :] + b"}"


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 (a bench may look now and then)
        await asyncio.sleep(0.001)


async def _events() -> float:
    fleet = Fleet()
    trivial = Trivial()
    controller = Controller(trivial, fleet, SystemClock())
    replay = Replay(OBJECTS, [_changed(instance(number), 3_000_000 + number) for number in range(OBJECTS)])
    fleet.add(plane("cell", CELL, replay))
    running = [asyncio.create_task(fleet.run()), asyncio.create_task(controller.run())]
    await _until(lambda: trivial.seen == OBJECTS)
    gc.collect()
    began = time.process_time()
    replay.go.set()
    await _until(lambda: trivial.seen == 2 * OBJECTS)
    taken = time.process_time() - began
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    return OBJECTS / taken


def events(_: object) -> float:
    return max(asyncio.run(_events()) for _ in range(ROUNDS))


async def _memory() -> float:
    one = plane("cell", CELL, Replay(OBJECTS))
    informer = one.informer(INSTANCE)
    informer.index("owner", _owner)
    instance(0)
    gc.collect()
    before = _resident()
    running = asyncio.create_task(one.run())
    await one.synced()
    gc.collect()
    after = _resident()
    assert len(informer) == OBJECTS
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return (after - before) / OBJECTS / 1000


def memory(_: object) -> float:
    return asyncio.run(_memory())


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096


async def _idle() -> float:
    engine = compute_engine(Log())
    kinds: list[Kind[Any]] = [NAMESPACE, WORKLOAD_DEPLOYMENT, INSTANCE]
    planes = []
    for number in range(PLANES):
        planes.append(plane(f"cell-{number}", CELL, InProcess(engine.serve(f"cell-{number}", CELL))))
        for kind in kinds:
            planes[-1].informer(kind)
    running = [asyncio.create_task(engine.run()), *(asyncio.create_task(plane.run()) for plane in planes)]
    await asyncio.gather(*(plane.synced() for plane in planes))
    await asyncio.sleep(1)
    began, wall = time.process_time(), time.perf_counter()
    await asyncio.sleep(IDLE_SECONDS)
    share = (time.process_time() - began) / (time.perf_counter() - wall) * 100
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    engine.close()
    return share


def idle(_: object) -> float:
    return asyncio.run(_idle())


class Recording:
    """Notes every watch, and every write that succeeded, with the plane it went to."""

    def __init__(self, transport: Transport, name: str, made: list[tuple[str, Call]]) -> None:
        self._transport = transport
        self._name = name
        self._made = made

    async def call(self, call: Call) -> Answer:
        answer = await self._transport.call(call)
        if call.method != "GET" and answer.code < 300:
            self._made.append((self._name, call))
        return answer

    @asynccontextmanager
    async def stream(self, call: Call) -> AsyncIterator[AsyncIterator[bytes]]:
        self._made.append((self._name, call))
        async with self._transport.stream(call) as lines:
            yield lines


def deployment(number: int) -> Json:
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
    spec = {
        "workloadRef": {"name": "hello", "uid": "uid-of-hello"},
        "placementName": "main",
        "cityCode": "DFW",
        "template": template,
        "scaleSettings": {"minReplicas": 2, "instanceManagementPolicy": "OrderedReady"},
    }
    return WORKLOAD_DEPLOYMENT.body(f"web-{number}", "default") | {"spec": spec}


async def _world() -> Engine:
    engine = compute_engine(Log())
    engine.serve("demo", PROJECT)
    engine.serve("hub", HUB)
    await engine.client("demo").create(NAMESPACE, NAMESPACE.body("default"))
    await engine.client("hub").create(CLUSTER, CLUSTER.body("cell", labels={"topology.datum.net/city-code": "DFW"}))
    return engine


async def _federator() -> tuple[float, list[tuple[str, Call]]]:
    """CPU seconds that 300 deployments take, and the calls made for them."""
    engine = await _world()
    made: list[tuple[str, Call]] = []
    fleet = Fleet()
    reconciler: Reconciler = Federator(fleet)
    controller = Controller(reconciler, fleet, SystemClock())
    for name, role in (("demo", PROJECT), ("hub", HUB)):
        fleet.add(plane(name, role, Recording(InProcess(engine.serve(name, role)), name, made)))
    running = [asyncio.create_task(work) for work in (engine.run(), fleet.run(), controller.run())]
    await _until(lambda: fleet.has("demo") and fleet.has("hub"))
    for number in range(DEPLOYMENTS):
        await engine.client("demo").create(WORKLOAD_DEPLOYMENT, deployment(number))
        if not number:
            began = time.process_time()
    last, quiet = -1, 0
    while quiet < 200:  # rounds of the loop in which nothing was asked for
        await asyncio.sleep(0)
        quiet = quiet + 1 if len(made) == last and not len(controller.queue) else 0
        last = len(made)
    taken = time.process_time() - began
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    engine.close()
    return taken, made


async def _converge() -> float:
    """Simulated seconds until 300 deployments are on the hub, when each call takes a while as over a network."""
    engine = await _world()
    fleet = Fleet()
    controller = Controller(Federator(fleet), fleet, SystemClock())
    for name, role in (("demo", PROJECT), ("hub", HUB)):
        slow = Faults(InProcess(engine.serve(name, role)), random.Random(1))
        slow.slow_down(CALL_SECONDS, calls())
        fleet.add(plane(name, role, slow))
    running = [asyncio.create_task(work) for work in (engine.run(), fleet.run())]
    for number in range(DEPLOYMENTS):
        await engine.client("demo").create(WORKLOAD_DEPLOYMENT, deployment(number))
    await asyncio.sleep(1)
    loop = asyncio.get_running_loop()
    began = loop.time()
    running.append(asyncio.create_task(controller.run()))
    while len((await engine.client("hub").list(WORKLOAD_DEPLOYMENT)).items) < DEPLOYMENTS:  # noqa: ASYNC110 (a bench)
        await asyncio.sleep(CALL_SECONDS / 10)
    taken = loop.time() - began
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    return taken


def converge(_: object) -> float:
    with asyncio.Runner(loop_factory=lambda: Simulation.seeded(1)) as runner:
        return runner.run(_converge())


async def _read(transport: InProcess, call: Call) -> None:
    async with transport.stream(call) as lines:
        async for _ in lines:
            pass


async def _by_hand(made: list[tuple[str, Call]]) -> float:
    """CPU seconds of the same calls made one after the other, without deciding anything."""
    engine = await _world()
    versions: dict[tuple[str, str], str] = {}
    uids: dict[tuple[str, str], str] = {}
    transports = {name: InProcess(engine.serve(name, role)) for name, role in (("demo", PROJECT), ("hub", HUB))}
    watches = [_read(transports[name], call) for name, call in made if call.method == "GET"]
    running = [asyncio.create_task(work) for work in (engine.run(), *watches)]
    await asyncio.sleep(0.1)
    began = time.process_time()
    for number in range(DEPLOYMENTS):
        one = await engine.client("demo").create(WORKLOAD_DEPLOYMENT, deployment(number))
        path = WORKLOAD_DEPLOYMENT.path("default", one.name)
        versions["demo", path], uids["demo", path] = one.metadata.resource_version, one.metadata.uid
    for name, call in made:
        if call.method == "GET":
            continue
        place = (name, call.path.removesuffix("/status"))
        body = msgspec.json.decode(call.body)
        metadata = body.get("metadata", {})
        if "resourceVersion" in metadata:
            metadata["resourceVersion"] = versions[place]
        if call.method != "POST" and "uid" in metadata:
            metadata["uid"] = uids[place]
        answer = await transports[name].call(msgspec.structs.replace(call, body=encode(body)))
        assert answer.code < 300, (call, answer)
        after = msgspec.json.decode(answer.body)["metadata"]
        at = f"{call.path}/{after['name']}" if call.method == "POST" else place[1]
        versions[name, at], uids[name, at] = after["resourceVersion"], after["uid"]
    taken = time.process_time() - began
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    engine.close()
    return taken


def federator(_: object) -> float:
    ratios = []
    for _ in range(ROUNDS):
        ours, made = asyncio.run(_federator())
        raw = asyncio.run(_by_hand([(name, call) for name, call in made if not call.path.endswith("/events")]))
        ratios.append(ours / raw)
    return min(ratios)


TABLE: list[tuple[str, Callable[[object], float], str]] = [
    (f"events/s through informer, queue and pass, {OBJECTS:,} objects", events, "10,000"),
    ("kB per cached object of 4 kB", memory, "10"),
    (f"% CPU idle, {PLANES} planes x 3 kinds watched", idle, "1"),
    (f"federator's job, {DEPLOYMENTS} deployments, to the same calls by hand", federator, "1.3"),
    (f"s until {DEPLOYMENTS} deployments are on the hub, {CALL_SECONDS * 1000:.0f} ms per call", converge, "1"),
]


def _without_logs() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))


def main(names: Sequence[str]) -> None:
    print(f"{'':66}{'measured':>10}{'aim':>10}")
    for label, measure, aim in TABLE:
        if measure.__name__ not in names:
            continue
        with ProcessPoolExecutor(1, get_context("spawn"), _without_logs, max_tasks_per_child=1) as fresh:
            [result] = fresh.map(measure, [None])
        print(f"{label:66}{result:>10,.2f}{aim:>10}")


if __name__ == "__main__":
    main(chosen(__doc__, (measure.__name__ for _, measure, _ in TABLE)))
