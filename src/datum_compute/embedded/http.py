"""The engine over HTTPS on this machine alone. Entry point: `HttpsServer`."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from datum_compute.embedded.application import MILO, ROOT_PLANE, Application
from datum_compute.embedded.certificates import Credentials
from datum_compute.embedded.engine import Engine
from datum_compute.federation.roles import PROJECT
from datum_compute.kube.kubeconfig import Endpoint
from datum_compute.runtime.asgi import AsgiServer, config

HOST = "127.0.0.1"

_BACKLOG = 512
_IDLE_SECONDS = 120  # longer than clients keep a connection, so that they are the ones who close it
_RENEWAL_SECONDS = 24 * 3600.0
_HEAD_BYTES = 64 * 1024  # of a request, before its body
_HEAD_SECONDS = 20.0
_GATHERED_BYTES = 64 * 1024
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-type: text/plain; charset=utf-8\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
)


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
        self._server = AsgiServer(self._config())
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

    def _config(self) -> uvicorn.Config:
        return config(
            self._application,
            http=_Connection,
            backlog=_BACKLOG,
            timeout_keep_alive=_IDLE_SECONDS,
            ssl_certfile=self._credentials.certificate,
            ssl_keyfile=self._credentials.key,
        )

    async def _renew(self) -> None:
        """A server that runs for a year shows a new certificate before the old one expires."""
        while True:
            await asyncio.sleep(_RENEWAL_SECONDS)
            Credentials.ensure(self._credentials.directory, self._engine.clock.now())
            assert self._server is not None
            context = self._server.config.ssl
            assert context is not None
            context.load_cert_chain(self._credentials.certificate, self._credentials.key)


class _Connection(HttpToolsProtocol):
    """Leaves a client whose request does not get to the point: whose head is endless, or does not come to its end."""

    _reading_head = True
    _head_bytes = 0
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(_Gathering(transport, self.loop))  # type: ignore[arg-type]
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._reading_head:
            self._head_bytes += len(data)
            if self._head_bytes > _HEAD_BYTES and not self.transport.is_closing():
                self.transport.write(_TOO_LARGE)
                self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._reading_head, self._head_bytes = True, 0
        self._wait_for_head()

    def on_headers_complete(self) -> None:
        self._reading_head = False
        self._stop_waiting()
        super().on_headers_complete()

    def _wait_for_head(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(_HEAD_SECONDS, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class _Gathering:
    """A transport that sends at once what is written in one step of the loop: a head with its body, events of a commit.

    Each piece by itself would be encrypted and sent by itself, which is most of what an answer costs.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._pieces: list[bytes] = []
        self._size = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._pieces:
            self._loop.call_soon(self._send)
        self._pieces.append(data)
        self._size += len(data)
        if self._size > _GATHERED_BYTES:  # so that a client that does not read is noticed as ever
            self._send()

    def close(self) -> None:
        self._send()
        self._transport.close()

    def _send(self) -> None:
        pieces, self._pieces, self._size = self._pieces, [], 0
        if pieces and not self._transport.is_closing():
            self._transport.write(b"".join(pieces))
