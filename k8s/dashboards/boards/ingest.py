"""Ingest: what comes in, what waits, and what cannot be used."""

from k8s.dashboards.panels import Board, areas, lines, rate
from k8s.rules.alerts import bound_s

BOARD = Board(
    "ingest",
    "LiveCTR / Ingest",
    "Logs on their way to labelled examples: lag, joins, look-ups and dead letters.",
    [
        (
            "Lag",
            [
                lines(
                    "Records behind",
                    "Records up to the end of the log that are not read, or not learned yet.",
                    "short",
                    ("sum by (topic) (livectr_consumer_lag_records{@})", "{{topic}}"),
                ),
                lines(
                    "Backlog",
                    "Rows of the logs that no rank has read; of files estimated from bytes.",
                    "short",
                    ("max by (namespace) (livectr_backlog_rows{@})", "{{namespace}}"),
                ),
                lines(
                    "Time to catch up",
                    "Estimated time until all rows are read, with those that arrive meanwhile. -1: they do "
                    "not grow fewer; add ranks, or look for what is slow on Training.",
                    "s",
                    ("max by (namespace) (livectr_backlog_seconds{@})", "{{namespace}}"),
                    least=0,
                ),
                lines(
                    "Seconds behind",
                    "Age of the newest record that was read, by partition; 0 once everything is read.",
                    "s",
                    (
                        "max by (topic, partition) (livectr_event_lag_seconds{@})",
                        "{{topic}} {{partition}}",
                    ),
                    most=bound_s("LagRises"),
                ),
                lines(
                    "Watermark delay",
                    "Age of each rank's watermark. No later example is older than it.",
                    "s",
                    ("max by (pod, instance) (livectr_watermark_delay_seconds{@})", "{{pod}} {{instance}}"),
                ),
                lines(
                    "Held back",
                    "Seconds for which a topic partition has held others back with its event time.",
                    "s",
                    (
                        "max by (topic, partition) (livectr_held_back_seconds{@})",
                        "{{topic}} {{partition}}",
                    ),
                    most=5,
                ),
                lines(
                    "Unconfirmed and overtaken",
                    "Records that wait until others confirm the first record's time, and records whose place "
                    "in event time had passed while their partition was idle.",
                    "short",
                    ("sum by (topic) (livectr_unconfirmed_events{@})", "{{topic}} wait"),
                    (
                        "sum by (topic) (increase(livectr_overtaken_events_total{@}[$__rate_interval]))",
                        "{{topic}} overtaken",
                    ),
                ),
                areas(
                    "Records read",
                    "Records that the sources deliver in a second, mean of 10 s, as in `livectr status`.",
                    "cps",
                    ("sum by (topic) (livectr_events_per_second{@})", "{{topic}}"),
                ),
                areas(
                    "Bytes read",
                    "Bytes that are read for the columns in use.",
                    "Bps",
                    (rate("livectr_read_bytes_total", "topic"), "{{topic}}"),
                ),
            ],
        ),
        (
            "Joins",
            [
                lines(
                    "Waiting",
                    "Impressions that wait for their label, and labelled examples that wait to be learned.",
                    "short",
                    ("sum by (namespace) (livectr_pending_joins{@})", "for their label"),
                    ("sum by (namespace) (livectr_ready_examples{@})", "to be learned"),
                ),
                lines(
                    "Late and unmatched clicks",
                    "Clicks after the label window, and clicks without an impression. Many late ones: the "
                    "label window is too short. Late positives came after the wait, but within the window. "
                    "Clicks before their impression label it: the clocks differ by less than clock_slack.",
                    "cps",
                    (rate("livectr_matched_clicks_total", "namespace"), "matched"),
                    (rate("livectr_late_clicks_total", "namespace"), "late"),
                    (rate("livectr_late_positives_total", "namespace"), "late positives"),
                    (
                        rate("livectr_unmatched_clicks_total", "namespace"),
                        "unmatched",
                    ),
                    (rate("livectr_behind_clicks_total", "namespace"), "before their impression"),
                ),
                lines(
                    "Events of other labels",
                    "Events of labels beside the click: some label an impression, some come after their "
                    "window, some meet no impression. Many late ones: the label's window is too short.",
                    "cps",
                    (
                        "sum by (label, outcome) (rate(livectr_label_events_total{@}[$__rate_interval]))",
                        "{{label}} {{outcome}}",
                    ),
                ),
                lines(
                    "Clicks without an impression",
                    "Share of clicks that met no impression in the label window, and clicks that may still "
                    "meet one. Many: the topics differ in ids, keys or clocks, or impressions were lost.",
                    "short",
                    (
                        f"{rate('livectr_unmatched_clicks_total', 'namespace')} / "
                        f"({rate('livectr_unmatched_clicks_total', 'namespace')} + "
                        f"{rate('livectr_matched_clicks_total', 'namespace')})",
                        "share",
                    ),
                    ("sum by (namespace) (livectr_waiting_clicks{@})", "waiting"),
                ),
                lines(
                    "Duplicates and late records",
                    "Records seen before, and records with a time far in the past of their topic.",
                    "cps",
                    (
                        rate("livectr_duplicate_events_total", "topic"),
                        "{{topic}} duplicates",
                    ),
                    (
                        rate("livectr_late_events_total", "topic"),
                        "{{topic}} late",
                    ),
                ),
                lines(
                    "Look-up hits",
                    "Share of look-ups that find a row. Few: the ids of log and table do not agree.",
                    "percentunit",
                    (
                        'sum by (table) (rate(livectr_lookups_total{@, outcome="hit"}[$__rate_interval])) '
                        "/ sum by (table) (rate(livectr_lookups_total{@}[$__rate_interval]))",
                        "{{table}}",
                    ),
                ),
                lines(
                    "State of the joins",
                    "Bytes of label joins and histories. At `max_bytes` events are refused, histories leave.",
                    "bytes",
                    ("sum by (pod, instance) (livectr_join_bytes{@})", "{{pod}} {{instance}}"),
                    (
                        "sum by (pod, instance) (livectr_history_bytes{@})",
                        "histories {{pod}} {{instance}}",
                    ),
                ),
                lines(
                    "Look-up tables",
                    "Bytes of each rank's look-up tables. If they grow for good, keys never go: delete "
                    "them from the topic, or give the table `max_age` or `max_bytes`.",
                    "bytes",
                    ("max by (namespace, table) (livectr_lookup_table_bytes{@})", "{{table}}"),
                ),
                lines(
                    "Keys and older rows of look-up tables",
                    "Keys, and rows besides the newest of a key, for look-ups as of the event time.",
                    "short",
                    ("max by (namespace, table) (livectr_lookup_table_keys{@})", "{{table}} keys"),
                    (
                        "max by (namespace, table) (livectr_lookup_table_older_rows{@})",
                        "{{table}} older rows",
                    ),
                ),
                lines(
                    "Keys of look-up tables that expire",
                    "Keys whose newest row is older than `max_age`, or for which `max_bytes` has no room: "
                    "their look-ups find nothing.",
                    "cps",
                    (
                        "max by (table) (rate(livectr_lookup_table_expired_total{@}[$__rate_interval]))",
                        "{{table}}",
                    ),
                    (
                        "max by (table) (rate(livectr_lookup_table_evicted_total{@}[$__rate_interval]))",
                        "{{table}} no room",
                    ),
                ),
                lines(
                    "Dropped for lack of room",
                    "Events that a join refused, keys and histories that it forgot early. Should be 0.",
                    "cps",
                    (
                        rate("livectr_join_refused_events_total", "namespace"),
                        "events refused",
                    ),
                    (
                        rate("livectr_join_evicted_keys_total", "namespace"),
                        "keys forgotten",
                    ),
                    (
                        rate("livectr_histories_evicted_total", "namespace"),
                        "histories evicted",
                    ),
                ),
                lines(
                    "Histories that expire",
                    "Behavior histories whose last click is older than any `within`.",
                    "cps",
                    (rate("livectr_histories_expired_total", "namespace"), "{{namespace}}"),
                ),
            ],
        ),
        (
            "Dead letters",
            [
                areas(
                    "By reason",
                    "Rows that cannot be used. The letters hold the rows and say what is wrong.",
                    "cps",
                    (
                        rate("livectr_dead_letters_total", "reason"),
                        "{{reason}}",
                    ),
                ),
                lines(
                    "Share of all rows",
                    "Dead letters over records read. An alert fires above 1 %.",
                    "percentunit",
                    (
                        "sum by (namespace) (rate(livectr_dead_letters_total{@}[$__rate_interval])) "
                        "/ sum by (namespace) (rate(livectr_events_total{@}[$__rate_interval]))",
                        "{{namespace}}",
                    ),
                    most=0.01,
                ),
                lines(
                    "Waiting on disk",
                    "Letters that their topic has not taken yet. A full spool pauses reading.",
                    "short",
                    ("sum by (pod, instance) (livectr_dead_letters_waiting{@})", "{{pod}} {{instance}}"),
                ),
                lines(
                    "Bytes on disk",
                    "Bytes of these letters. At `dead_letter_spool_bytes` reading waits.",
                    "bytes",
                    ("sum by (pod, instance) (livectr_dead_letter_spool_bytes{@})", "{{pod}} {{instance}}"),
                ),
            ],
        ),
    ],
)
