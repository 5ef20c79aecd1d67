"""HTTP without an event loop, for programs that make a few calls and exit. Entry point: `BlockingTransport`.

It takes the same calls and gives the same answers as the asynchronous transport, on `http.client`: importing an HTTP
library would cost more than the whole program. One connection is reused; each stream has its own.
"""

import base64
import http.client
import select
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Self, TypeVar
from urllib.parse import SplitResult, unquote, urlencode, urlsplit

from msgspec import Struct
from msgspec.structs import replace

from datum_compute.kube.access.credentials import Credentials, EndpointCredentials
from datum_compute.kube.access.kubeconfig import Endpoint, KubeconfigError
from datum_compute.kube.errors import ApiError, MethodNotAllowed, Timeout, Unauthorized, Unavailable, from_status
from datum_compute.kube.retries import POLICY, pause_before_retry
from datum_compute.kube.transport import Answer, Broken, Call, Untrusted, answer_of, request_headers

if TYPE_CHECKING:
    from datum_compute.kube.access.tls import ClientTls
    from datum_compute.kube.websocket import WebSocket

T = TypeVar("T")

_LEAST_SECONDS = 0.001  # to a socket, a timeout of 0 means none
SILENCE_SECONDS = 5.0  # before the user is told what the call waits for

Alarm = Callable[[float, Callable[[], None]], AbstractContextManager[None]]
"""Runs an action in another thread, unless the block ends within so many seconds."""


@contextmanager
def alarm(seconds: float, action: Callable[[], None]) -> Iterator[None]:
    import threading

    timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), action)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class Exchange(Struct, frozen=True):
    """One call for a trace; with a code of 0, `error` says why there was no answer."""

    call: Call
    code: int
    body: bytes
    seconds: float
    error: str = ""


class BlockingTransport:
    """Calls below one API root, `http://` or `https://`. Not shared between threads, except `stream`.

    `call` returns every answer, good or bad, and raises `Unavailable` or `Timeout` when there is none. Calls are
    repeated as `kube.retries` decides, all attempts together within `timeout`. `waiting` is called with what a call
    waits for when that takes a while.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        credentials: Credentials | None = None,
        timeout: float = 30.0,
        agent: str = "",
        pause: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
        alarm: Alarm = alarm,
        waiting: Callable[[str], None] = lambda what: None,
        trace: Callable[[Exchange], None] | None = None,
    ) -> None:
        url = urlsplit(endpoint.server)
        self._endpoint = endpoint
        self._secure = url.scheme == "https"
        self._host = url.hostname or ""
        self._port = url.port or (443 if self._secure else 80)
        self._root = url.path.rstrip("/")
        self._proxy = urlsplit(endpoint.proxy) if endpoint.proxy else None
        self._tls: ClientTls | None = None
        interactive = sys.stdin is not None and sys.stdin.isatty()
        self._own = EndpointCredentials(endpoint, interactive=interactive, patience=timeout)
        self.credentials: Credentials = credentials or self._own
        self._timeout = timeout
        self._agent = agent
        self._pause = pause
        self._monotonic = monotonic
        self._alarm = alarm
        self._waiting = waiting
        self._trace = trace
        self._idle: http.client.HTTPConnection | None = None

    def call(self, call: Call) -> Answer:
        began, tries = self._monotonic(), 0
        policy = replace(POLICY, deadline=min(POLICY.deadline, self._timeout))
        while True:
            outcome = self._attempt(call, began + self._timeout)
            if isinstance(outcome, Answer) and outcome.code < 300:
                return outcome
            if isinstance(outcome, Timeout):  # no time is left
                raise outcome
            import random  # only where it is needed

            tries += 1
            spent = self._monotonic() - began
            pause = pause_before_retry(call, outcome, tries=tries, spent=spent, jitter=random.random(), policy=policy)
            if pause is None:
                break
            self._pause(pause)
        if isinstance(outcome, ApiError):
            raise outcome
        return outcome

    def stream(self, call: Call, *, silence: float) -> "Stream":
        """A watch, one JSON event per line. Raises `ApiError` when the server refuses; ends after `silence` seconds."""
        response = self.open(call, silence=silence)
        if response.code >= 300:
            with response:
                raise from_status(response.code, b"".join(response), "")
        return response

    def open(self, call: Call, *, silence: float) -> "Stream":
        """An answer that is read line by line, good or bad; raises `Timeout` after `silence` seconds without a byte."""
        response = self._open_stream(call, silence)
        if response.code == 401 and self.credentials.renew():
            response.close()
            response = self._open_stream(call, silence)
        return response

    def websocket(self, path: str, query: str, subprotocol: str) -> "WebSocket":
        """Opens a WebSocket on a connection of its own. Raises `ApiError` when the server refuses."""
        opened = self._open_websocket(path, query, subprotocol)
        if isinstance(opened, ApiError):
            if not isinstance(opened, Unauthorized) or not self._renewed():
                raise opened
            opened = self._open_websocket(path, query, subprotocol)
        if isinstance(opened, ApiError):
            raise opened
        return opened

    def close(self) -> None:
        if self._idle is not None:
            self._idle.close()
            self._idle = None

    def _attempt(self, call: Call, deadline: float) -> Answer | ApiError:
        try:
            answer = self._send(call, deadline)
            if answer.code == 401 and self._renewed():
                self.close()  # the connection may have presented the old certificate
                answer = self._send(call, deadline)  # it was refused, so it has not happened
            return answer
        except ApiError as error:
            return error

    def _renewed(self) -> bool:
        with self._alarm(SILENCE_SECONDS, self._report_credentials):
            return self.credentials.renew()

    def _report_credentials(self) -> None:
        self._waiting("credentials")

    def _send(self, call: Call, deadline: float) -> Answer:
        with self._alarm(SILENCE_SECONDS, self._report_credentials):
            connection = self._connection()
            authorization = self.credentials.authorization()
        self._idle = None  # until the whole answer was read
        started = time.monotonic()
        left = max(deadline - self._monotonic(), _LEAST_SECONDS)
        connection.timeout = left
        if connection.sock is not None:
            connection.sock.settimeout(left)
        late = _Late(connection)
        try:
            with self._alarm(SILENCE_SECONDS, self._report_server), self._alarm(left, late.hang_up):
                response = self._translated(lambda: self._exchange(connection, call, authorization), late)
                body = self._translated(response.read, late)
        except BaseException as error:
            connection.close()
            self._trace_failure(call, error, started)
            raise
        if response.will_close:
            connection.close()
        else:
            self._idle = connection
        self._trace_answer(call, response.status, body, started)
        warnings = response.headers.get_all("Warning") or ()
        date = response.getheader("Date") or ""
        return answer_of(response.status, body, warnings, response.getheader("Retry-After"), date)

    def _open_stream(self, call: Call, silence: float) -> "Stream":
        connection = self._connect(silence)
        started = time.monotonic()
        try:
            self._translated(connection.connect)
            opened = connection.sock  # the connection drops its reference when the answer ends with it
            authorization = self.credentials.authorization()
            response = self._translated(lambda: self._exchange(connection, call, authorization))
        except BaseException as error:
            connection.close()
            self._trace_failure(call, error, started)
            raise
        self._trace_answer(call, response.status, b"", started)
        return Stream(connection, opened, response, self._translated)

    def _open_websocket(self, path: str, query: str, subprotocol: str) -> "WebSocket | ApiError":
        from datum_compute.kube.websocket import Refusal, shake_hands

        call, started = Call("GET", path), time.monotonic()  # traces show no query, which may hold what is secret
        connection = self._connect(self._timeout)
        if self._proxy is not None and not self._secure:
            connection.set_tunnel(self._host, self._port, headers=_proxy_headers(self._proxy))
        try:
            with self._alarm(SILENCE_SECONDS, self._report_server):
                self._translated(connection.connect)
                opened = connection.sock
                assert opened is not None
                headers = request_headers(call, self._agent, self.credentials.authorization())
                host, target = urlsplit(self._endpoint.server).netloc.rpartition("@")[2], f"{self._root}{path}?{query}"
                made = self._translated(lambda: shake_hands(opened, host, target, [*headers.items()], subprotocol))
        except Refusal as refusal:
            connection.close()
            self._trace_answer(call, refusal.code, refusal.body, started)
            if refusal.code < 300:
                return MethodNotAllowed("the server does not have a WebSocket there")
            return from_status(refusal.code, refusal.body, "")
        except BaseException as error:
            connection.close()
            self._trace_failure(call, error, started)
            raise
        self._trace_answer(call, 101, b"", started)
        return made

    def _connection(self) -> http.client.HTTPConnection:
        """The idle connection, unless the server has closed it; otherwise a new one."""
        idle = self._idle
        if idle is not None and idle.sock is not None:
            readable, _, _ = select.select([idle.sock], [], [], 0)
            if not readable:  # without a call under way, anything to read is the end of the connection
                return idle
            idle.close()
        return self._connect(self._timeout)

    def _connect(self, timeout: float) -> http.client.HTTPConnection:
        host, port = self._host, self._port
        if self._proxy is not None:
            if self._proxy.scheme != "http":
                raise KubeconfigError(
                    f"the proxy of {self._endpoint.server} has no http:// address; no other is supported"
                )
            host, port = self._proxy.hostname or "", self._proxy.port or 80
        if not self._secure:
            return http.client.HTTPConnection(host, port, timeout=timeout)
        connection = _Secure(host, port, timeout, self._context(), self._endpoint.server_name or self._host)
        if self._proxy is not None:
            connection.set_tunnel(self._host, self._port, headers=_proxy_headers(self._proxy))
        return connection

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            from datum_compute.kube.access.tls import ClientTls

            self._tls = ClientTls(self._endpoint)
        credential = self._own.current()
        return self._tls.context(credential.certificate, credential.key)

    def _report_server(self) -> None:
        self._waiting(f"{self._host}:{self._port}")

    def _exchange(
        self, connection: http.client.HTTPConnection, call: Call, authorization: str
    ) -> http.client.HTTPResponse:
        headers = request_headers(call, self._agent, authorization)
        target = f"{self._root}{call.path}{f'?{urlencode(call.query)}' if call.query else ''}"
        if self._proxy is not None and not self._secure:
            headers |= _proxy_headers(self._proxy)
            target = f"http://{urlsplit(self._endpoint.server).netloc}{target}"
        connection.request(call.method, target, body=call.body or None, headers=headers)
        return connection.getresponse()

    def _translated(self, action: Callable[[], T], late: "_Late | None" = None) -> T:
        """The result of `action`; its failure is turned into the error of a call without an answer."""
        origin = f"{self._host}:{self._port}"
        peer = f"the proxy {self._proxy.hostname}:{self._proxy.port or 80}" if self._proxy else origin
        try:
            with _timing_out(late):
                return action()
        except ssl.SSLCertVerificationError as error:
            raise Untrusted(f"the certificate of {origin} is not trusted: {error.verify_message}") from None
        except TimeoutError:
            raise Timeout(f"no answer from {origin} in time") from None
        except socket.gaierror:
            raise Unavailable(f"the address of {peer if self._proxy else self._host} cannot be found") from None
        except ConnectionRefusedError:
            raise Unavailable(f"nothing listens on {peer}") from None
        except (http.client.HTTPException, ConnectionError):
            raise Broken(f"{origin} ended the connection before its answer was complete") from None
        except OSError as error:
            raise Unavailable(f"{origin} cannot be reached: {error.strerror or error}") from None

    def _trace_answer(self, call: Call, code: int, body: bytes, started: float) -> None:
        if self._trace is not None:
            self._trace(Exchange(call, code, body, time.monotonic() - started))

    def _trace_failure(self, call: Call, error: BaseException, started: float) -> None:
        if self._trace is not None and isinstance(error, ApiError):
            self._trace(Exchange(call, 0, b"", time.monotonic() - started, error.message))


class _Late:
    """Closes a connection at its deadline, whatever it is doing: a socket's own timeout counts from the last byte."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self._connection = connection
        self.hung_up = False

    def hang_up(self) -> None:
        self.hung_up = True
        opened = self._connection.sock
        if opened is not None:
            # Below TLS, because only this wakes a thread that is reading.
            with suppress(OSError):
                socket.socket.shutdown(opened, socket.SHUT_RDWR)


@contextmanager
def _timing_out(late: _Late | None) -> Iterator[None]:
    """After the deadline, every error is a timeout."""
    try:
        yield
    except (OSError, http.client.HTTPException, ValueError):
        if late is None or not late.hung_up:
            raise
    if late is not None and late.hung_up:  # a closed connection may look like the end of the answer
        raise TimeoutError


class _Secure(http.client.HTTPSConnection):
    """TLS to a server whose certificate may have another name than its address, perhaps through a proxy."""

    def __init__(self, host: str, port: int, timeout: float, tls: ssl.SSLContext, server_name: str) -> None:
        super().__init__(host, port, timeout=timeout, context=tls)
        self._tls = tls
        self._server_name = server_name

    def connect(self) -> None:
        http.client.HTTPConnection.connect(self)
        assert self.sock is not None
        self.sock = self._tls.wrap_socket(self.sock, server_hostname=self._server_name)


class Stream:
    """The lines of one answer. `close` may be called from another thread and ends the iteration."""

    def __init__(
        self,
        connection: http.client.HTTPConnection,
        opened: socket.socket | None,
        response: http.client.HTTPResponse,
        translated: Callable[[Callable[[], bytes]], bytes],
    ) -> None:
        self.code = response.status
        self._connection = connection
        self._socket = opened
        self._response = response
        self._translated = translated
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self.close()
        self._response.close()
        self._connection.close()

    def __iter__(self) -> Iterator[bytes]:
        try:
            while line := self._translated(self._response.readline):
                yield line
        except (ApiError, ValueError, AttributeError):  # the last two: the socket was closed during the read
            if not self._closed:
                raise

    def close(self) -> None:
        self._closed = True
        if self._socket is not None:
            # Below TLS, because only this wakes a thread that is reading.
            with suppress(OSError):
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


def _proxy_headers(proxy: SplitResult) -> dict[str, str]:
    if not proxy.username:
        return {}
    credentials = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(credentials.encode()).decode()}"}
