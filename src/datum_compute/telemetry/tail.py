"""One answer to a reader who follows. Entry point: `Tail`."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from functools import partial
from itertools import groupby
from typing import Any

import structlog

from datum_compute.runtime.tasks import first
from datum_compute.telemetry import loki
from datum_compute.telemetry.merge import Batch, Item, Merge
from datum_compute.telemetry.sources import Entry, Labels, Notice, SourceAway

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

HEARTBEAT_SECONDS = 15.0
STALL_SECONDS = 30.0  # for a client to take the next lines
CHECK_SECONDS = 60.0

_FRAME_BYTES = 64 * 1024
_PACE_SECONDS = 0.02  # between two frames, so that many lines share one
_ITEMS_AT_ONCE = 500  # taken from a source before others get a turn

_log = structlog.get_logger(__name__)


class Tail:
    """Sends what a source delivers, merged, until the client has gone or takes nothing, or until `check` fails.

    The source never waits for the client: lines wait in a `Merge`, which gives up the oldest.
    """

    def __init__(self, items: AsyncIterator[Item], delay: float, check: Callable[[], Awaitable[bool]]) -> None:
        self._items = items
        self._merge = Merge(delay)
        self._check = check
        self._wake = asyncio.Event()
        self._ended = False  # the source has nothing more

    async def run(self, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", loki.FRAMES_TYPE.encode()), (b"cache-control", b"no-cache, private")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            await first(self._collect(), self._send(send), self._checked(), _disconnected(receive))
            async with asyncio.timeout(STALL_SECONDS):
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            pass  # it takes nothing; without the end of the answer its connection is closed
        except Exception as error:  # too late for an error answer
            _log.error("following logs failed", error=repr(error), exc_info=error)

    async def _collect(self) -> None:
        loop = asyncio.get_running_loop()
        count = 0
        try:
            async for item in self._items:
                self._merge.add(item, loop.time())
                if isinstance(item, Notice) and item.kind in ("left", "generation"):
                    self._merge.forget(partial(_is_of, item.instance))
                self._wake.set()
                count += 1
                if count % _ITEMS_AT_ONCE == 0:
                    await asyncio.sleep(0)
        except SourceAway:
            pass  # the client asks again, and is told
        self._ended = True
        self._wake.set()
        await asyncio.Event().wait()  # `_send` ends once everything went out

    async def _send(self, send: Send) -> None:
        loop = asyncio.get_running_loop()
        heartbeat = loop.time() + HEARTBEAT_SECONDS
        while True:
            now = loop.time()
            lines = b"".join(_frames(self._merge.take(float("inf") if self._ended else now, _FRAME_BYTES)))
            if not lines and now >= heartbeat:
                lines = loki.HEARTBEAT
            if lines:
                async with asyncio.timeout(STALL_SECONDS):
                    await send({"type": "http.response.body", "body": lines, "more_body": True})
                heartbeat = loop.time() + HEARTBEAT_SECONDS
                await asyncio.sleep(_PACE_SECONDS)
            elif self._ended:
                return
            else:
                due = self._merge.next_due()
                await self._wait(heartbeat if due is None else min(due, heartbeat))

    async def _wait(self, moment: float) -> None:
        """Until something arrives, or the moment."""
        timer = asyncio.get_running_loop().call_at(moment, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()
        self._wake.clear()

    async def _checked(self) -> None:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            if not await self._check():
                return


def _is_of(instance: str, labels: Labels) -> bool:
    return labels.datum_instance_name == instance


def _frames(batch: Batch) -> Iterator[bytes]:
    """Notices keep their place between lines."""
    if batch.dropped:
        yield loki.frame([], batch.dropped)
    for is_line, items in groupby(batch.items, lambda item: isinstance(item, Entry)):
        if is_line:
            yield loki.frame(item for item in items if isinstance(item, Entry))
        else:
            yield from (loki.notice(item) for item in items if isinstance(item, Notice))


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
