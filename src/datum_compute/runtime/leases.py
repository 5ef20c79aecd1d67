"""Leases and leader election. Entry points: `Election`, which decides which replica works; `LeaseView`, `Tenure`.

Clocks of different machines are never compared. A lease has expired when this process has not seen it change for as
long as its holder asked for, measured on its own event loop; its holder stops earlier, counted from the moment it sent
its last successful renewal. Whatever the network does in between, the old leader is silent before the new one writes.
The times in the lease are for people to read.
"""

import asyncio
import random

import msgspec
import structlog
from msgspec import Struct

from datum_compute.kube.client import Client
from datum_compute.kube.errors import AlreadyExists, ApiError, Conflict, NotFound, ServerError, Timeout
from datum_compute.kube.kinds import LEASE, Lease
from datum_compute.kube.meta import Json, as_dict, decode
from datum_compute.kube.transport import Call
from datum_compute.runtime.caches.failures import LogThrottle
from datum_compute.runtime.caches.phases import Phase, advice, phase_of
from datum_compute.runtime.clock import Clock

JITTER = 1.2
RELEASED_SECONDS = 1
USUAL_SECONDS = 15  # where the lease has no duration
_NEVER = float("-inf")

_log = structlog.get_logger(__name__)


class LeaseLost(Exception):
    """The lease could not be renewed in time, or another process holds it: the leader must exit."""


class NotLeading(ApiError):
    """A write that was not sent, because another replica may lead by now."""

    code, reason = 503, "NotLeading"


class LeaseView:
    """A read-only view of a Lease: who holds it, and whether they still do."""

    def __init__(self, client: Client, namespace: str, name: str) -> None:
        self.namespace = namespace
        self.name = name
        self._client = client
        self._snapshot: _Snapshot | None = None

    @property
    def holder(self) -> str:
        """The identity in the lease when it was last read, expired or not; empty for nobody."""
        return self._snapshot.record.holder_identity if self._snapshot is not None else ""

    @property
    def transitions(self) -> int | None:
        """How often it had changed hands when it was last read; None while none is known."""
        return self._snapshot.record.lease_transitions if self._snapshot is not None else None

    @property
    def expiry(self) -> float:
        """The loop time at which the lease expires if it is not renewed; infinite while none is known."""
        if self._snapshot is None:
            return float("inf")
        return self._snapshot.at + self._snapshot.record.lease_duration_seconds

    @property
    def alive(self) -> bool:
        """Whether its holder may still rely on it."""
        return bool(self.holder) and asyncio.get_running_loop().time() < self.expiry

    async def look(self) -> None:
        """Reads the lease and notes when it changed. After its deletion the holder has it for the rest of its time."""
        try:
            lease = await self._client.get(LEASE, self.name, self.namespace)
        except NotFound:
            if self._snapshot is not None:
                self._snapshot = _Snapshot(None, self._snapshot.record, self._snapshot.at)
            return
        record = _record(lease)
        changed = self._snapshot is None or self._snapshot.record != record
        at = asyncio.get_running_loop().time() if changed or self._snapshot is None else self._snapshot.at
        self._snapshot = _Snapshot(lease, record, at)


class Tenure(LeaseView):
    """A Lease that one identity wants to hold.

    After `renew_seconds` without a renewal it no longer counts as held, which is before anybody else may take it.
    """

    def __init__(
        self,
        client: Client,
        namespace: str,
        name: str,
        identity: str,
        clock: Clock,
        lease_seconds: int,
        renew_seconds: float,
    ) -> None:
        if not lease_seconds > renew_seconds > 0:
            raise ValueError(
                f"a lease of {lease_seconds} s must be longer than its renewal may take ({renew_seconds} s)"
            )
        if not identity:
            raise ValueError(f"a candidate for lease {namespace}/{name} needs an identity")
        super().__init__(client, namespace, name)
        self.identity = identity
        self.held_until = _NEVER  # loop time
        self._clock = clock
        self._lease_seconds = lease_seconds
        self._renew_seconds = renew_seconds

    @property
    def held(self) -> bool:
        """Whether this identity may rely on the lease now. Becomes false by itself when renewals fail."""
        return self.held_until > _NEVER and asyncio.get_running_loop().time() < self.held_until

    @property
    def free(self) -> bool:
        """Whether this identity may take it: it has no holder, is its own, or has expired."""
        return self.holder == self.identity or not self.alive

    async def take(self) -> None:
        """Takes or renews it; `Conflict` when it has changed since it was last read."""
        sent = asyncio.get_running_loop().time()
        await self._write(holder=self.identity, seconds=self._lease_seconds)
        self.held_until = sent + self._renew_seconds

    def lose(self) -> None:
        """From now on it is not held, whatever was renewed before."""
        self.held_until = _NEVER

    async def give_up(self) -> None:
        """Releases it, so that the next candidate need not wait; a lease of another holder is left alone."""
        self.lose()
        await self.look()
        if self._snapshot is not None and self.holder == self.identity:
            await self._write(holder="", seconds=RELEASED_SECONDS)

    async def _write(self, *, holder: str, seconds: int) -> None:
        now = self._clock.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        before = self._snapshot.record if self._snapshot is not None else None
        spec: Json = {"holderIdentity": holder, "leaseDurationSeconds": seconds, "renewTime": now}
        if before is None:
            spec |= {"acquireTime": now, "leaseTransitions": 0}
        elif before.holder_identity == holder:
            spec |= {"acquireTime": before.acquire_time or now, "leaseTransitions": before.lease_transitions}
        else:
            spec |= {"acquireTime": now, "leaseTransitions": before.lease_transitions + bool(holder)}
        body = LEASE.body(self.name, self.namespace)
        if self._snapshot is None or self._snapshot.lease is None:
            written = await self._client.create(LEASE, body | {"spec": spec})
        else:
            lease = self._snapshot.lease
            # Only non-empty fields: servers refuse any grace period, even 0, for objects that are not being deleted.
            metadata = {key: value for key, value in msgspec.to_builtins(lease.metadata).items() if value}
            changed = {"metadata": metadata, "spec": as_dict(lease.spec_json) | spec}
            written = await self._client.replace(LEASE, body | changed)
        self._snapshot = _Snapshot(written, _record(written), asyncio.get_running_loop().time())


class Election:
    """One candidate. `acquire` returns as the leader, `hold` renews until it raises, `release` lets the next one lead.

    `client` gets, creates and updates leases; it should be used for nothing else that could delay its calls. `identity`
    must be unique to this process.
    """

    def __init__(
        self,
        client: Client,
        namespace: str,
        name: str,
        identity: str,
        clock: Clock,
        generator: random.Random,
        lease_seconds: int = USUAL_SECONDS,
        renew_seconds: float = 10,
        retry_seconds: float = 2,
    ) -> None:
        if not lease_seconds > renew_seconds > retry_seconds * JITTER > 0:
            raise ValueError(
                f"a lease of {lease_seconds} s must be longer than its renewal may take ({renew_seconds} s), "
                f"and that longer than {JITTER} times the wait between two tries ({retry_seconds} s)"
            )
        self._tenure = Tenure(client, namespace, name, identity, clock, lease_seconds, renew_seconds)
        self.name = name
        self.identity = identity
        self._namespace = namespace
        self._generator = generator
        self._renew_seconds = renew_seconds
        self._retry_seconds = retry_seconds
        self._throttle = LogThrottle()
        self._own_paths = (LEASE.path(namespace), LEASE.path(namespace, name))

    @property
    def leading(self) -> bool:
        """Whether this replica may write now. Becomes false by itself when renewals fail."""
        return self._tenure.held

    @property
    def transitions(self) -> int | None:
        """How often the lease changed hands; None before it was first read."""
        return self._tenure.transitions

    def check(self, call: Call) -> None:
        """The guard of all writes: without leading, a replica may write only the lease itself."""
        if not self.leading and call.path not in self._own_paths:
            raise NotLeading(f"{self.identity} does not hold lease {self._namespace}/{self.name}; nothing was written")

    async def acquire(self) -> None:
        """Waits until this replica leads, for ever if need be."""
        while True:
            try:
                async with asyncio.timeout(self._renew_seconds):
                    await self._tenure.look()
                    if self._tenure.free:
                        await self._tenure.take()
            except (AlreadyExists, Conflict) as error:
                _log.debug("lease not taken", lease=self.name, error=str(error))  # another candidate was faster
            except ApiError as error:
                self._cannot_take(error)
            except TimeoutError:
                self._cannot_take(Timeout(f"no answer within {self._renew_seconds:g} s"))
            if self.leading:
                _log.info("leading", lease=self.name, identity=self.identity)
                return
            await self._pause(until=self._tenure.expiry)

    def _cannot_take(self, error: ApiError) -> None:
        phase = phase_of(error, Phase.LIST)
        check = advice(error, phase, LEASE.resource, "get, create and update")
        if isinstance(error, NotFound):
            check = f"check that namespace {self._namespace} exists"
        if self._throttle.is_due(phase):
            _log.warning(
                "lease cannot be taken, so this replica does not work",
                lease=f"{self._namespace}/{self.name}",
                phase="lease" if phase is Phase.LIST else phase.value,
                error=str(error),
                check=check,
            )

    async def hold(self) -> None:
        """Raises `LeaseLost` at the moment when this replica may no longer write, and never returns."""
        try:
            while True:
                await self._pause()
                async with asyncio.timeout_at(self._tenure.held_until):
                    await self._renew()
        except TimeoutError:
            raise LeaseLost(
                f"lease {self._namespace}/{self.name} could not be renewed for {self._renew_seconds:g} s; "
                "another replica may take over"
            ) from None
        finally:
            self._tenure.lose()

    async def release(self) -> None:
        """To be called when all work has ended, so that the next candidate need not wait; best effort."""
        try:
            async with asyncio.timeout(self._retry_seconds):
                await self._tenure.give_up()
        except (ApiError, TimeoutError) as error:
            _log.info("lease not released", lease=self.name, error=str(error) or "no answer")

    async def _renew(self) -> None:
        """Tries until it succeeds; an attempt that hangs leaves time for another."""
        while True:
            try:
                async with asyncio.timeout(self._renew_seconds / 2):
                    await self._tenure.take()
                return
            except (ApiError, TimeoutError) as error:
                _log.info("lease not renewed", lease=self.name, error=str(error) or "no answer")
            await self._check_holder()
            await self._pause()

    async def _check_holder(self) -> None:
        try:
            async with asyncio.timeout(self._renew_seconds / 2):
                await self._tenure.look()
        except (ApiError, TimeoutError):
            return
        if (holder := self._tenure.holder) != self.identity:
            raise LeaseLost(f"lease {self._namespace}/{self.name} is held by {holder or 'nobody'} now")

    async def _pause(self, until: float = float("inf")) -> None:
        """Sleeps for a moment, but not beyond `until`, unless that has passed."""
        seconds = self._retry_seconds * self._generator.uniform(1, JITTER)
        left = until - asyncio.get_running_loop().time()
        await asyncio.sleep(min(seconds, left) if left > 0 else seconds)


class _Record(Struct, frozen=True, rename="camel"):
    """The spec of a lease. A change in any field is a sign of life."""

    holder_identity: str = ""
    lease_duration_seconds: int = USUAL_SECONDS
    acquire_time: str = ""
    renew_time: str = ""
    lease_transitions: int = 0


class _Snapshot(Struct, frozen=True):
    lease: Lease | None  # None when it was deleted since
    record: _Record
    at: float  # loop time


def _record(lease: Lease) -> _Record:
    try:
        return decode(lease.spec_json, _Record) if bytes(lease.spec_json) else _Record()
    except msgspec.MsgspecError as error:
        raise ServerError(f"lease {lease.namespace}/{lease.name} cannot be decoded: {error}; delete it") from None
