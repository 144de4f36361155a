"""Made rows in the forms of public data sets, for `livectr init`: what is clicked is planted."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

from tests.livectr.feed import feed, write_lines, write_table
from tests.livectr.log_samples import avazu, criteo

ROWS = 400
Rng = np.random.Generator
Make = Callable[[Path], list[str]]
"""Writes files into a folder; returns the words of `livectr init`."""


def _criteo(folder: Path) -> list[str]:
    criteo(folder / "train.txt", ROWS)
    return ["--from", "train.txt"]


def _avazu(folder: Path) -> list[str]:
    avazu(folder / "train.csv", ROWS)
    return ["--from", "train.csv", "--label", "click"]


def _movielens(folder: Path) -> list[str]:
    rng = np.random.default_rng(1)
    rows = [
        {
            "userId": 1 + int(rng.integers(40)),
            "movieId": (movie := 1 + int(rng.integers(60))),
            "rating": min(5.0, 0.5 * int(rng.integers(1, 8)) + (2.0 if movie % 3 == 0 else 0.0)),
            "timestamp": 825_000_000 + 3_600 * number,  # February 1996
        }
        for number in range(ROWS)
    ]
    write_table(folder / "ratings.csv", rows)
    return ["--from", "ratings.csv", "--label", "rating>=4", "--time", "timestamp"]


def _open_bandit(folder: Path) -> list[str]:
    rng = np.random.default_rng(2)
    users = [f"{number:032x}" for number in rng.integers(1 << 62, size=12)]
    rows = []
    for number in range(ROWS):
        item = int(rng.integers(20))
        moment = datetime.fromtimestamp(1_574_553_600 + 30 * number + 0.016664, UTC)
        rows.append(
            {
                "": number,
                "timestamp": moment.isoformat(" "),
                "item_id": item,
                "position": 1 + number % 3,
                "click": int(rng.random() < (0.4 if item % 4 == 3 else 0.05)),
                "propensity_score": 0.05,
                **{f"user_feature_{i}": users[(number * 7 + i) % (3 * i + 3)] for i in range(4)},
                **{f"user-item_affinity_{i}": float(item == i) for i in range(6)},
            }
        )
    write_table(folder / "all.csv", rows)
    return ["--from", "all.csv", "--label", "click", "--user", "user_feature_0,user_feature_1"]


def _outbrain(folder: Path) -> list[str]:
    """Displays of several ads; the clicks are in a file of their own."""
    rng = np.random.default_rng(3)
    shown, clicked = [], []
    for number in range(ROWS):
        display, ad = number // 4, 4 * int(rng.integers(12)) + number % 4
        row: dict[str, Any] = {
            "display_id": display,
            "ad_id": ad,
            "uuid": f"{hash_of(display % 30):014x}",
            "document_id": 379_000 + display % 17,
            "timestamp": 1_465_876_800_000 + 60_000 * display,
            "platform": 1 + display % 3,
            "geo_location": ("US>CA>807", "US>NY>501", "CA>ON")[display % 3],
        }
        shown.append(row)
        if rng.random() < (0.5 if ad % 3 == 0 else 0.05):
            clicked.append({**row, "timestamp": row["timestamp"] + int(rng.integers(500, 40_000))})
    write_table(folder / "impressions.csv", shown)
    write_table(folder / "clicks.csv", clicked)
    return ["--impressions", "impressions.csv", "--clicks", "clicks.csv"]


def _kuairec(folder: Path) -> list[str]:
    rng = np.random.default_rng(4)
    rows = []
    for number in range(ROWS):
        video, length = int(rng.integers(60)), 3_000 + int(rng.integers(20_000))
        moment = datetime.fromtimestamp(1_593_878_868 + 61 * number + 0.342, UTC)
        played = int(length * rng.random() * (3.0 if video % 3 == 0 else 1.2))
        rows.append(
            {
                "user_id": 14 + int(rng.integers(30)),
                "video_id": video,
                "play_duration": played,
                "video_duration": length,
                "time": moment.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3],
                "date": moment.strftime("%Y%m%d"),
                "timestamp": f"{moment.timestamp():.3f}",
                "watch_ratio": played / length,
                "feat": json.dumps([video % 7, 20 + video % 5][: 1 + video % 2]),
                "tags": str([f"t{video % 4}", "new"][: video % 3]),
            }
        )
    write_table(folder / "small_matrix.csv", rows)
    return ["--from", "small_matrix.csv", "--label", "watch_ratio>=1"]


def _hive(folder: Path) -> list[str]:
    rng = np.random.default_rng(5)
    for day in range(2):
        place = folder / "shows" / f"dt=2026-11-2{4 + day}" / "country=de"
        place.mkdir(parents=True)
        item = rng.integers(30, size=ROWS // 2)
        table = pa.table(
            {
                "event_time": pa.array(
                    (1_795_478_400 + 86_400 * day + 60 * np.arange(ROWS // 2)) * 1_000_000, pa.timestamp("us")
                ),
                "user_id": pa.array(rng.integers(1 << 63, (1 << 63) + 40, size=ROWS // 2, dtype=np.uint64)),
                "item_id": pa.array(item, pa.int32()),
                "price": pa.array(rng.random(ROWS // 2), pa.float32()),
                "tags": pa.array([[int(one) % 5, int(one) % 3] for one in item], pa.list_(pa.int32())),
                "click": pa.array(rng.random(ROWS // 2) < np.where(item % 4 == 3, 0.5, 0.05)),
            }
        )
        parquet.write_table(table, place / "part-00000.snappy.parquet")
    (folder / "shows" / "_SUCCESS").write_text("")
    return ["--from", "shows", "--label", "click"]


def _topics(folder: Path) -> list[str]:
    views, clicks = feed(ROWS)
    write_lines(folder / "views.jsonl", views)
    write_lines(folder / "clicks.jsonl", clicks)
    return ["--impressions", "views.jsonl", "--clicks", "clicks.jsonl"]


def hash_of(number: int) -> int:
    """Number of 56 bits that looks like a hash."""
    return (number + 1) * 0x9E3779B97F4A7C15 % (1 << 56)


FORMS: dict[str, Make] = {
    "criteo": _criteo,
    "avazu": _avazu,
    "movielens": _movielens,
    "open-bandit": _open_bandit,
    "outbrain": _outbrain,
    "kuairec": _kuairec,
    "hive": _hive,
    "topics": _topics,
}
