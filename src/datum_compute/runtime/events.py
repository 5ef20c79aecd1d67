"""Records Kubernetes events. Entry points: `Recorder`, `record`.

`Recorder` works as well as it can and in the background: a pass never waits for an event and never fails with one.
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
PENDING_AT_MOST = 1000
REMEMBERED = 1000
TRIES = 10
PAUSE_SECONDS = 5.0
_LONGEST_NAME = 220  # of the object, so that the event's name stays below 253

_log = structlog.get_logger(__name__)


class Occurrence(Struct, frozen=True):
    """An event without its times; recorded again, it is counted instead of created."""

    component: str
    type: str
    kind: Kind[Any]
    namespace: str
    name: str
    uid: str
    reason: str
    message: str


class _Pending(Struct):
    """When and how often an event occurred that is not recorded yet."""

    number: int
    first: datetime
    last: datetime
    times: int = 1


class _Recorded(Struct):
    name: str
    count: int


class Recorder:
    """The events of one plane. `run` records them one after the other until it is cancelled.

    Record transitions, not every pass; an event that repeats nevertheless is counted on the first one.
    """

    def __init__(self, client: Client, writes: Ledger) -> None:
        self.dropped: Counter[str] = Counter()  # by reason: too_many, refused, out_of_reach, crashed
        self._client = client
        self._writes = writes
        self._number = 0
        self._pending: OrderedDict[Occurrence, _Pending] = OrderedDict()
        self._wake = asyncio.Event()
        self._recorded: OrderedDict[Occurrence, _Recorded] = OrderedDict()

    def warning(self, component: str, object_: KubeObject, reason: str, message: str, *, now: datetime) -> None:
        self._record(component, "Warning", object_, reason, message, now)

    def normal(self, component: str, object_: KubeObject, reason: str, message: str, *, now: datetime) -> None:
        self._record(component, "Normal", object_, reason, message, now)

    def _record(
        self, component: str, type_: str, object_: KubeObject, reason: str, message: str, now: datetime
    ) -> None:
        occurrence = Occurrence(
            component, type_, object_.kind, object_.namespace, object_.name, object_.metadata.uid, reason, _cut(message)
        )
        if (pending := self._pending.get(occurrence)) is not None:
            pending.last, pending.times = now, pending.times + 1
        elif len(self._pending) >= PENDING_AT_MOST:
            self.dropped["too_many"] += 1
        else:
            self._number += 1
            self._pending[occurrence] = _Pending(self._number, now, now)
            self._wake.set()

    async def run(self) -> None:
        while True:
            while self._pending:
                occurrence, pending = self._pending.popitem(last=False)
                await self._send(occurrence, pending)
            self._wake.clear()
            await self._wake.wait()

    async def _send(self, occurrence: Occurrence, pending: _Pending) -> None:
        for _ in range(TRIES):
            pause = PAUSE_SECONDS
            try:
                await self._write(occurrence, pending)
                return
            except ApiError as error:
                pause = max(pause, min(error.retry_after, LONGEST_PAUSE))
                # A refusal, for example in a terminating namespace, must not delay other events.
                if not error.retryable or isinstance(error, Forbidden):
                    self._drop("refused", occurrence, error)
                    return
            except Exception as error:
                # A defect here must not end the task of the plane's caches.
                self._drop("crashed", occurrence, error)
                return
            await asyncio.sleep(pause)
        self.dropped["out_of_reach"] += 1

    def _drop(self, why: str, occurrence: Occurrence, error: Exception) -> None:
        self.dropped[why] += 1
        _log.debug("event not recorded", plane=self._client.plane, why=why, reason=occurrence.reason, error=repr(error))

    async def _write(self, occurrence: Occurrence, pending: _Pending) -> None:
        recorded = self._recorded.get(occurrence)
        if recorded is not None:
            count = recorded.count + pending.times
            patch = {"count": count, "lastTimestamp": timestamp(pending.last)}
            try:
                self._count("patch", occurrence)
                await self._client.merge_patch(EVENT, recorded.name, _namespace(occurrence), patch)
                self._remember(occurrence, _Recorded(recorded.name, count))
                return
            except NotFound:
                del self._recorded[occurrence]  # servers keep events for about an hour
        name = _name(occurrence, pending)
        self._count("create", occurrence)
        with suppress(AlreadyExists):  # only the answer of an earlier attempt was lost
            await self._client.create(EVENT, _body(occurrence, name, pending))
        self._remember(occurrence, _Recorded(name, pending.times))

    def _remember(self, occurrence: Occurrence, recorded: _Recorded) -> None:
        self._recorded[occurrence] = recorded
        self._recorded.move_to_end(occurrence)
        if len(self._recorded) > REMEMBERED:
            self._recorded.popitem(last=False)

    def _count(self, verb: str, occurrence: Occurrence) -> None:
        place = f"{_namespace(occurrence)}/{occurrence.name} ({occurrence.reason})"
        self._writes.count(Write(self._client.plane, occurrence.component, verb, EVENT.name), place)


async def record(
    client: Client, component: str, object_: KubeObject, reason: str, message: str, *, now: datetime, number: int
) -> None:
    """Records a normal event of which nothing may be done without it: raises `ApiError` unless it is stored.

    `number` differs between events of the same moment.
    """
    occurrence = Occurrence(
        component, "Normal", object_.kind, object_.namespace, object_.name, object_.metadata.uid, reason, _cut(message)
    )
    pending = _Pending(number, now, now)
    await client.create(EVENT, _body(occurrence, _name(occurrence, pending), pending))


def _cut(message: str) -> str:
    """Servers count bytes; characters are not split."""
    return message.encode("utf-8", "replace")[:LONGEST_MESSAGE].decode("utf-8", "ignore")


def _name(occurrence: Occurrence, pending: _Pending) -> str:
    """The same for every attempt, and unique: the time differs between processes, the number between events."""
    object_ = occurrence.name[:_LONGEST_NAME].rstrip("-.")
    return f"{object_}.{round(pending.first.timestamp() * 1_000_000):x}{pending.number:03x}"


def _namespace(occurrence: Occurrence) -> str:
    return occurrence.namespace or "default"  # where servers expect events about cluster-scoped objects


def _body(occurrence: Occurrence, name: str, pending: _Pending) -> Json:
    regarding = {
        "apiVersion": occurrence.kind.api_version,
        "kind": occurrence.kind.name,
        "name": occurrence.name,
        "namespace": occurrence.namespace,
        "uid": occurrence.uid,
    }
    return EVENT.body(name, _namespace(occurrence)) | {
        "involvedObject": {key: value for key, value in regarding.items() if value},
        "type": occurrence.type,
        "reason": occurrence.reason,
        "message": occurrence.message,
        "source": {"component": occurrence.component},
        "firstTimestamp": timestamp(pending.first),
        "lastTimestamp": timestamp(pending.last),
        "count": pending.times,
    }
