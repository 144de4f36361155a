"""Counters of a source in Prometheus: each report adds what has changed since the last."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from prometheus_client import REGISTRY

from livectr.ingest.join.stats import Reporter, SourceStats

TOPICS = ("reported impressions", "reported clicks")
BY_TOPIC = {
    "late_events": "livectr_late_events_total",
    "overtaken": "livectr_overtaken_events_total",
    "duplicates": "livectr_duplicate_events_total",
}
COUNTERS = {
    "late_clicks": "livectr_late_clicks_total",
    "late_positives": "livectr_late_positives_total",
    "unmatched_clicks": "livectr_unmatched_clicks_total",
    "matched_clicks": "livectr_matched_clicks_total",
    "behind_clicks": "livectr_behind_clicks_total",
    "full": "livectr_join_refused_events_total",
    "forgotten": "livectr_join_evicted_keys_total",
    "history_expired": "livectr_histories_expired_total",
    "history_evicted": "livectr_histories_evicted_total",
}
GAUGES = {
    "pending": "livectr_pending_joins",
    "waiting_clicks": "livectr_waiting_clicks",
    "join_bytes": "livectr_join_bytes",
    "history_users": "livectr_histories",
    "history_bytes": "livectr_history_bytes",
}
"""Field of SourceStats → metric."""


def stats(scale: int) -> SourceStats:
    """Counts that are all different: `scale` times the field's number."""
    empty: dict[str, Any] = dict.fromkeys((f.name for f in fields(SourceStats)), 0)
    empty |= {"events": dict.fromkeys(TOPICS, 0), "lookups": {}, "bytes_read": {}, "labels": {}}
    for number, name in enumerate(BY_TOPIC):
        empty[name] = {topic: scale * (20 + 2 * number + i) for i, topic in enumerate(TOPICS)}
    for number, name in enumerate((*COUNTERS, *GAUGES), start=1):
        empty[name] = scale * number
    return SourceStats(**empty)


def sample(name: str, **labels: str) -> float:
    value = REGISTRY.get_sample_value(name, labels)
    assert value is not None, f"{name} is not there"
    return value


def shown() -> dict[str, float | list[float]]:
    single = {field: sample(metric) for field, metric in (COUNTERS | GAUGES).items()}
    return single | {
        field: [sample(metric, topic=topic) for topic in TOPICS] for field, metric in BY_TOPIC.items()
    }


def test_counters_grow_by_what_is_new_and_gauges_are_set() -> None:
    reporter = Reporter(stats(3))  # counted before this process began, as after a restart
    before = shown()
    assert all(before[field] == [0, 0] for field in BY_TOPIC), "a topic without events has its counters"
    for scale in (5, 9):
        reporter.report(stats(scale))
        found, told = shown(), stats(scale)
        for field in COUNTERS:
            assert found[field] - before[field] == getattr(told, field) - getattr(stats(3), field), field  # type: ignore[operator]
        for field in GAUGES:
            assert found[field] == getattr(told, field), field
        for field in BY_TOPIC:
            more = [getattr(told, field)[topic] - getattr(stats(3), field)[topic] for topic in TOPICS]
            assert found[field] == more, field
    reporter.report(replace(stats(9), pending=0))
    assert shown() == found | {"pending": 0}
