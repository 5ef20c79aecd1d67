"""Injects faults between a client and its server. Entry points: `Faults`, `calls`, `writes`.

For tests and fault drills. `Faults` wraps any transport and works on the simulated and the real event loop. Every fault
is one that networks and servers really have: calls that never arrive or are refused, answers that are late or lost,
watches that are silent, late, broken, or lose, repeat and reorder events, malformed objects, planes that are away.

A `Fault` happens once, at the nth match; a `Lasting` one happens at every match until it is lifted.
"""

import asyncio
import random
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from math import ceil
from typing import Any

from msgspec import MsgspecError, Struct, structs

from datum_compute.kube.errors import ApiError, Timeout, Unavailable, from_status
from datum_compute.kube.meta import Json, decode, encode
from datum_compute.kube.patches import merge
from datum_compute.kube.transport import Answer, Call, Transport

Match = Callable[[Call], bool]
Spoil = Callable[[Json], Json]  # from an object as the server sends it to the object as it arrives


def calls(method: str = "", path: str = "") -> Match:
    """Calls of a method (any if empty) whose path contains `path`."""
    return lambda call: method in ("", call.method) and path in call.path


def writes(call: Call) -> bool:
    return call.method != "GET"


def reads(call: Call) -> bool:
    """Lists and single objects, but not watches."""
    return call.method == "GET" and not watches(call)


def watches(call: Call) -> bool:
    return "watch" in call.query


def merged(patch: Json) -> Spoil:
    """Spoils an object with a merge patch: changes the type of a field, or removes it."""
    return lambda object_: merge(object_, patch)


ENDLESS_VERSION = merged({"metadata": {"resourceVersion": "9" * 4301}})  # more digits than Python parses
ODD_VERSION = merged({"metadata": {"resourceVersion": "not-a-number"}})
ODD_LABELS = merged({"metadata": {"labels": 7}})  # cannot be decoded at all
ODD_SPEC = merged({"spec": ["not", "an", "object"]})  # decoded only when it is used
ODD_STATUS = merged({"status": "not an object"})


class Fault:
    """Happens once, at the nth match from now. `fired` is false while there were fewer matches."""

    def __init__(self, matches: Match, nth: int) -> None:
        self.fired = False
        self._matches = matches
        self._left = nth

    def strikes(self, call: Call) -> bool:
        if not self.fired and self._matches(call):
            self._left -= 1
            self.fired = self._left == 0
            return self.fired
        return False


class Lasting:
    """Happens at every match until it is lifted. `times` counts the matches."""

    def __init__(self, matches: Match) -> None:
        self.times = 0
        self._matches = matches
        self._lifted = False

    def strikes(self, call: Call) -> bool:
        if self._lifted or not self._matches(call):
            return False
        self.times += 1
        return True

    def lift(self) -> None:
        self._lifted = True


class Faults:
    """A transport that wraps another one and breaks the calls it is asked to."""

    def __init__(self, transport: Transport, generator: random.Random) -> None:
        self.written: list[Call] = []  # every write that reached the server
        self._transport = transport
        self._generator = generator
        self._failing: list[Fault] = []
        self._losing: list[Fault] = []
        self._leaving: list[Fault] = []
        self._refusing: list[tuple[Fault | Lasting, ApiError]] = []
        self._poisoning: list[tuple[Lasting, str, Spoil]] = []
        self._slowing: list[tuple[Lasting, float]] = []
        self._dropping: list[Fault] = []
        self._doubling: list[Fault] = []
        self._holding: list[Fault] = []
        self._open: list[_Stream] = []
        self._delay = (0.0, 0.0)
        self._silent = False
        self._away = False

    # Calls

    def fail(self, matches: Match, nth: int = 1) -> Fault:
        """The nth such call never reaches the server: `Unavailable`."""
        return _added(self._failing, Fault(matches, nth))

    def lose_answer(self, matches: Match, nth: int = 1) -> Fault:
        """The nth such call happens, but its caller gets `Timeout`."""
        return _added(self._losing, Fault(matches, nth))

    def answer(self, matches: Match, error: ApiError, nth: int = 1) -> Fault:
        """The nth such call or watch is answered with the error, such as a 409, 410, 429 or 500, and does not happen.

        An error with `retry_after` is sent with that header.
        """
        fault = Fault(matches, nth)
        self._refusing.append((fault, error))
        return fault

    def refuse(self, matches: Match, error: ApiError) -> Lasting:
        """Every such call is answered with the error, and no such watch opens; open ones go on."""
        refusal = Lasting(matches)
        self._refusing.append((refusal, error))
        return refusal

    def slow_down(self, seconds: float, matches: Match = writes) -> Lasting:
        """Every such call takes this long; a watch takes this long to open. See also `delay_watches`."""
        slowness = Lasting(matches)
        self._slowing.append((slowness, seconds))
        return slowness

    def poison(self, matches: Match, name: str, spoil: Spoil) -> Lasting:
        """Objects of this name arrive spoiled in every answer and event of such calls, as if stored like that."""
        poison = Lasting(matches)
        self._poisoning.append((poison, name, spoil))
        return poison

    # Watches

    def drop_event(self, matches: Match, nth: int = 1) -> Fault:
        """The nth event of such watches is lost; the watch goes on. Bookmarks do not count."""
        return _added(self._dropping, Fault(matches, nth))

    def duplicate_event(self, matches: Match, nth: int = 1) -> Fault:
        """The nth event of such watches comes twice."""
        return _added(self._doubling, Fault(matches, nth))

    def reorder_events(self, matches: Match, nth: int = 1) -> Fault:
        """The nth event of such watches comes after the next one."""
        return _added(self._holding, Fault(matches, nth))

    def cut_watches(self) -> None:
        """Every open watch breaks; new ones can be opened."""
        for stream in self._open:
            stream.cut()

    def silence_watches(self) -> None:
        """Every open or new watch stays open and delivers nothing, not even its end."""
        self._silent = True
        for stream in self._open:
            stream.silent = True

    def restore_watches(self) -> None:
        """New watches deliver again; silenced ones stay silent, as dead connections do."""
        self._silent = False

    def delay_watches(self, shortest: float, longest: float) -> None:
        """From now on every event is delayed by a random time; those of one watch stay in order."""
        self._delay = (shortest, longest)

    # The plane

    def take_away(self) -> None:
        """Every call and open watch fails with `Unavailable`; answers under way are lost with `Timeout`."""
        self._away = True
        self.cut_watches()

    def take_away_after(self, matches: Match, nth: int = 1) -> Fault:
        """The nth such call happens, and nothing after it, as if its process died at that moment."""
        return _added(self._leaving, Fault(matches, nth))

    def bring_back(self) -> None:
        self._away = False

    # As a transport

    async def call(self, call: Call) -> Answer:
        await self._reach()
        if _strikes(self._failing, call):
            raise Unavailable(f"{call.method} {call.path} was made to fail")
        await self._dawdle(call)
        if (error := self._refusal(call)) is not None:
            return Answer(error.code, encode(error.status()), retry_after=ceil(error.retry_after))
        if writes(call):
            self.written.append(call)
        lost = _strikes(self._losing, call)
        answer = await self._transport.call(call)
        if _strikes(self._leaving, call):
            self.take_away()
        if lost or self._away:
            raise Timeout(f"the answer to {call.method} {call.path} was lost")
        spoils = self._spoils(call)
        return structs.replace(answer, body=_spoiled_answer(answer.body, spoils)) if spoils else answer

    @asynccontextmanager
    async def stream(self, call: Call) -> AsyncIterator[AsyncIterator[bytes]]:
        await self._reach()
        await self._dawdle(call)
        if (error := self._refusal(call)) is not None:
            raise from_status(error.code, encode(error.status()), "", ceil(error.retry_after))
        async with self._transport.stream(call) as lines:
            stream = _Stream(silent=self._silent, broken=self._away)
            self._open.append(stream)
            reader = asyncio.create_task(self._read(call, lines, stream), name=f"faults/{call.path}")
            try:
                async with aclosing(stream.lines()) as delivered:
                    yield delivered
            finally:
                self._open.remove(stream)
                reader.cancel()
                await asyncio.wait([reader])  # the wrapped stream must not be closed while it is read

    async def _reach(self) -> None:
        await asyncio.sleep(0)
        if self._away:
            raise Unavailable("the plane was taken away")

    async def _dawdle(self, call: Call) -> None:
        if seconds := sum(seconds for slowness, seconds in self._slowing if slowness.strikes(call)):
            await asyncio.sleep(seconds)

    def _refusal(self, call: Call) -> ApiError | None:
        struck = [error for fault, error in self._refusing if fault.strikes(call)]
        return struck[0] if struck else None

    def _spoils(self, call: Call) -> list[tuple[str, Spoil]]:
        return [(name, spoil) for poison, name, spoil in self._poisoning if poison.strikes(call)]

    async def _read(self, call: Call, lines: AsyncIterator[bytes], stream: "_Stream") -> None:
        loop = asyncio.get_running_loop()
        held: list[bytes] = []
        try:
            async for line in lines:
                if spoils := self._spoils(call):
                    line = _spoiled_event(line, spoils)
                delivered = [line, *held]
                if (self._dropping or self._doubling or self._holding) and _is_change(line):
                    if _strikes(self._holding, call):
                        held.append(line)
                        continue
                    if _strikes(self._dropping, call):
                        delivered = held.copy()
                    if _strikes(self._doubling, call):
                        delivered.insert(0, line)
                held.clear()
                for event in delivered:
                    stream.put(loop.time() + self._generator.uniform(*self._delay), event)
        except ApiError as error:
            stream.end(error)
        else:
            stream.end(None)


class _Type(Struct, frozen=True):
    type: str


class _Stream:
    """One open watch: the lines under way, each with the time it is due, and how it ends."""

    def __init__(self, *, silent: bool, broken: bool) -> None:
        self.silent = silent
        self._broken = broken
        self._under_way: deque[tuple[float, bytes]] = deque()
        self._ended = False
        self._error: ApiError | None = None
        self._changed = asyncio.Event()

    def put(self, due: float, line: bytes) -> None:
        self._under_way.append((due, line))
        self._changed.set()

    def end(self, error: ApiError | None) -> None:
        self._ended, self._error = True, error
        self._changed.set()

    def cut(self) -> None:
        self._broken = True
        self._changed.set()

    async def lines(self) -> AsyncGenerator[bytes, None]:
        loop = asyncio.get_running_loop()
        while True:
            self._changed.clear()
            due: float | None = None
            if self._broken:
                raise Unavailable("the plane was taken away")
            if self._under_way and not self.silent:
                due, line = self._under_way[0]
                if due <= loop.time():
                    self._under_way.popleft()
                    yield line
                    continue
            elif self._ended and not self.silent:
                if self._error is not None:
                    raise self._error
                return
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await self._changed.wait()


def _spoiled_answer(body: bytes, spoils: list[tuple[str, Spoil]]) -> bytes:
    """The answer with its objects spoiled, whether a list or a single object."""
    answer = decode(body, dict[str, Any])
    if "items" in answer:
        return encode(answer | {"items": [_spoiled(item, spoils) for item in answer["items"]]})
    return encode(_spoiled(answer, spoils))


def _spoiled_event(line: bytes, spoils: list[tuple[str, Spoil]]) -> bytes:
    event = decode(line, dict[str, Any])
    return encode(event | {"object": _spoiled(event["object"], spoils)})


def _spoiled(object_: Json, spoils: list[tuple[str, Spoil]]) -> Json:
    for name, spoil in spoils:
        if object_.get("metadata", {}).get("name") == name:
            object_ = spoil(object_)
    return object_


def _is_change(line: bytes) -> bool:
    try:
        return decode(line, _Type).type in ("ADDED", "MODIFIED", "DELETED")
    except MsgspecError:
        return False


def _added(faults: list[Fault], fault: Fault) -> Fault:
    faults.append(fault)
    return fault


def _strikes(faults: list[Fault], call: Call) -> bool:
    """Every fault counts the call, so that the nth means the same whatever other faults there are."""
    struck = [fault for fault in faults if fault.strikes(call)]
    for fault in struck:
        faults.remove(fault)
    return bool(struck)
