"""The engine over HTTPS on this machine alone. Entry point: `HttpsServer`."""

import asyncio
import socket
import ssl
from collections.abc import Callable

import structlog

from datum_compute.embedded.engine import Engine
from datum_compute.embedded.https.application import ROOT_PLANE, Application
from datum_compute.embedded.https.certificates import Credentials
from datum_compute.kube.access.kubeconfig import Endpoint
from datum_compute.runtime.serving.asgi import AsgiServer
from datum_compute.runtime.serving.connections import Limits

HOST = "127.0.0.1"

_LIMITS = Limits(connections=1024)  # many of them watches
_RENEWAL_SECONDS = 24 * 3600.0
_RETRY_SECONDS = 60.0

_log = structlog.get_logger(__name__)


class HttpsServer:
    """Serves an engine; `start` returns when calls are answered, `stop` when none is under way any more.

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
    ) -> None:
        self._engine = engine
        self._credentials = credentials
        self._limits = limits or _LIMITS
        self._application = Application(engine, credentials.token, engine.clock, ready, self._limits)
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._server: AsgiServer | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.port = port  # the one that was found free, once started with 0

    @property
    def url(self) -> str:
        return f"https://{HOST}:{self.port}"

    def endpoint(self, plane: str) -> Endpoint:
        """How clients of any kind reach a plane; for a kubeconfig, with the namespace that commands mean by default."""
        if plane == ROOT_PLANE:
            path = ""
        else:
            mounted = (mount for mount in self._engine.mounts if self._engine.plane(plane, role=mount.role))
            mount = next(mounted, None)
            path = mount.path(plane) if mount is not None else f"/planes/{plane}"
        ca, token = self._credentials.authority_pem, self._credentials.token
        return Endpoint(f"{self.url}{path}", ca_pem=ca, token=token, namespace="default")

    async def start(self) -> str:
        # With its protocol named, because asyncio turns off Nagle's delay only for those: it would be 40 ms a write.
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((HOST, self.port))
        except OSError:
            listening.close()
            raise
        self.port = listening.getsockname()[1]
        self._show_certificate()
        self._server = AsgiServer(self._application, limits=self._limits, tls=self._tls)
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

    def _show_certificate(self) -> None:
        self._tls.load_cert_chain(self._credentials.certificate, self._credentials.key)

    async def _renew(self) -> None:
        """A server that runs for a year shows a new certificate before the old one expires.

        There is a month for it, so whatever goes wrong is tried again.
        """
        pause = _RENEWAL_SECONDS
        while True:
            await asyncio.sleep(pause)
            try:
                Credentials.ensure(self._credentials.directory, self._engine.clock.now())
                self._show_certificate()
            except Exception as error:
                _log.warning("certificate not renewed; trying again", error=str(error), seconds=_RETRY_SECONDS)
                pause = _RETRY_SECONDS
            else:
                pause = _RENEWAL_SECONDS
