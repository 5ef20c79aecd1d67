"""The engine over HTTPS on this machine alone. Entry point: `HttpsServer`."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

from datum_compute.embedded.application import MILO, ROOT_PLANE, Application
from datum_compute.embedded.certificates import Credentials
from datum_compute.embedded.engine import Engine
from datum_compute.federation.roles import PROJECT
from datum_compute.kube.kubeconfig import Endpoint

HOST = "127.0.0.1"

_BACKLOG = 512
_IDLE_SECONDS = 120  # longer than clients keep a connection, so that they are the ones who close it
_LAST_SECONDS = 2  # for answers that are under way when the server stops
_RENEWAL_SECONDS = 24 * 3600.0


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
    ) -> None:
        self._engine = engine
        self._credentials = credentials
        self._application = Application(engine, credentials.token, engine.clock, ready)
        self._uvicorn: _Uvicorn | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.port = port  # the one that was found free, once started with 0

    @property
    def url(self) -> str:
        return f"https://{HOST}:{self.port}"

    def endpoint(self, plane: str) -> Endpoint:
        """How clients of any kind reach a plane; for a kubeconfig, with the namespace that commands mean by default."""
        if plane == ROOT_PLANE:
            path = ""
        elif self._engine.plane(plane, role=PROJECT):
            path = f"{MILO}/projects/{plane}/control-plane"
        else:
            path = f"/planes/{plane}"
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
        self._uvicorn = _Uvicorn(self._config())
        serving = asyncio.create_task(self._uvicorn.serve([listening]), name="https")
        started = asyncio.create_task(self._uvicorn.ready.wait())
        await asyncio.wait([serving, started], return_when=asyncio.FIRST_COMPLETED)
        started.cancel()
        if serving.done():
            listening.close()
            serving.result()
        self._tasks = [serving, asyncio.create_task(self._renew(), name="certificate renewal")]
        return self.url

    async def stop(self) -> None:
        self._application.stop()
        if self._uvicorn is None:
            return
        self._uvicorn.should_exit = True
        serving, renewal = self._tasks
        renewal.cancel()
        await asyncio.gather(serving, renewal, return_exceptions=True)
        self._uvicorn = None

    def _config(self) -> uvicorn.Config:
        return uvicorn.Config(
            self._application,
            interface="asgi3",
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",  # the application logs what fails in it; junk from clients is nobody's concern
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=_BACKLOG,
            timeout_keep_alive=_IDLE_SECONDS,
            timeout_graceful_shutdown=_LAST_SECONDS,
            ssl_certfile=self._credentials.certificate,
            ssl_keyfile=self._credentials.key,
        )

    async def _renew(self) -> None:
        """A server that runs for a year shows a new certificate before the old one expires."""
        while True:
            await asyncio.sleep(_RENEWAL_SECONDS)
            Credentials.ensure(self._credentials.directory, self._engine.clock.now())
            assert self._uvicorn is not None
            context = self._uvicorn.config.ssl
            assert context is not None
            context.load_cert_chain(self._credentials.certificate, self._credentials.key)


class _Uvicorn(uvicorn.Server):
    """Tells when it serves, and leaves signals to the process."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
