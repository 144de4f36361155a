"""Prometheus metrics of content, and of the vectors that versions hold."""

from prometheus_client import Counter, Gauge, Histogram

from livectr.trainer.telemetry import of_rank_0

PRECOMPUTED_CONTENT = Counter(
    "livectr_precomputed_content",
    "Ids of content whose vector was computed for a version, on this rank.",
    ["content"],
)
PRECOMPUTE_SECONDS = Histogram(
    "livectr_precompute_seconds",
    "Seconds that the vectors of a version's content took on this rank.",
    ["content"],
    buckets=(0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300),
)
OLDEST_CONTENT = Gauge(
    "livectr_content_oldest_seconds",
    "Event time between the oldest published vector of this rank's content and the newest version.",
    ["content"],
)
CONTENT_DRIFT = Gauge(
    "livectr_content_drift_ratio",
    "Largest movement of a sample's published vectors since they were computed, with content_tolerance.",
    ["content"],
)
COMPUTED_ITEMS = of_rank_0(
    Counter(
        "livectr_computed_items", "Items whose pre-rank vector was computed for a version that is served."
    )
)
OLDEST_ITEM = of_rank_0(
    Gauge(
        "livectr_items_oldest_seconds",
        "Event time between the oldest published item vector and the newest version.",
    )
)
ITEM_DRIFT = of_rank_0(
    Gauge(
        "livectr_items_drift_ratio",
        "Largest movement of a sample's published item vectors since they were computed, "
        "with content_tolerance.",
    )
)
CONTENT_EMBEDDED = Counter(
    "livectr_content_embedded",
    "Unique ids whose content this rank's sub-model embedded in steps.",
    ["content"],
)
CONTENT_ABSENT = Counter(
    "livectr_content_absent",
    "Unique ids of steps without features: they got the learned absent vector.",
    ["content"],
)
CONTENT_READ_SECONDS = Histogram(
    "livectr_content_read_seconds",
    "Time to read a batch's raw features of content.",
    ["content"],
    buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2),
)
CONTENT_ENCODED = Counter(
    "livectr_content_encoded", "Pictures of the stream that this rank has encoded.", ["content"]
)
CONTENT_BAD = Counter(
    "livectr_content_bad", "Pictures of the stream that do not decode; they are dead letters.", ["content"]
)
CONTENT_QUEUE_RECORDS = Gauge(
    "livectr_content_queue_records",
    "Records of the pictures' topic that this rank has not read.",
    ["content"],
)
CONTENT_ENCODE_SECONDS = Histogram(
    "livectr_content_encode_seconds",
    "Seconds to decode and encode some pictures together, beside training.",
    ["content"],
    buckets=(0.001, 0.005, 0.02, 0.1, 0.5, 2, 10, 60),
)
