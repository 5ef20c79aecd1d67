"""Metrics for Prometheus. Entry point: `RuntimeCollector`.

Everything is read from the controllers, the fleet and the counted writes at scrape time. Series are labelled with the
role of a plane, not with its name, except where somebody has to know which plane it is: with a thousand planes, a
series per plane and kind would be more than a scrape can carry.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.metrics_core import Metric as Samples
from prometheus_client.registry import Collector

from datum_compute.runtime.caches.informer import Informer, State
from datum_compute.runtime.controller import PER_GROUP, Controller
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.leases import Election
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.telemetry import table
from datum_compute.runtime.telemetry.calls import Calls
from datum_compute.runtime.telemetry.health import Heartbeat
from datum_compute.runtime.telemetry.table import Family, Metric
from datum_compute.runtime.writes import Write, Writes


def process_registry() -> CollectorRegistry:
    """A registry with metrics of the process itself: memory, CPU, open files, garbage collection."""
    registry = CollectorRegistry()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    return registry


class _Totals(Struct, frozen=True):
    """What was counted on planes, by their role. A counter never decreases, so it includes planes that left."""

    failures: Counter[tuple[str, str, str]] = field(default_factory=Counter)  # by role, kind and phase
    defects: Counter[tuple[str, str, str]] = field(default_factory=Counter)  # by role, kind and phase
    rewinds: Counter[tuple[str, str]] = field(default_factory=Counter)  # by role and kind
    unrecorded: Counter[tuple[str, str]] = field(default_factory=Counter)  # by role and reason

    def add(self, plane: Plane) -> None:
        role = plane.roles[0]
        for (kind, phase), count in plane.failures.by_phase.items():
            self.failures[role, kind, phase] += count
        for (kind, phase), count in plane.failures.defects.items():
            self.defects[role, kind, phase] += count
        for informer in plane.informers():
            self.rewinds[role, informer.label] += informer.rewinds
        for reason, count in plane.events.dropped.items():
            self.unrecorded[role, reason] += count

    def with_planes(self, planes: Iterable[Plane]) -> "_Totals":
        totals = _Totals(Counter(self.failures), Counter(self.defects), Counter(self.rewinds), Counter(self.unrecorded))
        for plane in planes:
            totals.add(plane)
        return totals


class RuntimeCollector(Collector):
    """Also a member of the fleet, to take over what was counted on planes that leave."""

    def __init__(
        self,
        controllers: Sequence[Controller],
        fleet: Fleet,
        *,
        writes: Writes | None = None,
        calls: Calls | None = None,
        election: Election | None = None,
        heartbeat: Heartbeat | None = None,
        prefix: str = "",
    ) -> None:
        self._controllers = controllers
        self._fleet = fleet
        self._writes = writes
        self._calls = calls
        self._election = election
        self._heartbeat = heartbeat
        self._prefix = prefix
        self._left = _Totals()
        fleet.join(self)

    def describe(self) -> Iterable[Samples]:
        """Nothing in advance: metrics exist once the event loop runs."""
        return []

    def collect(self) -> Iterable[Samples]:
        families = [
            *self._passes(),
            *self._queues(),
            *self._planes(),
            *self._caches(),
            *self._totals(),
            *self._requests(),
            *self._leadership(),
        ]
        return [family.family for family in families]

    # As a member of the fleet

    def prepare(self, plane: Plane) -> None: ...

    def engaged(self, plane: Plane) -> None: ...

    def disengaged(self, plane: Plane) -> None:
        self._left.add(plane)

    # Families

    def _passes(self) -> Iterable[Family]:
        total, errors, panics = table.PASSES.family(), table.PASS_ERRORS.family(), table.PASS_PANICS.family()
        seconds, most, active = table.PASS_TIME.family(), table.MOST_PASSES.family(), table.ACTIVE_PASSES.family()
        dropped = table.EVENTS_DROPPED.family(self._prefix)
        for controller in self._controllers:
            for result in table.RESULTS:
                total.add([controller.name, result], controller.results[result])
            errors.add([controller.name], controller.results["error"])
            panics.add([controller.name], controller.panics)
            seconds.add_buckets([controller.name], controller.pass_seconds)
            most.add([controller.name], PER_GROUP)
            active.add([controller.name], len(controller.queue.running_seconds()))
            for reason, count in sorted(controller.dropped.items()):
                dropped.add([controller.name, reason], count)
        return total, errors, panics, seconds, most, active, dropped

    def _queues(self) -> Iterable[Family]:
        adds, retries, depth = table.QUEUE_ADDS.family(), table.QUEUE_RETRIES.family(), table.QUEUE_DEPTH.family()
        waited, worked = table.QUEUE_TIME.family(), table.WORK_TIME.family()
        unfinished, longest = table.UNFINISHED.family(), table.LONGEST_RUNNING.family()
        for controller in self._controllers:
            queue, running = controller.queue, controller.queue.running_seconds()
            adds.add([controller.name], queue.adds)
            retries.add([controller.name], queue.retries)
            depth.add([controller.name], len(queue))
            waited.add_buckets([controller.name], queue.waited)
            worked.add_buckets([controller.name], queue.worked)
            unfinished.add([controller.name], sum(running))
            longest.add([controller.name], max(running, default=0.0))
        return adds, retries, depth, waited, worked, unfinished, longest

    def _planes(self) -> Iterable[Family]:
        engaged, away = table.PLANES_ENGAGED.family(self._prefix), table.PLANES_AWAY.family(self._prefix)
        up = table.PLANE_UP.family(self._prefix)
        for role, count in sorted(Counter(plane.roles[0] for plane in self._fleet.planes()).items()):
            engaged.add([role], count)
        missing: Counter[str] = Counter()
        for plane in self._fleet.known():
            is_up, role = self._fleet.up(plane.name), plane.roles[0]
            up.add([plane.name, role], is_up)
            missing[role] += not is_up
        for role, count in sorted(missing.items()):
            away.add([role], count)
        return engaged, away, up

    def _caches(self) -> Iterable[Family]:
        caches: defaultdict[tuple[str, str], list[Informer[Any]]] = defaultdict(list)
        for plane in self._fleet.planes():
            for informer in plane.informers():
                caches[plane.roles[0], informer.label].append(informer)
        objects, watching, silent = (
            metric.family(self._prefix) for metric in (table.CACHE_OBJECTS, table.CACHE_WATCHING, table.CACHE_SILENT)
        )
        now = asyncio.get_running_loop().time()
        for place, informers in sorted(caches.items()):
            objects.add(place, sum(map(len, informers)))
            open_ = sum(informer.state is State.WATCHING for informer in informers)
            watching.add(place, open_ / len(informers))
            heard = [informer.last_heard for informer in informers if informer.synced.is_set()]
            if heard:
                silent.add(place, now - min(heard))
        return objects, watching, silent

    def _totals(self) -> Iterable[Family]:
        totals = self._left.with_planes(self._fleet.known())
        return (
            self._counted(table.PLANE_FAILURES, totals.failures),
            self._counted(table.PLANE_DEFECTS, totals.defects),
            self._counted(table.CACHE_REWINDS, totals.rewinds),
            self._counted(table.EVENTS_UNRECORDED, totals.unrecorded),
        )

    def _requests(self) -> Iterable[Family]:
        if self._writes is not None:
            yield self._counted(table.API_WRITES, _by_labels(self._writes.counts))
            yield self._counted(table.API_WRITES_DAMPED, _by_labels(self._writes.damped))
        if self._calls is not None:
            yield self._counted(table.CLIENT_REQUESTS, self._calls.counts)
            seconds = table.CLIENT_TIME.family()
            for labels, histogram in sorted(self._calls.seconds.items()):
                seconds.add_buckets(labels, histogram)
            yield seconds

    def _leadership(self) -> Iterable[Family]:
        if self._election is not None:
            leads, transitions = table.LEADS.family(), table.LEASE_TRANSITIONS.family(self._prefix)
            leads.add([self._election.name], self._election.leading)
            if (number := self._election.transitions) is not None:  # else the counter would begin with a jump
                transitions.add([self._election.name], number)
            yield from (leads, transitions)
        if self._heartbeat is not None:
            lag = table.LOOP_LAG.family(self._prefix)
            lag.add([], self._heartbeat.lag)
            yield lag

    def _counted(self, metric: Metric, counts: Mapping[Any, int]) -> Family:
        family = metric.family(self._prefix)
        for labels, count in sorted(counts.items()):
            family.add(labels, count)
        return family


def _by_labels(writes: Counter[Write]) -> dict[tuple[str, str, str, str], int]:
    return {(write.plane, write.controller, write.verb, write.kind): count for write, count in writes.items()}
