"""Prometheus metrics of a server (prefix `livectr_`), and histograms of delays.

They are declared once per process.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
from grpc import StatusCode
from prometheus_client import REGISTRY, Counter, Gauge, Histogram
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

from livectr.kernels.process import build_info as build_info
from livectr.protos.redis_errors import Outcome
from livectr.serving import tracing
from livectr.serving.deadlines import current_call
from livectr.serving.errors import AnswerError

REQUEST_BOUNDS_S = (
    *(0.0005, 0.001, 0.002, 0.003, 0.004, 0.005, 0.0065, 0.008, 0.01, 0.0125, 0.015, 0.02),
    *(0.03, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5),
)

SERVED_VERSION = Gauge("livectr_served_version", "Version that answers requests", ["role"])
SERVED_CHAMPION = Gauge(
    "livectr_served_champion",
    "1 for the ranking model that answers rank requests, 0 for the others",
    ["model"],
)
SERVED_AGE = Gauge("livectr_served_version_age_seconds", "Time since that version was published", ["role"])
STALE = Gauge("livectr_version_stale", "1 while Redis cannot be read or holds another pipeline", ["role"])
HEALTH_ISSUE = Gauge(
    "livectr_serving_degraded",
    "1 while the served version may be incomplete in Redis, by kind of issue",
    ["role", "kind"],
)
RISKY_POLICY = Gauge("livectr_redis_risky_policy", "1 while Redis may evict published rows")
REDIS_MEMORY = Gauge("livectr_redis_memory_bytes", "Memory that Redis uses; 0 while it refuses INFO")
REDIS_MAX_MEMORY = Gauge("livectr_redis_max_memory_bytes", "Bound on the memory of Redis; 0: no bound")
REDIS_EVICTED_KEYS = Gauge("livectr_redis_evicted_keys", "Keys that Redis has evicted since it started")
CHECKS_FAILED = Counter(
    "livectr_serving_checks_failed",
    "Checks for a newer version that failed, by the meaning of the error",
    ["role", "outcome"],
)
SWAP_SECONDS = Histogram("livectr_version_swap_seconds", "From the notice of a version to its swap", ["role"])
REQUEST_SECONDS = Histogram(
    "livectr_request_seconds",
    "Time in the server of one request, by its gRPC status",
    ["role", "code"],
    buckets=REQUEST_BOUNDS_S,
)
REQUESTS = Counter("livectr_requests_total", "Requests by their gRPC status", ["role", "code"])
SHED = Counter("livectr_shed_requests_total", "Requests refused because the server was full", ["role"])
STAGE_SECONDS = Histogram(
    "livectr_request_stage_seconds",
    "Time of one stage of a request; `wait` is the time in the queue",
    ["role", "stage"],
    buckets=(0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5),
)
ACTIVE = Gauge("livectr_active_requests", "Requests that are computed", ["role"])
WAITING = Gauge("livectr_waiting_requests", "Requests that wait for a place to be computed", ["role"])
READY = Gauge("livectr_server_ready", "1 while health is SERVING", ["role"])
DEGRADED = Counter(
    "livectr_degraded_requests_total",
    "Requests answered while Redis could not be read or may have lost keys",
    ["role"],
)
RETRIED = Counter(
    "livectr_retried_requests_total", "Requests that had to move on to a newer version", ["role"]
)
CANDIDATES = Counter("livectr_candidates_total", "Candidates scored", ["role"])
_LIVE_BOUNDS_S = (0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
LIVE_AGE = Histogram(
    "livectr_live_input_age_seconds",
    "Time since the oldest look-up row of a request was read from Redis; 0 if all were read for it",
    ["role"],
    buckets=_LIVE_BOUNDS_S,
)
LIVE_SKEW = Histogram(
    "livectr_live_input_skew_seconds",
    "From the creation of the version that answers to the read of a request's look-up rows and histories",
    ["role"],
    buckets=_LIVE_BOUNDS_S,
)
NEAR_CACHE_ROWS = Gauge("livectr_near_cache_rows", "Embedding rows held in the server")
NEAR_CACHE_HITS = Counter(
    "livectr_near_cache_hits_total", "Unique keys of counted look-ups that were in the near-cache"
)
NEAR_CACHE_MISSES = Counter(
    "livectr_near_cache_misses_total", "Unique keys of counted look-ups that were read from Redis"
)
NEAR_CACHE_READ = Counter("livectr_near_cache_read_keys_total", "Keys that were read from Redis for requests")
SERVED_KEYS = Counter(
    "livectr_served_keys_total",
    "Keys of a field in counted look-ups, by their row: published, or initial values",
    ["field", "row"],
)
CONTENT_VECTORS = Gauge("livectr_content_vectors", "Published content vectors in memory", ["content"])
COLD_VECTORS = Gauge(
    "livectr_cold_content_vectors", "Vectors in memory of content without a published vector", ["content"]
)
COLD_CONTENT = Counter(
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


class Buckets:
    """Counts of a histogram, observed many at a time.

    One NumPy pass adds them; the histogram of prometheus_client would need a call for each value.

    Args:
        bounds: f64[n], rising upper bounds.
    """

    def __init__(self, bounds: npt.NDArray[np.float64]) -> None:
        self.bounds = bounds
        self._lock = threading.Lock()
        self._counts = np.zeros(len(bounds) + 1, np.int64)
        self._sum = 0.0

    def observe(self, values: npt.NDArray[np.float64], counts: npt.NDArray[np.int64] | None = None) -> None:
        """Add values f64[n], each once, or counts[i] times."""
        place = np.searchsorted(self.bounds, values, side="left")
        if counts is None:
            added, total = np.bincount(place, minlength=len(self._counts)), float(values.sum())
        else:
            added, total = np.zeros_like(self._counts), float(values @ counts)
            np.add.at(added, place, counts)
        with self._lock:
            self._counts += added
            self._sum += total

    def rising(self) -> npt.NDArray[np.int64]:
        """Number of the values up to each bound, and of all: i64[n + 1]."""
        with self._lock:
            return np.cumsum(self._counts)

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str]) -> None:
        """Add the series of some labels to a family."""
        with self._lock:
            rising, total = np.cumsum(self._counts), self._sum
        buckets = [(str(bound), float(n)) for bound, n in zip(self.bounds, rising[:-1], strict=True)]
        family.add_metric(labels, [*buckets, ("+Inf", float(rising[-1]))], total)


class DelayHistogram(Collector):
    """Histogram of delays, observed many at a time.

    A version carries the event times of thousands of examples as counts per bin. Buckets are 2^(1/4)
    apart, so a quantile errs by at most 19 %.

    Args:
        name, help: of the metric.
    """

    bounds_s: npt.NDArray[np.float64] = np.round(0.05 * 2.0 ** (np.arange(69) / 4), 4)  # 50 ms … 1.8 h

    def __init__(self, name: str, help: str) -> None:
        self._name, self._help = name, help
        self._buckets = Buckets(self.bounds_s)

    def observe(self, delay_s: npt.NDArray[np.float64], counts: npt.NDArray[np.int64]) -> None:
        """Add counts[i] delays of delay_s[i] seconds each.

        Args:
            delay_s: f64[n], seconds.
            counts: i64[n].
        """
        self._buckets.observe(delay_s, counts)

    def quantile(self, q: float) -> float:
        """Upper bound in seconds of the bucket that holds quantile q; NaN without observations."""
        rising = self._buckets.rising()
        if rising[-1] == 0:
            return float("nan")
        at = int(np.searchsorted(rising, q * rising[-1], side="left"))
        return float(self.bounds_s[at]) if at < len(self.bounds_s) else float("inf")

    def collect(self) -> Iterator[HistogramMetricFamily]:
        family = HistogramMetricFamily(self._name, self._help)
        self._buckets.add_to(family, [])
        yield family


class ProbabilityHistogram(Collector):
    """Histogram of probabilities by role, observed a reply at a time.

    Buckets are 2^(1/2) apart, from 2^-14 (0.006 %) to 1.

    Args:
        name, help: of the metric.
    """

    bounds: npt.NDArray[np.float64] = np.round(2.0 ** (np.arange(-28, 1) / 2), 7)

    def __init__(self, name: str, help: str) -> None:
        self._name, self._help = name, help
        self._roles: dict[str, Buckets] = {}

    def begin(self, role: str) -> Buckets:
        """Buckets of a role, which exist from here on."""
        return self._roles.setdefault(role, Buckets(self.bounds))

    def observe(self, role: str, values: npt.NDArray[np.float64]) -> None:
        """Add the probabilities f64[n] of a reply."""
        self.begin(role).observe(values)

    def collect(self) -> Iterator[HistogramMetricFamily]:
        family = HistogramMetricFamily(self._name, self._help, labels=["role"])
        for role, buckets in list(self._roles.items()):
            buckets.add_to(family, [role])
        yield family


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


@functools.cache
def _stage(role: str, stage: str) -> Histogram:
    return STAGE_SECONDS.labels(role, stage)


@functools.cache
def _live(role: str) -> tuple[Histogram, Histogram]:
    return LIVE_AGE.labels(role), LIVE_SKEW.labels(role)


def observe_live(role: str, read_at: float | None, created_ms: int) -> None:
    """Observe by how much a request's live inputs differ in time from the version that answers.

    Args:
        role: of the method.
        read_at: instant of time.monotonic() at which the oldest was read; None: the request has none.
        created_ms: time at which the version was created, ms since 1970.
    """
    if read_at is None:
        return
    age, skew = _live(role)
    age_s = time.monotonic() - read_at
    age.observe(age_s)
    skew.observe(max(0.0, time.time() - age_s - created_ms / 1000))


@functools.cache
def _keys(field: str) -> tuple[Counter, Counter]:
    return SERVED_KEYS.labels(field, "published"), SERVED_KEYS.labels(field, "initial")


def begin_fields(fields: Iterable[str]) -> None:
    """Let the metrics of some fields' keys exist, with 0."""
    for field in fields:
        _keys(field)


def observe_keys(field: str, *, published: int, initial: int) -> None:
    """Count a field's keys in a look-up.

    Args:
        published: keys that have a published row.
        initial: keys that have none, and so their initial values.
    """
    for counter, number in zip(_keys(field), (published, initial), strict=True):
        counter.inc(number)


class StageClock:
    """Divides the time of a request into stages; a stage that is repeated counts each time.

    Args:
        role: of the server.
    """

    def __init__(self, role: str) -> None:
        self._role = role
        self._since = time.perf_counter()

    def ended(self, stage: str) -> float:
        """Observe the time since the end of the stage before as that of `stage`; return it in seconds.

        Raises:
            DeadlineError: the deadline of the thread's call has passed.
            CancelledError: the client went.
        """
        since, now = self._since, time.perf_counter()
        seconds, self._since = now - since, now
        _stage(self._role, stage).observe(seconds)
        if tracing.TRACER is not None:
            tracing.TRACER.stage_ended(stage, since, now)
        current_call().check(stage)
        return seconds


def begin(role: str, *, active: Callable[[], float], waiting: Callable[[], float]) -> None:
    """Let every metric of a server exist from the start, with 0.

    Args:
        role: of the server.
        active: gives the requests that are computed.
        waiting: gives the requests that wait.
    """
    ACTIVE.labels(role).set_function(active)
    WAITING.labels(role).set_function(waiting)
    for outcome in Outcome:
        CHECKS_FAILED.labels(role, outcome.value)
    for metric in (SERVED_VERSION, SERVED_AGE, STALE, SWAP_SECONDS):
        metric.labels(role)


def begin_requests(role: str) -> None:
    """Let every metric of requests exist from the start, with 0.

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
    _live(role)
    if role in PCTR_ROLES:
        SERVED_PCTR.begin(role)
    for counter in (SHED, DEGRADED, RETRIED, CANDIDATES):
        counter.labels(role)
