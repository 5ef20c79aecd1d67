"""What does it cost to follow logs? Prints one table, each figure next to its aim.

Run with `.venv/bin/python -m bench.logs`, or with the names of what to measure. A server in a process of its own
receives lines as a provider would report them, and serves them over HTTPS; CPU time and memory are those of that
process, which also makes up the lines. SECONDS sets how long lines are followed, 60 by default.
"""

import asyncio
import logging
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import msgspec
import structlog
from msgspec import Struct

from bench import chosen
from datum_compute.embedded.https.certificates import Credentials
from datum_compute.embedded.https.extensions import Extension
from datum_compute.embedded.https.server import HttpsServer
from datum_compute.embedded.storage.log import Log
from datum_compute.embedded.storage.writer import WriterThread
from datum_compute.federation.lines import STDOUT, Line, Origin
from datum_compute.federation.roles import PROJECT
from datum_compute.kube.access.kubeconfig import Endpoint
from datum_compute.local.engine import compute_engine
from datum_compute.local.logs import Logs
from datum_compute.runtime import SystemClock
from datum_compute.runtime.process import collect_rarely
from datum_compute.telemetry.gateway import GROUP, ROOT, VERSION
from datum_compute.telemetry.memory.ring import MOST_LINES

SECONDS = float(os.environ.get("SECONDS", "60"))
CONTAINERS = 100
RATE = 10  # lines per second of each
LINE = "x" * 80

Figure = tuple[str, str, str]  # what, how much, the aim


def _origin(number: int) -> Origin:
    return Origin("demo", "default", "api", "default", "DFW", f"api-default-dfw-{number}", f"uid-{number}", "app")


async def _write(logs: Logs) -> None:
    """Each container writes at its own moments; each line has a number."""
    origins = [_origin(number) for number in range(CONTAINERS)]
    for origin in origins:
        logs.ring.started(origin, time.time_ns())
    period = 1 / (RATE * CONTAINERS)
    began, written = time.perf_counter(), 0
    while True:
        due = int((time.perf_counter() - began) / period)
        while written < due:
            line = Line(time.time_ns(), STDOUT, f"{written // CONTAINERS} {LINE}")
            logs.ring.add(origins[written % CONTAINERS], [line])
            written += 1
        await asyncio.sleep(0.005)


async def _serve(directory: Path) -> None:
    engine = compute_engine(Log(directory / "log.db"), writer=WriterThread)
    engine.serve("demo", PROJECT)
    logs = Logs(SystemClock())
    extension = Extension(GROUP, VERSION, PROJECT, logs.gateway)
    server = HttpsServer(engine, Credentials.ensure(directory / "credentials"), extensions=[extension])
    await server.start()
    os.write(1, msgspec.json.encode(server.endpoint("demo")) + b"\n")
    await asyncio.gather(_write(logs), engine.run())


class Served(Struct):
    process: int
    endpoint: Endpoint

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def megabytes(self) -> float:
        pages = int(Path(f"/proc/{self.process}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@contextmanager
def serving() -> Iterator[Served]:
    directory = tempfile.mkdtemp()
    process = subprocess.Popen([sys.executable, "-m", "bench.logs", "serve", directory], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield Served(process.pid, msgspec.json.decode(process.stdout.readline(), type=Endpoint))
    finally:
        process.kill()
        process.communicate()
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def tail(server: Served) -> Iterator[socket.socket]:
    """A connection whose answer follows all lines from now on; its head is not read yet."""
    url = urlsplit(server.endpoint.server)
    tls = server.endpoint.tls()
    assert url.hostname is not None
    assert tls is not None
    parameters = urlencode({"query": '{datum_workload_name="api"}', "start": time.time_ns(), "limit": 1})
    with (
        socket.create_connection((url.hostname, url.port or 443)) as plain,
        tls.wrap_socket(plain, server_hostname=url.hostname) as connection,
    ):
        head = (
            f"GET {url.path}{ROOT}tail?{parameters} HTTP/1.1\r\nHost: {url.netloc}\r\n"
            f"Authorization: Bearer {server.endpoint.token}\r\n\r\n"
        )
        connection.sendall(head.encode())
        yield connection


def _frames(connection: socket.socket, until: float) -> Iterator[bytes]:
    """The lines of an answer in chunks."""
    with connection.makefile("rb") as answer:
        while answer.readline() != b"\r\n":
            pass
        rest = b""
        while time.perf_counter() < until:
            piece = answer.read(int(answer.readline(), 16))
            answer.readline()
            *lines, rest = (rest + piece).split(b"\n")
            yield from lines


def follow() -> list[Figure]:
    """A client that reads everything."""
    delays: list[float] = []
    numbers: dict[str, list[int]] = {}
    with serving() as server:
        time.sleep(2)  # the start of the process is not measured
        idle_cpu, began = server.cpu_seconds(), time.perf_counter()
        time.sleep(5)
        idle = (server.cpu_seconds() - idle_cpu) / (time.perf_counter() - began)
        memory = server.megabytes()
        with tail(server) as connection:
            began, cpu = time.perf_counter(), server.cpu_seconds()
            for frame in _frames(connection, began + SECONDS):
                now = time.time_ns()
                for stream in msgspec.json.decode(frame).get("streams", ()):
                    found = numbers.setdefault(stream["stream"]["datum_instance_name"], [])
                    for moment, text in stream["values"]:
                        delays.append((now - int(moment)) / 1e6)
                        found.append(int(text.split(" ")[0]))
            taken = time.perf_counter() - began
            used = (server.cpu_seconds() - cpu) / taken
            grown = server.megabytes() - memory
    wrong = sum(found != list(range(found[0], found[0] + len(found))) for found in numbers.values())
    delays.sort()
    rate = f"{CONTAINERS} containers, {RATE} lines/s each"
    return [
        (f"{rate}: lines followed", f"{len(delays):,}", f"{CONTAINERS * RATE * SECONDS:,.0f}"),
        ("streams with a line lost, doubled or out of order", str(wrong), "0"),
        ("delay of a line, median", f"{statistics.median(delays):.0f} ms", ""),
        ("delay of a line, 99 of 100", f"{delays[len(delays) * 99 // 100]:.0f} ms", "250 ms"),
        ("CPU of the server, nobody follows", f"{100 * idle:.1f} %", ""),
        ("CPU of the server, one follows", f"{100 * used:.1f} %", ""),
        ("memory in addition", f"{grown:.1f} MB", "64 MB"),
    ]


def stalled() -> list[Figure]:
    """A client that reads nothing, while its lines fill every buffer; closed after half a minute."""
    with serving() as server:
        with tail(server) as connection:  # what the first tail needs is not that of a client that reads nothing
            next(_frames(connection, time.perf_counter() + 5))
        time.sleep(MOST_LINES / RATE)  # until the ring is full
        memory = server.megabytes()
        with tail(server):
            most = memory
            end = time.perf_counter() + SECONDS
            while time.perf_counter() < end:
                most = max(most, server.megabytes())
                time.sleep(0.2)
    return [("memory for a client that reads nothing", f"{most - memory:.1f} MB", "8 MB")]


QUESTIONS: dict[str, Callable[[], list[Figure]]] = {question.__name__: question for question in (follow, stalled)}


def main(names: Sequence[str]) -> None:
    print(f"{'':60}{'found':>12}{'aim':>12}")
    for name in names:
        for what, found, aim in QUESTIONS[name]():
            print(f"{what:60}{found:>12}{aim:>12}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        collect_rarely()
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
        asyncio.run(_serve(Path(sys.argv[2])))
    else:
        main(chosen(__doc__, QUESTIONS))
