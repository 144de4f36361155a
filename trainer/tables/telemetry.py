"""Prometheus metrics of embedding tables and their tiers."""

from prometheus_client import Counter, Gauge, Histogram

from livectr.trainer.telemetry import STEP_BUCKETS_S

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
    buckets=STEP_BUCKETS_S,
)
ADMITTED_ROWS = Counter("livectr_admitted_rows", "Keys that a table's admission let in.", ["table"])
REFUSED_KEYS = Counter(
    "livectr_refused_keys", "Keys of batches that a table's admission kept out: not learned.", ["table"]
)
EXPIRED_ROWS = Counter("livectr_expired_rows", "Rows that left a table by their age.", ["table"])
EVICTED_ROWS = Counter("livectr_evicted_rows", "Rows that left a table for its budget.", ["table"])
for _outcome in ("dram", "ahead", "ssd", "new"):
    TIER_LOOKUPS.labels(_outcome)
for _direction in ("read", "written"):
    SPILL_BYTES.labels(_direction)
OF_TABLES = (TABLE_ROWS, TABLE_BYTES, ADMITTED_ROWS, REFUSED_KEYS, EXPIRED_ROWS, EVICTED_ROWS)
"""Metrics of each table."""
