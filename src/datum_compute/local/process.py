"""The background process of a local federation. Entry point: `main`; started by `local.daemon`."""

import asyncio
import errno
import fcntl
import os
import random
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec
import structlog

from datum_compute.admission.workloads import admit
from datum_compute.api.networking import LOCATION_BINDING
from datum_compute.api.quota import ALLOWANCE_BUCKET
from datum_compute.embedded.certificates import Credentials
from datum_compute.embedded.engine import Engine
from datum_compute.embedded.http import HttpsServer
from datum_compute.embedded.log import Log, LogError
from datum_compute.embedded.writer import WriterThread
from datum_compute.kube.files import write_private
from datum_compute.kube.kubeconfig import Endpoint, write_kubeconfig
from datum_compute.local.daemon import LocalError, Report
from datum_compute.local.federation import HUB_PLANE, ROOT_PLANE, Federation
from datum_compute.local.state import Paths, Running
from datum_compute.platform.grants import DEFAULT_LIMITS, LIMITS
from datum_compute.providers.simulated import Behaviour
from datum_compute.runtime import logs
from datum_compute.runtime.clock import SystemClock
from datum_compute.runtime.memory import collect_rarely

CITIES = {"DFW": "cell-dfw", "AMS": "cell-ams", "SIN": "cell-sin"}
PROJECT = "demo"
# Long enough that a roll can be seen, short enough that nobody waits.
BEHAVIOUR = Behaviour(start_seconds=0.3, stop_seconds=0.2)

_LOOK_SECONDS = 0.01

_log = structlog.get_logger(__name__)


def main(arguments: list[str]) -> int:
    directory, port, pipe = Path(arguments[0]), int(arguments[1]), int(arguments[2])
    _leave()
    logs.configure()
    collect_rarely()
    report = partial(_report, pipe)
    paths = Paths(directory)
    lock = os.open(paths.lock, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        report(Report(busy=True))
        return 1
    os.truncate(lock, 0)
    os.write(lock, str(os.getpid()).encode())
    paths.running.unlink(missing_ok=True)
    try:
        asyncio.run(_serve(paths, port, report))
    except (LocalError, OSError) as error:
        os.close(lock)  # first: who reads the report may try again at once
        report(Report(error=_sentence(error, directory)))
        return 1
    finally:
        paths.running.unlink(missing_ok=True)
    return 0


def _sentence(error: LocalError | OSError, directory: Path) -> str:
    if isinstance(error, LocalError):
        return str(error)
    return f"cannot write to {error.filename or directory}: {error.strerror}; make room, or use another --dir"


async def _serve(paths: Paths, port: int, report: Callable[[Report], None]) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    engine = _open(paths)
    federation = Federation(
        engine,
        projects=[PROJECT],
        cities=CITIES,
        limits=DEFAULT_LIMITS,
        clock=SystemClock(),
        generator=random.Random(),
        behaviour=BEHAVIOUR,
    )
    work = asyncio.create_task(federation.run(), name="federation")
    server: HttpsServer | None = None
    try:
        server = await _listen(engine, Credentials.ensure(paths.credentials), port, paths)
        await _until_ready(federation)
        running = Running(os.getpid(), server.port, server.url, str(paths.directory), PROJECT, [*CITIES], [PROJECT])
        write_kubeconfig(paths.kubeconfig, _contexts(server), current=f"project-{PROJECT}")
        write_private(paths.port, str(server.port).encode())
        write_private(paths.running, msgspec.json.encode(running))
        report(Report(running=running))
        _log.info("ready", url=server.url, process=os.getpid())
        await asyncio.wait([work, asyncio.create_task(stop.wait())], return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()  # it never ends by itself; what ended it belongs into the log
    finally:
        if server is not None:
            await server.stop()
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        engine.close()


def _open(paths: Paths) -> Engine:
    """The state, as it was left; one that cannot be used is not touched."""
    try:
        return Engine(Log(paths.log), writer=WriterThread, admit=admit)
    except LogError as error:
        raise LocalError(
            f"{error}; nothing was changed: copy a backup over the file, or start anew with 'compute local reset'"
        ) from None


async def _listen(engine: Engine, credentials: Credentials, port: int, paths: Paths) -> HttpsServer:
    """On the port that was asked for, else on the last one, else on any that is free."""
    for candidate in (port,) if port else (_last_port(paths), 0):
        server = HttpsServer(engine, credentials, candidate)
        try:
            await server.start()
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise LocalError(f"cannot listen on port {candidate}: {error.strerror}") from None
        else:
            return server
    raise LocalError(f"port {port} is in use; free it, or choose another one with --port")


def _last_port(paths: Paths) -> int:
    try:
        return int(paths.port.read_text("ascii"))
    except (OSError, ValueError):
        return 0


async def _until_ready(federation: Federation) -> None:
    """Ready means that a user finds everything: the project, its cities and its quota."""
    await federation.seed()
    await _until(partial(federation.is_ready, PROJECT))
    await federation.prepare(PROJECT)
    client = federation.client(PROJECT)

    async def is_provided() -> bool:
        cities = len((await client.list(LOCATION_BINDING)).items)
        buckets = len((await client.list(ALLOWANCE_BUCKET)).items)
        return cities >= len(CITIES) and buckets >= len(LIMITS)

    await _until(is_provided)


async def _until(condition: Callable[[], Awaitable[bool]]) -> None:
    """For ever, if need be: who started this process gives up after a while and ends it."""
    while True:
        if await condition():
            return
        await asyncio.sleep(_LOOK_SECONDS)


def _contexts(server: HttpsServer) -> dict[str, Endpoint]:
    names = {f"project-{PROJECT}": PROJECT, "root": ROOT_PLANE, "hub": HUB_PLANE}
    names |= {f"cell-{city.lower()}": cell for city, cell in CITIES.items()}
    return {context: server.endpoint(plane) for context, plane in names.items()}


def _leave() -> None:
    """Out of the session of who started this: neither its Ctrl-C nor its end is meant for us, nor must it wait."""
    if os.fork() > 0:
        os._exit(0)
    os.setsid()


def _report(pipe: int, report: Report) -> None:
    with suppress(BrokenPipeError):  # who asked has gone; what was asked for is done all the same
        os.write(pipe, msgspec.json.encode(report))
    os.close(pipe)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
