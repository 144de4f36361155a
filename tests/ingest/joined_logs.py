"""Random logs of impressions and clicks, and the expected examples, row by row."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from livectr.ingest.join.example_columns import Examples
from livectr.ingest.join.label_kind import LEAST_DEDUP_MS
from livectr.ingest.language.delays import Delayed
from livectr.ingest.language.event_times import EventTime
from livectr.ingest.language.keys import key_of
from livectr.ingest.language.streams import CLOCK_SLACK_MS, Stream, label_join, recent
from livectr.ingest.language.tables import Table
from livectr.ingest.pipeline import Pipeline
from livectr.kernels.stream.join import ACCEPTED, CLICK, DUPLICATE, IMPRESSION, LATE_POSITIVE
from livectr.kernels.stream.row_budget import KEY_BYTES
from tests.kernels.join_reference import brute_force

WINDOW_MS, WAIT_MS = 60_000, 4_000
LATEST_MS = 1_200_000
"""A max_ahead for which the disorder of `random_logs` is nothing unusual."""
TYPES = {"request_id": "string", "user_id": "int64", "ad_id": "int64", "ts": "int64"}


def pipeline(
    *,
    delayed: Delayed = "wait",
    suffix: str = "",
    versioned: bool = False,
    max_age: str | None = None,
    max_bytes: int | None = None,
) -> Pipeline:
    """A pipeline of the topics impressions, clicks and users, with `suffix` behind each name; `versioned`:
    rows of users have a time; `max_age`: and end so long after it; `max_bytes`: and for lack of room."""
    time = EventTime("ts", max_ahead=LATEST_MS)
    impressions = Stream(
        f"impressions{suffix}",
        key="user_id",
        time=time,
        columns={**TYPES, "query": "string", "price": "float32"},
    )
    clicks = Stream(f"clicks{suffix}", key="user_id", time=time, columns=TYPES)
    users = Table(
        f"users{suffix}",
        key="user_id",
        columns={
            "user_id": "int64",
            "age": "int32",
            "name": "string",
            **({"changed": "int64"} if versioned else {}),
        },
        time="changed" if versioned else None,
        max_age=max_age,
        max_bytes=max_bytes,
    )
    wait = None if delayed == "wait" else WAIT_MS
    log = label_join(
        impressions, clicks, on="request_id", window=WINDOW_MS, wait=wait, delayed=delayed
    ).lookup(users)
    return Pipeline(
        log,
        sparse=dict(
            ad=log.ad_id,
            query=log.query,
            name=users.name,
            long=recent(clicks.ad_id, n=3, within="1h"),
            short=recent(clicks.ad_id, n=2, within="1m"),
        ),
        dense=dict(age=users.age, price=log.price),
        rank=None,
    )


Row = dict[str, Any]
Log = list[Row]
"""Records of one topic partition, in offset order."""


class Logs(NamedTuple):
    impressions: dict[int, Log]
    clicks: dict[int, Log]
    users: Log


def random_logs(seed: int, *, partitions: int = 3, rows: int = 60) -> Logs:
    """Logs with late, duplicated, early, lonely and shuffled events."""
    rng = np.random.default_rng(seed)
    shown: dict[int, Log] = {}
    clicked: dict[int, Log] = {}
    for p in range(partitions):
        times = np.sort(rng.integers(0, 40, rows)) * 20_000
        log: Log = [
            {
                "request_id": f"r{p}-{rng.integers(0, rows * 2)}",
                "user_id": int(rng.integers(0, 6)) * partitions + p,
                "ad_id": int(rng.integers(1, 9)),
                "ts": int(t + (rng.integers(-90_000, 0) if rng.random() < 0.2 else 0)) + 1_000_000,
                "query": str(rng.choice(["", "shoes", "röd sko"])),
                "price": float(rng.integers(0, 8)),
            }
            for t in times
        ]
        answers: Log = [
            {
                **{name: row[name] for name in TYPES},
                "ts": row["ts"] + int(rng.choice([-9, -2_001, 0, 5_000, 60_000, 90_000])),
            }
            for row in log
            if rng.random() < 0.6
        ]
        answers += [
            {**row, "ts": row["ts"] + int(rng.integers(0, 2))} for row in answers if rng.random() < 0.2
        ]
        answers += [{**row, "request_id": f"lonely{i}"} for i, row in enumerate(answers[:3])]
        answers.sort(key=lambda row: row["ts"] + int(rng.integers(-20_000, 20_000)))
        log += [dict(row) for row in log[-5:]]
        shown[p], clicked[p] = log, answers
    people = [
        {"user_id": user, "age": int(rng.integers(1, 99)), "name": f"n{user}-{version}"}
        for version in range(2)
        for user in range(0, partitions * 6, 1 + version)
        if user % 5 != 3
    ]
    return Logs(shown, clicked, people)


class Cut(NamedTuple):
    """From a time on, rows up to a (time, user) are there no longer."""

    at: int
    until: tuple[int, int]


@dataclass(frozen=True)
class Expected:
    order: int
    partition: int
    label: float
    late: bool
    user: int
    instance: int
    time_ms: int
    columns: tuple[Any, ...]


def expected_partition(
    logs: Logs,
    partition: int,
    *,
    delayed: Delayed = "wait",
    max_age_ms: int | None = None,
    cuts: Sequence[Cut] = (),
) -> list[Expected]:
    """The examples of one partition, in order."""
    events = []
    for topic, log in enumerate((logs.impressions.get(partition, []), logs.clicks.get(partition, []))):
        mark = -1
        for offset, row in enumerate(log):
            mark = max(mark, row["ts"])
            events.append(((mark, topic, offset), row))
    events.sort(key=lambda event: event[0])
    kinds = [IMPRESSION if place[1] == 0 else CLICK for place, _ in events]
    keys = key_of(pa.array([row["request_id"] for _, row in events], pa.string())).tolist()
    sequence = [(kind, key, row["ts"]) for kind, key, (_, row) in zip(kinds, keys, events, strict=True)]
    wait = None if delayed == "wait" else WAIT_MS
    joined = brute_force(
        sequence, WINDOW_MS, LEAST_DEDUP_MS, wait, finals=delayed in ("fnw", "es_dfm"), slack=CLOCK_SLACK_MS
    )

    history: dict[int, list[tuple[int, int]]] = {}
    impression: list[tuple[int, int, int, tuple[Any, ...]]] = []
    for (_, row), key, kind, status, slot, until in zip(
        events, keys, kinds, joined.status, joined.slot, joined.seen, strict=True
    ):
        user, ts = row["user_id"], row["ts"]
        seen = history.setdefault(user, [])
        if kind == CLICK and status != DUPLICATE:
            seen.append((ts, row["ad_id"]))
            seen.sort(key=lambda behavior: behavior[0])
            del seen[:-4]
        if kind == IMPRESSION and status == ACCEPTED:
            known = valid(logs.users, user, ts, max_age_ms, cuts)
            columns = {
                "impressions.ad_id": row["ad_id"],
                "impressions.query": row["query"],
                "impressions.price": row["price"],
                "users.name": known["name"],
                "users.age": known["age"],
                "recent(clicks.ad_id,3,3600000)": [ad for t, ad in seen if 0 <= until - t <= 3_600_000][-3:],
                "recent(clicks.ad_id,2,60000)": [ad for t, ad in seen if 0 <= until - t <= 60_000][-2:],
            }
            assert slot == len(impression)
            names = [root.name for root in pipeline().plan.roots]
            impression.append((user, key, ts, tuple(columns[name] for name in names)))

    return [
        Expected(order, partition, told(label), label == LATE_POSITIVE, *impression[slot])
        for slot, label, _, order in joined.released
    ]


def cuts_of(table: Log, max_bytes: int | None, max_age_ms: int | None = None) -> list[Cut]:
    """Rows by time and user, as many as there is room for: 16 sixteenths, and 15 after the oldest left."""

    def total(rows: dict[int, tuple[int, int, int]]) -> int:
        return sum(size for *_, size in rows.values())

    live: dict[int, tuple[int, int, int]] = {}
    found: list[Cut] = []
    for row in sorted(table, key=lambda row: (row["changed"], row["user_id"])):
        user, now = row["user_id"], row["changed"]
        live[user] = (now, user, KEY_BYTES + 8 + 8 + len(row["name"]) + 8)
        if row["age"] is None:
            del live[user]
        if max_bytes is None or total(live) <= max_bytes:
            continue
        if max_age_ms is not None:
            live = {key: row for key, row in live.items() if row[0] > now - max_age_ms}
        if total(live) <= max_bytes:
            continue
        while total(live) > max_bytes // 16 * 15 and len(live) > 1:
            since, key, _ = min(live.values())
            del live[key]
            found.append(Cut(now, (since, key)))
    return found


def valid(table: Log, user: int, time: int, max_age_ms: int | None = None, cuts: Sequence[Cut] = ()) -> Row:
    """The user's last row of the greatest time that is not later; rows without time are always valid, and a
    row without age deletes the user."""
    nothing: Row = {"age": None, "name": None}
    rows = [row for row in table if row["user_id"] == user and row.get("changed", time) <= time]
    found = max(reversed(rows), key=lambda row: row.get("changed", 0), default=nothing)
    expired = max_age_ms is not None and found.get("changed", time) + max_age_ms <= time
    left = any(cut.at <= time and (found.get("changed", time), user) <= cut.until for cut in cuts)
    return nothing if expired or left else found


def told(label: int) -> float:
    """Label of an example or a final."""
    return 1.0 if label == LATE_POSITIVE else float(label)


def expected(
    logs: Logs,
    *,
    delayed: Delayed = "wait",
    max_age_ms: int | None = None,
    max_bytes: int | None = None,
) -> list[Expected]:
    """Expected global sequence: by (order, partition), then in each partition's order."""
    cuts = cuts_of(logs.users, max_bytes, max_age_ms) if max_bytes is not None else []
    parts = [
        example
        for p in sorted(logs.impressions)
        for example in expected_partition(logs, p, delayed=delayed, max_age_ms=max_age_ms, cuts=cuts)
    ]
    return sorted(parts, key=lambda example: (example.order, example.partition))


def rows_of(examples: Examples) -> list[Expected]:
    columns = [column.to_pylist() for column in examples.columns.columns]
    label = examples.label
    if examples.words is not None:  # a label beside the click that came is told as a positive final
        label = label + np.where(examples.final, examples.words & 3 > 0, 0)
    fields = (
        examples.order, examples.partition, label, examples.late, examples.user, examples.instance,
        examples.time_ms,
    )  # fmt: skip
    return [
        Expected(order, partition, label, late, user, instance, time_ms, tuple(row))
        for order, partition, label, late, user, instance, time_ms, row in zip(
            *(field.tolist() for field in fields), zip(*columns, strict=True), strict=True
        )
    ]


def write_log(folder: Path, partition: int, log: Sequence[Row], cuts: Iterable[int] = ()) -> None:
    """A topic partition as JSON lines, cut into files."""
    folder.mkdir(parents=True, exist_ok=True)
    bounds = [0, *sorted({cut % (len(log) + 1) for cut in cuts}), len(log)]
    for number, (begin, end) in enumerate(pairwise(bounds)):
        lines = "".join(json.dumps(row) + "\n" for row in log[begin:end])
        (folder / f"{partition:05d}-{number:05d}.jsonl").write_text(lines)


def write_logs(root: Path, logs: Logs, *, cuts: Iterable[int] = ()) -> str:
    """All topics under a folder; returns the URL of the source."""
    cuts = list(cuts)
    for topic, partitions in (("impressions", logs.impressions), ("clicks", logs.clicks)):
        for partition, log in partitions.items():
            write_log(root / topic, partition, log, cuts)
    write_log(root / "users", 0, logs.users)
    return f"file:{root}"
