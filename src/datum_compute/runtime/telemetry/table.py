"""Metrics as rows of a table, which is the only way to create one. Entry points: `Metric`, `RUNTIME`.

Names and labels are those of controller-runtime and client-go where they have one, so that existing dashboards and
alerts fit. All others begin with a prefix that the program chooses.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

from msgspec import Struct, structs
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from datum_compute.runtime.caches.phases import Phase
from datum_compute.runtime.telemetry.histogram import PASS_SECONDS, QUEUE_SECONDS
from datum_compute.runtime.telemetry.histogram import Histogram as Buckets

T = TypeVar("T")

_by_registry: WeakKeyDictionary[CollectorRegistry, dict[str, Any]] = WeakKeyDictionary()


class Type(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Overall(Enum):
    """What a gauge of many processes and planes amounts to, where only one figure is shown."""

    MAX = "max"
    MIN = "min"
    SUM = "sum"
    ANY = "any"  # what one replica says holds for all of them; the smallest of those figures


class Label(Struct, frozen=True):
    """A label has a fixed set of values, or a source that bounds them."""

    name: str
    values: tuple[str, ...] = ()
    source: str = ""


class Family:
    """The samples of one metric, collected at scrape time."""

    def __init__(self, metric: "Metric") -> None:
        name, labels = metric.name.removesuffix("_total"), [label.name for label in metric.labels]
        self.family: CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
        match metric.type:
            case Type.COUNTER:
                self.family = CounterMetricFamily(name, metric.help, labels=labels)
            case Type.GAUGE:
                self.family = GaugeMetricFamily(name, metric.help, labels=labels)
            case Type.HISTOGRAM:
                self.family = HistogramMetricFamily(name, metric.help, labels=labels)

    def add(self, labels: Sequence[str], value: float) -> None:
        assert not isinstance(self.family, HistogramMetricFamily)
        self.family.add_metric(labels, value)

    def add_buckets(self, labels: Sequence[str], histogram: Buckets) -> None:
        assert isinstance(self.family, HistogramMetricFamily)
        bounds = [*map(str, histogram.bounds), "+Inf"]
        counts = list(zip(bounds, histogram.cumulative(), strict=True))
        self.family.add_metric(labels, counts, sum_value=histogram.total)


class Metric(Struct, frozen=True):
    """One metric. Without a registry its instruments count, and nothing is published.

    A registry has one instrument per metric: parts of a program that share the registry share it.
    """

    name: str  # as it is scraped, except for the prefix
    type: Type
    group: str  # of metrics that are looked at together
    help: str
    labels: tuple[Label, ...] = ()
    emitter: str = "every process"
    buckets: tuple[float, ...] = ()
    overall: Overall = Overall.MAX  # of a gauge
    prefixed: bool = False  # whether the program's prefix comes first

    def with_prefix(self, prefix: str) -> "Metric":
        """The row as it is scraped from a program with this prefix."""
        return structs.replace(self, name=f"{prefix}{self.name}", prefixed=False) if self.prefixed else self

    def family(self, prefix: str = "") -> Family:
        return Family(self.with_prefix(prefix))

    def counter(self, registry: CollectorRegistry | None) -> Counter:
        assert self.type is Type.COUNTER, self.name
        return self._shared(registry, Counter)

    def gauge(self, registry: CollectorRegistry | None) -> Gauge:
        assert self.type is Type.GAUGE, self.name
        return self._shared(registry, Gauge)

    def histogram(self, registry: CollectorRegistry | None) -> Histogram:
        assert self.type is Type.HISTOGRAM, self.name
        return self._shared(registry, Histogram, buckets=self.buckets)

    def _shared(self, registry: CollectorRegistry | None, create: Callable[..., T], **options: Any) -> T:
        name, labels = self.name.removesuffix("_total"), [label.name for label in self.labels]
        if registry is None:
            return create(name, self.help, labels, registry=None, **options)
        instruments = _by_registry.setdefault(registry, {})
        if self.name not in instruments:
            instruments[self.name] = create(name, self.help, labels, registry=registry, **options)
        return cast("T", instruments[self.name])


RESULTS = ("success", "error", "requeue", "requeue_after")
NO_ANSWER = "<error>"  # as client-go reports a request without an answer
OTHER = "other"
CODES = (
    "200", "201", "202", "204", "400", "401", "403", "404", "405", "406", "409", "410", "413", "415", "422", "429",
    "500", "502", "503", "504", NO_ANSWER, OTHER,
)  # fmt: skip
METHODS = ("DELETE", "GET", "PATCH", "POST", "PUT")
VERBS = (*METHODS, "WATCH")
REQUEST_SECONDS = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)

# Groups
CONTROLLERS = "Controllers"
QUEUES = "Work queues"
PLANES = "Planes"
CACHES = "Caches"
REQUESTS = "Requests"
WEBHOOK = "Webhook"
LEADERSHIP = "Leadership"
PROCESS = "Process"

# Labels
CONTROLLER = Label("controller", source="controllers of the process")
QUEUE = Label("name", source="controllers of the process")
PLANE = Label("plane", source="known planes; the series of a plane end when it leaves")
ROLE = Label("role", source="roles of planes")
KIND = Label("kind", source="kinds that controllers watch")
WEBHOOK_PATH = Label("webhook", source="registered paths")
LEASE = Label("name", source="the lease of the process")
PHASE = Label("phase", tuple(phase.value for phase in Phase))
GENERATION = Label("generation", ("0", "1", "2"))

PASSES = Metric(
    "controller_runtime_reconcile_total",
    Type.COUNTER,
    CONTROLLERS,
    "Passes by result.",
    (CONTROLLER, Label("result", RESULTS)),
)
PASS_ERRORS = Metric(
    "controller_runtime_reconcile_errors_total", Type.COUNTER, CONTROLLERS, "Passes that failed.", (CONTROLLER,)
)
PASS_PANICS = Metric(
    "controller_runtime_reconcile_panics_total",
    Type.COUNTER,
    CONTROLLERS,
    "Passes that failed with an unforeseen error.",
    (CONTROLLER,),
)
PASS_TIME = Metric(
    "controller_runtime_reconcile_time_seconds",
    Type.HISTOGRAM,
    CONTROLLERS,
    "Duration of passes.",
    (CONTROLLER,),
    buckets=PASS_SECONDS,
)
MOST_PASSES = Metric(
    "controller_runtime_max_concurrent_reconciles",
    Type.GAUGE,
    CONTROLLERS,
    "Maximum number of concurrent passes per plane.",
    (CONTROLLER,),
)
ACTIVE_PASSES = Metric(
    "controller_runtime_active_workers",
    Type.GAUGE,
    CONTROLLERS,
    "Passes that are running.",
    (CONTROLLER,),
    overall=Overall.SUM,
)
EVENTS_DROPPED = Metric(
    "events_dropped_total",
    Type.COUNTER,
    CONTROLLERS,
    "Changes that led to no request.",
    (CONTROLLER, Label("reason", source="reasons for which controllers drop changes")),
    prefixed=True,
)
QUEUE_ADDS = Metric("workqueue_adds_total", Type.COUNTER, QUEUES, "Requests added to the queue.", (QUEUE,))
QUEUE_RETRIES = Metric("workqueue_retries_total", Type.COUNTER, QUEUES, "Requests that are retried.", (QUEUE,))
QUEUE_DEPTH = Metric("workqueue_depth", Type.GAUGE, QUEUES, "Requests that are waiting.", (QUEUE,))
QUEUE_TIME = Metric(
    "workqueue_queue_duration_seconds",
    Type.HISTOGRAM,
    QUEUES,
    "Time that requests wait in the queue.",
    (QUEUE,),
    buckets=QUEUE_SECONDS,
)
WORK_TIME = Metric(
    "workqueue_work_duration_seconds",
    Type.HISTOGRAM,
    QUEUES,
    "Time that requests take to process.",
    (QUEUE,),
    buckets=QUEUE_SECONDS,
)
UNFINISHED = Metric(
    "workqueue_unfinished_work_seconds",
    Type.GAUGE,
    QUEUES,
    "Total running time of the requests that are being processed.",
    (QUEUE,),
    overall=Overall.SUM,
)
LONGEST_RUNNING = Metric(
    "workqueue_longest_running_processor_seconds",
    Type.GAUGE,
    QUEUES,
    "Running time of the oldest request that is being processed.",
    (QUEUE,),
)
PLANES_ENGAGED = Metric(
    "planes_engaged",
    Type.GAUGE,
    PLANES,
    "Engaged planes.",
    (Label("kind", source=ROLE.source),),
    prefixed=True,
)
PLANES_AWAY = Metric(
    "planes_away",
    Type.GAUGE,
    PLANES,
    "Known planes that are not engaged, or that a cache does not follow.",
    (ROLE,),
    prefixed=True,
)
PLANE_UP = Metric(
    "plane_up",
    Type.GAUGE,
    PLANES,
    "Whether the plane is engaged and all its caches follow it.",
    (PLANE, ROLE),
    prefixed=True,
    overall=Overall.MIN,
)
PLANE_FAILURES = Metric(
    "plane_failures_total",
    Type.COUNTER,
    PLANES,
    "Failed lists and watches by phase.",
    (ROLE, KIND, PHASE),
    prefixed=True,
)
PLANE_DEFECTS = Metric(
    "plane_defects_total",
    Type.COUNTER,
    PLANES,
    "Unforeseen errors while following a plane.",
    (ROLE, KIND, Label("phase", source="steps of following a plane")),
    prefixed=True,
)
CACHE_OBJECTS = Metric("cache_objects", Type.GAUGE, CACHES, "Objects in caches.", (ROLE, KIND), prefixed=True)
CACHE_WATCHING = Metric(
    "cache_watching",
    Type.GAUGE,
    CACHES,
    "Share of caches that have an open watch.",
    (ROLE, KIND),
    prefixed=True,
    overall=Overall.MIN,
)
CACHE_SILENT = Metric(
    "cache_silent_seconds",
    Type.GAUGE,
    CACHES,
    "Longest time since a cache last heard from its server.",
    (ROLE, KIND),
    prefixed=True,
)
CACHE_REWINDS = Metric(
    "cache_rewinds_total",
    Type.COUNTER,
    CACHES,
    "Lists that were older than the cache, for example after a server was restored from a backup.",
    (ROLE, KIND),
    prefixed=True,
)
CLIENT_REQUESTS = Metric(
    "rest_client_requests_total",
    Type.COUNTER,
    REQUESTS,
    "Requests to API servers by status code.",
    (Label("code", CODES), Label("method", METHODS), ROLE),
)
CLIENT_TIME = Metric(
    "rest_client_request_duration_seconds",
    Type.HISTOGRAM,
    REQUESTS,
    "Time until an API server answered, or a watch was open.",
    (Label("verb", VERBS), ROLE),
    buckets=REQUEST_SECONDS,
)
API_WRITES = Metric(
    "api_writes_total",
    Type.COUNTER,
    REQUESTS,
    "Write calls sent to API servers.",
    (
        PLANE,
        CONTROLLER,
        Label("verb", source="methods of writers"),
        Label("kind", source="kinds that controllers write"),
    ),
    prefixed=True,
)
API_WRITES_DAMPED = Metric(
    "api_writes_damped_total",
    Type.COUNTER,
    REQUESTS,
    "Writes held back because somebody else keeps undoing them.",
    API_WRITES.labels,
    prefixed=True,
)
EVENTS_UNRECORDED = Metric(
    "events_unrecorded_total",
    Type.COUNTER,
    REQUESTS,
    "Kubernetes events that could not be recorded.",
    (ROLE, Label("reason", ("too_many", "refused", "out_of_reach", "crashed"))),
    prefixed=True,
)
WEBHOOK_REQUESTS = Metric(
    "controller_runtime_webhook_requests_total",
    Type.COUNTER,
    WEBHOOK,
    "Answered admission requests by HTTP status code.",
    (WEBHOOK_PATH, Label("code", CODES)),
    "processes that serve the webhook",
)
WEBHOOK_TIME = Metric(
    "controller_runtime_webhook_latency_seconds",
    Type.HISTOGRAM,
    WEBHOOK,
    "Time to answer an admission request.",
    (WEBHOOK_PATH,),
    "processes that serve the webhook",
    (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
WEBHOOK_IN_FLIGHT = Metric(
    "controller_runtime_webhook_requests_in_flight",
    Type.GAUGE,
    WEBHOOK,
    "Admission requests that are being answered.",
    (WEBHOOK_PATH,),
    "processes that serve the webhook",
    overall=Overall.SUM,
)
LEADS = Metric(
    "leader_election_master_status",
    Type.GAUGE,
    LEADERSHIP,
    "Whether this replica leads.",
    (LEASE,),
    "processes with leader election",
    overall=Overall.ANY,
)
LEASE_TRANSITIONS = Metric(
    "lease_transitions_total",
    Type.COUNTER,
    LEADERSHIP,
    "How often the lease changed hands, as the lease itself counts it.",
    (LEASE,),
    "processes with leader election",
    prefixed=True,
)
LOOP_LAG = Metric("event_loop_lag_seconds", Type.GAUGE, PROCESS, "Delay of the event loop.", prefixed=True)

RUNTIME = (
    *(PASSES, PASS_ERRORS, PASS_PANICS, PASS_TIME, MOST_PASSES, ACTIVE_PASSES, EVENTS_DROPPED),
    *(QUEUE_ADDS, QUEUE_RETRIES, QUEUE_DEPTH, QUEUE_TIME, WORK_TIME, UNFINISHED, LONGEST_RUNNING),
    *(PLANES_ENGAGED, PLANES_AWAY, PLANE_UP, PLANE_FAILURES, PLANE_DEFECTS),
    *(CACHE_OBJECTS, CACHE_WATCHING, CACHE_SILENT, CACHE_REWINDS),
    *(CLIENT_REQUESTS, CLIENT_TIME, API_WRITES, API_WRITES_DAMPED, EVENTS_UNRECORDED),
    *(WEBHOOK_REQUESTS, WEBHOOK_TIME, WEBHOOK_IN_FLIGHT),
    *(LEADS, LEASE_TRANSITIONS, LOOP_LAG),
)
"""What any program of this runtime reports."""

PYTHON = (
    Metric("process_virtual_memory_bytes", Type.GAUGE, PROCESS, "Virtual memory size in bytes."),
    Metric("process_resident_memory_bytes", Type.GAUGE, PROCESS, "Resident memory size in bytes."),
    Metric("process_start_time_seconds", Type.GAUGE, PROCESS, "Start time of the process since unix epoch in seconds."),
    Metric("process_cpu_seconds_total", Type.COUNTER, PROCESS, "Total user and system CPU time spent in seconds."),
    Metric("process_open_fds", Type.GAUGE, PROCESS, "Number of open file descriptors."),
    Metric("process_max_fds", Type.GAUGE, PROCESS, "Maximum number of open file descriptors."),
    Metric(
        "python_info",
        Type.GAUGE,
        PROCESS,
        "Python platform information",
        tuple(
            Label(name, source="the interpreter")
            for name in ("version", "implementation", "major", "minor", "patchlevel")
        ),
    ),
    Metric("python_gc_objects_collected_total", Type.COUNTER, PROCESS, "Objects collected during gc", (GENERATION,)),
    Metric(
        "python_gc_objects_uncollectable_total",
        Type.COUNTER,
        PROCESS,
        "Uncollectable objects found during GC",
        (GENERATION,),
    ),
    Metric(
        "python_gc_collections_total",
        Type.COUNTER,
        PROCESS,
        "Number of times this generation was collected",
        (GENERATION,),
    ),
)
"""What prometheus_client reports about the process."""
