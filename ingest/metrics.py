"""Prometheus metrics of `ingest`.

Sources count `events`, set `events_per_second` and `consumer_lag_records`, dead letters count
`dead_letters`; the join sets the others.
"""

from __future__ import annotations

from prometheus_client import Counter, Gauge

events = Counter("livectr_events_total", "Records that a source has delivered", ["topic"])
events_per_second = Gauge(
    "livectr_events_per_second", "Records a second that a source delivers, mean of the last 10 s", ["topic"]
)
read_bytes = Counter(
    "livectr_read_bytes_total",
    "Bytes read for the columns in use, by topic or `materialized features`",
    ["topic"],
)
consumer_lag_records = Gauge(
    "livectr_consumer_lag_records",
    "Records up to the end of the log that are not read, or read and not learned yet",
    ["topic", "partition"],
)
dead_letters = Counter("livectr_dead_letters_total", "Rows that could not be used", ["reason"])
lookups = Counter(
    "livectr_lookups_total",
    "Look-ups of examples in a table, with a row of the key (hit) or without (miss)",
    ["table", "outcome"],
)
lookup_bytes = Gauge(
    "livectr_lookup_table_bytes",
    "Bytes of a look-up table in this rank's memory, older rows included",
    ["table"],
)
lookup_versions = Gauge(
    "livectr_lookup_table_older_rows",
    "Rows of a look-up table besides the newest of each key, for look-ups as of the event time",
    ["table"],
)
lookup_keys = Gauge(
    "livectr_lookup_table_keys",
    "Keys of a look-up table in this rank's memory, with those that have just gone",
    ["table"],
)
lookup_expired = Counter(
    "livectr_lookup_table_expired_total",
    "Keys of a look-up table that left because their newest row is older than its `max_age`",
    ["table"],
)
lookup_evicted = Counter(
    "livectr_lookup_table_evicted_total",
    "Keys of a look-up table that left because rows that changed later fill its `max_bytes`",
    ["table"],
)
dead_letters_waiting = Gauge(
    "livectr_dead_letters_waiting", "Dead letters on this machine's disk that their topic has not taken yet"
)
dead_letter_spool_bytes = Gauge("livectr_dead_letter_spool_bytes", "Bytes of the dead letters that wait")
event_lag_seconds = Gauge(
    "livectr_event_lag_seconds",
    "Age of the newest record that was read, by its event time, while there are more to read; else 0",
    ["topic", "partition"],
)
watermark_delay_seconds = Gauge(
    "livectr_watermark_delay_seconds",
    "Age of this rank's watermark: no later example has an older event time; 0 while all logs are idle",
)
ready_examples = Gauge("livectr_ready_examples", "Examples with a label that are not learned yet")
pending_joins = Gauge("livectr_pending_joins", "Impressions that wait for the end of their label window")
join_bytes = Gauge(
    "livectr_join_bytes", "Bytes of the label joins' state, of label_join's max_bytes a partition"
)
join_refused_events = Counter(
    "livectr_join_refused_events_total", "Events that the label join refused for lack of room"
)
join_evicted_keys = Counter(
    "livectr_join_evicted_keys_total", "Keys that the label join forgot early for lack of room"
)
histories = Gauge("livectr_histories", "Behavior histories of users that are kept")
history_bytes = Gauge(
    "livectr_history_bytes", "Bytes of the behavior histories, of label_join's max_bytes a partition"
)
history_expired = Counter(
    "livectr_histories_expired_total",
    "Behavior histories that left because their last click is older than any `within`",
)
history_evicted = Counter(
    "livectr_histories_evicted_total",
    "Behavior histories that left for lack of room, those with the oldest last click first",
)
late_events = Counter(
    "livectr_late_events_total",
    "Records that came with a time more than max_ahead in their log's past",
    ["topic"],
)
overtaken_events = Counter(
    "livectr_overtaken_events_total",
    "Records whose place in event time had passed while their topic partition was idle",
    ["topic"],
)
unconfirmed_events = Gauge(
    "livectr_unconfirmed_events",
    "Records whose event time the log has not confirmed yet, and the records behind them",
    ["topic", "partition"],
)
held_back_seconds = Gauge(
    "livectr_held_back_seconds",
    "Seconds for which a topic partition has held others back with its event time",
    ["topic", "partition"],
)
late_clicks = Counter(
    "livectr_late_clicks_total", "Clicks that came after the label window of their impression"
)
late_positives = Counter(
    "livectr_late_positives_total",
    "Clicks inside the label window whose impression had left as a provisional negative",
)
unmatched_clicks = Counter(
    "livectr_unmatched_clicks_total", "Clicks whose impression did not come within the label window"
)
waiting_clicks = Gauge("livectr_waiting_clicks", "Clicks that have met no impression yet")
matched_clicks = Counter("livectr_matched_clicks_total", "Clicks that label an impression")
behind_clicks = Counter(
    "livectr_behind_clicks_total",
    "Clicks with a time before that of their impression, inside clock_slack; they label it",
)
label_events = Counter(
    "livectr_label_events_total",
    "Events of a label beside the click, by what became of them: matched, late or unmatched",
    ["label", "outcome"],
)
duplicate_events = Counter("livectr_duplicate_events_total", "Events seen before and dropped", ["topic"])
