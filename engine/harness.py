"""The engine as a whole: starts it, inspects it, breaks it on purpose and stops it. Entry point: `Engine`.

Every call finds out for itself what runs, so any of them may be interrupted, killed or repeated. What was started
outlives the caller; `down` stops it.
"""

import fcntl
import http.client
import os
import shutil
import ssl
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

from datum_compute.api.permissions import When
from datum_compute.federation.roles import CELL
from datum_compute.kube.access.kubeconfig import load, write_kubeconfig
from engine import EngineError, build, karmada, kwok, planes, ports
from engine.api import Api, until
from engine.certificates import Certificates
from engine.identities import DEFAULT_SWITCHES, admit, identities, policies
from engine.pins import tool_of
from engine.processes import Processes, State
from engine.settings import HUB_PLANE, RESTORABLE, SHARED_STORE, Folder, Plane, Settings
from engine.site import Process, Site

DEFAULT_FOLDER = Path(os.environ.get("ENGINE_FOLDER") or planes.REPOSITORY / ".engine")

_READY_SECONDS = 180.0  # generous, for a busy machine with few processors
_STOP_SECONDS = 10.0
_PROBE_SECONDS = 2.0
_POLL_SECONDS = 0.05
_LOG_LINES = 12

Say = Callable[[str], None]


class Row(Struct, frozen=True):
    name: str
    state: State
    memory: int
    log: Path


class Engine:
    def __init__(self, folder: Path = DEFAULT_FOLDER, say: Say = lambda text: None) -> None:
        self.folder = Folder(folder.resolve())
        self.processes = Processes(self.folder.processes, self.folder.logs)
        self._say = say

    def up(
        self, cells: Mapping[str, str] | None = None, kwok_cells: Collection[str] = (), *, empty: bool = False
    ) -> None:
        """Starts whatever is not running, with these additional cells. Returns when everything is ready.

        An `empty` engine knows nothing of compute, and stays so until somebody installs it.
        """
        with self._alone():
            for last in (False, False, True):
                site = self._site(cells or {}, kwok_cells, empty)
                try:
                    _Start(self, site, self._say).all()
                    return
                except EngineError:
                    if last or not self._lost_a_port(site.settings):
                        raise

    def down(self) -> None:
        """Stops every process. The objects stay for the next `up`."""
        with self._alone():
            self._stop_all()

    def remove(self) -> None:
        """Stops every process and deletes all state."""
        with self._alone():
            self._stop_all()
            for entry in self.folder.root.iterdir():
                if entry != self.folder.lock:
                    shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    def status(self) -> list[Row]:
        """Every process that belongs to this engine, in the order they start in; none before the first `up`."""
        started = self.processes.names()
        known = [process.name for process in self._known()]
        names = [*known, *(name for name in started if name not in known)]
        return [self._row(name) for name in names]

    def is_up(self) -> bool:
        rows = self.status()
        return bool(rows) and all(row.state is State.RUNNING for row in rows)

    def stop(self, name: str) -> None:
        self._one(name)
        self.processes.stop([name], _STOP_SECONDS)

    def kill(self, name: str) -> None:
        """Kills a process at once, like a crash."""
        self._one(name)
        self.processes.kill([name])

    def start(self, name: str) -> None:
        """Starts a process again and returns when it is ready."""
        process = self._one(name)
        start = _Start(self, self._read_site(), self._say)
        start.run(process)
        start.wait(process)

    def pause(self, name: str) -> None:
        self._one(name)
        self.processes.pause(name)

    def resume(self, name: str) -> None:
        self._one(name)
        self.processes.resume(name)

    def snapshot(self, plane: str, name: str) -> None:
        """Saves the state of a plane. Its etcd is paused meanwhile: the copy is what a crash would leave."""
        store, snapshot = self._restorable(plane).store, self._snapshot(plane, name)
        half = snapshot.with_name(f"{name}.half")
        for folder in (snapshot, half):
            shutil.rmtree(folder, ignore_errors=True)
        self.processes.pause(store)
        try:
            shutil.copytree(self.folder.store(store), half)
        finally:
            self.processes.resume(store)
        half.rename(snapshot)

    def restore(self, plane: str, name: str) -> None:
        """Returns a plane to a snapshot. Whatever serves it is restarted, on the hub all of Karmada too."""
        restorable, snapshot = self._restorable(plane), self._snapshot(plane, name)
        if not snapshot.is_dir():
            raise EngineError(f'there is no snapshot "{name}" of {plane}; make one with `snapshot {plane} {name}`')
        working = karmada.LISTENERS if plane == HUB_PLANE else ()
        self.processes.kill([*working, *planes.listeners(restorable), restorable.store])
        data = self.folder.store(restorable.store)
        shutil.rmtree(data, ignore_errors=True)
        shutil.copytree(snapshot, data)
        _Start(self, self._read_site(), self._say).again(restorable)

    def _restorable(self, plane: str) -> Plane:
        for known in self.planes():
            if known.name == plane and known.store != SHARED_STORE:
                return known
        raise EngineError(f'"{plane}" has no etcd of its own; choose one of {", ".join(RESTORABLE)}')

    def _snapshot(self, plane: str, name: str) -> Path:
        return self.folder.snapshots / plane / name

    def planes(self) -> list[Plane]:
        return Settings.read(self.folder).planes

    def kubeconfig(self, plane: str, who: str = "") -> Path:
        """The kubeconfig of the administrator, or of an identity with the rights of its roles."""
        path = self.folder.kubeconfig(plane, who)
        if not path.exists():
            known = ", ".join(sorted(file.stem for file in path.parent.glob("*.yaml"))) or "none yet"
            raise EngineError(f'{who or "the administrator"} has no plane "{plane}"; known: {known}')
        return path

    def admit(self, switches: Collection[When] = DEFAULT_SWITCHES) -> None:
        """Gives every identity the rights of its roles, those of `switches` included, and a kubeconfig for a day."""
        for plane in self.planes():
            with self.connected(plane.name) as api:
                policies(api, plane)
        for identity in identities(self.planes()):
            with self.connected(identity.plane) as api:
                token = admit(api, identity, switches)
            path = self.folder.kubeconfig(identity.plane, identity.name)
            path.parent.mkdir(mode=0o700, exist_ok=True)
            admin = load([self.kubeconfig(identity.plane)])
            endpoint = replace(admin, token=token, client_cert="", client_key="")
            write_kubeconfig(path, {identity.account: endpoint}, current=identity.account)

    def api(self, plane: str) -> Api:
        return Api(plane, load([self.kubeconfig(plane)]))

    @contextmanager
    def connected(self, plane: str) -> Iterator[Api]:
        api = self.api(plane)
        try:
            yield api
        finally:
            api.close()

    def log(self, name: str) -> Path:
        path = self.processes.log(name)
        if not path.exists():
            raise EngineError(f'there is no log of "{name}"; `status` lists the processes')
        return path

    def _site(self, cells: Mapping[str, str], kwok_cells: Collection[str], empty: bool) -> Site:
        """The desired engine, saved before anything is started."""
        settings = Settings.read(self.folder).with_cells(cells, kwok_cells)
        if empty and not settings.empty:
            if self.folder.settings.exists():
                raise EngineError(f"the engine in {self.folder.root} is not empty; remove it, or name another folder")
            settings = replace(settings, empty=True)
        if strangers := [name for name in settings.kwok if name not in settings.cells]:
            raise EngineError(f'"{strangers[0]}" is no cell; add it with --cell {strangers[0]}=CITY')
        settings = self._with_usable_ports(settings)
        settings.write(self.folder)
        if settings.empty:
            self.folder.egress.write_text(planes.egress(self.folder.services), "utf-8")
        site = Site(self.folder, settings, Certificates.ensure(self.folder.certificates))
        self.folder.kubeconfigs.mkdir(mode=0o700, exist_ok=True)
        for plane in settings.planes:
            write_kubeconfig(
                self.folder.kubeconfig(plane.name), {plane.name: site.admin(plane.server)}, current=plane.name
            )
        return site

    def _with_usable_ports(self, settings: Settings) -> Settings:
        """Keeps its ports; if one was taken meanwhile, stops everything and chooses new ones."""
        known = settings.with_ports(_listeners(settings))
        if not self._lost_a_port(known):
            return known
        self._say("a port of this engine was taken by another program; choosing new ones")
        self._stop_all()
        return replace(settings, ports={}).with_ports(_listeners(settings))

    def _lost_a_port(self, settings: Settings) -> bool:
        """Whether another process listens on the port of one of ours that does not run."""
        waiting = (name for name in _listeners(settings) if not self.processes.alive(_process_of(name)))
        return not all(ports.free(settings.ports[name]) for name in waiting)

    def _read_site(self) -> Site:
        if not self.folder.settings.exists():
            raise EngineError(f"there is no engine in {self.folder.root}; run `make engine-up`")
        return Site(self.folder, Settings.read(self.folder), Certificates(self.folder.certificates))

    def _known(self) -> list[Process]:
        return _all_processes(self._read_site()) if self.folder.settings.exists() else []

    def _one(self, name: str) -> Process:
        known = {process.name: process for process in self._known()}
        if name not in known:
            raise EngineError(f'there is no process "{name}"; choose one of {", ".join(known) or "none (not up)"}')
        return known[name]

    def _row(self, name: str) -> Row:
        return Row(name, self.processes.state(name), self.processes.memory(name), self.processes.log(name))

    def _stop_all(self) -> None:
        """Stops clients before their servers: a server whose storage is gone waits for it instead of ending."""
        left = self.processes.names()
        layers = [
            [name for name in left if not _is_store(name) and not name.endswith("-apiserver")],
            [name for name in left if name.endswith("-apiserver")],
            [name for name in left if _is_store(name)],
        ]
        for layer in layers:
            for name in self.processes.stop(layer, _STOP_SECONDS):
                self._say(f"{name} did not end by itself within {_STOP_SECONDS:.0f} s and was ended")

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """The kernel releases the lock when its holder ends, however it ends."""
        self.folder.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(self.folder.lock, "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise EngineError(f"another call is at work on {self.folder.root}; wait until it ends") from None
            yield


class _Start:
    """One start of the engine. Any of its steps may have happened before."""

    def __init__(self, engine: Engine, site: Site, say: Say) -> None:
        self._engine = engine
        self._processes = engine.processes
        self._site = site
        self._say = say
        self._tls = site.admin("etcd").tls()
        self._started = time.monotonic()

    def all(self) -> None:
        site = self._site
        every = site.settings.planes
        cells = [plane for plane in every if plane.role == CELL]
        for name in sorted({process.binary for process in _all_processes(site)}):
            build.binary(name)  # says what is missing before anything is started
        sources = build.module_folder(tool_of("karmada-webhook"))

        self.all_of([planes.etcd(site, store) for store in site.settings.stores])
        self.all_of([planes.api_server(site, plane) for plane in every])

        # Kinds first: the garbage collector and Karmada look for new ones only every 30 s.
        for plane in every if not site.settings.empty else ():
            with self._engine.connected(plane.name) as api:
                planes.install_kinds(api, plane)
        with self._engine.connected(HUB_PLANE) as hub:
            karmada.prepare(site, hub, sources)
            self._tell("kinds installed")
            self.all_of([karmada.aggregated_server(site), karmada.webhook(site)])
            karmada.register(site, hub, sources)
            self._until_registered(hub)
            if not site.settings.empty:
                hub.apply(karmada.interpreter())
            for plane in every:
                self.run(planes.controllers(site, plane))
            self.all_of([karmada.controllers(site), karmada.scheduler(site)])
            for cell in cells:
                with self._engine.connected(cell.name) as member:
                    karmada.join(site, hub, member, cell)
            for cell in cells:
                self._until_joined(hub, cell)
        self.all_of([planes.controllers(site, plane) for plane in every])
        for cell in cells:
            if cell.kwok:
                self._add_nodes(cell)
        if not site.settings.empty:
            self._engine.admit()
            self._tell("identities admitted")

    def again(self, plane: Plane) -> None:
        """Starts the servers and controllers of a plane that already has all its objects."""
        site = self._site
        self.all_of([planes.etcd(site, plane.store)])
        self.all_of([planes.api_server(site, plane)])
        working = [planes.controllers(site, plane)]
        if plane.name == HUB_PLANE:
            self.all_of([karmada.aggregated_server(site), karmada.webhook(site)])
            with self._engine.connected(plane.name) as hub:
                self._until_registered(hub)
            working += [karmada.controllers(site), karmada.scheduler(site)]
        self.all_of(working)

    def all_of(self, processes: Sequence[Process]) -> None:
        for process in processes:
            self.run(process)
        for process in processes:
            self.wait(process)

    def run(self, process: Process) -> None:
        """Starts the process unless it already runs with the right command."""
        command = [str(build.binary(process.binary)), *process.arguments]
        if self._processes.alive(process.name):
            if self._processes.command(process.name) == command:
                self._processes.resume(process.name)
                return
            self._tell(f"{process.name} is started again, with other arguments")
            self._processes.stop([process.name], _STOP_SECONDS)
        self._processes.start(process.name, command, _environment())

    def wait(self, process: Process) -> None:
        deadline = time.monotonic() + _READY_SECONDS
        while not _answers(process.ready, self._tls):
            if not self._processes.alive(process.name):
                raise EngineError(f"{process.name} ended while it was started; {self._end_of_log(process)}")
            if time.monotonic() > deadline:
                within = f"within {_READY_SECONDS:.0f} s"
                raise EngineError(f"{process.name} was not ready {within}; {self._end_of_log(process)}")
            time.sleep(_POLL_SECONDS)
        self._tell(f"{process.name} ready")

    def _until_registered(self, hub: Api) -> None:
        until("Karmada's API being served by the hub", lambda: karmada.registered(hub), _READY_SECONDS)

    def _until_joined(self, hub: Api, cell: Plane) -> None:
        until(f"{cell.name} joining the hub", lambda: karmada.joined(hub, cell), _READY_SECONDS)
        self._tell(f"{cell.name} joined for {cell.city or 'no city'}")

    def _add_nodes(self, cell: Plane) -> None:
        sources = build.module_folder(tool_of("kwok"))
        kwok.prepare(self._site, cell)
        self.all_of([kwok.scheduler(self._site, cell), kwok.simulator(self._site, cell, sources)])
        with self._engine.connected(cell.name) as member:
            kwok.add_nodes(self._site, member, cell)
        self._tell(f"{cell.name} has nodes")

    def _tell(self, text: str) -> None:
        self._say(f"{time.monotonic() - self._started:5.1f} s  {text}")

    def _end_of_log(self, process: Process) -> str:
        log = self._processes.log(process.name)
        lines = log.read_text("utf-8", errors="replace").splitlines()[-_LOG_LINES:]
        return f"the end of {log}:\n" + "\n".join(lines)


def _all_processes(site: Site) -> list[Process]:
    """In starting order."""
    every = site.settings.planes
    sources = build.module_folder(tool_of("kwok")) if site.settings.kwok else Path()
    with_nodes = [plane for plane in every if plane.kwok]
    return [
        *(planes.etcd(site, store) for store in site.settings.stores),
        *(planes.api_server(site, plane) for plane in every),
        *(planes.controllers(site, plane) for plane in every),
        karmada.aggregated_server(site),
        karmada.webhook(site),
        karmada.controllers(site),
        karmada.scheduler(site),
        *(kwok.scheduler(site, cell) for cell in with_nodes),
        *(kwok.simulator(site, cell, sources) for cell in with_nodes),
    ]


def _listeners(settings: Settings) -> list[str]:
    return [
        *(name for store in settings.stores for name in planes.store_listeners(store)),
        *(name for plane in settings.planes for name in planes.listeners(plane)),
        *karmada.LISTENERS,
        *(name for plane in settings.planes if plane.kwok for name in kwok.listeners(plane)),
    ]


def _is_store(process: str) -> bool:
    return process == SHARED_STORE or process.endswith(f"-{SHARED_STORE}")


def _process_of(listener: str) -> str:
    return listener.removesuffix("-peer")


def _environment() -> dict[str, str]:
    """Only the variables that a program needs to find its home; nothing else from the caller."""
    return {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}


def _answers(address: str, tls: ssl.SSLContext | None) -> bool:
    url = urlsplit(address)
    assert url.hostname is not None
    connection = (
        http.client.HTTPSConnection(url.hostname, url.port, timeout=_PROBE_SECONDS, context=tls)
        if url.scheme == "https"
        else http.client.HTTPConnection(url.hostname, url.port, timeout=_PROBE_SECONDS)
    )
    try:
        connection.request("GET", url.path)
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
