"""Bodies of requests, within limits. Entry point: `Bodies`."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from datum_compute.kube.errors import BadRequest, Timeout, TooLarge, TooManyRequests

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

_READ_ANYWAY = 10  # times the limit, read and thrown away, so that the client gets to see why it was refused


class Bodies:
    """Reads the bodies that come to one application.

    `limit` is for one body and `together` for all that are being read, because each may take `seconds` to arrive.
    """

    def __init__(self, limit: int, *, seconds: float, together: int) -> None:
        self._limit = limit
        self._seconds = seconds
        self._together = together
        self._held = 0

    async def read(self, scope: Mapping[str, Any], receive: Receive) -> bytes:
        """Raises an `ApiError` for the client: the body is too large, too slow or broken off, or there are too many."""
        declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
        if declared.isdigit() and int(declared) > _READ_ANYWAY * self._limit:
            raise self._too_large()
        pieces: list[bytes] = []
        try:
            async with asyncio.timeout(self._seconds):
                await self._collect(pieces, receive)
        except TimeoutError:
            raise Timeout(f"the body of the request did not arrive within {self._seconds:g} s") from None
        finally:
            self._held -= sum(map(len, pieces))
        return b"".join(pieces)

    async def _collect(self, pieces: list[bytes], receive: Receive) -> None:
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise BadRequest("the client went away before its request was complete")
            piece, more = message.get("body", b""), message.get("more_body", False)
            size += len(piece)
            if size > _READ_ANYWAY * self._limit:
                break
            if size > self._limit:
                self._held -= sum(map(len, pieces))
                pieces.clear()
            elif self._held + len(piece) > self._together:
                raise TooManyRequests("too many large requests at once; try again in a moment", retry_after=1)
            else:
                pieces.append(piece)
                self._held += len(piece)
        if size > self._limit:
            raise self._too_large()

    def _too_large(self) -> TooLarge:
        return TooLarge(f"Request entity too large: limit is {self._limit}")
