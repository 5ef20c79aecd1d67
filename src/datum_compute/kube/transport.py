"""How a call reaches the server of a plane. Entry points: `Transport`, `Call`, `Answer`.

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
    warnings: tuple[str, ...] = ()  # for the person who asked; no program acts on them
    retry_after: int = 0  # seconds the server wants to be left alone; 0 when it did not say
    content_type: str = ""  # of the body, where it is another than its look tells


class Broken(Unavailable):
    """The connection ended in the middle, so that the call may or may not have happened."""


class NoCredentials(Unavailable):
    """There is nothing to show to the server: a credential cannot be read, made or sent."""


class Untrusted(Unavailable):
    """TLS does not come about, as with a certificate that is not trusted; asking again at once is no use."""

    retryable = False


class Transport(Protocol):
    async def call(self, call: Call) -> Answer:
        """Raises `Unavailable` or `Timeout` when there is no answer; every answer, good or bad, is returned."""
        ...

    def stream(self, call: Call) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """A watch: one JSON event an item. Entering raises `ApiError` when the server refuses."""
        ...


def request_headers(call: Call, agent: str, authorization: str) -> dict[str, str]:
    headers = {"Accept": call.accept}
    if agent:
        headers["User-Agent"] = agent
    if call.body:
        headers["Content-Type"] = call.content_type
    if authorization:
        headers["Authorization"] = authorization
    return headers


def answer_of(code: int, body: bytes, warnings: Iterable[str], retry_after: str | None) -> Answer:
    """The answer of an HTTP response with these `Warning` and `Retry-After` headers."""
    return Answer(code, body, tuple(map(warning_text, warnings)), retry_after_seconds(retry_after))


def warning_text(header: str) -> str:
    """The text of a Warning header `299 - "text"`."""
    _, quote, text = header.partition('"')
    return text.removesuffix('"').replace('\\"', '"').replace("\\\\", "\\") if quote else header


def retry_after_seconds(header: str | None) -> int:
    """A Retry-After header in the form API servers use; a date is taken for no header."""
    return int(header) if header and header.isascii() and header.isdecimal() else 0
