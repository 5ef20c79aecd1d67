"""HTTP for long-running programs. Entry point: `HttpTransport`."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress

import aiohttp
from yarl import URL

from datum_compute.kube.access.credentials import Credential, EndpointCredentials
from datum_compute.kube.access.kubeconfig import Endpoint, KubeconfigError
from datum_compute.kube.access.tls import ClientTls
from datum_compute.kube.errors import Timeout, Unavailable, from_status
from datum_compute.kube.transport import (
    Answer,
    Broken,
    Call,
    Link,
    NoCredentials,
    Untrusted,
    answer_of,
    request_headers,
    retry_after_seconds,
)

_IDLE_SECONDS = 60.0
_WHOLE_ANSWERS = 4  # times the limit for a silent server
_HEARTBEAT_SECONDS = 30.0  # of a WebSocket; a server that does not answer is gone
_CLOSE_SECONDS = 1.0  # for the server to confirm the end of a WebSocket
_WATCH_GRACE_SECONDS = 30.0  # by which a server may end a watch late


class HttpLink:
    """A `Link`."""

    def __init__(self, opened: aiohttp.ClientWebSocketResponse) -> None:
        self._opened = opened
        connection = opened._response.connection  # aiohttp forgets it when the server ends the conversation
        self._transport = connection.transport if connection is not None else None

    async def send(self, data: bytes) -> None:
        try:
            await self._opened.send_bytes(data)
        except (OSError, aiohttp.ClientError):
            raise Broken("the connection was lost") from None

    async def receive(self) -> bytes | None:
        while True:
            message = await self._opened.receive()
            match message.type:
                case aiohttp.WSMsgType.BINARY:
                    data: bytes = message.data
                    return data
                case aiohttp.WSMsgType.TEXT:
                    continue
            return None

    async def close(self) -> None:
        # The limit of aiohttp is for each message that the server still sends, and none is for sending to it.
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._opened.close()
        if self._transport is not None:
            self._transport.abort()  # an orderly end of TLS would wait for the server
            await asyncio.sleep(0)


class HttpTransport:
    """Calls below the API root of one endpoint, over pooled connections.

    Created anywhere, used on one event loop, closed by its creator. At most `calls` are under way at once; watches have
    their own connections and are not counted. A call or watch that is refused with 401 is repeated once if there are
    newer credentials; transports of one host may share `credentials`.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        credentials: EndpointCredentials | None = None,
        agent: str = "",
        connect_seconds: float = 5.0,
        answer_seconds: float = 30.0,
        calls: int = 64,
    ) -> None:
        self._endpoint = endpoint
        self._credentials = credentials or EndpointCredentials(endpoint)
        self._tls = ClientTls(endpoint)
        self._root = URL(endpoint.server)
        self._origin = f"{self._root.host}:{self._root.port}"
        self._agent = agent
        self._connect_seconds = connect_seconds
        self._answer_seconds = answer_seconds
        self._places = asyncio.Semaphore(calls)
        self._renewing = asyncio.Lock()
        self._session: aiohttp.ClientSession | None = None
        self._ended = False

    async def call(self, call: Call) -> Answer:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._connect_seconds, sock_read=self._answer_seconds)
        async with self._places:
            with self._translated():
                # A limit for the whole answer too: one that trickles in would never be late.
                async with asyncio.timeout(self._connect_seconds + _WHOLE_ANSWERS * self._answer_seconds):
                    async with await self._authorized(call, timeout) as response:
                        body = await response.read()
        headers = response.headers
        warnings, retry_after, date = headers.getall("Warning", ()), headers.get("Retry-After"), headers.get("Date", "")
        return answer_of(response.status, body, warnings, retry_after, date)

    @asynccontextmanager
    async def stream(self, call: Call) -> AsyncIterator[AsyncIterator[bytes]]:
        limit = call.query.get("timeoutSeconds", "")
        silence = float(limit) + _WATCH_GRACE_SECONDS if limit.isdecimal() else None
        opened = self._opened(call, self._answer_seconds, silence)
        async with opened as response, aclosing(self._lines(response)) as lines:
            yield lines

    @asynccontextmanager
    async def pieces(self, call: Call, silence: float | None = None) -> AsyncIterator[AsyncIterator[bytes]]:
        """An answer of any kind and length, as it arrives. Entering it raises `ApiError` when the server refuses.

        `silence` limits how long nothing may come, before the answer and in it; a server that has nothing to send may
        not even begin to answer.
        """
        async with self._opened(call, silence, silence) as response, aclosing(self._chunks(response)) as chunks:
            yield chunks

    @asynccontextmanager
    async def _opened(
        self, call: Call, before: float | None, silence: float | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._connect_seconds, sock_read=silence)
        with self._translated():
            async with asyncio.timeout(None if before is None else before + self._connect_seconds):
                response = await self._authorized(call, timeout)
        try:
            if response.status >= 300:
                with self._translated():
                    async with asyncio.timeout(self._answer_seconds):
                        body = await response.read()
                retry_after = retry_after_seconds(response.headers.get("Retry-After"))
                raise from_status(response.status, body, "", retry_after)
            yield response
        finally:
            _abort(response)

    async def websocket(self, path: str, query: str, subprotocol: str) -> Link:
        """Opens a WebSocket. Raises `ApiError`; of what a server says when it refuses, only the code is known."""
        with self._translated():
            async with asyncio.timeout(self._connect_seconds + self._answer_seconds):
                credential = await self._credential()
                try:
                    return await self._shake_hands(path, query, subprotocol, credential)
                except aiohttp.WSServerHandshakeError as refusal:
                    if refusal.status != 401 or not await self._renew(credential):
                        raise from_status(refusal.status, b"", "") from None
                try:
                    return await self._shake_hands(path, query, subprotocol, await self._credential())
                except aiohttp.WSServerHandshakeError as refusal:
                    raise from_status(refusal.status, b"", "") from None

    async def _shake_hands(self, path: str, query: str, subprotocol: str, credential: Credential) -> Link:
        tls: ssl.SSLContext | bool = True
        if self._root.scheme == "https":
            tls = self._tls.context(credential.certificate, credential.key)
        opened = await self._open_session().ws_connect(
            URL(f"{self._root.joinpath(path.lstrip('/'))}?{query}", encoded=True),
            protocols=[subprotocol],
            headers=request_headers(Call("GET", path), self._agent, credential.authorization),
            ssl=tls,
            server_hostname=self._endpoint.server_name or None,
            proxy=self._endpoint.proxy or None,
            heartbeat=_HEARTBEAT_SECONDS,
            timeout=aiohttp.ClientWSTimeout(ws_close=_CLOSE_SECONDS),
        )
        if opened.protocol != subprotocol:
            await opened.close()
            raise Broken(f"{self._origin} does not speak {subprotocol}")
        return HttpLink(opened)

    async def close(self, *, for_good: bool = False) -> None:
        """Closes all connections; later calls open new ones, or fail if it was `for_good`."""
        self._ended = for_good
        session, self._session = self._session, None
        if session is not None:
            await session.close()
            await asyncio.sleep(0)  # lets the sockets of aborted watches close

    async def _authorized(self, call: Call, timeout: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        credential = await self._credential()
        response = await self._send(call, timeout, credential)
        if response.status != 401:
            return response
        try:
            renewed = await self._renew(credential)
        except BaseException:
            response.close()
            raise
        if not renewed:
            return response
        response.close()  # it was refused, so it has not happened
        return await self._send(call, timeout, await self._credential())

    async def _credential(self) -> Credential:
        if not self._credentials.ready:
            async with self._renewing:  # one thread is enough for all callers
                if not self._credentials.ready:
                    return await asyncio.to_thread(self._credentials.current)
        return self._credentials.current()

    async def _renew(self, refused: Credential) -> bool:
        async with self._renewing:
            return await asyncio.to_thread(self._credentials.renew, refused)

    async def _send(self, call: Call, timeout: aiohttp.ClientTimeout, credential: Credential) -> aiohttp.ClientResponse:
        # A new context has its own pool, so no connection presents a certificate that was replaced.
        tls: ssl.SSLContext | bool = True
        if self._root.scheme == "https":
            tls = self._tls.context(credential.certificate, credential.key)
        return await self._open_session().request(
            call.method,
            self._root.joinpath(call.path.lstrip("/")).with_query(call.query),
            data=call.body or None,
            headers=request_headers(call, self._agent, credential.authorization),
            timeout=timeout,
            allow_redirects=False,
            ssl=tls,
            server_hostname=self._endpoint.server_name or None,
            proxy=self._endpoint.proxy or None,
        )

    def _open_session(self) -> aiohttp.ClientSession:
        if self._ended:
            raise Unavailable(f"the transport to {self._origin} is closed")
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_SECONDS)
            self._session = aiohttp.ClientSession(
                connector=connector, cookie_jar=aiohttp.DummyCookieJar(), trace_configs=[_without_redirects()]
            )
        return self._session

    async def _chunks(self, response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
        chunks = response.content.iter_any()
        while True:
            with self._translated():
                chunk = await anext(chunks, None)
            if chunk is None:
                return
            yield chunk

    async def _lines(self, response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
        """Lines of any length; the pieces they arrive in are joined once."""
        pieces: list[bytes] = []
        chunks = response.content.iter_any()
        while True:
            with self._translated():
                chunk = await anext(chunks, None)
            if chunk is None:
                break
            *ends, rest = chunk.split(b"\n")
            for end in ends:
                line = b"".join([*pieces, end])
                pieces.clear()
                if line:
                    yield line
            if rest:
                pieces.append(rest)
        if pieces:
            yield b"".join(pieces)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Turns every reason for having no answer into an `ApiError`."""
        try:
            yield
        except aiohttp.ClientConnectorCertificateError as error:
            reason = getattr(error.certificate_error, "verify_message", "") or "it cannot be verified"
            raise Untrusted(f"the certificate of {self._origin} is not trusted: {reason}") from None
        except aiohttp.ClientConnectorSSLError as error:
            reason = getattr(error.os_error, "reason", "") or "the handshake failed"
            raise Untrusted(f"TLS with {self._origin} failed: {reason}") from None
        except aiohttp.ClientProxyConnectionError as error:
            raise Unavailable(f"the proxy to {self._origin} cannot be reached: {error.strerror}") from None
        except aiohttp.ClientHttpProxyError as error:
            raise Unavailable(f"the proxy refused to connect to {self._origin}: it answered {error.status}") from None
        except (aiohttp.ConnectionTimeoutError, aiohttp.ClientConnectorError) as error:
            reason = getattr(error, "strerror", None) or "no connection in time"
            raise Unavailable(f"{self._origin} cannot be reached: {reason}") from None
        except TimeoutError:
            raise Timeout(f"no answer from {self._origin} in time") from None
        # aiohttp raises RuntimeError when a connection is closed at the very moment of a read.
        except (aiohttp.ClientError, OSError, RuntimeError):
            raise Broken(f"{self._origin} ended the connection before its answer was complete") from None
        except KubeconfigError as error:
            raise NoCredentials(str(error)) from None
        except ValueError:  # without its text, which may hold a credential
            raise NoCredentials(f"the request to {self._origin} cannot be sent; check its token") from None


def _without_redirects() -> aiohttp.TraceConfig:
    """Refuses redirects of WebSockets, which aiohttp always follows: whoever answers could send our credentials on."""

    async def refuse(_session: aiohttp.ClientSession, _context: object, of: aiohttp.TraceRequestRedirectParams) -> None:
        raise aiohttp.WSServerHandshakeError(of.response.request_info, (), status=of.response.status)

    config = aiohttp.TraceConfig()
    config.on_request_redirect.append(refuse)
    return config


def _abort(response: aiohttp.ClientResponse) -> None:
    """Aborts a stream: an orderly TLS shutdown would wait for the server."""
    transport = response.connection.transport if response.connection else None
    response.close()
    if transport is not None:
        transport.abort()
