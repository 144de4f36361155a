"""Prometheus metrics of steps and their collectives; the `telemetry` of a folder has those of its parts."""

from contextlib import suppress
from typing import TypeVar

from prometheus_client import REGISTRY, Counter, Gauge
from prometheus_client.registry import Collector

from livectr.system import build_info as build_info
from livectr.system.histograms import LabelledHistogram

Metric = TypeVar("Metric", bound=Collector)
STEP_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
OF_RANK_0: list[Collector] = []
"""Metrics of the run, which rank 0 alone knows."""


def of_rank_0(metric: Metric) -> Metric:
    """Declare a metric of the run, which rank 0 alone knows."""
    OF_RANK_0.append(metric)
    return metric


def leave_to_rank_0() -> None:
    """Withdraw the metrics of the run from the endpoint of this process: its zeros would be wrong."""
    for metric in OF_RANK_0:
        with suppress(KeyError):  # a second run in this process
            REGISTRY.unregister(metric)


EXAMPLES = of_rank_0(Counter("livectr_examples", "Examples trained on by all ranks."))
EXAMPLES_PER_SECOND = of_rank_0(
    Gauge(
        "livectr_examples_per_second",
        "Examples a second that all ranks train on, mean of the last 10 s.",
    )
)
BACKFILL_EXAMPLES = Counter(
    "livectr_backfill_examples", "Examples among them of events from before the run's first start."
)
_STEPS = LabelledHistogram(
    "livectr_step_seconds",
    "Seconds of a training step, without the extraction of its features.",
    (),
    STEP_BUCKETS_S,
)
REGISTRY.register(_STEPS)
STEP_SECONDS = _STEPS.labels()
COLLECTIVE_BYTES = Counter("livectr_collective_bytes", "Bytes that this rank sent to others.", ["collective"])
COLLECTIVE_SECONDS = Counter(
    "livectr_collective_seconds", "Seconds in collectives, waiting for other ranks included.", ["collective"]
)
REPLICA_CHECKS = Counter(
    "livectr_replica_checks", "Comparisons of the network's copies on all ranks; one that fails ends the run."
)
SKIPPED_BATCHES = of_rank_0(
    Counter(
        "livectr_skipped_batches",
        "Batches that were scored but not learned: their gradients were not finite.",
    )
)
