"""The connection to a container engine that comes and goes. Entry point: `EngineLink`.

Events are only reasons to look. Everything is looked at after every connection, and regularly.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Protocol

import structlog

from datum_compute.providers.engine.interface import ContainerEngine, EngineAway, Event, Refused
from datum_compute.runtime.tasks import first

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
LOOK_SECONDS = 600.0
PATIENCE_SECONDS = 30.0  # how long the engine may be silent before that is reported
SILENT_SECONDS = 10.0  # and before the readers of logs are told
STEADY_SECONDS = 10.0  # a connection that lasted so long is renewed at once

Connect = Callable[[], Awaitable[ContainerEngine]]

_log = structlog.get_logger(__name__)


class Listener(Protocol):
    def connected(self) -> None:
        """The engine answers, for the first time or again: anything may have happened meanwhile."""
        ...

    def lost(self) -> None:
        """The engine does not answer any more."""
        ...

    def due(self) -> None:
        """It is time to look at everything: after a connection, and regularly."""
        ...

    def happened(self, event: Event) -> None: ...

    def silent(self, reason: str) -> None:
        """The engine has not answered for a while; an empty reason ends that."""
        ...

    async def attend(self, engine: ContainerEngine) -> None:
        """Work that goes on for as long as a connection."""
        ...


class EngineLink:
    """`connect` finds the engine, and raises `EngineAway` while it cannot. `engine` is one that was found already."""

    def __init__(self, connect: Connect, labels: Mapping[str, str], engine: ContainerEngine | None = None) -> None:
        self._connect = connect
        self._labels = labels
        self._engine = engine
        self._away_since: float | None = None  # loop time; None while it answers
        self._connected_at: float | None = None  # loop time of the connection that `run` follows
        self._broken = asyncio.Event()
        self._reason = "it has not been reached yet"
        self._said_silent = False

    @property
    def engine(self) -> ContainerEngine:
        """The engine, for a call now. Raises `EngineAway` while it does not answer."""
        if self._engine is None or self._away_since is not None:
            self._away_since = self._time() if self._away_since is None else self._away_since
            raise EngineAway(self._reason)
        return self._engine

    @property
    def patience(self) -> float:
        """Seconds until an engine that is away is reported so; 0 or less once it is time."""
        since = self._time() if self._away_since is None else self._away_since
        return since + PATIENCE_SECONDS - self._time()

    def lost(self, error: EngineAway) -> None:
        """Somebody's call was not answered."""
        self._reason = str(error)
        if self._away_since is None:
            self._away_since = self._time()
        self._broken.set()

    async def run(self, listener: Listener) -> None:
        """Follows the engine for ever. One that breaks off is tried again at once, then more and more rarely."""
        pause = 0.0
        while True:
            self._connected_at = None
            try:
                if self._engine is None or pause:
                    self._engine = await self._renewed()
                await self._follow(self._engine, listener)
            except EngineAway as error:
                self.lost(error)
            except Refused as error:
                self.lost(EngineAway(str(error)))
            lasted = self._lasted
            if lasted is not None:
                _log.warning("container engine lost", error=self._reason)
                listener.lost()
            pause = 0.0 if (lasted or 0.0) >= STEADY_SECONDS else max(FIRST_PAUSE, min(2 * pause, LONGEST_PAUSE))
            await self._wait(pause, listener)

    async def close(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.close()

    async def _renewed(self) -> ContainerEngine:
        """A new connection: another version of the engine may answer now."""
        engine = await self._connect()
        await self.close()
        return engine

    async def _follow(self, engine: ContainerEngine, listener: Listener) -> None:
        async with engine.events(self._labels) as events:
            await engine.containers(self._labels)  # it answers more than a stream that may say nothing
            self._broken.clear()
            self._away_since = None
            self._connected_at = self._time()
            if self._said_silent:
                self._said_silent = False
                listener.silent("")
            listener.connected()
            listener.due()
            await first(
                self._receive(events, listener),
                self._look_regularly(listener),
                listener.attend(engine),
                self._broken.wait(),
            )
        raise EngineAway(self._reason)

    async def _receive(self, events: AsyncIterator[Event], listener: Listener) -> None:
        async for event in events:
            listener.happened(event)
        raise EngineAway("the container engine ended the stream of events")

    async def _look_regularly(self, listener: Listener) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            listener.due()

    async def _wait(self, pause: float, listener: Listener) -> None:
        """Waits before the next try, and says so when the engine has been silent for too long."""
        since = self._time() if self._away_since is None else self._away_since
        left = since + SILENT_SECONDS - self._time()
        if not self._said_silent and left <= pause:
            await asyncio.sleep(max(0.0, left))
            pause -= max(0.0, left)
            self._said_silent = True
            listener.silent("the container engine does not answer")
        await asyncio.sleep(pause)

    @property
    def _lasted(self) -> float | None:
        """Seconds that the latest connection lasted; None if there was none."""
        return self._time() - self._connected_at if self._connected_at is not None else None

    def _time(self) -> float:
        return asyncio.get_running_loop().time()
