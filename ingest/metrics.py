"""Prometheus metrics of `ingest`.

Sources count `events` and `dead_letters` and set `consumer_lag`; the stream machinery the rest.
"""

from __future__ import annotations

from prometheus_client import Counter, Gauge

events = Counter("livectr_events_total", "Records that a source has delivered", ["topic"])
read_bytes = Counter(
    "livectr_read_bytes_total", "Bytes read for the columns in use, by topic or `basic features`", ["topic"]
)
consumer_lag = Gauge(
    "livectr_consumer_lag",
    "Records between the last delivered one and the end of the log",
    ["topic", "partition"],
)
dead_letters = Counter("livectr_dead_letters_total", "Rows that could not be used", ["reason"])
lookups = Counter(
    "livectr_lookups_total",
    "Look-ups of examples in a table, found (true) or not (false)",
    ["table", "found"],
)
dead_letters_waiting = Gauge(
    "livectr_dead_letters_waiting", "Dead letters on this machine's disk that their topic has not taken yet"
)
dead_letter_spool_bytes = Gauge("livectr_dead_letter_spool_bytes", "Bytes of the dead letters that wait")
pending_joins = Gauge("livectr_pending_joins", "Impressions that wait for the end of their label window")
late_clicks = Counter(
    "livectr_late_clicks_total", "Clicks that came after their impression had left unlabelled"
)
duplicate_events = Counter("livectr_duplicate_events_total", "Events seen before and dropped", ["topic"])
