"""Metrics for Prometheus. Entry point: `RuntimeCollector`.

Everything is read from the controllers, the fleet and the counted writes at scrape time. Names and labels are those of
controller-runtime and client-go where they have one, so that existing dashboards and alerts fit; all others begin with
a prefix that the program chooses.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from datum_compute.runtime.caches.informer import State
from datum_compute.runtime.controller import PER_GROUP, Controller
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.leases import Election
from datum_compute.runtime.telemetry.health import Heartbeat
from datum_compute.runtime.telemetry.histogram import Histogram
from datum_compute.runtime.writes import Write, Writes

RESULTS = ("success", "error", "requeue", "requeue_after")


def process_registry() -> CollectorRegistry:
    """A registry with metrics of the process itself: memory, CPU, open files, garbage collection."""
    registry = CollectorRegistry()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    return registry


class RuntimeCollector(Collector):
    def __init__(
        self,
        controllers: Sequence[Controller],
        fleet: Fleet,
        *,
        writes: Writes | None = None,
        election: Election | None = None,
        heartbeat: Heartbeat | None = None,
        prefix: str = "",
    ) -> None:
        self._controllers = controllers
        self._fleet = fleet
        self._writes = writes
        self._election = election
        self._heartbeat = heartbeat
        self._prefix = prefix

    def describe(self) -> Iterable[Metric]:
        """Nothing in advance: metrics exist once the event loop runs."""
        return []

    def collect(self) -> Iterable[Metric]:
        yield from self._passes()
        yield from self._queues()
        yield from self._planes()
        if self._writes is not None:
            yield self._writes_family("api_writes", "Write calls sent to API servers.", self._writes.counts)
            yield self._writes_family(
                "api_writes_damped", "Writes held back because somebody else keeps undoing them.", self._writes.damped
            )
        if self._election is not None:
            leads = GaugeMetricFamily("leader_election_master_status", "Whether this replica leads.", labels=["name"])
            leads.add_metric([self._election.name], self._election.leading)
            yield leads

        if self._heartbeat is not None:
            yield GaugeMetricFamily(
                f"{self._prefix}event_loop_lag_seconds", "Delay of the event loop.", value=self._heartbeat.lag
            )

    def _passes(self) -> Iterable[Metric]:
        label = ["controller"]
        total = CounterMetricFamily(
            "controller_runtime_reconcile", "Passes by result.", labels=["controller", "result"]
        )
        errors = CounterMetricFamily("controller_runtime_reconcile_errors", "Passes that failed.", labels=label)
        panics = CounterMetricFamily(
            "controller_runtime_reconcile_panics", "Passes that failed with an unforeseen error.", labels=label
        )
        seconds = HistogramMetricFamily(
            "controller_runtime_reconcile_time_seconds", "Duration of passes.", labels=label
        )
        most = GaugeMetricFamily(
            "controller_runtime_max_concurrent_reconciles",
            "Maximum number of concurrent passes per plane.",
            labels=label,
        )
        active = GaugeMetricFamily("controller_runtime_active_workers", "Passes that are running.", labels=label)
        for controller in self._controllers:
            for result in RESULTS:
                total.add_metric([controller.name, result], controller.results[result])
            errors.add_metric([controller.name], controller.results["error"])
            panics.add_metric([controller.name], controller.panics)
            _add(seconds, controller.name, controller.pass_seconds)
            most.add_metric([controller.name], PER_GROUP)
            active.add_metric([controller.name], len(controller.queue.running_seconds()))
        return total, errors, panics, seconds, most, active

    def _queues(self) -> Iterable[Metric]:
        label = ["name"]
        adds = CounterMetricFamily("workqueue_adds", "Requests added to the queue.", labels=label)
        retries = CounterMetricFamily("workqueue_retries", "Requests that are retried.", labels=label)
        depth = GaugeMetricFamily("workqueue_depth", "Requests that are waiting.", labels=label)
        waited = HistogramMetricFamily(
            "workqueue_queue_duration_seconds", "Time that requests wait in the queue.", labels=label
        )
        worked = HistogramMetricFamily(
            "workqueue_work_duration_seconds", "Time that requests take to process.", labels=label
        )
        unfinished = GaugeMetricFamily(
            "workqueue_unfinished_work_seconds",
            "Total running time of the requests that are being processed.",
            labels=label,
        )
        longest = GaugeMetricFamily(
            "workqueue_longest_running_processor_seconds",
            "Running time of the oldest request that is being processed.",
            labels=label,
        )
        for controller in self._controllers:
            queue, running = controller.queue, controller.queue.running_seconds()
            adds.add_metric([controller.name], queue.adds)
            retries.add_metric([controller.name], queue.retries)
            depth.add_metric([controller.name], len(queue))
            _add(waited, controller.name, queue.waited)
            _add(worked, controller.name, queue.worked)
            unfinished.add_metric([controller.name], sum(running))
            longest.add_metric([controller.name], max(running, default=0.0))
        return adds, retries, depth, waited, worked, unfinished, longest

    def _planes(self) -> Iterable[Metric]:
        engaged = GaugeMetricFamily(f"{self._prefix}planes_engaged", "Engaged planes.", labels=["kind"])
        planes = self._fleet.planes()
        for role, count in sorted(Counter(plane.roles[0] for plane in planes).items()):
            engaged.add_metric([role], count)
        labels = ["plane", "kind"]
        objects = GaugeMetricFamily(f"{self._prefix}cache_objects", "Objects in the cache.", labels=labels)
        watching = GaugeMetricFamily(
            f"{self._prefix}cache_watching", "Whether the cache has an open watch.", labels=labels
        )
        silent = GaugeMetricFamily(
            f"{self._prefix}cache_silent_seconds", "Time since the cache last heard from its server.", labels=labels
        )
        rewinds = CounterMetricFamily(
            f"{self._prefix}cache_rewinds",
            "Lists that were older than the cache, for example after a server was restored from a backup.",
            labels=labels,
        )
        now = asyncio.get_running_loop().time()
        for plane in planes:
            for informer in plane.informers():
                place = [plane.name, informer.label]
                objects.add_metric(place, len(informer))
                watching.add_metric(place, informer.state is State.WATCHING)
                rewinds.add_metric(place, informer.rewinds)
                if informer.synced.is_set():
                    silent.add_metric(place, now - informer.last_heard)
        up = GaugeMetricFamily(
            f"{self._prefix}plane_up", "Whether the plane is engaged and all its caches follow it.", labels=["plane"]
        )
        phases = ["plane", "kind", "phase"]
        failures = CounterMetricFamily(
            f"{self._prefix}plane_failures",
            "Failed lists and watches by phase.",
            labels=phases,
        )
        defects = CounterMetricFamily(
            f"{self._prefix}plane_defects", "Unforeseen errors while following a plane.", labels=phases
        )
        for plane in self._fleet.known():
            up.add_metric([plane.name], self._fleet.up(plane.name))
            for family, counts in ((failures, plane.failures.by_phase), (defects, plane.failures.defects)):
                for (kind, phase), count in sorted(counts.items()):
                    family.add_metric([plane.name, kind, phase], count)
        dropped = CounterMetricFamily(
            f"{self._prefix}events_dropped", "Changes that led to no request.", labels=["controller", "reason"]
        )
        for controller in self._controllers:
            for reason, count in sorted(controller.dropped.items()):
                dropped.add_metric([controller.name, reason], count)
        unrecorded = CounterMetricFamily(
            f"{self._prefix}events_untold", "Kubernetes events that could not be recorded.", labels=["plane", "reason"]
        )
        for plane in planes:
            for reason, count in sorted(plane.events.dropped.items()):
                unrecorded.add_metric([plane.name, reason], count)
        return engaged, up, failures, defects, objects, watching, silent, rewinds, dropped, unrecorded

    def _writes_family(self, name: str, help_: str, counts: Counter[Write]) -> Metric:
        labels = ["plane", "controller", "verb", "kind"]
        total = CounterMetricFamily(f"{self._prefix}{name}", help_, labels=labels)
        for write, count in sorted(counts.items(), key=lambda item: str(item[0])):
            total.add_metric([write.plane, write.controller, write.verb, write.kind], count)
        return total


def _add(family: HistogramMetricFamily, name: str, histogram: Histogram) -> None:
    bounds = [*map(str, histogram.bounds), "+Inf"]
    family.add_metric([name], list(zip(bounds, histogram.cumulative(), strict=True)), sum_value=histogram.total)
