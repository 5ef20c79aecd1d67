"""A TCP balancer that follows /readyz, as a Service does. Entry point: `Balancer`."""

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Coroutine
from typing import Any, TypeVar

from tests.https import pump
from tests.operator.processes import Manager

T = TypeVar("T")

_PROBE_SECONDS = 0.2


class Balancer:
    """New connections go to the ready replicas in turn; those that exist stay where they are."""

    def __init__(self) -> None:
        self.connections: Counter[str] = Counter()  # by replica, since the start
        self._ready: dict[str, int] = {}  # the ports of replicas
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="balancer")
        self._thread.start()
        self.port = self._do(self._listen())

    def follow(self, replica: Manager) -> None:
        """Returns after the first probe."""
        self._do(self._probe(replica))
        self._do(self._start(self._follow(replica)))

    def close(self) -> None:
        self._do(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=30)

    async def _listen(self) -> int:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _follow(self, replica: Manager) -> None:
        while True:
            await asyncio.sleep(_PROBE_SECONDS)
            await self._probe(replica)

    async def _probe(self, replica: Manager) -> None:
        try:
            code, _ = await asyncio.to_thread(replica.get, "/readyz")
        except (OSError, AssertionError):  # it has ended
            code = 0
        if code == 200:
            self._ready.setdefault(replica.name, replica.port("webhook"))
        else:
            self._ready.pop(replica.name, None)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        names = sorted(self._ready, key=lambda name: self.connections[name])
        if not names:
            writer.close()
            return
        self.connections[names[0]] += 1
        there, back = await asyncio.open_connection("127.0.0.1", self._ready[names[0]])
        await self._start(pump(reader, back))
        await self._start(pump(there, writer))

    async def _stop(self) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*self._tasks, return_exceptions=True)
