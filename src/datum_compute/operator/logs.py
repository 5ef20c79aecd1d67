"""Logs of instances for the users of projects. Entry points: `Logs`, `LogsApplication`."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog
from cryptography import x509
from msgspec import structs

from datum_compute.api.permissions import FRONT_PROXY_CONFIG, FRONT_PROXY_NAMESPACE
from datum_compute.embedded.https.extensions import Extension, handle
from datum_compute.federation.lines import nanoseconds
from datum_compute.federation.roles import PROJECT
from datum_compute.kube.access.kubeconfig import KubeconfigError
from datum_compute.kube.client import Client
from datum_compute.kube.errors import ApiError, NotFound, ServerError, Unavailable
from datum_compute.kube.http import HttpTransport
from datum_compute.kube.kinds import CONFIG_MAP
from datum_compute.kube.meta import Json, encode
from datum_compute.operator.certificates import Pair, Source
from datum_compute.operator.config import KUBECONFIGS, LOKI, MILO, SINGLE, LogsServer, Loki
from datum_compute.operator.directory import KubeconfigDirectory
from datum_compute.operator.planes import HUB_PLANE, Planes
from datum_compute.runtime import Clock, Fleet
from datum_compute.telemetry.callers.front_proxy import FrontProxy, front_proxy
from datum_compute.telemetry.callers.identity import Rules, addressed
from datum_compute.telemetry.callers.project_access import ProjectAccess
from datum_compute.telemetry.cells.hub_instances import HubInstances, HubSites
from datum_compute.telemetry.cells.sites import Door
from datum_compute.telemetry.cells.source import CellSource
from datum_compute.telemetry.exec.access import ProjectExecAccess
from datum_compute.telemetry.exec.door import Door as ExecDoor
from datum_compute.telemetry.exec.door import Limits as ExecLimits
from datum_compute.telemetry.exec.places import Places
from datum_compute.telemetry.exec.pods import PodRunner
from datum_compute.telemetry.exec.request import GROUP as RUN_GROUP
from datum_compute.telemetry.exec.request import VERSION as RUN_VERSION
from datum_compute.telemetry.gateway import GROUP, VERSION, Gateway
from datum_compute.telemetry.loki_source import LokiSource
from datum_compute.telemetry.query import ALL_FILTERS, PLAIN_FILTERS
from datum_compute.telemetry.sources import Source as LogSource
from datum_compute.telemetry.sources import SourceAway

Scope = Mapping[str, Any]

RULES = {
    MILO: Rules(passed_on=True, by_path=True),
    SINGLE: Rules(passed_on=True, by_path=False, only=SINGLE),
    KUBECONFIGS: Rules(passed_on=False, by_path=True),
}

_EXEC_LIMITS = ExecLimits(idle_seconds=15 * 60.0, seconds=60 * 60.0)

_log = structlog.get_logger(__name__)


class Logs:
    """What the server of logs consists of; other APIs for users are served beside it, with the same callers."""

    def __init__(
        self,
        config: LogsServer,
        mode: str,
        fleet: Fleet,
        planes: Planes,
        clock: Clock,
        front_proxies: Callable[[], Client],
    ) -> None:
        self.rules = RULES[mode]
        self.front_proxy = FollowedFrontProxy(front_proxies) if self.rules.passed_on else None
        self.instances = HubInstances(fleet, HUB_PLANE)
        self.cells = CellKubeconfigs(Path(config.cell_kubeconfig_dir)) if config.cell_kubeconfig_dir else None
        own: Callable[[str], Door | None] = self.cells.door if self.cells is not None else lambda cell: None
        self.sites = HubSites(fleet, HUB_PLANE, lambda: planes.transport(HUB_PLANE), own)
        projects = _Projects(fleet, planes, self.instances)
        self.access = ProjectAccess(
            self.rules,
            projects,
            clock,
            lambda: self.front_proxy.current if self.front_proxy is not None else None,
            everywhere=config.source == LOKI,
        )
        self._loki = _loki(config.loki, clock) if config.loki is not None else None
        source: LogSource = self._loki or CellSource(self.instances, self.sites, clock)
        filters = ALL_FILTERS if self._loki is not None else PLAIN_FILTERS
        gateway = Gateway(source, self.access, lambda: nanoseconds(clock.now()), filters)
        self.extensions = [Extension(GROUP, VERSION, PROJECT, gateway)]
        if config.exec:
            places = Places(projects.known, projects.hub, clock)
            door = ExecDoor(ProjectExecAccess(self.access), places, PodRunner(self.sites), _EXEC_LIMITS)
            self.extensions.append(Extension(RUN_GROUP, RUN_VERSION, PROJECT, door, websockets=True))

    async def run(self) -> None:
        """Follows kubeconfigs until it is cancelled, then closes what was opened."""
        try:
            if self.cells is not None:
                await self.cells.run()
            await asyncio.get_running_loop().create_future()
        finally:
            if self._loki is not None:
                await self._loki.close()


def _loki(config: Loki, clock: Clock) -> LokiSource:
    token_file = Path(config.token_file) if config.token_file else None
    return LokiSource(config.url, config.project_label, token_file, clock)


class LogsApplication:
    """Leads requests to the API that they are for. Discovery is for everybody, because it says nothing."""

    def __init__(self, rules: Rules, extensions: Sequence[Extension]) -> None:
        self._rules = rules
        self._extensions = extensions
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Lets readers who follow go."""
        self._stopping.set()

    def has_websocket(self, path: str) -> bool:
        try:
            below = addressed(path, self._rules).path
        except ApiError:
            return False
        return any(extension.websockets and extension.serves(below) for extension in self._extensions)

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        try:
            answer = await self._answer(scope, receive, send)
        except ApiError as error:
            answer = error.code, error.status()
        except Exception as error:
            _log.error("request failed", path=scope["path"], error=repr(error), exc_info=error)
            answer = 500, ServerError("an error on the server has prevented the request from succeeding").status()
        if answer is not None:
            await _send(send, *answer)

    async def _answer(self, scope: Scope, receive: Any, send: Any) -> tuple[int, Json] | None:
        """None where a handler has answered."""
        address = addressed(scope["path"], self._rules)
        for extension in self._extensions:
            if extension.serves(address.path):
                handler, path = extension.handler, address.path
                await handle(handler, address.project, path, scope, receive, send, stopping=self._stopping)
                return None
        document = _discovery(address.path.rstrip("/"), self._extensions)
        if document is not None and scope["type"] == "http" and scope["method"] == "GET":
            return 200, document
        raise NotFound(f"nothing is served at {scope['path'][:200]}")


def _discovery(path: str, extensions: Sequence[Extension]) -> Json | None:
    """What API servers read before they pass requests on; there are no resources to list."""
    for extension in extensions:
        if path == extension.root:
            name = f"{extension.group}/{extension.version}"
            return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": name, "resources": []}
        if path == f"/apis/{extension.group}":
            return {"kind": "APIGroup", "apiVersion": "v1"} | _group(extension)
    if path == "/apis":
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": list(map(_group, extensions))}
    return None


def _group(extension: Extension) -> Json:
    version = {"groupVersion": f"{extension.group}/{extension.version}", "version": extension.version}
    return {"name": extension.group, "versions": [version], "preferredVersion": version}


async def _send(send: Any, code: int, document: Json) -> None:
    body = encode(document)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if code == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": code, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class _Projects:
    """The projects of this process, for reviews."""

    def __init__(self, fleet: Fleet, planes: Planes, instances: HubInstances) -> None:
        self._fleet = fleet
        self._planes = planes
        self._instances = instances

    def client(self, name: str) -> Client:
        if not any(plane.name == name for plane in self._fleet.known(PROJECT)):
            raise KeyError(name)
        return self._planes.client(name)

    def known(self, name: str) -> Client:
        """As `client`, for a project that a caller was recognized in."""
        try:
            return self.client(name)
        except KeyError:
            raise Unavailable(f"project {name} is not connected to compute; try again in a moment") from None

    def hub(self) -> Client:
        try:
            return self._planes.client(HUB_PLANE)
        except KeyError:
            raise Unavailable("it is not known yet where the instances run; try again in a moment") from None

    def namespaces(self, name: str) -> Collection[str]:
        try:
            return self._instances.namespaces(name)
        except SourceAway as error:
            raise Unavailable(str(error)) from None


class FollowedFrontProxy:
    """How the API server that passes requests on can be recognized, read again with the certificate of the server.

    `client` is of that API server, which is never a project's: none could then sign for users of another.
    """

    def __init__(self, client: Callable[[], Client]) -> None:
        self._client = client
        self._failed = False
        self.current: FrontProxy | None = None

    def beside(self, source: Source) -> Source:
        """The pair of the server, and the authority of the front proxy, whose certificate clients may present."""

        async def read() -> Pair:
            pair = await source()
            await self._read()
            if self.current is None:
                return pair
            return structs.replace(pair, authority=self.current.authority.encode(), optional=True)

        return read

    async def _read(self) -> None:
        """Without an answer, what was read last stays in force."""
        try:
            data = (await self._client().get(CONFIG_MAP, FRONT_PROXY_CONFIG, FRONT_PROXY_NAMESPACE)).data
        except (ApiError, KeyError) as error:
            if not self._failed:
                _log.warning("the front proxy cannot be recognized: only tokens count", error=str(error))
            self._failed = True
            return
        self._failed = False
        found = front_proxy(data)
        if found is not None and not _is_readable(found):
            found = None
        if found != self.current:
            names = found.names if found is not None else ()
            _log.info("front proxy", names=names)
            if found is not None and not names:
                _log.warning("the API server names no front proxy (requestheader-allowed-names): nobody is believed")
        self.current = found


def _is_readable(found: FrontProxy) -> bool:
    try:
        return bool(x509.load_pem_x509_certificates(found.authority.encode()))
    except ValueError:
        _log.warning("the authority of the front proxy is no certificate in PEM: only tokens count")
        return False


class CellKubeconfigs:
    """Cells that are called directly, each by a kubeconfig of its name."""

    def __init__(self, directory: Path) -> None:
        self._transports: dict[str, HttpTransport] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._directory = KubeconfigDirectory(directory, self._changed, trusted=True, noun="cell")
        self._directory.look()

    def door(self, cell: str) -> Door | None:
        transport = self._transports.get(cell)
        if transport is None:
            try:
                transport = HttpTransport(self._directory.endpoint(cell))
            except KubeconfigError:
                return None
            self._transports[cell] = transport
        return transport

    async def run(self) -> None:
        try:
            await self._directory.run()
        finally:
            for cell in list(self._transports):
                self._changed(cell)
            await asyncio.gather(*self._closing)

    def _changed(self, cell: str) -> None:
        transport = self._transports.pop(cell, None)
        if transport is not None:
            closing = asyncio.get_running_loop().create_task(transport.close(for_good=True))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
