"""Impressions and clicks with a quiet hour in the middle, and the pipeline that joins them."""

from __future__ import annotations

import numpy as np

from livectr.ingest.language.event_times import EventTime
from livectr.ingest.language.streams import Stream, label_join
from livectr.ingest.pipeline import Pipeline
from tests.ingest.joined_logs import TYPES, Log

START_MS = 1_700_000_000_000
WINDOW_MS = 2_000
HOUR_MS = 3_600_000
USERS = 40


def pipeline(max_disorder: int = 0) -> Pipeline:
    time = EventTime("ts", max_disorder=max_disorder)
    impressions = Stream("impressions", key="user_id", time=time, columns=TYPES)
    clicks = Stream("clicks", key="user_id", time=time, columns=TYPES)
    log = label_join(impressions, clicks, on="request_id", window=WINDOW_MS)
    return Pipeline(log, sparse=dict(ad=log.ad_id), rank=None)


def logs(seed: int, rows: int = 300) -> list[Log]:
    """Impressions of many users, a fifth of a second apart, and clicks on half of them, with a quiet hour."""
    rng = np.random.default_rng(seed)
    times = START_MS + np.arange(rows) * 200 + np.where(np.arange(rows) > rows // 2, HOUR_MS, 0)
    shown: Log = [
        {"request_id": f"r{i}", "user_id": int(rng.integers(USERS)), "ad_id": 1, "ts": int(time)}
        for i, time in enumerate(times)
    ]
    clicked = [
        dict(row, ts=row["ts"] + int(rng.integers(0, WINDOW_MS + 1))) for row in shown if rng.random() < 0.5
    ]
    return [shown, sorted(clicked, key=lambda row: int(row["ts"]))]
