"""Prometheus metrics of publishing."""

from prometheus_client import Counter, Gauge, Histogram

from livectr.trainer.telemetry import of_rank_0

PUBLISHED_VERSION = of_rank_0(Gauge("livectr_published_version", "Newest version that servers can use."))
PUBLISHED_TIMESTAMP = of_rank_0(
    Gauge(
        "livectr_published_timestamp_seconds", "Time of the newest version, seconds since 1970; 0: none yet."
    )
)
PUBLISH_SECONDS = of_rank_0(
    Histogram(
        "livectr_publish_seconds",
        "Seconds from the step boundary of a version to the moment at which servers can use it.",
        buckets=(0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 900),
    )
)
PUBLISHED_ROWS = of_rank_0(Counter("livectr_published_rows", "Table rows written to Redis."))
PUBLISHED_VERSIONS = of_rank_0(
    Counter(
        "livectr_published_versions",
        "Versions that servers can use, by their rows: changed (a delta) or all.",
        ["rows"],
    )
)
LOST_VERSIONS = of_rank_0(
    Counter("livectr_lost_versions", "Versions that Redis did not hold whole any more; the next is complete.")
)
PUBLISH_CHECKS_FAILED = of_rank_0(
    Counter("livectr_published_checks_failed", "Checks of the rows in Redis that had no answer.")
)
PUBLISH_HELD = of_rank_0(
    Gauge(
        "livectr_publish_held",
        "1 while versions are not published: auc, calibration, clicks by the publish gate, "
        "operator by a hold, not_learned since the newest batches were skipped, not_finite since a number of "
        "the model is NaN or infinite.",
        ["reason"],
    )
)
WITHHELD_VERSIONS = of_rank_0(
    Counter(
        "livectr_withheld_versions", "Versions that were not published: a number of the model is not finite."
    )
)
FAILED_PUBLISHES = Counter(
    "livectr_failed_publishes", "Pushes and flips of this rank that Redis did not confirm; they are repeated."
)
PUBLISH_COPY_SECONDS = Histogram(
    "livectr_publish_copy_seconds",
    "Seconds that a version held training up.",
    buckets=(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30),
)
for _rows in ("changed", "all"):
    PUBLISHED_VERSIONS.labels(_rows)
for _reason in ("auc", "calibration", "clicks", "operator", "not_learned", "not_finite"):
    PUBLISH_HELD.labels(_reason)


def show_published(version: int, created_ms: int) -> None:
    """Show the version that servers can use, and its time in ms since 1970."""
    PUBLISHED_VERSION.set(version)
    PUBLISHED_TIMESTAMP.set(created_ms / 1000)
