"""Prometheus metrics of the stream: its backlog, the extraction of features, the consumer group."""

from prometheus_client import Counter, Gauge, Histogram

from livectr.trainer.telemetry import STEP_BUCKETS_S, of_rank_0

BACKLOG_ROWS = of_rank_0(
    Gauge(
        "livectr_backlog_rows",
        "Rows of the logs that no rank has learned; of files estimated. NaN before the logs are open.",
    )
)
BACKLOG_SECONDS = of_rank_0(
    Gauge(
        "livectr_backlog_seconds",
        "Estimated time until all rows are learned; -1 while they do not grow fewer, NaN until it is known.",
    )
)
BACKLOG_ROWS.set(float("nan"))  # 0 would be read as no backlog
BACKLOG_SECONDS.set(float("nan"))
EXTRACT_SECONDS = Histogram(
    "livectr_extract_seconds",
    "Seconds of the extraction of a batch's features, beside the step of the batch before.",
    buckets=STEP_BUCKETS_S,
)
EXTRACT_WAIT_SECONDS = Histogram(
    "livectr_extract_wait_seconds",
    "Seconds that a step had to wait for its features.",
    buckets=STEP_BUCKETS_S,
)
GROUP_COMMIT_FAILURES = of_rank_0(
    Counter(
        "livectr_group_commit_failures_total",
        "Attempts to commit a checkpoint's offsets for the consumer group that a broker did not take.",
    )
)
