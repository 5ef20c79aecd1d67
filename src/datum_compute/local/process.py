"""The background process of a local federation. Entry point: `main`; started by `local.daemon`."""

import asyncio
import errno
import os
import random
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path

import msgspec
import structlog

from datum_compute import __version__
from datum_compute.admission.rules import admit
from datum_compute.api.networking import LOCATION_BINDING
from datum_compute.api.quota import ALLOWANCE_BUCKET
from datum_compute.api.services import PROJECT as PROJECT_KIND
from datum_compute.api.services import Project
from datum_compute.embedded.engine import Engine
from datum_compute.embedded.https.certificates import Credentials
from datum_compute.embedded.https.server import HttpsServer
from datum_compute.embedded.storage.log import Log, LogError
from datum_compute.embedded.storage.writer import WriterThread
from datum_compute.kube.access.kubeconfig import Kubeconfig, KubeconfigError, write_kubeconfig
from datum_compute.kube.client import Client
from datum_compute.kube.errors import ApiError
from datum_compute.kube.files import write_private
from datum_compute.kube.tracing import Tracer, TracingUnavailable, open_tracer
from datum_compute.local.adjustment import keep, settle
from datum_compute.local.daemon import Report, Start
from datum_compute.local.endpoints import Endpoints
from datum_compute.local.engine import compute_engine
from datum_compute.local.extensions import extensions
from datum_compute.local.federation import HUB_PLANE, ROOT_PLANE, Federation
from datum_compute.local.instances import open_instances
from datum_compute.local.logs import Logs
from datum_compute.local.overview import OVERVIEW, Overview
from datum_compute.local.proxy import PORT as PROXY_PORT
from datum_compute.local.proxy import Proxy, ProxyServer
from datum_compute.local.settings import Settings, cell_of
from datum_compute.local.state import LocalError, Paths, Running, hold
from datum_compute.platform.grants import LIMITS
from datum_compute.runtime import SystemClock
from datum_compute.runtime.process import allow_many_files, collect_rarely
from datum_compute.runtime.tasks import first
from datum_compute.runtime.telemetry import logs

PROJECT = "demo"
_LOOK_SECONDS = 0.01
_WATCH_SECONDS = 3600
_LAST_SPANS_SECONDS = 1.0
_EVENT_TTL = timedelta(hours=1)  # as on a kube-apiserver

_log = structlog.get_logger(__name__)


def main(arguments: list[str]) -> int:
    pipe, start = int(arguments[0]), msgspec.json.decode(arguments[1], type=Start)
    _leave()
    logs.configure()
    collect_rarely()
    allow_many_files()
    report = _Reporter(pipe)
    paths = Paths(Path(start.directory))
    try:
        lock = hold(paths.lock)
    except BlockingIOError:
        report(Report(busy=True))
        return 1
    paths.running.unlink(missing_ok=True)
    try:
        asyncio.run(_serve(paths, start, report))
    except Exception as error:
        if not isinstance(error, LocalError):
            _log.error("the federation ended", exc_info=error)
        os.close(lock)  # first: who reads the report may try again at once
        report(Report(error=_sentence(_cause(error), paths)))
        return 1
    finally:
        paths.running.unlink(missing_ok=True)
    _log.info("stopped", process=os.getpid())
    return 0


def _cause(error: Exception) -> Exception:
    """The first error of a group."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


def _sentence(error: Exception, paths: Paths) -> str:
    match error:
        case LocalError():
            return str(error)
        case OSError():
            place = error.filename or paths.directory
            return f"cannot write to {place}: {error.strerror}; make room, or use another --dir"
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    return f"the federation crashed ({reason}); see {paths.output}"


async def _serve(paths: Paths, start: Start, report: "_Reporter") -> None:
    """Runs until it is stopped or cannot go on: whatever ends the background work ends the process, with a reason."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    engine, tracer = _open(paths), _open_tracer()
    try:
        settings = await settle(engine, start.settings)
        cells = {city: cell_of(city) for city in settings.cities}
        clock = SystemClock()
        lines = Logs(clock)
        instances = await open_instances(
            engine, cells.values(), paths, start.wish, logs=lines, clock=clock, progress=report.alive
        )
        federation = Federation(
            engine,
            projects=[PROJECT],
            cities=cells,
            names=settings.cities,
            limits=settings.limits,
            clock=clock,
            generator=random.Random(),
            provider=instances.provider,
            tracer=tracer,
        )
        endpoints = Endpoints(federation.manager.fleet, PROJECT, instances.published)
        proxy = ProxyServer(Proxy(endpoints))
        try:
            await _listen_for_requests(proxy, paths)
            overview = Overview(PROJECT, proxy.port, instances, endpoints)
            await first(
                federation.run(), _answer(federation, settings, paths, start.port, report, overview, lines), stop.wait()
            )
        finally:
            await proxy.stop()
    finally:
        engine.close()
        if tracer is not None:
            await asyncio.to_thread(tracer.close, _LAST_SPANS_SECONDS)


def _open_tracer() -> Tracer | None:
    """A federation for trying things out runs without spans rather than not at all."""
    try:
        return open_tracer(os.environ, "compute-local", __version__, os.urandom, _report_unsent)
    except TracingUnavailable as error:
        _report_unsent(str(error))
        return None


def _report_unsent(text: str) -> None:
    _log.warning("spans not sent", error=text)


async def _answer(
    federation: Federation,
    settings: Settings,
    paths: Paths,
    port: int,
    report: "_Reporter",
    overview: Overview,
    lines: Logs,
) -> None:
    server = await _listen(federation, Credentials.ensure(paths.credentials), port, paths, overview, lines)
    try:
        await _until_ready(federation)
        await keep(federation.engine, settings)
        running = Running(
            os.getpid(),
            server.port,
            server.url,
            str(paths.directory),
            PROJECT,
            [*settings.cities],
            settings.cities,
            settings.limits,
            overview.proxy,
            overview.instances.mode,
            overview.instances.summary,
            overview.instances.engine,
            list(overview.instances.notes),
        )
        listed = await federation.client(ROOT_PLANE).list(PROJECT_KIND)
        _write_contexts(paths, server, settings, listed.items)
        write_private(paths.port, str(server.port).encode())
        write_private(paths.running, msgspec.json.encode(running))
        report(Report(running=running))
        _log.info("ready", url=server.url, process=os.getpid())
        await _follow_projects(federation.client(ROOT_PLANE), partial(_write_contexts, paths, server, settings))
    finally:
        await server.stop()


async def _follow_projects(root: Client, write: Callable[[Sequence[Project]], None]) -> None:
    """Adds or removes the context of a project as soon as the project is created or deleted."""
    while True:
        listed = await root.list(PROJECT_KIND)
        write(listed.items)
        with suppress(ApiError):  # an old watch; a new list knows
            async with root.watch(PROJECT_KIND, listed.resource_version, timeout_seconds=_WATCH_SECONDS) as events:
                async for event in events:
                    if event.type in ("ADDED", "DELETED"):
                        break


def _open(paths: Paths) -> Engine:
    """Opens the stored state; one that cannot be used is not touched."""
    try:
        return compute_engine(Log(paths.log), writer=WriterThread, admit=admit, event_ttl=_EVENT_TTL)
    except LogError as error:
        raise LocalError(
            f"{error}; nothing was changed: go back to a backup with 'compute local restore', "
            "or start anew with 'compute local reset'"
        ) from None


async def _listen_for_requests(proxy: ProxyServer, paths: Paths) -> None:
    """Listens on the last port, else on the usual one, else on any free one."""
    try:
        port = await proxy.start((*filter(None, (_last_port(paths.proxy_port),)), PROXY_PORT, 0))
    except OSError as error:
        raise LocalError(f"cannot listen for requests to workloads: {error.strerror}") from None
    write_private(paths.proxy_port, str(port).encode())


async def _listen(
    federation: Federation, credentials: Credentials, port: int, paths: Paths, overview: Overview, lines: Logs
) -> HttpsServer:
    """Listens on the requested port, else on the last one, else on any free one."""
    served = extensions(federation, runner=overview.instances.runner, logs=lines)
    documents = {OVERVIEW: overview.document}
    for candidate in (port,) if port else (_last_port(paths.port), 0):
        server = HttpsServer(federation.engine, credentials, candidate, extensions=served, documents=documents)
        try:
            await server.start()
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise LocalError(f"cannot listen on port {candidate}: {error.strerror}") from None
        else:
            return server
    raise LocalError(f"port {port} is in use; free it, or choose another one with --port")


def _last_port(path: Path) -> int:
    try:
        return int(path.read_text("ascii"))
    except (OSError, ValueError):
        return 0


async def _until_ready(federation: Federation) -> None:
    """Waits until a user finds everything: the project, its cities and its quota."""
    await federation.seed()
    await _until(partial(federation.is_ready, PROJECT))
    await federation.prepare(PROJECT)
    client = federation.client(PROJECT)

    async def is_provided() -> bool:
        cities = len((await client.list(LOCATION_BINDING)).items)
        buckets = len((await client.list(ALLOWANCE_BUCKET)).items)
        return cities >= len(federation.cities) and buckets >= len(LIMITS)

    await _until(is_provided)


async def _until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Waits indefinitely: whoever started this process gives up after a while and ends it."""
    while True:
        if await condition():
            return
        await asyncio.sleep(_LOOK_SECONDS)


def _write_contexts(paths: Paths, server: HttpsServer, settings: Settings, projects: Sequence[Project]) -> None:
    """Writes one context per plane. The chosen current context stays as long as it exists."""
    names = {f"project-{name}": name for name in sorted({PROJECT, *(project.name for project in projects)})}
    planes = {**names, "root": ROOT_PLANE, "hub": HUB_PLANE}
    planes |= {f"cell-{city.lower()}": cell_of(city) for city in settings.cities}
    current = f"project-{PROJECT}"
    with suppress(KubeconfigError):
        before = Kubeconfig.read([paths.kubeconfig])
        current = before.current if before.current in planes else current
    write_kubeconfig(
        paths.kubeconfig, {name: server.endpoint(plane) for name, plane in planes.items()}, current=current
    )


def _leave() -> None:
    """Leaves the session of the starter, so that neither its Ctrl-C nor its end reaches us, and it need not wait."""
    if os.fork() > 0:
        os._exit(0)
    os.setsid()


class _Reporter:
    """Reports the outcome of the start to the starter, once."""

    def __init__(self, pipe: int) -> None:
        self._pipe: int | None = pipe

    def alive(self) -> None:
        """Asks for more patience: white space before the report."""
        if self._pipe is not None:
            with suppress(BrokenPipeError):
                os.write(self._pipe, b" ")

    def __call__(self, report: Report) -> None:
        if self._pipe is None:
            return
        pipe, self._pipe = self._pipe, None  # its number may be that of another file soon
        with suppress(BrokenPipeError):  # who asked has gone; what was asked for is done all the same
            os.write(pipe, msgspec.json.encode(report))
        os.close(pipe)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
