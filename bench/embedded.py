"""How fast is the embedded engine? Prints one table, each figure next to its aim.

Run with `.venv/bin/python -m bench.embedded`, or with the names of what to measure. Each measurement has a process of
its own, and so has a server that is called over HTTPS. Writes per second are of CPU time, of that server where there is
one: what one idle core would do. The other figures are wall clock time, and a busy machine makes them worse.
"""

import asyncio
import logging
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import msgspec
import structlog
from msgspec import Struct

from bench import chosen
from datum_compute.api.instance import AVAILABLE, INSTANCE
from datum_compute.api.workload import WORKLOAD
from datum_compute.embedded.https.certificates import Credentials
from datum_compute.embedded.https.server import HttpsServer
from datum_compute.embedded.storage.log import Log
from datum_compute.embedded.storage.records import Key, RandomUids, Record
from datum_compute.embedded.storage.store import Operation, Store, Transaction
from datum_compute.embedded.storage.writer import InlineWriter, Writer, WriterThread
from datum_compute.federation.roles import PROJECT
from datum_compute.kube import conditions
from datum_compute.kube.access.kubeconfig import Endpoint
from datum_compute.kube.client import Client
from datum_compute.kube.http import HttpTransport
from datum_compute.kube.inprocess import InProcess
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.kube.meta import Json, encode
from datum_compute.kube.transport import Call, Transport
from datum_compute.local import daemon
from datum_compute.local.engine import compute_engine
from datum_compute.local.federation import Federation, simulated
from datum_compute.platform.grants import DEFAULT_LIMITS
from datum_compute.providers.simulated import Behaviour
from datum_compute.runtime import SystemClock
from datum_compute.runtime.process import collect_rarely

ROUNDS = 3
WRITES = 3000
AT_ONCE = 16  # clients over HTTPS
RATE = 500  # writes per second while the delay of events is measured
EVENT_SECONDS = 10
OBJECTS = 100_000
WORKLOADS, REPLICAS = 20, 50  # in each of two cities: 2,000 Instances

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"

Figure = tuple[str, str, str]  # what, how much, the aim


def workload(number: int, replicas: int = 2) -> Json:
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
    placements = [{"name": "main", "cityCodes": ["DFW", "AMS"], "scaleSettings": {"minReplicas": replicas}}]
    return WORKLOAD.body(f"web-{number}", "default") | {"spec": {"template": template, "placements": placements}}


@contextmanager
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp())
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def start() -> list[Figure]:
    """From the command to a federation that is ready, the first time and with state."""
    first, again = [], []
    for _ in range(ROUNDS):
        with folder() as directory:
            first.append(seconds(lambda: daemon.up(directory)))
            daemon.down(directory)
            again.append(seconds(lambda: daemon.up(directory)))
            daemon.down(directory)
    return [
        ("start to serving, nothing stored", f"{statistics.median(first):.2f} s", "1 s"),
        ("start to serving, again", f"{statistics.median(again):.2f} s", "1 s"),
    ]


async def _create(client: Client, numbers: Iterator[int]) -> None:
    for number in numbers:
        await client.create(WORKLOAD, workload(number))


async def _rate(client: Client, at_once: int, used: Callable[[], float] = time.process_time) -> float:
    """Workloads created per second of CPU time, all checks included."""
    numbers = iter(range(WRITES))
    before = used()
    await asyncio.gather(*(_create(client, numbers) for _ in range(at_once)))
    return WRITES / (used() - before)


async def _in_process(path: Path | None, at_once: int, writer: Callable[[Store], Writer]) -> float:
    engine = compute_engine(Log(path), writer=writer)
    engine.serve("demo", PROJECT)
    client = engine.client("demo")
    await client.create(NAMESPACE, NAMESPACE.body("default"))
    rate = await _rate(client, at_once)
    engine.close()
    return rate


def writes() -> list[Figure]:
    rates: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        with folder() as directory:
            for label, measured in {
                "memory, one by one": _in_process(None, 1, InlineWriter),
                "file, one by one": _in_process(directory / "one.db", 1, WriterThread),
                f"file, {AT_ONCE} at once": _in_process(directory / "many.db", AT_ONCE, WriterThread),
            }.items():
                rates.setdefault(label, []).append(asyncio.run(measured))
    return [
        (f"creates in process, {label}", f"{statistics.median(found):,.0f}/s", "5,000/s")
        for label, found in rates.items()
    ]


async def _serve(directory: Path) -> None:
    engine = compute_engine(Log(directory / "log.db"), writer=WriterThread)
    engine.serve("demo", PROJECT)
    server = HttpsServer(engine, Credentials.ensure(directory / "credentials"))
    await server.start()
    await engine.client("demo").create(NAMESPACE, NAMESPACE.body("default"))
    os.write(1, msgspec.json.encode(server.endpoint("demo")) + b"\n")
    await engine.run()


class Served(Struct):
    """A server in a process of its own."""

    process: int
    endpoint: Endpoint

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def serving() -> Iterator[Served]:
    with folder() as directory:
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.embedded", "serve", str(directory)], stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        try:
            yield Served(process.pid, msgspec.json.decode(process.stdout.readline(), type=Endpoint))
        finally:
            process.kill()
            process.communicate()


def https() -> list[Figure]:
    async def measure(server: Served) -> float:
        transport = HttpTransport(server.endpoint)
        rate = await _rate(Client("demo", transport), AT_ONCE, server.cpu_seconds)
        await transport.close()
        return rate

    rates = []
    for _ in range(ROUNDS):
        with serving() as server:
            rates.append(asyncio.run(measure(server)))
    return [(f"creates over HTTPS, {AT_ONCE} at once", f"{statistics.median(rates):,.0f}/s", "1,500/s")]


async def _delays(transport: Transport, watchers: int) -> list[float]:
    """Delay of every event to every watcher, in ms, from before the write was sent."""
    await transport.call(Call("POST", CONFIG_MAPS, {}, encode(_config_map(0))))
    found: list[float] = []
    ready = asyncio.Semaphore(0)

    async def watch() -> None:
        async with transport.stream(Call("GET", CONFIG_MAPS, {"watch": "1"})) as lines:
            async for line in lines:
                sent = float(line.partition(b'"sent":"')[2].partition(b'"')[0])
                if sent:
                    found.append((time.perf_counter() - sent) * 1000)
                else:
                    ready.release()

    watching = [asyncio.create_task(watch()) for _ in range(watchers)]
    for _ in range(watchers):
        await ready.acquire()
    began, total = time.perf_counter(), RATE * EVENT_SECONDS
    writing: set[asyncio.Task[object]] = set()
    for number in range(1, total + 1):
        await asyncio.sleep(max(0.0, began + number / RATE - time.perf_counter()))
        body = encode(_config_map(number, sent=time.perf_counter()))
        writing.add(asyncio.create_task(_written(transport, body)))
    await asyncio.gather(*writing)
    while len(found) < total * watchers:  # noqa: ASYNC110 - each watcher tells for itself
        await asyncio.sleep(0.01)
    for task in watching:
        task.cancel()
    await asyncio.gather(*watching, return_exceptions=True)
    return found


async def _written(transport: Transport, body: bytes) -> None:
    await transport.call(Call("POST", CONFIG_MAPS, {}, body))


def _config_map(number: int, sent: float = 0) -> Json:
    metadata = {"name": f"event-{number}"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"sent": str(sent), "x": "x" * 500}}


def events() -> list[Figure]:
    async def in_process() -> list[float]:
        engine = compute_engine(Log(), writer=WriterThread)
        server = engine.serve("demo", PROJECT)
        await engine.client("demo").create(NAMESPACE, NAMESPACE.body("default"))
        found = await _delays(InProcess(server), 200)
        engine.close()
        return found

    async def over_https(endpoint: Endpoint) -> list[float]:
        transport = HttpTransport(endpoint)
        found = await _delays(transport, 20)
        await transport.close()
        return found

    figures = {"200 watchers in process": asyncio.run(in_process())}
    with serving() as server:
        figures["20 watchers over HTTPS"] = asyncio.run(over_https(server.endpoint))
    return [
        (f"event to {label}, {RATE} writes/s, 99th of 100", f"{statistics.quantiles(found, n=100)[98]:.0f} ms", "50 ms")
        for label, found in figures.items()
    ]


def _stored(number: int) -> Operation[Record]:
    key = Key("demo", WORKLOAD.resource, "default", f"web-{number}")

    def operation(transaction: Transaction) -> Record:
        value = workload(number)
        return transaction.put(key, value | {"metadata": value["metadata"] | {"uid": transaction.new_uid(key)}})

    return operation


def load() -> list[Figure]:
    """From a file to the first answer."""
    with folder() as directory:
        path = directory / "log.db"
        log = Log(path)
        store = Store(log, RandomUids())
        for begin in range(0, OBJECTS, 1000):
            store.apply([_stored(number) for number in range(begin, begin + 1000)])
        log.close()
        size = path.stat().st_size / 1e6
        del store

        async def first_answer() -> None:
            engine = compute_engine(Log(path))
            engine.serve("demo", PROJECT)
            await engine.client("demo").get(WORKLOAD, "web-0", "default")
            engine.close()

        taken = seconds(lambda: asyncio.run(first_answer()))
    return [(f"load of {OBJECTS:,} objects ({size:,.0f} MB)", f"{taken:.1f} s", "10 s")]


async def _available(federation: Federation) -> int:
    """How many Instances are Available in the project; listed only when its Workloads count as many ready."""
    client = federation.client("demo")
    counted = [item.status.ready_replicas for item in (await client.list(WORKLOAD)).items if item.status]
    if sum(counted) < WORKLOADS * REPLICAS * 2:
        return 0
    return sum(conditions.is_true(conditions.of(item), AVAILABLE) for item in (await client.list(INSTANCE)).items)


async def _until(condition: Callable[[], Awaitable[bool]]) -> None:
    while True:
        if await condition():
            return
        await asyncio.sleep(0.25)


async def _converge(path: Path) -> float:
    engine = compute_engine(Log(path), writer=WriterThread)
    federation = Federation(
        engine,
        projects=["demo"],
        cities={"DFW": "cell-dfw", "AMS": "cell-ams"},
        limits={name: limit * 1000 for name, limit in DEFAULT_LIMITS.items()},
        clock=SystemClock(),
        generator=random.Random(1),
        provider=simulated(Behaviour()),
    )
    work = asyncio.create_task(federation.run())
    await federation.seed()
    await _until(partial(federation.is_ready, "demo"))
    await federation.prepare("demo")
    client = federation.client("demo")
    began = time.perf_counter()
    for number in range(WORKLOADS):
        await client.create(WORKLOAD, workload(number, REPLICAS))

    async def all_available() -> bool:
        return await _available(federation) == WORKLOADS * REPLICAS * 2

    await _until(all_available)
    taken = time.perf_counter() - began
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    engine.close()
    return taken


def federation() -> list[Figure]:
    with folder() as directory:
        taken = asyncio.run(_converge(directory / "log.db"))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    many = f"{WORKLOADS * REPLICAS * 2:,} Instances to Available"
    return [(many, f"{taken:.0f} s", "60 s"), (f"{many}, memory", f"{memory:.0f} MB", "500 MB")]


QUESTIONS: dict[str, Callable[[], list[Figure]]] = {
    question.__name__: question for question in (start, writes, https, events, load, federation)
}


def as_a_program() -> None:
    """Applies the settings of our programs, without logs."""
    collect_rarely()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))


def main(names: Sequence[str]) -> None:
    print(f"{'':78}{'found':>12}{'aim':>12}")
    for name in names:
        with ProcessPoolExecutor(1, get_context("spawn"), as_a_program) as processes:
            for what, found, aim in processes.submit(QUESTIONS[name]).result():
                print(f"{what:78}{found:>12}{aim:>12}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        as_a_program()
        asyncio.run(_serve(Path(sys.argv[2])))
    else:
        main(chosen(__doc__, QUESTIONS))
