"""HTTP without an event loop, for programs that make a few calls and end. Entry point: `PlainTransport`.

The same calls and answers as the asynchronous transport, on `http.client`: importing an HTTP library would cost more
than the whole program. One connection is kept open; a stream has one of its own.
"""

import http.client
import select
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Protocol, Self, TypeVar
from urllib.parse import urlencode, urlsplit

from msgspec import Struct

from datum_compute.kube.errors import ApiError, Timeout, Unavailable, from_status
from datum_compute.kube.kubeconfig import Endpoint
from datum_compute.kube.transport import Answer, Call

T = TypeVar("T")

RETRIES = 4  # of a read; a write is never repeated, because the first may have happened
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 30.0


class Credentials(Protocol):
    """Who is calling. Nothing of it is ever part of an error or a trace."""

    def authorization(self) -> str:
        """The value of the Authorization header; empty to send none."""
        ...

    def refused(self) -> bool:
        """Told that the server answered 401; true when there is something newer to try."""
        ...


class EndpointToken:
    """The token of an endpoint; one in a file is read again when it is refused, because others rotate it."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._token: str | None = None

    def authorization(self) -> str:
        if self._token is None:
            self._token = self._endpoint.bearer()
        return f"Bearer {self._token}" if self._token else ""

    def refused(self) -> bool:
        before, self._token = self._token, self._endpoint.bearer()
        return self._token != before


class Exchange(Struct, frozen=True):
    """One call that was answered, for whoever traces them."""

    call: Call
    code: int
    body: bytes
    seconds: float


class _Response(Struct, frozen=True):
    answer: Answer
    retry_after: float


class Broken(Unavailable):
    """The connection ended in the middle, so that the call may or may not have happened."""


class _Untrusted(Unavailable):
    """A certificate that is not trusted stays so; asking again is no use."""


class PlainTransport:
    """Calls below one API root, `http://` or `https://`. Not shared between threads, except `stream`.

    `call` returns every answer, good or bad, and raises `Unavailable` or `Timeout` when there is none. Reads are
    repeated up to four times after 429, 5xx and network failures, no sooner than Retry-After says.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        credentials: Credentials | None = None,
        timeout: float = 30.0,
        agent: str = "",
        pause: Callable[[float], None] = time.sleep,
        trace: Callable[[Exchange], None] | None = None,
    ) -> None:
        url = urlsplit(endpoint.server)
        self._endpoint = endpoint
        self._secure = url.scheme == "https"
        self._host = url.hostname or ""
        self._port = url.port or (443 if self._secure else 80)
        self._root = url.path.rstrip("/")
        self._tls: ssl.SSLContext | None = None
        self._credentials: Credentials = credentials or EndpointToken(endpoint)
        self._timeout = timeout
        self._agent = agent
        self._pause = pause
        self._trace = trace
        self._kept: http.client.HTTPConnection | None = None

    def call(self, call: Call) -> Answer:
        reading = call.method == "GET"
        for attempt in range(RETRIES + 1):
            last = not reading or attempt == RETRIES
            least = 0.0
            try:
                response = self._authorized(call)
                if last or not _worth_repeating(response.answer.code):
                    return response.answer
                least = response.retry_after
            except _Untrusted:
                raise
            except (Unavailable, Timeout):
                if last:
                    raise
            self._pause(min(max(_backoff(attempt), least), _LONGEST_PAUSE))
        raise AssertionError("the last attempt returns or raises")

    def stream(self, call: Call, *, silence: float) -> "Stream":
        """A watch, one JSON event a line. Raises `ApiError` when the server refuses; ends after `silence` seconds."""
        response = self._opened(call, silence)
        if response.code == 401 and self._credentials.refused():
            response.close()
            response = self._opened(call, silence)
        if response.code >= 300:
            with response:
                raise from_status(response.code, b"".join(response), "")
        return response

    def close(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def _authorized(self, call: Call) -> _Response:
        response = self._once(call)
        if response.answer.code == 401 and self._credentials.refused():
            response = self._once(call)  # it was refused, so it has not happened
        return response

    def _once(self, call: Call) -> _Response:
        connection = self._usable()
        self._kept = None  # kept again only when the answer was read whole
        started = time.monotonic()
        try:
            response = self._explained(lambda: self._exchange(connection, call))
            body = self._explained(response.read)
        except BaseException:
            connection.close()
            raise
        if response.will_close:
            connection.close()
        else:
            self._kept = connection
        self._traced(call, response.status, body, started)
        warnings = tuple(_warning(header) for header in response.headers.get_all("Warning") or ())
        return _Response(Answer(response.status, body, warnings), _seconds(response.getheader("Retry-After")))

    def _opened(self, call: Call, silence: float) -> "Stream":
        connection = self._connect(silence)
        started = time.monotonic()
        try:
            self._explained(connection.connect)
            opened = connection.sock  # the connection forgets it when the answer is to end with it
            response = self._explained(lambda: self._exchange(connection, call))
        except BaseException:
            connection.close()
            raise
        self._traced(call, response.status, b"", started)
        return Stream(connection, opened, response, self._explained)

    def _usable(self) -> http.client.HTTPConnection:
        """The kept connection, unless the server has closed it in the meantime."""
        kept = self._kept
        if kept is not None and kept.sock is not None:
            readable, _, _ = select.select([kept.sock], [], [], 0)
            if not readable:  # with no call under way, anything to read is the end of the connection
                return kept
            kept.close()
        return self._connect(self._timeout)

    def _connect(self, timeout: float) -> http.client.HTTPConnection:
        if not self._secure:
            return http.client.HTTPConnection(self._host, self._port, timeout=timeout)
        if self._tls is None:
            self._tls = self._endpoint.tls()
        assert self._tls is not None
        return _Secure(self._host, self._port, timeout, self._tls, self._endpoint.server_name)

    def _exchange(self, connection: http.client.HTTPConnection, call: Call) -> http.client.HTTPResponse:
        headers = {"Accept": "application/json"}
        if self._agent:
            headers["User-Agent"] = self._agent
        if call.body:
            headers["Content-Type"] = call.content_type
        if authorization := self._credentials.authorization():
            headers["Authorization"] = authorization
        query = f"?{urlencode(call.query)}" if call.query else ""
        connection.request(call.method, f"{self._root}{call.path}{query}", body=call.body or None, headers=headers)
        return connection.getresponse()

    def _explained(self, action: Callable[[], T]) -> T:
        """What `action` gives, its failure turned into the error of a call that has no answer."""
        origin = f"{self._host}:{self._port}"
        try:
            return action()
        except ssl.SSLCertVerificationError as error:
            raise _Untrusted(f"the certificate of {origin} is not trusted: {error.verify_message}") from None
        except TimeoutError:
            raise Timeout(f"no answer from {origin} in time") from None
        except socket.gaierror:
            raise Unavailable(f"the address of {self._host} cannot be found") from None
        except ConnectionRefusedError:
            raise Unavailable(f"nothing listens on {origin}") from None
        except (http.client.HTTPException, ConnectionError):
            raise Broken(f"{origin} ended the connection before its answer was complete") from None
        except OSError as error:
            raise Unavailable(f"{origin} cannot be reached: {error.strerror or error}") from None

    def _traced(self, call: Call, code: int, body: bytes, started: float) -> None:
        if self._trace is not None:
            self._trace(Exchange(call, code, body, time.monotonic() - started))


class _Secure(http.client.HTTPSConnection):
    """Over TLS to a server whose certificate may be for another name than its address."""

    def __init__(self, host: str, port: int, timeout: float, tls: ssl.SSLContext, server_name: str) -> None:
        super().__init__(host, port, timeout=timeout, context=tls)
        self._tls = tls
        self._certified = server_name or host

    def connect(self) -> None:
        http.client.HTTPConnection.connect(self)
        assert self.sock is not None
        self.sock = self._tls.wrap_socket(self.sock, server_hostname=self._certified)


class Stream:
    """The lines of one watch. `close` may be called from another thread and ends the iteration."""

    def __init__(
        self,
        connection: http.client.HTTPConnection,
        opened: socket.socket | None,
        response: http.client.HTTPResponse,
        explained: Callable[[Callable[[], bytes]], bytes],
    ) -> None:
        self.code = response.status
        self._connection = connection
        self._socket = opened
        self._response = response
        self._explained = explained
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self.close()
        self._response.close()
        self._connection.close()

    def __iter__(self) -> Iterator[bytes]:
        try:
            while line := self._explained(self._response.readline):
                yield line
        except (ApiError, ValueError, AttributeError):  # the last two: read from a socket that was just closed
            if not self._closed:
                raise

    def close(self) -> None:
        self._closed = True
        if self._socket is not None:
            # Below TLS, because only this wakes a thread that is reading.
            with suppress(OSError):
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


def _worth_repeating(code: int) -> bool:
    return code == 429 or code >= 500


def _backoff(attempt: int) -> float:
    """Doubling, with jitter, so that many clients do not come back at the same moment."""
    import random

    pause: float = _FIRST_PAUSE * 2**attempt * random.uniform(0.75, 1.25)
    return pause


def _seconds(header: str | None) -> float:
    """Retry-After in its usual form; a date is not worth the code."""
    return float(header) if header and header.isdecimal() else 0.0


def _warning(header: str) -> str:
    """The text of `299 - "text"`."""
    _, quote, text = header.partition('"')
    return text.removesuffix('"').replace('\\"', '"') if quote else header
