"""Simulated containers that run or ran. Entry point: `Lives`."""

from collections.abc import Iterator
from typing import Protocol

from msgspec import Struct

from datum_compute.federation.lives import Life

MOST_ENDED = 2000


class Listener(Protocol):
    """Hears about simulated containers, at once; none of its methods waits."""

    def began(self, life: Life) -> None: ...

    def finished(self, life: Life, time: int) -> None: ...


class Span(Struct, frozen=True):
    """A life until its end; None while it goes on."""

    life: Life
    end: int | None = None


class Lives:
    """Receives the lives of a provider (it is a `Recorder`). Of those that ended, the last ones are remembered."""

    def __init__(self) -> None:
        self._running: dict[str, dict[str, Life]] = {}  # by generation and container
        self._ended: dict[str, list[Span]] = {}  # by generation, in order of their end
        self._listeners: list[Listener] = []

    def begin(self, life: Life) -> None:
        generation, container = life.origin.generation, life.origin.container
        if generation in self._ended or container in self._running.get(generation, {}):
            return
        self._running.setdefault(generation, {})[container] = life
        for listener in tuple(self._listeners):
            listener.began(life)

    def end(self, generation: str, time: int) -> None:
        lives = self._running.pop(generation, None)
        if lives is None:
            return
        self._ended[generation] = [Span(life, time) for life in lives.values()]
        while len(self._ended) > MOST_ENDED:
            del self._ended[next(iter(self._ended))]
        for life in lives.values():
            for listener in tuple(self._listeners):
                listener.finished(life, time)

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def leave(self, listener: Listener) -> None:
        self._listeners.remove(listener)

    def spans(self, project: str) -> Iterator[Span]:
        """All that are known of a project, those that ended first."""
        for ended in self._ended.values():
            yield from (span for span in ended if span.life.origin.project == project)
        for lives in self._running.values():
            yield from (Span(life) for life in lives.values() if life.origin.project == project)
