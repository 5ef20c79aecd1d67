"""Runs controllers over a fleet until they are stopped, or another replica leads. Entry point: `Manager`."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from prometheus_client import CollectorRegistry

from datum_compute.kube.tracing import Tracer
from datum_compute.runtime.clock import Clock
from datum_compute.runtime.controller import Controller, Reconciler
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.leases import Election
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.tasks import first
from datum_compute.runtime.telemetry.calls import Calls
from datum_compute.runtime.telemetry.health import Check, Heartbeat, caches_follow
from datum_compute.runtime.telemetry.metrics import RuntimeCollector
from datum_compute.runtime.writes import Writes

GRACE_SECONDS = 10.0


class Manager:
    """Everything that one process runs. Create it before the fleet runs, so that its controllers see every plane.

    With an election, the fleet runs on every replica, so that standby caches are warm; passes run, and writes leave the
    process, only on the leader. `run` raises `LeaseLost` when it no longer leads. Cancelling `run` ends the passes at
    once, `stop` lets them finish first; either way the lease is released last.
    """

    def __init__(
        self,
        fleet: Fleet,
        reconcilers: Sequence[Reconciler],
        clock: Clock,
        *,
        election: Election | None = None,
        registry: CollectorRegistry | None = None,
        writes: Writes | None = None,
        calls: Calls | None = None,
        prefix: str = "",
        grace_seconds: float = GRACE_SECONDS,
        tracer: Tracer | None = None,
    ) -> None:
        self.fleet = fleet
        self.controllers = {reconciler.name: Controller(reconciler, fleet, clock, tracer) for reconciler in reconcilers}
        self.election = election
        self._heartbeat = Heartbeat() if registry is not None else None
        self._grace_seconds = grace_seconds
        self._stopping = asyncio.Event()
        if election is not None:
            fleet.join(_Guard(election))
        if registry is not None:
            controllers = list(self.controllers.values())
            registry.register(
                RuntimeCollector(
                    controllers,
                    fleet,
                    writes=writes,
                    calls=calls,
                    election=election,
                    heartbeat=self._heartbeat,
                    prefix=prefix,
                )
            )

    @property
    def working(self) -> bool:
        """Whether passes may run in this replica now."""
        return self.election is None or self.election.leading

    def live_checks(self) -> dict[str, Check]:
        """For `/healthz`, by name."""
        checks: dict[str, Check] = {"caches": caches_follow(self.fleet)}
        return checks | ({"event-loop": self._heartbeat.check} if self._heartbeat is not None else {})

    def stop(self) -> None:
        """Starts no more passes; `run` returns when those under way have ended, or after the grace period."""
        self._stopping.set()
        for controller in self.controllers.values():
            controller.queue.close()

    async def run(self) -> None:
        work = self._work() if self.election is None else self._work_while_leading(self.election)
        beat = [self._heartbeat.run()] if self._heartbeat is not None else []
        await first(self.fleet.run(), work, *beat)

    async def _work_while_leading(self, election: Election) -> None:
        try:
            await first(self._stopping.wait(), election.acquire())
            if not self._stopping.is_set():
                await first(election.hold(), self._work())
        finally:
            await election.release()

    async def _work(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            controllers = self.controllers.values()
            workers = [tasks.create_task(controller.run(), name=controller.name) for controller in controllers]
            await self._stopping.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._grace_seconds):
                    await asyncio.gather(*(controller.drain() for controller in controllers))
            for worker in workers:
                worker.cancel()


class _Guard:
    """A member of the fleet that makes every plane check before each write whether this replica leads."""

    def __init__(self, election: Election) -> None:
        self._election = election

    def prepare(self, plane: Plane) -> None:
        plane.guard(self._election.check)

    def engaged(self, plane: Plane) -> None: ...

    def disengaged(self, plane: Plane) -> None: ...
