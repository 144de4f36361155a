"""Prometheus metrics of a server (prefix `livectr_`).

They are declared once per process. Metrics of a side (`Sided`) have a label `side`, "stable" or "canary".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar
from weakref import WeakMethod

from grpc import StatusCode
from prometheus_client import REGISTRY, Counter, Gauge, Histogram, Metric
from prometheus_client.registry import Collector

from livectr.serving.canary import SIDE
from livectr.serving.errors import AnswerError
from livectr.store.redis_errors import Outcome
from livectr.system import build_info as build_info
from livectr.system.counters import LabelledCounter, Total
from livectr.system.histograms import F64, LabelledHistogram, ProbabilityHistogram, Series
from livectr.system.histograms import DelayHistogram as DelayHistogram

REQUEST_BOUNDS_S = (
    *(0.0005, 0.001, 0.002, 0.003, 0.004, 0.005, 0.0065, 0.008, 0.01, 0.0125, 0.015, 0.02),
    *(0.03, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5),
)

SOURCES: list[WeakMethod[Callable[[], None]]] = []
"""Methods that count what compiled calls have counted, before metrics are shown."""


class _Sources(Collector):
    """Collector of nothing, the first in turn: it lets `SOURCES` count."""

    def collect(self) -> Iterable[Metric]:
        """Let the sources count; there is nothing to show."""
        for source in list(SOURCES):
            count = source()
            if count is None:
                SOURCES.remove(source)
            else:
                count()
        return ()


REGISTRY.register(_Sources())

Kind = TypeVar("Kind", Gauge, Counter, Histogram)


class Sided(Generic[Kind]):
    """Metric with a last label `side`: the side that the thread works for.

    Args:
        kind: Gauge, Counter or Histogram.
        name, help, labels, more: of the metric.
    """

    def __init__(
        self, kind: type[Kind], name: str, help: str, labels: Sequence[str] = (), **more: Any
    ) -> None:
        self._metric: Any = kind(name, help, [*labels, "side"], **more)
        self._labelled: dict[tuple[str, ...], Kind] = {}

    def labels(self, *values: str) -> Kind:
        """Metric of the thread's side with these values of the other labels."""
        key = (*values, SIDE.get())
        labelled = self._labelled.get(key)  # prometheus_client locks and checks each time
        if labelled is None:
            labelled = self._labelled[key] = self._metric.labels(*key)
        return labelled


class SidedHistogram(LabelledHistogram):
    """Histogram with a last label `side`, as `Sided`.

    Args:
        name: of the metric.
        help: of the metric.
        labels: of the metric.
        bounds: rising upper bounds.
    """

    def __init__(self, name: str, help: str, labels: Sequence[str], bounds: Sequence[float]) -> None:
        super().__init__(name, help, [*labels, "side"], bounds)
        REGISTRY.register(self)

    def labels(self, *values: str) -> Series:
        """Series of the thread's side with these values of the other labels."""
        key = (*values, SIDE.get())
        return self._series.get(key) or self._begin(key)


class SidedCounter(LabelledCounter):
    """Counter with a last label `side`, as `Sided`, for what each request counts.

    Args:
        name, help, labels: of the metric.
    """

    def __init__(self, name: str, help: str, labels: Sequence[str]) -> None:
        super().__init__(name, help, [*labels, "side"])
        REGISTRY.register(self)

    def labels(self, *values: str) -> Total:
        """Sum of the thread's side with these values of the other labels."""
        key = (*values, SIDE.get())
        return self._totals.get(key) or self._totals.setdefault(key, Total())


SERVED_VERSION = Sided(Gauge, "livectr_served_version", "Version that answers requests", ["role"])
SERVED_CHAMPION = Sided(
    Gauge,
    "livectr_served_champion",
    "1 for the ranking model that answers rank requests, 0 for the others",
    ["model"],
)
SERVED_AGE = Sided(
    Gauge, "livectr_served_version_age_seconds", "Time since that version was published", ["role"]
)
STALE = Sided(
    Gauge, "livectr_version_stale", "1 while Redis cannot be read or holds another pipeline", ["role"]
)
HEALTH_ISSUE = Sided(
    Gauge,
    "livectr_serving_degraded",
    "1 while the served version may be incomplete in Redis, by kind of issue",
    ["role", "kind"],
)
RISKY_POLICY = Gauge("livectr_redis_risky_policy", "1 while Redis may evict published rows")
REDIS_MEMORY = Gauge("livectr_redis_memory_bytes", "Memory that Redis uses; 0 while it refuses INFO")
REDIS_MAX_MEMORY = Gauge("livectr_redis_max_memory_bytes", "Bound on the memory of Redis; 0: no bound")
REDIS_EVICTED_KEYS = Gauge("livectr_redis_evicted_keys", "Keys that Redis has evicted since it started")
CHECKS_FAILED = Sided(
    Counter,
    "livectr_serving_checks_failed",
    "Checks for a newer version that failed, by the meaning of the error",
    ["role", "outcome"],
)
SWAP_SECONDS = Sided(
    Histogram, "livectr_version_swap_seconds", "From the notice of a version to its swap", ["role"]
)
FEATURE_SKEW = Sided(
    Gauge,
    "livectr_feature_skew_psi",
    "Population stability index of a feature of served requests against that of examples of the same time; "
    "NaN while there are too few.",
    ["feature"],
)
REQUEST_SECONDS = SidedHistogram(
    "livectr_request_seconds",
    "Time in the server of one request, by its gRPC status",
    ["role", "code"],
    REQUEST_BOUNDS_S,
)
REQUESTS = SidedCounter("livectr_requests_total", "Requests by their gRPC status", ["role", "code"])
SHED = Counter("livectr_shed_requests_total", "Requests refused because the server was full", ["role"])
STAGE_SECONDS = SidedHistogram(
    "livectr_request_stage_seconds",
    "Time of one stage of a request; `wait` is the time in the queue",
    ["role", "stage"],
    (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5),
)
ACTIVE = Gauge("livectr_active_requests", "Requests that are computed", ["role"])
WAITING = Gauge("livectr_waiting_requests", "Requests that wait for a place to be computed", ["role"])
READY = Gauge("livectr_server_ready", "1 while health is SERVING", ["role"])
DEGRADED = Sided(
    Counter,
    "livectr_degraded_requests_total",
    "Requests answered while Redis could not be read or may have lost keys",
    ["role"],
)
RETRIED = Sided(
    Counter, "livectr_retried_requests_total", "Requests that had to move on to a newer version", ["role"]
)
CANDIDATES = SidedCounter("livectr_candidates_total", "Candidates scored", ["role"])
_LIVE_BOUNDS_S = (0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
LIVE_AGE = SidedHistogram(
    "livectr_live_input_age_seconds",
    "Time since the oldest look-up row of a request was read from Redis; 0 if all were read for it",
    ["role"],
    _LIVE_BOUNDS_S,
)
LIVE_SKEW = SidedHistogram(
    "livectr_live_input_skew_seconds",
    "From the creation of the version that answers to the read of a request's look-up rows and histories",
    ["role"],
    _LIVE_BOUNDS_S,
)
NEAR_CACHE_ROWS = Sided(Gauge, "livectr_near_cache_rows", "Embedding rows held in the server")
NEAR_CACHE_HITS = Sided(
    Counter, "livectr_near_cache_hits_total", "Unique keys of counted look-ups that were in the near-cache"
)
NEAR_CACHE_MISSES = Sided(
    Counter, "livectr_near_cache_misses_total", "Unique keys of counted look-ups that were read from Redis"
)
NEAR_CACHE_READ = Sided(
    Counter, "livectr_near_cache_read_keys_total", "Keys that were read from Redis for requests"
)
SERVED_KEYS = Sided(
    Counter,
    "livectr_served_keys_total",
    "Keys of a field in counted look-ups, by their row: published, or initial values",
    ["field", "row"],
)
ITEM_PARTIALS = SidedCounter(
    "livectr_item_partials_total",
    "Partial results of candidates: kept, computed for a request, or computed ahead of requests",
    ["outcome"],
)
CONTENT_VECTORS = Sided(Gauge, "livectr_content_vectors", "Published content vectors in memory", ["content"])
COLD_VECTORS = Sided(
    Gauge,
    "livectr_cold_content_vectors",
    "Vectors in memory of content without a published vector",
    ["content"],
)
COLD_CONTENT = Sided(
    Counter,
    "livectr_cold_content",
    "Ids in requests without a published vector: cached, embedded from raw features, or absent",
    ["content", "outcome"],
)

EXPLAINED = Counter("livectr_explained_candidates_total", "Candidates whose scores were explained")
SERVED_LOG_RECORDS = Counter(
    "livectr_served_log_records_total", "Sampled requests whose record is in the served log"
)
SERVED_LOG_DROPPED = Counter(
    "livectr_served_log_dropped_total", "Sampled requests without a record in the served log", ["reason"]
)
SERVED_LOG_WAITING = Gauge(
    "livectr_served_log_waiting_records", "Sampled requests whose record is not written yet"
)
CANARY_FALLBACKS = Counter(
    "livectr_canary_fallbacks_total",
    "Requests of the canary's share that the stable side answered, by the reason",
    ["role", "reason"],
)

FRESHNESS = DelayHistogram(
    "livectr_freshness_seconds",
    "Time from an event to the moment a server answers with the version that learned it",
)
LEARNING_DELAY = DelayHistogram(
    "livectr_learning_delay_seconds",
    "The same from the end of the label window, or of the wait, before which an impression is not learned",
)
PAUSES = DelayHistogram(
    "livectr_pause_seconds",
    "Time that a request waits before this process runs, sampled every 50 ms",
)
SERVED_PCTR = ProbabilityHistogram(
    "livectr_served_pctr",
    "Click probabilities in replies: of all candidates of rank, of the items of recommend",
    ["role", "side"],
)
for _histogram in (FRESHNESS, LEARNING_DELAY, PAUSES, SERVED_PCTR):
    REGISTRY.register(_histogram)

STAGES = ("wait", "parse", "enrich", "extract", "look_up", "score", "respond")
"""Stages of a request, in order. Only protobuf's own reading and writing is in none of them."""
FUNNEL_STAGES = ("wait", "parse", "retrieve", "prerank", "rank", "ecpm", "respond")
"""Stages of a request for recommendations; pre-rank and rank have the stages of `STAGES` inside."""
PCTR_ROLES = ("rank", "recommend")
"""Roles whose replies hold click probabilities."""
_CODES = (StatusCode.OK, StatusCode.INTERNAL, *(kind.status for kind in AnswerError.__subclasses__()))


def begin_fields(fields: Iterable[str]) -> None:
    """Let the metrics of some fields' keys exist, with 0."""
    for field in fields:
        observe_keys(field, published=0, initial=0)


def observe_keys(field: str, *, published: int, initial: int) -> None:
    """Count a field's keys in a look-up.

    Args:
        field: of the pipeline.
        published: keys that have a published row.
        initial: keys that have none, and so their initial values.
    """
    SERVED_KEYS.labels(field, "published").inc(published)
    SERVED_KEYS.labels(field, "initial").inc(initial)


def observe_pctr(role: str, pctr: F64) -> None:
    """Add the click probabilities f64[n] of a reply."""
    SERVED_PCTR.observe(pctr, role, SIDE.get())


def begin(role: str, *, active: Callable[[], float], waiting: Callable[[], float]) -> None:
    """Let every metric of a server exist from the start, with 0.

    Args:
        role: of the server.
        active: gives the requests that are computed.
        waiting: gives the requests that wait.
    """
    ACTIVE.labels(role).set_function(active)
    WAITING.labels(role).set_function(waiting)


def begin_side(role: str) -> None:
    """Let every metric of the thread's side exist from the start, with 0.

    Args:
        role: of the server.
    """
    for outcome in Outcome:
        CHECKS_FAILED.labels(role, outcome.value)
    for metric in (SERVED_VERSION, SERVED_AGE, STALE, SWAP_SECONDS):
        metric.labels(role)
    for count in (NEAR_CACHE_ROWS, NEAR_CACHE_HITS, NEAR_CACHE_MISSES, NEAR_CACHE_READ):
        count.labels()


def begin_requests(role: str) -> None:
    """Let every metric of requests to the thread's side exist from the start, with 0.

    Args:
        role: of the method; a server of recommendations has methods of three roles.
    """
    for code in _CODES:
        REQUESTS.labels(role, code.name)
    for stage in FUNNEL_STAGES if role == "recommend" else STAGES:
        STAGE_SECONDS.labels(role, stage)
    if role == "rank":
        STAGE_SECONDS.labels(role, "explain")
    REQUEST_SECONDS.labels(role, StatusCode.OK.name)
    for histogram in (LIVE_AGE, LIVE_SKEW):
        histogram.labels(role)
    if role in PCTR_ROLES:
        SERVED_PCTR.begin(role, SIDE.get())
    for counter in (DEGRADED, RETRIED, CANDIDATES):
        counter.labels(role)
    SHED.labels(role)
