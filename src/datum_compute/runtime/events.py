"""What happened to an object, told where its users look. Entry point: `Recorder`.

Telling is best effort and beside the work: a pass never waits for an event and never fails with one.
"""

import asyncio
from collections import Counter, OrderedDict, deque
from datetime import datetime
from typing import Any

import structlog
from msgspec import Struct

from datum_compute.kube.client import Client
from datum_compute.kube.errors import ApiError, NotFound
from datum_compute.kube.kinds import EVENT, Kind
from datum_compute.kube.meta import Json, KubeObject
from datum_compute.runtime.writes import Write, Writes

LONGEST_MESSAGE = 1024
WAITING_AT_MOST = 1000
REMEMBERED = 1000
TRIES = 10
PAUSE_SECONDS = 5.0

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


class _Told(Struct):
    name: str
    first: datetime
    count: int


class Recorder:
    """The events of one plane. `run` tells them one after the other until it is cancelled.

    Call it on a transition, never on every pass; what repeats all the same becomes a count on the event it repeats.
    """

    def __init__(self, client: Client, writes: Writes) -> None:
        self.dropped: Counter[str] = Counter()  # by reason: too many waiting, refused, out of reach
        self._client = client
        self._writes = writes
        self._waiting: deque[tuple[Happening, datetime]] = deque()
        self._wake = asyncio.Event()
        self._told: OrderedDict[Happening, _Told] = OrderedDict()

    def warning(
        self, component: str, kind: Kind[Any], object_: KubeObject, reason: str, message: str, *, now: datetime
    ) -> None:
        self._record(component, "Warning", kind, object_, reason, message, now)

    def normal(
        self, component: str, kind: Kind[Any], object_: KubeObject, reason: str, message: str, *, now: datetime
    ) -> None:
        self._record(component, "Normal", kind, object_, reason, message, now)

    def _record(
        self, component: str, type_: str, kind: Kind[Any], object_: KubeObject, reason: str, message: str, now: datetime
    ) -> None:
        if len(self._waiting) >= WAITING_AT_MOST:
            self.dropped["too_many"] += 1
            return
        happening = Happening(
            component,
            type_,
            kind,
            object_.namespace,
            object_.name,
            object_.metadata.uid,
            reason,
            message[:LONGEST_MESSAGE],
        )
        self._waiting.append((happening, now))
        self._wake.set()

    async def run(self) -> None:
        while True:
            while self._waiting:
                await self._tell(*self._waiting.popleft())
            self._wake.clear()
            await self._wake.wait()

    async def _tell(self, happening: Happening, now: datetime) -> None:
        for _ in range(TRIES):
            try:
                await self._write(happening, now)
                return
            except ApiError as error:
                if not error.retryable:
                    self.dropped["refused"] += 1
                    _log.debug("event refused", plane=self._client.plane, reason=happening.reason, error=str(error))
                    return
            await asyncio.sleep(PAUSE_SECONDS)
        self.dropped["out_of_reach"] += 1

    async def _write(self, happening: Happening, now: datetime) -> None:
        told = self._told.get(happening)
        if told is not None:
            self._told.move_to_end(happening)
            patch = {"count": told.count + 1, "lastTimestamp": _time(now)}
            try:
                self._count("patch", happening)
                await self._client.merge_patch(EVENT, told.name, _namespace(happening), patch)
                told.count += 1
                return
            except NotFound:
                del self._told[happening]  # events are kept for an hour or so
        name = f"{happening.name}.{round(now.timestamp() * 1_000_000):x}{len(self._told):03x}"
        self._count("create", happening)
        await self._client.create(EVENT, _body(happening, name, now))
        self._told[happening] = _Told(name, now, 1)
        if len(self._told) > REMEMBERED:
            self._told.popitem(last=False)

    def _count(self, verb: str, happening: Happening) -> None:
        place = f"{_namespace(happening)}/{happening.name} ({happening.reason})"
        self._writes.count(Write(self._client.plane, happening.component, verb, EVENT.name), place)


def _namespace(happening: Happening) -> str:
    return happening.namespace or "default"  # where a server wants the events of what has no namespace


def _time(now: datetime) -> str:
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")


def _body(happening: Happening, name: str, now: datetime) -> Json:
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
        "firstTimestamp": _time(now),
        "lastTimestamp": _time(now),
        "count": 1,
    }
