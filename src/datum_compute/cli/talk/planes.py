"""Planes that are only read, where a refusal or silence is part of the answer. Entry points: `Plane`, `Federation`.

A plane that does not answer costs a few seconds once, and never the command.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from datum_compute.answers.seen import Gap
from datum_compute.kube import calls
from datum_compute.kube.access.kubeconfig import Endpoint, Kubeconfig, KubeconfigError
from datum_compute.kube.errors import ApiError, BadRequest
from datum_compute.kube.kinds import Kind
from datum_compute.kube.meta import KubeObject
from datum_compute.kube.transport import Answer, Call

if TYPE_CHECKING:
    from pathlib import Path

    from datum_compute.cli.shell.run import Run
    from datum_compute.kube.blocking import BlockingTransport

T = TypeVar("T", bound=KubeObject)

PATIENCE_SECONDS = 3.0
_PAGE = 500
_HUB = "hub"
_CELL = "cell-"
_DENIALS = (401, 403)


class Plane:
    """Reads objects, or says why it cannot. `time` is what the server last said the time is."""

    def __init__(self, transport: "BlockingTransport") -> None:
        self._transport = transport
        self._is_away = False
        self.time: datetime | None = None

    def get(self, kind: Kind[T], name: str, namespace: str = "") -> T | Gap:
        try:
            call = calls.get(kind, name, namespace)
        except BadRequest:
            return Gap.ABSENT  # no object can have such a name
        answer = self._send(call)
        if isinstance(answer, Gap):
            return answer
        try:
            return kind.decode(answer.body)
        except msgspec.MsgspecError:
            return Gap.AWAY  # whatever answered is not what was asked

    def list(self, kind: Kind[T], namespace: str = "", selector: str = "", *, fields: str = "") -> tuple[T, ...] | Gap:
        pages = calls.Pages(kind, kind.decode, namespace, selector, fields=fields, limit=_PAGE)
        while pages.next_call is not None:
            answer = self._send(pages.next_call)
            if isinstance(answer, Gap):
                return answer
            try:
                pages.add(answer.body)
            except msgspec.MsgspecError:
                return Gap.AWAY
        return tuple(pages.items)

    def close(self) -> None:
        self._transport.close()

    def _send(self, call: Call) -> Answer | Gap:
        if self._is_away:
            return Gap.AWAY
        try:
            answer = self._transport.call(call)
        except (ApiError, KubeconfigError):
            self._is_away = True
            return Gap.AWAY
        self.time = _date(answer.date) or self.time
        if answer.code in _DENIALS:
            return Gap.DENIED
        if answer.code == 404:
            return Gap.ABSENT
        return answer if answer.code < 300 else Gap.AWAY


def _date(text: str) -> datetime | None:
    if not text:
        return None
    from email.utils import parsedate_to_datetime

    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None


class Federation:
    """The hub and the cells as an operator reaches them. `cells` names contexts by Cluster."""

    def __init__(
        self,
        config: Kubeconfig,
        connect: Callable[[Endpoint], "BlockingTransport"],
        *,
        hub: str = "",
        cells: Mapping[str, str] = {},
        host: str = "",
    ) -> None:
        self._config = config
        self._connect = connect
        self._hub_context = hub or (_HUB if _HUB in config.contexts else config.current)
        self._cell_contexts = dict(cells)
        self._host_context = host
        self._open: dict[str, Plane] = {}
        for context in (self._hub_context, *self._cell_contexts.values(), *filter(None, [host])):
            config.endpoint(context)  # a context that does not exist is an error at once

    @property
    def hub(self) -> Plane:
        return self._plane(self._hub_context, self._config.endpoint(self._hub_context))

    @property
    def host(self) -> Plane | None:
        return (
            self._plane(self._host_context, self._config.endpoint(self._host_context)) if self._host_context else None
        )

    def cell(self, cluster: str, city: str) -> Plane:
        """The plane of a Cluster: by a context of its own, else through Karmada."""
        named = self._cell_contexts.get(cluster, "")
        candidates = (named, cluster, f"{_CELL}{cluster}", f"{_CELL}{city.lower()}")
        context = next((name for name in candidates if name in self._config.contexts), "")
        if context:
            return self._plane(context, self._config.endpoint(context))
        hub = self._config.endpoint(self._hub_context)
        path = f"/apis/cluster.karmada.io/v1alpha1/clusters/{cluster}/proxy"
        return self._plane(f"proxy of {cluster}", replace(hub, server=hub.server.rstrip("/") + path))

    def close(self) -> None:
        for plane in self._open.values():
            plane.close()

    def _plane(self, name: str, endpoint: Endpoint) -> Plane:
        if name not in self._open:
            self._open[name] = Plane(self._connect(endpoint))
        return self._open[name]


def connector(run: "Run", seconds: float = PATIENCE_SECONDS) -> Callable[[Endpoint], "BlockingTransport"]:
    """How other planes than the project's are reached: with little patience."""
    from datum_compute import __version__
    from datum_compute.cli.talk.trace import trace
    from datum_compute.kube.blocking import BlockingTransport

    environment = run.environment
    if environment.connect is not None:
        return environment.connect
    clock = environment.clock

    def connect(endpoint: Endpoint) -> BlockingTransport:
        return BlockingTransport(
            endpoint,
            timeout=min(seconds, run.settings.request_timeout),
            agent=f"compute/{__version__}",
            pause=clock.sleep,
            monotonic=clock.monotonic,
            alarm=clock.alarm,
            trace=trace(run.settings.verbose, run.terminal.warn),
        )

    return connect


def is_beside(config: Kubeconfig, server: str) -> bool:
    """Whether the hub of a kubeconfig is on the server that the project is on, as in a local federation."""
    if _HUB not in config.contexts:
        return False
    try:
        hub = config.endpoint(_HUB).server
    except KubeconfigError:
        return False
    return urlsplit(hub)[:2] == urlsplit(server)[:2] and urlsplit(hub).hostname in ("127.0.0.1", "localhost", "::1")


def read_config(files: "list[Path]") -> Kubeconfig | None:
    """None if there is no usable kubeconfig: it was not asked for."""
    try:
        return Kubeconfig.read(files)
    except KubeconfigError:
        return None
