"""Prometheus metrics of the trainer. `trainer.quality.metrics` computes the quality in some of them."""

from contextlib import suppress

from prometheus_client import REGISTRY, Counter, Gauge, Histogram

from livectr.system import build_info as build_info

EXAMPLES = Counter("livectr_examples", "Examples trained on by all ranks.")
BACKFILL_EXAMPLES = Counter(
    "livectr_backfill_examples", "Examples among them of events from before the run's first start."
)
BACKLOG_ROWS = Gauge(
    "livectr_backlog_rows", "Rows of the logs that no rank has read; of files estimated. Rank 0 counts."
)
BACKLOG_SECONDS = Gauge(
    "livectr_backlog_seconds", "Estimated time until all rows are read; -1 while they do not grow fewer."
)
_STEP_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
STEP_SECONDS = Histogram(
    "livectr_step_seconds",
    "Seconds of a training step, without the extraction of its features.",
    buckets=_STEP_BUCKETS_S,
)
EXTRACT_SECONDS = Histogram(
    "livectr_extract_seconds",
    "Seconds of the extraction of a batch's features, beside the step of the batch before.",
    buckets=_STEP_BUCKETS_S,
)
EXTRACT_WAIT_SECONDS = Histogram(
    "livectr_extract_wait_seconds",
    "Seconds that a step had to wait for its features.",
    buckets=_STEP_BUCKETS_S,
)
AUC = Gauge("livectr_auc", "Test-then-train AUC over the sliding window.", ["model"])
GAUC = Gauge("livectr_gauc", "Test-then-train GAUC (by user) over the sliding window.", ["model"])
COLD_AUC = Gauge("livectr_cold_auc", "Test-then-train AUC of cold items over the sliding window.", ["model"])
COLD_GAUC = Gauge(
    "livectr_cold_gauc", "Test-then-train GAUC of cold items over the sliding window.", ["model"]
)
COLD_EXAMPLES = Gauge("livectr_cold_examples", "Examples of cold items in the sliding window.")
SKIPPED_USERS = Gauge(
    "livectr_gauc_skipped_users", "Users of one class in the sliding window: GAUC leaves them out."
)
LOGLOSS = Gauge("livectr_logloss", "Test-then-train log loss over the sliding window.", ["model"])
CALIBRATION = Gauge(
    "livectr_calibration_ratio", "Predicted over observed clicks in the sliding window.", ["model"]
)
CHAMPION = Gauge(
    "livectr_champion", "1 for the ranking model that is published, 0 for its challengers.", ["model"]
)
CHAMPION_CHANGES = Counter("livectr_champion_changes", "Challengers that this process has promoted.")
CONTEST_LOGLOSS = Gauge(
    "livectr_contest_logloss",
    "Test-then-train log loss over the window of the promotion rule, of champion and challengers.",
    ["model"],
)
CONTEST_EXAMPLES = Gauge("livectr_contest_examples", "Examples in the window of the promotion rule.")
OBSERVED_CTR = Gauge("livectr_observed_ctr", "Clicked share of the examples in the sliding window.")
PREDICTED_CTR = Gauge(
    "livectr_predicted_ctr", "Mean predicted click probability in the sliding window.", ["model"]
)
WINDOW_EXAMPLES = Gauge("livectr_window_examples", "Examples in the sliding window of the quality.")
WINDOW_CLICKS = Gauge("livectr_window_clicks", "Clicked examples in the sliding window of the quality.")
TABLE_BYTES = Gauge("livectr_table_bytes", "Memory of an embedding table on this rank.", ["table"])
TABLE_ROWS = Gauge("livectr_table_rows", "Rows of an embedding table on this rank.", ["table"])
TIER_ROWS = Gauge("livectr_tier_rows", "Rows of this rank's embedding tables, by where they are.", ["tier"])
TIER_LOOKUPS = Counter(
    "livectr_tier_lookups",
    "Rows that batches needed: in DRAM, read ahead from SSD (ahead), waited for (ssd), in neither (new).",
    ["outcome"],
)
SPILL_BYTES = Counter("livectr_spill_bytes", "Bytes of rows read from and written to SSD.", ["direction"])
TIER_WAIT_SECONDS = Histogram(
    "livectr_tier_wait_seconds",
    "Seconds that a step waited for rows from SSD.",
    buckets=_STEP_BUCKETS_S,
)
ADMITTED_ROWS = Counter("livectr_admitted_rows", "Keys that a table's admission let in.", ["table"])
REFUSED_KEYS = Counter(
    "livectr_refused_keys", "Keys of batches that a table's admission kept out: not learned.", ["table"]
)
EXPIRED_ROWS = Counter("livectr_expired_rows", "Rows that left a table by their age.", ["table"])
EVICTED_ROWS = Counter("livectr_evicted_rows", "Rows that left a table for its budget.", ["table"])
COLLECTIVE_BYTES = Counter("livectr_collective_bytes", "Bytes that this rank sent to others.", ["collective"])
COLLECTIVE_SECONDS = Counter(
    "livectr_collective_seconds", "Seconds in collectives, waiting for other ranks included.", ["collective"]
)
REPLICA_CHECKS = Counter(
    "livectr_replica_checks", "Comparisons of the network's copies on all ranks; one that fails ends the run."
)
SKIPPED_BATCHES = Counter(
    "livectr_skipped_batches", "Batches that were scored but not learned: their gradients were not finite."
)
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
COMPUTED_ITEMS = Counter(
    "livectr_computed_items", "Items whose pre-rank vector was computed for a version that is served."
)
OLDEST_ITEM = Gauge(
    "livectr_items_oldest_seconds",
    "Event time between the oldest published item vector and the newest version.",
)
ITEM_DRIFT = Gauge(
    "livectr_items_drift_ratio",
    "Largest movement of a sample's published item vectors since they were computed, with content_tolerance.",
)
PUBLISHED_VERSION = Gauge("livectr_published_version", "Newest version that servers can use.")
PUBLISHED_TIMESTAMP = Gauge(
    "livectr_published_timestamp_seconds", "Time of the newest version, seconds since 1970; 0: none yet."
)
PUBLISH_SECONDS = Histogram(
    "livectr_publish_seconds",
    "Seconds from the step boundary of a version to the moment at which servers can use it.",
    buckets=(0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 900),
)
PUBLISHED_ROWS = Counter("livectr_published_rows", "Table rows written to Redis.")
PUBLISHED_VERSIONS = Counter(
    "livectr_published_versions",
    "Versions that servers can use, by their rows: changed (a delta) or all.",
    ["rows"],
)
LOST_VERSIONS = Counter(
    "livectr_lost_versions", "Versions that Redis did not hold whole any more; the next is complete."
)
PUBLISH_CHECKS_FAILED = Counter(
    "livectr_published_checks_failed", "Checks of the rows in Redis that had no answer."
)
PUBLISH_HELD = Gauge(
    "livectr_publish_held",
    "1 while versions are not published: auc, calibration, clicks by the publish gate, operator by a hold.",
    ["reason"],
)
GATE_AUC = Gauge(
    "livectr_publish_gate_auc",
    "AUC over the newest window of the publish gate (newest), and its mean before that (usual).",
    ["of"],
)
GATE_CLICK_RATE = Gauge(
    "livectr_publish_gate_click_rate",
    "Clicked share in the newest window of the publish gate (newest), and its mean before that (usual).",
    ["of"],
)
GATE_CALIBRATION = Gauge(
    "livectr_publish_gate_calibration_ratio",
    "Predicted over observed clicks in the newest window of the publish gate.",
)
FAILED_PUBLISHES = Counter(
    "livectr_failed_publishes", "Pushes and flips of this rank that Redis did not confirm; they are repeated."
)
PUBLISH_COPY_SECONDS = Histogram(
    "livectr_publish_copy_seconds",
    "Seconds that a version held training up.",
    buckets=(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30),
)
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
CHECKPOINT_TIMESTAMP = Gauge(
    "livectr_checkpoint_timestamp_seconds",
    "Time of the newest checkpoint, or of the start without one, seconds since 1970; 0: none are kept.",
)
CHECKPOINT_STORE_FAILURES = Counter(
    "livectr_checkpoint_store_failures_total",
    "Requests of checkpoints that the object store did not answer, or refused; they are repeated.",
)
GROUP_COMMIT_FAILURES = Counter(
    "livectr_group_commit_failures_total",
    "Attempts to commit a checkpoint's offsets for the consumer group that a broker did not take.",
)
DISK_FREE_BYTES = Gauge(
    "livectr_disk_free_bytes", "Bytes that this process can still write on the disk of a folder.", ["folder"]
)
DISK_BYTES = Gauge("livectr_disk_bytes", "Size of the disk of a folder.", ["folder"])
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

for _rows in ("changed", "all"):
    PUBLISHED_VERSIONS.labels(_rows)
for _reason in ("auc", "calibration", "clicks", "operator"):
    PUBLISH_HELD.labels(_reason)
for _outcome in ("dram", "ahead", "ssd", "new"):
    TIER_LOOKUPS.labels(_outcome)
for _direction in ("read", "written"):
    SPILL_BYTES.labels(_direction)
OF_TABLES = (TABLE_ROWS, TABLE_BYTES, ADMITTED_ROWS, REFUSED_KEYS, EXPIRED_ROWS, EVICTED_ROWS)
"""Metrics of each table."""
OF_RANK_0 = (
    EXAMPLES,
    COLD_EXAMPLES,
    SKIPPED_USERS,
    CHAMPION_CHANGES,
    CONTEST_EXAMPLES,
    OBSERVED_CTR,
    WINDOW_EXAMPLES,
    WINDOW_CLICKS,
    COMPUTED_ITEMS,
    OLDEST_ITEM,
    ITEM_DRIFT,
    PUBLISHED_VERSION,
    PUBLISHED_TIMESTAMP,
    PUBLISH_SECONDS,
    PUBLISHED_ROWS,
    PUBLISHED_VERSIONS,
    PUBLISH_HELD,
    GATE_AUC,
    GATE_CLICK_RATE,
    GATE_CALIBRATION,
    LOST_VERSIONS,
    PUBLISH_CHECKS_FAILED,
    CHECKPOINT_TIMESTAMP,
    GROUP_COMMIT_FAILURES,
    SKIPPED_BATCHES,
)
"""Metrics of the run, which rank 0 alone knows."""


def leave_to_rank_0() -> None:
    """Withdraw the metrics of the run from the endpoint of this process: its zeros would be wrong."""
    for metric in OF_RANK_0:
        with suppress(KeyError):  # a second run in this process
            REGISTRY.unregister(metric)


def show_published(version: int, created_ms: int) -> None:
    """Show the version that servers can use, and its time in ms since 1970."""
    PUBLISHED_VERSION.set(version)
    PUBLISHED_TIMESTAMP.set(created_ms / 1000)
