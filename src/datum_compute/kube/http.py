"""Calls over HTTP for programs that live long. Entry point: `HttpTransport`."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager

import aiohttp
from yarl import URL

from datum_compute.kube.access.credentials import EndpointCredentials, Shown
from datum_compute.kube.access.kubeconfig import Endpoint, KubeconfigError
from datum_compute.kube.access.tls import ClientTls
from datum_compute.kube.errors import Timeout, Unavailable, from_status
from datum_compute.kube.transport import (
    Answer,
    Broken,
    Call,
    NoCredentials,
    Untrusted,
    answer_of,
    request_headers,
    retry_after_seconds,
)

_IDLE_SECONDS = 60.0
_WHOLE_ANSWERS = 4  # times the patience with a silent server
_WATCH_GRACE_SECONDS = 30.0  # that a server may be late to end a watch


class HttpTransport:
    """Calls below the API root of one endpoint, over connections that are kept and shared.

    Made anywhere, used on one event loop, closed by whoever made it. At most `calls` are under way at once; watches
    have connections of their own and are not counted. A call or watch that is refused with 401 is made once more when
    there are newer credentials; `credentials` may be shared by the transports of one host.
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
            with self._explained():
                # As a whole too: an answer that comes drop by drop would never be late.
                async with asyncio.timeout(self._connect_seconds + _WHOLE_ANSWERS * self._answer_seconds):
                    async with await self._authorized(call, timeout) as response:
                        body = await response.read()
        headers = response.headers
        return answer_of(response.status, body, headers.getall("Warning", ()), headers.get("Retry-After"))

    @asynccontextmanager
    async def stream(self, call: Call) -> AsyncIterator[AsyncIterator[bytes]]:
        asked = call.query.get("timeoutSeconds", "")
        silence = float(asked) + _WATCH_GRACE_SECONDS if asked.isdecimal() else None
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._connect_seconds, sock_read=silence)
        with self._explained():
            async with asyncio.timeout(self._answer_seconds + self._connect_seconds):
                response = await self._authorized(call, timeout)
        try:
            if response.status >= 300:
                with self._explained():
                    async with asyncio.timeout(self._answer_seconds):
                        body = await response.read()
                retry_after = retry_after_seconds(response.headers.get("Retry-After"))
                raise from_status(response.status, body, "", retry_after)
            async with aclosing(self._lines(response)) as lines:
                yield lines
        finally:
            _cut(response)

    async def close(self, *, for_good: bool = False) -> None:
        """Ends all connections; a call after it opens new ones, or fails if it was for good."""
        self._ended = for_good
        session, self._session = self._session, None
        if session is not None:
            await session.close()
            await asyncio.sleep(0)  # in which the sockets of watches that were cut are closed

    async def _authorized(self, call: Call, timeout: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        shown = await self._shown()
        response = await self._send(call, timeout, shown)
        if response.status != 401:
            return response
        try:
            renewed = await self._renewed(shown)
        except BaseException:
            response.close()
            raise
        if not renewed:
            return response
        response.close()  # it was refused, so it has not happened
        return await self._send(call, timeout, await self._shown())

    async def _shown(self) -> Shown:
        if not self._credentials.ready:
            async with self._renewing:  # one thread is enough for all who wait
                if not self._credentials.ready:
                    return await asyncio.to_thread(self._credentials.shown)
        return self._credentials.shown()

    async def _renewed(self, refused: Shown) -> bool:
        async with self._renewing:
            return await asyncio.to_thread(self._credentials.refused, refused)

    async def _send(self, call: Call, timeout: aiohttp.ClientTimeout, shown: Shown) -> aiohttp.ClientResponse:
        # A new context has a pool of its own, so that no connection shows a certificate that was replaced.
        tls: ssl.SSLContext | bool = True
        if self._root.scheme == "https":
            tls = self._tls.context(shown.certificate, shown.key)
        return await self._opened().request(
            call.method,
            self._root.joinpath(call.path.lstrip("/")).with_query(call.query),
            data=call.body or None,
            headers=request_headers(call, self._agent, shown.authorization),
            timeout=timeout,
            allow_redirects=False,
            ssl=tls,
            server_hostname=self._endpoint.server_name or None,
            proxy=self._endpoint.proxy or None,
        )

    def _opened(self) -> aiohttp.ClientSession:
        if self._ended:
            raise Unavailable(f"{self._origin} is no longer called")
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_SECONDS)
            self._session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
        return self._session

    async def _lines(self, response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
        """Lines of any length; whatever pieces they arrive in are joined once."""
        pieces: list[bytes] = []
        chunks = response.content.iter_any()
        while True:
            with self._explained():
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
    def _explained(self) -> Iterator[None]:
        """Turns every way to have no answer into the error that says so."""
        try:
            yield
        except aiohttp.ClientConnectorCertificateError as error:
            reason = getattr(error.certificate_error, "verify_message", "") or "it cannot be verified"
            raise Untrusted(f"the certificate of {self._origin} is not trusted: {reason}") from None
        except aiohttp.ClientConnectorSSLError as error:
            reason = getattr(error.os_error, "reason", "") or "the handshake failed"
            raise Untrusted(f"{self._origin} cannot be talked to over TLS: {reason}") from None
        except aiohttp.ClientProxyConnectionError as error:
            raise Unavailable(f"the proxy to {self._origin} cannot be reached: {error.strerror}") from None
        except aiohttp.ClientHttpProxyError as error:
            raise Unavailable(f"the proxy does not lead to {self._origin}: it answered {error.status}") from None
        except (aiohttp.ConnectionTimeoutError, aiohttp.ClientConnectorError) as error:
            reason = getattr(error, "strerror", None) or "no connection in time"
            raise Unavailable(f"{self._origin} cannot be reached: {reason}") from None
        except TimeoutError:
            raise Timeout(f"no answer from {self._origin} in time") from None
        # A RuntimeError is how aiohttp says that a connection was closed in the very moment of a read.
        except (aiohttp.ClientError, OSError, RuntimeError):
            raise Broken(f"{self._origin} ended the connection before its answer was complete") from None
        except KubeconfigError as error:
            raise NoCredentials(str(error)) from None
        except ValueError:  # without its text, which may hold a credential
            raise NoCredentials(f"what is to be sent to {self._origin} cannot be; check its token") from None


def _cut(response: aiohttp.ClientResponse) -> None:
    """Leaves a stream at once: a farewell under TLS would wait for the server's."""
    transport = response.connection.transport if response.connection else None
    response.close()
    if transport is not None:
        transport.abort()
