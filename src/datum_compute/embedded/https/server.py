"""The engine over HTTPS on the loopback interface. Entry point: `HttpsServer`."""

import asyncio
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog

from datum_compute.embedded.engine import Engine
from datum_compute.embedded.https.application import ROOT_PLANE, Application
from datum_compute.embedded.https.certificates import Credentials
from datum_compute.embedded.https.extensions import Extension
from datum_compute.kube.access.kubeconfig import Endpoint
from datum_compute.runtime.serving.asgi import AsgiServer
from datum_compute.runtime.serving.connections import Limits

HOST = "127.0.0.1"

_LIMITS = Limits(connections=1024)  # many of them watches
_RENEWAL_SECONDS = 24 * 3600.0
_RETRY_SECONDS = 60.0

_log = structlog.get_logger(__name__)


class HttpsServer:
    """Serves an engine: `start` returns once calls are answered, `stop` once the last call has ended.

    `start` raises `OSError` when the port is taken. The engine is neither run nor closed here.
    """

    def __init__(
        self,
        engine: Engine,
        credentials: Credentials,
        port: int = 0,
        *,
        ready: Callable[[], bool] = lambda: True,
        limits: Limits | None = None,
        extensions: Sequence[Extension] = (),
        documents: Mapping[str, Callable[[], Any]] = {},
    ) -> None:
        self._engine = engine
        self._credentials = credentials
        self._limits = limits or _LIMITS
        self._application = Application(
            engine, credentials.token, engine.clock, ready, self._limits, extensions, documents
        )
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._server: AsgiServer | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.port = port  # with 0, a free one is chosen by `start`

    @property
    def url(self) -> str:
        return f"https://{HOST}:{self.port}"

    def endpoint(self, plane: str) -> Endpoint:
        """The address and credentials of a plane for clients, with the default namespace for a kubeconfig."""
        if plane == ROOT_PLANE:
            path = ""
        else:
            mounted = (mount for mount in self._engine.mounts if self._engine.plane(plane, role=mount.role))
            mount = next(mounted, None)
            path = mount.path(plane) if mount is not None else f"/planes/{plane}"
        ca, token = self._credentials.authority_pem, self._credentials.token
        return Endpoint(f"{self.url}{path}", ca_pem=ca, token=token, namespace="default")

    async def start(self) -> str:
        # With an explicit protocol, because asyncio disables Nagle's delay, 40 ms per write, only then.
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((HOST, self.port))
        except OSError:
            listening.close()
            raise
        self.port = listening.getsockname()[1]
        self._load_certificate()
        application = self._application
        self._server = AsgiServer(application, limits=self._limits, tls=self._tls, websockets=application.has_websocket)
        serving = await self._server.start(listening, "https")
        self._tasks = [serving, asyncio.create_task(self._renew(), name="certificate renewal")]
        return self.url

    async def stop(self) -> None:
        self._application.stop()
        if self._server is None:
            return
        self._server.should_exit = True
        serving, renewal = self._tasks
        renewal.cancel()
        await asyncio.gather(serving, renewal, return_exceptions=True)
        self._server = None

    def _load_certificate(self) -> None:
        self._tls.load_cert_chain(self._credentials.certificate, self._credentials.key)

    async def _renew(self) -> None:
        """Renews the certificate before it expires. There is a month for it, so failures are retried."""
        pause = _RENEWAL_SECONDS
        while True:
            await asyncio.sleep(pause)
            try:
                Credentials.ensure(self._credentials.directory, self._engine.clock.now())
                self._load_certificate()
            except Exception as error:
                _log.warning("certificate not renewed; trying again", error=str(error), seconds=_RETRY_SECONDS)
                pause = _RETRY_SECONDS
            else:
                pause = _RENEWAL_SECONDS
