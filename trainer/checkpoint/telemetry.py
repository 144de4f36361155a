"""Prometheus metrics of checkpoints."""

from prometheus_client import Counter, Gauge, Histogram

from livectr.trainer.telemetry import of_rank_0

CHECKPOINT_SECONDS = Histogram(
    "livectr_checkpoint_seconds",
    "Seconds that a checkpoint held training up.",
    buckets=(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30),
)
CHECKPOINT_WRITE_SECONDS = Histogram(
    "livectr_checkpoint_write_seconds",
    "Seconds from the step boundary of a checkpoint until it exists; training continues meanwhile.",
    buckets=(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30),
)
CHECKPOINT_TIMESTAMP = of_rank_0(
    Gauge(
        "livectr_checkpoint_timestamp_seconds",
        "Time of the newest checkpoint, or of the start without one, seconds since 1970; 0: none are kept.",
    )
)
CHECKPOINT_STORE_FAILURES = Counter(
    "livectr_checkpoint_store_failures_total",
    "Requests of checkpoints that the object store did not answer, or refused; they are repeated.",
)
