"""Tables: rows, and how they come and go."""

from k8s.dashboards.panels import Board, areas, lines, rate


def _rate(metric: str) -> tuple[str, str]:
    return f"sum by (table) (rate({metric}{{@}}[$__rate_interval]))", "{{table}}"


BOARD = Board(
    "tables",
    "LiveCTR / Tables",
    "Embedding tables of the trainer: rows, bytes, admission, expiry, budgets and tiers.",
    [
        (
            "Size",
            [
                areas(
                    "Rows",
                    "Rows of each table over all ranks.",
                    "short",
                    ("sum by (table) (livectr_table_rows{@})", "{{table}}"),
                ),
                areas(
                    "Bytes",
                    "Memory of each table over all ranks.",
                    "bytes",
                    ("sum by (table) (livectr_table_bytes{@})", "{{table}}"),
                ),
                lines(
                    "Bytes of a rank",
                    "Memory of all tables by rank. Uneven ranks: try `placement=balanced`.",
                    "bytes",
                    ("sum by (pod, instance) (livectr_table_bytes{@})", "{{pod}} {{instance}}"),
                ),
            ],
        ),
        (
            "Policies",
            [
                lines(
                    "Admitted",
                    "Keys that admission let in.",
                    "cps",
                    _rate("livectr_admitted_rows_total"),
                    width=6,
                ),
                lines(
                    "Refused",
                    "Keys of batches that admission kept out: scored with initial values, not learned.",
                    "cps",
                    _rate("livectr_refused_keys_total"),
                    width=6,
                ),
                lines(
                    "Expired",
                    "Rows that left by their age.",
                    "cps",
                    _rate("livectr_expired_rows_total"),
                    width=6,
                ),
                lines(
                    "Evicted",
                    "Rows that left for the table's budget. Many: the budget is too small.",
                    "cps",
                    _rate("livectr_evicted_rows_total"),
                    width=6,
                ),
            ],
        ),
        (
            "Tiers",
            [
                areas(
                    "Rows by tier",
                    "Rows in memory, and rows on SSD only (with `spill`).",
                    "short",
                    ("sum by (tier) (livectr_tier_rows{@})", "{{tier}}"),
                    width=6,
                ),
                areas(
                    "Rows needed",
                    "Rows that batches need with `spill`: in memory, read ahead, waited for, or new.",
                    "cps",
                    (
                        rate("livectr_tier_lookups_total", "outcome"),
                        "{{outcome}}",
                    ),
                    width=6,
                ),
                lines(
                    "Wait for SSD",
                    "Share of the time that steps wait for rows: near 0 while reading ahead keeps up.",
                    "percentunit",
                    (
                        rate("livectr_tier_wait_seconds_sum", "pod", "instance"),
                        "{{pod}} {{instance}}",
                    ),
                    width=6,
                ),
                areas(
                    "SSD",
                    "Bytes of rows read from and written to SSD.",
                    "Bps",
                    (
                        rate("livectr_spill_bytes_total", "direction"),
                        "{{direction}}",
                    ),
                    width=6,
                ),
            ],
        ),
    ],
)
