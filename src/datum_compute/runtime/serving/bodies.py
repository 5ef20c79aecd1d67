"""Reads request bodies within limits. Entry point: `Bodies`."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from datum_compute.kube.errors import BadRequest, Timeout, TooLarge, TooManyRequests

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

_DISCARDED = 10  # times the limit is read and discarded, so that the client sees why it was refused


class Bodies:
    """The request bodies of one application.

    `limit` is for one body and `together` for all that are being read; each may take `seconds` to arrive.
    """

    def __init__(self, limit: int, *, seconds: float, together: int) -> None:
        self._limit = limit
        self._seconds = seconds
        self._together = together
        self._bytes = 0

    async def read(self, scope: Mapping[str, Any], receive: Receive) -> bytes:
        """Raises an `ApiError` for the client if the body is too large, slow or incomplete, or there are too many."""
        declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
        if declared.isdigit() and int(declared) > _DISCARDED * self._limit:
            raise self._too_large()
        pieces: list[bytes] = []
        try:
            async with asyncio.timeout(self._seconds):
                await self._collect(pieces, receive)
        except TimeoutError:
            raise Timeout(f"the body of the request did not arrive within {self._seconds:g} s") from None
        finally:
            self._bytes -= sum(map(len, pieces))
        return b"".join(pieces)

    async def _collect(self, pieces: list[bytes], receive: Receive) -> None:
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise BadRequest("the client went away before its request was complete")
            piece, more = message.get("body", b""), message.get("more_body", False)
            size += len(piece)
            if size > _DISCARDED * self._limit:
                break
            if size > self._limit:
                self._bytes -= sum(map(len, pieces))
                pieces.clear()
            elif self._bytes + len(piece) > self._together:
                raise TooManyRequests("too many large requests at once; try again in a moment", retry_after=1)
            else:
                pieces.append(piece)
                self._bytes += len(piece)
        if size > self._limit:
            raise self._too_large()

    def _too_large(self) -> TooLarge:
        return TooLarge(f"Request entity too large: limit is {self._limit}")
