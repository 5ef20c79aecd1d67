"""How calls reach the server of a plane. Entry points: `Transport`, `Call`, `Answer`.

Bytes in, bytes out: a transport neither reads nor changes what it carries, so HTTP, the server in this process and
the fault injector are interchangeable.
"""

from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from msgspec import Struct

from datum_compute.kube.errors import Unavailable


class Call(Struct, frozen=True):
    method: str
    path: str  # below the plane's API root
    query: dict[str, str] = {}
    body: bytes = b""
    content_type: str = "application/json"
    accept: str = "application/json"


class Answer(Struct, frozen=True):
    code: int
    body: bytes
    warnings: tuple[str, ...] = ()  # for people to read; no program acts on them
    retry_after: int = 0  # seconds for which the server asked for no calls; 0 when it did not
    content_type: str = ""  # of the body, where it is not what the body looks like
    date: str = ""  # what the server says the time is


class Broken(Unavailable):
    """The connection ended in the middle: the call may or may not have happened."""


class NoCredentials(Unavailable):
    """A credential cannot be read, issued or sent."""


class Untrusted(Unavailable):
    """The TLS handshake failed, for example because a certificate is not trusted; retrying does not help."""

    retryable = False


class Transport(Protocol):
    async def call(self, call: Call) -> Answer:
        """Returns every answer, good or bad. Raises `Unavailable` or `Timeout` when there is none."""
        ...

    def stream(self, call: Call) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """A watch, one JSON event per item. Entering it raises `ApiError` when the server refuses."""
        ...


class Link(Protocol):
    """An open WebSocket. What fails raises `ApiError`."""

    async def send(self, data: bytes) -> None: ...

    async def receive(self) -> bytes | None:
        """The next message; None when the server has closed it."""
        ...

    async def close(self) -> None: ...


def request_headers(call: Call, agent: str, authorization: str) -> dict[str, str]:
    headers = {"Accept": call.accept}
    if agent:
        headers["User-Agent"] = agent
    if call.body:
        headers["Content-Type"] = call.content_type
    if authorization:
        headers["Authorization"] = authorization
    return headers


def answer_of(code: int, body: bytes, warnings: Iterable[str], retry_after: str | None, date: str = "") -> Answer:
    """The answer of an HTTP response with these `Warning`, `Retry-After` and `Date` headers."""
    return Answer(code, body, tuple(map(warning_text, warnings)), retry_after_seconds(retry_after), date=date)


def warning_text(header: str) -> str:
    """The text of a Warning header `299 - "text"`."""
    _, quote, text = header.partition('"')
    return text.removesuffix('"').replace('\\"', '"').replace("\\\\", "\\") if quote else header


def retry_after_seconds(header: str | None) -> int:
    """A Retry-After header in seconds, the form that API servers use; 0 for a date or no header."""
    return int(header) if header and header.isascii() and header.isdecimal() else 0
