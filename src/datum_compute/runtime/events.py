"""What happened to an object, told where its users look. Entry point: `Recorder`.

Telling is best effort and beside the work: a pass never waits for an event and never fails with one.
"""

import asyncio
from collections import Counter, OrderedDict
from contextlib import suppress
from datetime import datetime
from typing import Any

import structlog
from msgspec import Struct

from datum_compute.kube.client import Client
from datum_compute.kube.errors import AlreadyExists, ApiError, Forbidden, NotFound
from datum_compute.kube.kinds import EVENT, Kind
from datum_compute.kube.meta import Json, KubeObject, timestamp
from datum_compute.runtime.pace import LONGEST_PAUSE
from datum_compute.runtime.writes import Ledger, Write

LONGEST_MESSAGE = 1024  # bytes
WAITING_AT_MOST = 1000
REMEMBERED = 1000
TRIES = 10
PAUSE_SECONDS = 5.0
_LONGEST_NAME = 220  # of the object, so that the event's own stays below 253

_log = structlog.get_logger(__name__)


class Happening(Struct, frozen=True):
    """One thing that happened. Two that differ only in time are the same thing again."""

    component: str
    type: str
    kind: Kind[Any]
    namespace: str
    name: str
    uid: str
    reason: str
    message: str


class _Waiting(Struct):
    """What is still to be told: since when, until when, and how often it happened meanwhile."""

    number: int
    first: datetime
    last: datetime
    times: int = 1


class _Told(Struct):
    name: str
    count: int


class Recorder:
    """The events of one plane. `run` tells them one after the other until it is cancelled.

    Call it on a transition, never on every pass; what repeats all the same becomes a count on the event it repeats.
    """

    def __init__(self, client: Client, writes: Ledger) -> None:
        self.dropped: Counter[str] = Counter()  # by reason: too_many, refused, out_of_reach, crashed
        self._client = client
        self._writes = writes
        self._number = 0
        self._waiting: OrderedDict[Happening, _Waiting] = OrderedDict()
        self._wake = asyncio.Event()
        self._told: OrderedDict[Happening, _Told] = OrderedDict()

    def warning(self, component: str, object_: KubeObject, reason: str, message: str, *, now: datetime) -> None:
        self._record(component, "Warning", object_, reason, message, now)

    def normal(self, component: str, object_: KubeObject, reason: str, message: str, *, now: datetime) -> None:
        self._record(component, "Normal", object_, reason, message, now)

    def _record(
        self, component: str, type_: str, object_: KubeObject, reason: str, message: str, now: datetime
    ) -> None:
        happening = Happening(
            component, type_, object_.kind, object_.namespace, object_.name, object_.metadata.uid, reason, _cut(message)
        )
        if (waiting := self._waiting.get(happening)) is not None:
            waiting.last, waiting.times = now, waiting.times + 1
        elif len(self._waiting) >= WAITING_AT_MOST:
            self.dropped["too_many"] += 1
        else:
            self._number += 1
            self._waiting[happening] = _Waiting(self._number, now, now)
            self._wake.set()

    async def run(self) -> None:
        while True:
            while self._waiting:
                happening, waiting = self._waiting.popitem(last=False)
                await self._tell(happening, waiting)
            self._wake.clear()
            await self._wake.wait()

    async def _tell(self, happening: Happening, waiting: _Waiting) -> None:
        for _ in range(TRIES):
            pause = PAUSE_SECONDS
            try:
                await self._write(happening, waiting)
                return
            except ApiError as error:
                pause = max(pause, min(error.retry_after, LONGEST_PAUSE))
                # Who may not tell, as in a namespace that is being emptied, must not hold up what others can be told.
                if not error.retryable or isinstance(error, Forbidden):
                    self._drop("refused", happening, error)
                    return
            except Exception as error:
                # A defect here must not end the task that all caches of the plane run in.
                self._drop("crashed", happening, error)
                return
            await asyncio.sleep(pause)
        self.dropped["out_of_reach"] += 1

    def _drop(self, why: str, happening: Happening, error: Exception) -> None:
        self.dropped[why] += 1
        _log.debug("event not told", plane=self._client.plane, why=why, reason=happening.reason, error=repr(error))

    async def _write(self, happening: Happening, waiting: _Waiting) -> None:
        told = self._told.get(happening)
        if told is not None:
            count = told.count + waiting.times
            patch = {"count": count, "lastTimestamp": timestamp(waiting.last)}
            try:
                self._count("patch", happening)
                await self._client.merge_patch(EVENT, told.name, _namespace(happening), patch)
                self._remember(happening, _Told(told.name, count))
                return
            except NotFound:
                del self._told[happening]  # events are kept for an hour or so
        name = _name(happening, waiting)
        self._count("create", happening)
        with suppress(AlreadyExists):  # the answer of an earlier try was lost, the event was not
            await self._client.create(EVENT, _body(happening, name, waiting))
        self._remember(happening, _Told(name, waiting.times))

    def _remember(self, happening: Happening, told: _Told) -> None:
        self._told[happening] = told
        self._told.move_to_end(happening)
        if len(self._told) > REMEMBERED:
            self._told.popitem(last=False)

    def _count(self, verb: str, happening: Happening) -> None:
        place = f"{_namespace(happening)}/{happening.name} ({happening.reason})"
        self._writes.count(Write(self._client.plane, happening.component, verb, EVENT.name), place)


def _cut(message: str) -> str:
    """Servers count bytes; a character is not cut in two."""
    return message.encode("utf-8", "replace")[:LONGEST_MESSAGE].decode("utf-8", "ignore")


def _name(happening: Happening, waiting: _Waiting) -> str:
    """The same for every try, and another for every other event: the time tells processes apart, the number events."""
    object_ = happening.name[:_LONGEST_NAME].rstrip("-.")
    return f"{object_}.{round(waiting.first.timestamp() * 1_000_000):x}{waiting.number:03x}"


def _namespace(happening: Happening) -> str:
    return happening.namespace or "default"  # where a server wants the events of what has no namespace


def _body(happening: Happening, name: str, waiting: _Waiting) -> Json:
    regarding = {
        "apiVersion": happening.kind.api_version,
        "kind": happening.kind.name,
        "name": happening.name,
        "namespace": happening.namespace,
        "uid": happening.uid,
    }
    return EVENT.body(name, _namespace(happening)) | {
        "involvedObject": {key: value for key, value in regarding.items() if value},
        "type": happening.type,
        "reason": happening.reason,
        "message": happening.message,
        "source": {"component": happening.component},
        "firstTimestamp": timestamp(waiting.first),
        "lastTimestamp": timestamp(waiting.last),
        "count": waiting.times,
    }
