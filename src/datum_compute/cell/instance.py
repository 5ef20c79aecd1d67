"""Gates an Instance, says whether it is ready, and copies it to the hub. Entry point: `InstanceController`."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import structlog
from msgspec import Struct

from datum_compute.api import reasons
from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE, NETWORK_GATE, PROGRAMMED, QUOTA_GATE, QUOTA_GRANTED, Instance
from datum_compute.api.labels import CLAIM_FINALIZER, DEPLOYMENT_NAME, INSTANCE_FINALIZER
from datum_compute.api.networking import NETWORK_BINDING, NetworkBinding
from datum_compute.api.quota import RESOURCE_CLAIM
from datum_compute.cell.gates import gates, without_gate
from datum_compute.cell.metrics import Metrics
from datum_compute.cell.network import failure_of
from datum_compute.cell.news import FEDERATED, identified, news
from datum_compute.cell.quota import COMPONENT, Claims, Quota, Verdict, kept, tier
from datum_compute.cell.readiness import Decided, readiness
from datum_compute.cell.writeback import WriteBack
from datum_compute.federation.identity import Identity
from datum_compute.federation.roles import CELL, CLAIMS, HUB
from datum_compute.federation.scope import is_foreign
from datum_compute.kube import conditions
from datum_compute.kube.errors import ApiError, Timeout, Unavailable
from datum_compute.kube.kinds import NAMESPACE, Namespace
from datum_compute.kube.meta import Json, plain
from datum_compute.runtime.clock import Clock
from datum_compute.runtime.controller import Source, itself
from datum_compute.runtime.fleet import Fleet, NotEngaged
from datum_compute.runtime.informer import Change
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.requests import Drop, Pass, Request, Unfinished
from datum_compute.runtime.writes import Writer

NAME = "instance"
PATIENCE_SECONDS = 0.2
TROUBLE_SECONDS = 1.0

_log = structlog.get_logger(__name__)


class _Trouble(Struct):
    """A failure that lasts, and what was told of it; a plane that is only about to be engaged is none."""

    since: float
    told: str = ""

    def is_news(self, reason: str, now: float) -> bool:
        if reason == self.told or now - self.since < TROUBLE_SECONDS:
            return False
        self.told = reason
        return True


class InstanceController:
    """Owns Ready and QuotaGranted of an Instance, its quota gate, its claim, and its copy on the hub."""

    name = NAME
    sweep_role = CELL  # a hub that comes later tells of every copy by itself
    sweep_seconds = 600.0

    def __init__(
        self,
        fleet: Fleet,
        clock: Clock,
        quota: Quota,
        write_back: WriteBack | None,
        *,
        networking: bool = False,
        metrics: Metrics | None = None,
    ) -> None:
        self._fleet = fleet
        self._clock = clock
        self._quota = quota
        self._write_back = write_back
        self._networking = networking
        self._metrics = metrics or Metrics()
        self._troubles: dict[Request, _Trouble] = {}  # failures that no condition shows (R18)
        self._asked: dict[str, float] = {}  # loop time at which quota or provider was asked, by uid, for a moment

    def sources(self) -> Sequence[Source[Any]]:
        found: list[Source[Any]] = [
            Source(CELL, INSTANCE, itself, when=_concerns_us),
            Source(CELL, NAMESPACE, _in_namespace, when=_is_identified),
        ]
        if isinstance(self._quota, Claims):
            found.append(Source(CLAIMS, RESOURCE_CLAIM, self._quota.to_instance, optional=True))
        if self._networking:
            found.append(Source(CELL, NETWORK_BINDING, _of_binding, optional=True))
        if self._write_back is not None:
            found.append(Source(HUB, NAMESPACE))
            found.append(Source(HUB, WORKLOAD_DEPLOYMENT, self._write_back.of_owner))
            found.append(Source(HUB, INSTANCE, self._write_back.of_copy))
        return found

    def sweep(self, plane: Plane) -> Iterable[Request]:
        """Hub copies that were left behind when an Instance went while the hub was out of reach (R22)."""
        return self._write_back.left_behind(plane) if self._write_back is not None else ()

    async def reconcile(self, request: Request, pass_: Pass) -> None:
        cell = self._fleet.plane(request.plane)
        instance = cell.informer(INSTANCE).get(request.namespace, request.name)
        if is_foreign(cell, request.namespace):
            return
        if instance is None:
            self._troubles.pop(request, None)
            if self._write_back is not None and self._write_back.named:
                await self._write_back.sweep(cell, request.namespace, request.name)
            return
        write = cell.writer(self.name)
        if instance.metadata.deleting:
            self._asked.pop(instance.metadata.uid, None)
            await self._finalize(cell, write, instance)
            return
        instance = await self._hold(write, instance)
        asked = await self._quota.evaluate(cell, instance)
        verdict = kept(instance, asked)
        self._come_back(instance, verdict, pass_)
        if verdict.fresh:
            self._ask(instance)
        if self._is_answered_soon(instance, verdict, pass_):
            return

        instance = await self._tell(cell, write, instance, verdict, asked, request)
        # In the same pass: a grant whose gate waits for another event may wait for ever. Before the hub is written:
        # one that is away must not keep an Instance from starting.
        if verdict.granted and QUOTA_GATE in gates(instance):
            await write.patch_seen(INSTANCE, instance, without_gate(instance, QUOTA_GATE))
            self._ask(instance)
            return  # the event of this patch brings us back at once, with one copy to write instead of two
        if self._write_back is not None and await self._write_back.write(cell, instance):
            self._metrics.reached_hub(asyncio.get_running_loop().time() - pass_.since)
        if asked.failed:
            raise asked.error or Unfinished(asked.message)

    def _come_back(self, instance: Instance, verdict: Verdict, pass_: Pass) -> None:
        """Declares the floor; a missing line in the log proves that a requeue was dropped."""
        now = self._clock.now()
        age = now - (instance.metadata.creation_timestamp or now)
        again = tier(verdict, age)
        if again is not None:
            seconds = age.total_seconds()
            _log.info("quota requeue", request=str(pass_.request), reason=verdict.reason, tier=again, age=seconds)
            pass_.no_later_than(again)

    def _ask(self, instance: Instance) -> None:
        self._asked[instance.metadata.uid] = asyncio.get_running_loop().time()

    def _is_answered_soon(self, instance: Instance, verdict: Verdict, pass_: Pass) -> bool:
        """Mostly quota and provider answer in a moment; only who really waits is written about, on three planes."""
        since = self._asked.get(instance.metadata.uid)
        if since is None:
            return False
        left = since + PATIENCE_SECONDS - asyncio.get_running_loop().time()
        if left > 0 and _is_unanswered(instance, verdict):
            pass_.no_later_than(left)
            return True
        del self._asked[instance.metadata.uid]
        return False

    async def _hold(self, write: Writer, instance: Instance) -> Instance:
        """Our own creator sets both finalizers; this is for Instances made by others."""
        missing = [name for name in (INSTANCE_FINALIZER, CLAIM_FINALIZER) if name not in instance.metadata.finalizers]
        if not missing:
            return instance
        finalizers = [*instance.metadata.finalizers, *missing]
        return await write.patch_seen(INSTANCE, instance, {"metadata": {"finalizers": finalizers}})

    async def _tell(
        self, cell: Plane, write: Writer, instance: Instance, verdict: Verdict, asked: Verdict, request: Request
    ) -> Instance:
        """Writes the conditions where they changed, and what is new in them as events."""
        after = await write.status(INSTANCE, instance, self._status(cell, instance, verdict))
        told = news(instance, after)
        if asked.failed and asked.reason != verdict.reason:
            trouble = self._troubles.setdefault(request, _Trouble(asyncio.get_running_loop().time()))
            if trouble.is_news(asked.reason, asyncio.get_running_loop().time()):
                told.append((asked.reason, asked.message))
        else:
            self._troubles.pop(request, None)
        for reason, message in told:
            cell.events.warning(COMPONENT, INSTANCE, after, reason, message, now=self._clock.now())
        return after

    def _status(self, cell: Plane, instance: Instance, verdict: Verdict) -> Json:
        before = conditions.of(instance)
        failure = failure_of(cell, instance) if self._networking and gates(instance) else None
        missing = self._write_back.missing_labels(instance) if self._write_back is not None else []
        if not missing:
            before = tuple(condition for condition in before if condition.type != FEDERATED)
        decided = [
            Decided(QUOTA_GRANTED, verdict.status, verdict.reason, verdict.message),
            *readiness(gates(instance), before, verdict, failure),
            *identified(missing),
        ]
        generation, now = instance.metadata.generation, self._clock.now()
        wanted = [
            conditions.condition(one.type, one.status, one.reason, one.message, generation=generation, now=now)
            for one in decided
        ]
        after = conditions.updated(before, wanted)
        return plain(instance.status_json) | {"conditions": conditions.to_json(after)}

    async def _finalize(self, cell: Plane, write: Writer, instance: Instance) -> None:
        """Hub copy and claim do not wait for each other; what is done is let go of, what failed is tried again."""
        done: list[str] = []
        failures: list[ApiError] = []
        if INSTANCE_FINALIZER in instance.metadata.finalizers:
            try:
                await self._remove_copy(cell, instance)
                done.append(INSTANCE_FINALIZER)
            except (Unavailable, Timeout, NotEngaged) as error:
                # A hub that does not answer never stops a site (R22): this request fails on it until the copy is gone.
                if self._write_back is not None and self._write_back.named:
                    done.append(INSTANCE_FINALIZER)
                failures.append(error)
            except ApiError as error:
                failures.append(error)
        if CLAIM_FINALIZER in instance.metadata.finalizers:
            try:
                await self._quota.release(cell, instance)
                done.append(CLAIM_FINALIZER)
            except ApiError as error:
                failures.append(error)
        await write.remove_finalizers(INSTANCE, instance, *done)
        for failure in failures:
            raise failure

    async def _remove_copy(self, cell: Plane, instance: Instance) -> None:
        if self._write_back is not None:
            await self._write_back.remove(cell, instance.namespace, instance.name)


def _is_unanswered(instance: Instance, verdict: Verdict) -> bool:
    if not verdict.granted:
        return verdict.status == "Unknown"
    programmed = conditions.find(conditions.of(instance), PROGRAMMED)
    is_silent = programmed is None or programmed.reason == reasons.PENDING
    return is_silent and set(gates(instance)) <= {NETWORK_GATE}


def _is_identified(change: Change[Namespace]) -> bool:
    """A namespace that says something else about whose it is; who waits for that need not wait for the next tier."""
    if change.before is None or change.after is None:
        return False
    return Identity.of(change.before.metadata.labels) != Identity.of(change.after.metadata.labels)


def _concerns_us(change: Change[Instance]) -> bool:
    """Not so: annotations, and finalizers that others set or lift. A pass for these would come before its time."""
    if change.before is None or change.after is None:
        return True
    return _seen(change.before) != _seen(change.after)


def _seen(instance: Instance) -> tuple[object, ...]:
    metadata = instance.metadata
    held = [name for name in (INSTANCE_FINALIZER, CLAIM_FINALIZER) if name in metadata.finalizers]
    return (
        *(metadata.uid, metadata.generation, metadata.deleting, metadata.labels, metadata.owner_references),
        *(held, bytes(instance.status_json)),
    )


def _in_namespace(plane: Plane, change: Change[Namespace]) -> Iterable[Request | Drop]:
    for instance in plane.informer(INSTANCE).all(change.object.name):
        yield Request(plane.name, instance.namespace, instance.name)


def _of_binding(plane: Plane, change: Change[NetworkBinding]) -> Iterable[Request | Drop]:
    """The Instances of the deployment that a binding is for, while they wait."""
    owner = change.object.metadata.controller
    for instance in plane.informer(INSTANCE).all(change.object.namespace) if owner is not None else ():
        if owner is not None and instance.metadata.labels.get(DEPLOYMENT_NAME) == owner.name and gates(instance):
            yield Request(plane.name, instance.namespace, instance.name)
