"""Labels beside the click: each impression leaves again for each, when the label's own window has passed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from livectr.ingest.join.label_kind import LEAST_DEDUP_MS
from livectr.ingest.join.state import SourceState
from livectr.ingest.join.window_join import WindowJoin
from livectr.ingest.language.event_times import EventTime
from livectr.ingest.language.keys import key_of
from livectr.ingest.language.labels import labels_of
from livectr.ingest.language.streams import CLOCK_SLACK_MS, Label, Stream
from livectr.ingest.language.targets import Target
from livectr.ingest.pipeline import Pipeline
from livectr.kernels.stream.join import ACCEPTED, CLICK, FINAL_NEGATIVE, IMPRESSION, JoinIndex
from livectr.kernels.stream.known import COLUMNS
from livectr.models import LR
from tests.ingest.joined_logs import (
    LATEST_MS,
    TYPES,
    WINDOW_MS,
    Expected,
    Log,
    Logs,
    expected,
    pipeline,
    random_logs,
    write_log,
    write_logs,
)
from tests.ingest.ranks_reading import close, drain, open_ranks, take_settled
from tests.kernels.join_reference import brute_force
from tests.tiers import examples

WINDOWS = {"cart": 20_000, "order": 400_000}
"""One is shorter than that of clicks, one longer."""
WITH_FOLDERS = examples(20, tried=6, suppress_health_check=[HealthCheck.function_scoped_fixture])


def shop() -> Pipeline:
    """The pipeline of `joined_logs` with carts and orders."""
    base = pipeline()
    labels = [
        Label(
            name,
            Stream(f"{name}s", key="user_id", time=EventTime("ts", max_ahead=LATEST_MS), columns=TYPES),
            window,
        )
        for name, window in WINDOWS.items()
    ]
    log = replace(base.log, more_labels=tuple(labels))
    return replace(base, log=log, rank=LR(), targets=[Target(name) for name in WINDOWS])


def of_labels(logs: Logs, seed: int) -> dict[str, dict[int, Log]]:
    """Label → events of each partition, with late, early, repeated and lonely ones."""
    rng = np.random.default_rng(seed)
    found: dict[str, dict[int, Log]] = {}
    for name, window in WINDOWS.items():
        found[name] = {}
        for p, shown in logs.impressions.items():
            delays = [-9, -2_001, 0, window // 2, window, window + 1, 3 * window]
            events: Log = [
                {**{column: row[column] for column in TYPES}, "ts": row["ts"] + int(rng.choice(delays))}
                for row in shown
                if rng.random() < 0.5
            ]
            events += [dict(row) for row in events[:3]]
            events += [{**row, "request_id": f"lonely{i}"} for i, row in enumerate(events[:3])]
            events.sort(key=lambda row: row["ts"] + int(rng.integers(-20_000, 20_000)))
            found[name][p] = events
    return found


def again(logs: Logs, events: dict[int, Log], window_ms: int) -> list[tuple[int, int, int, float]]:
    """(order, partition, instance, label) of the impressions that leave for a label, by rising order."""
    found = []
    for p, shown in logs.impressions.items():
        accepted = _joined(shown, logs.clicks[p], WINDOW_MS)[0]
        _, keys, released = _joined(accepted, events[p], window_ms)
        found += [(order, p, keys[slot], FINAL_NEGATIVE + float(label)) for slot, label, _, order in released]
    return sorted(found)


def _joined(shown: Log, events: Log, window_ms: int) -> tuple[Log, list[int], list[Any]]:
    """Impressions that a join accepts, their keys, and what it releases."""
    placed = []
    for topic, log in enumerate((shown, events)):
        mark = -1
        for offset, row in enumerate(log):
            mark = max(mark, row.get("mark", row["ts"]))
            placed.append(((mark, topic, offset), row))
    placed.sort(key=lambda event: event[0])
    keys = key_of(pa.array([row["request_id"] for _, row in placed], pa.string())).tolist()
    kinds = [IMPRESSION if place[1] == 0 else CLICK for place, _ in placed]
    sequence = [(kind, key, row["ts"]) for kind, key, (_, row) in zip(kinds, keys, placed, strict=True)]
    marks = [place[0] for place, _ in placed]
    joined = brute_force(sequence, window_ms, LEAST_DEDUP_MS, slack=CLOCK_SLACK_MS, marks=marks)
    waits = [
        i
        for i, (kind, status) in enumerate(zip(kinds, joined.status, strict=True))
        if kind == IMPRESSION and status == ACCEPTED
    ]
    rows = [{**placed[i][1], "mark": placed[i][0][0]} for i in waits]
    return rows, [keys[i] for i in waits], joined.released


def check(rows: list[Expected], logs: Logs, events: dict[str, dict[int, Log]]) -> None:
    """Examples are those of clicks alone; each label has its impressions, with the examples' columns."""
    plain = [row for row in rows if row.label < FINAL_NEGATIVE]
    assert plain == expected(logs)
    left = sorted(
        (row.order, row.partition, row.instance, row.label) for row in rows if row.label >= FINAL_NEGATIVE
    )
    want = [left for name, window in WINDOWS.items() for left in again(logs, events[name], window)]
    assert left == sorted(want)
    columns = {(row.instance, row.time_ms): row.columns for row in plain}
    assert all(columns[row.instance, row.time_ms] == row.columns for row in rows)


def written(root: Path, seed: int, cuts: list[int]) -> tuple[str, Logs, dict[str, dict[int, Log]]]:
    logs = random_logs(seed)
    events = of_labels(logs, seed)
    url = write_logs(root, logs, cuts=cuts)
    for name, by_partition in events.items():
        for partition, log in by_partition.items():
            write_log(root / f"{name}s", partition, log, cuts)
    return url, logs, events


@WITH_FOLDERS
@given(st.integers(0, 10_000), st.lists(st.integers(0, 100), max_size=4), st.sampled_from([1, 2]))
def test_each_label_is_joined_as_by_a_brute_force_join_of_its_own(
    tmp_path_factory: pytest.TempPathFactory, seed: int, cuts: list[int], world: int
) -> None:
    url, logs, events = written(tmp_path_factory.mktemp("logs"), seed, cuts)
    sources = open_ranks(shop(), url, world)
    rows = drain(sources)
    check(rows, logs, events)
    stats = [source.stats for source in sources]
    assert sum(s.examples for s in stats) == sum(row.label < FINAL_NEGATIVE for row in rows)
    for name in WINDOWS:
        matched = sum(s.labels[name]["matched"] for s in stats)
        assert matched == sum(row[3] > FINAL_NEGATIVE for row in again(logs, events[name], WINDOWS[name]))
        assert sum(s.labels[name]["pending"] for s in stats) == 0
    close(sources)


@WITH_FOLDERS
@given(st.integers(0, 10_000), st.lists(st.tuples(st.integers(0, 60), st.sampled_from([1, 2])), max_size=5))
def test_restarts_anywhere_lose_no_label(
    tmp_path_factory: pytest.TempPathFactory, seed: int, lives: list[tuple[int, int]]
) -> None:
    url, logs, events = written(tmp_path_factory.mktemp("logs"), seed, list(range(0, 100, 7)))
    rows: list[Expected] = []
    state: SourceState | None = None
    for count, world in lives:
        sources = open_ranks(shop(), url, world, state)
        for source in sources:
            source.poll(0.01)
        rows += take_settled(sources, count)
        parts = [source.snapshot().parts() for source in sources]
        close(sources)
        state = SourceState.merge(map(SourceState.from_parts, parts))
    last = open_ranks(shop(), url, 1, state)
    rows += drain(last)
    check(rows, logs, events)
    close(last)


@WITH_FOLDERS
@given(st.integers(0, 10_000), st.lists(st.integers(0, 100), max_size=4), st.sampled_from([1, 2]))
def test_labels_of_equal_windows_leave_together(
    tmp_path_factory: pytest.TempPathFactory, seed: int, cuts: list[int], world: int
) -> None:
    """That of the clicks' window with the example, and two others in one row more."""
    url, logs, events = written(tmp_path_factory.mktemp("logs"), seed, cuts)
    windows = {"cart": WINDOW_MS, "order": 2 * WINDOW_MS, "like": 2 * WINDOW_MS}
    for p in logs.impressions:
        write_log(Path(url.removeprefix("file:")) / "likes", p, events["cart"][p], cuts)
    base = shop()
    (cart, order) = base.log.more_labels
    like = replace(cart, name="like", stream=replace_topic(cart.stream, "likes"))
    labels = [replace(each, window=windows[each.name]) for each in (cart, order, like)]
    targets = [Target(name) for name in windows]
    pipe = replace(base, log=replace(base.log, more_labels=tuple(labels)), targets=targets)
    sources = open_ranks(pipe, url, world)
    found: dict[tuple[int, str], list[tuple[int, int, int, float]]] = {}
    rows = 0
    while not all(source.ended for source in sources):
        for source in sources:
            source.poll(0.01)
    for rank, source in enumerate(sources):
        got = source.pop(len(source.orders(1 << 20)[0]))
        rows += len(got)
        final = np.where(got.final, 1, 0)
        came = labels_of(got.words, len(windows)) if got.words is not None else np.empty((0, 3))
        for bit, name in enumerate(windows):
            known = ~np.isnan(came[:, bit])
            assert (final[known] == (name != "cart")).all()
            places = zip(got.order, got.partition, got.instance, came[:, bit], strict=True)
            found[rank, name] = [
                (int(o), int(p), int(i), FINAL_NEGATIVE + float(c))
                for (o, p, i, c), is_known in zip(places, known, strict=True)
                if is_known
            ]
    close(sources)
    for name, window in windows.items():
        of = events["cart"] if name == "like" else events[name]
        every = sorted(row for (_, label), some in found.items() if label == name for row in some)
        assert every == again(logs, of, window), name
    assert rows == len(expected(logs)) + len(again(logs, events["order"], windows["order"]))


def replace_topic(stream: Stream, topic: str) -> Stream:
    """The stream in another topic."""
    time = EventTime("ts", max_ahead=LATEST_MS)
    return Stream(topic, key=stream.key, time=time, columns=stream.columns)


def test_amounts_of_impressions_and_of_events_that_wait_are_restored() -> None:
    """Key 1 has two events that wait, the later one first; key 2 an impression with its event."""
    schema = pa.schema([("id", pa.int64())])

    def begin() -> WindowJoin:
        return WindowJoin(JoinIndex(100, 1_000, slack_ms=50, amounts=True), 100, schema)

    def push(join: WindowJoin, kind: list[int], key: list[int], ts: list[int], amount: list[float]) -> None:
        shown = [(k, t) for what, k, t in zip(kind, key, ts, strict=True) if what == IMPRESSION]
        mark = np.full(len(ts), 200)
        join.index.push(np.array(kind, np.uint8), np.array(key), np.array(ts), mark, amount=np.array(amount))
        rows = pa.RecordBatch.from_pylist([{"id": k} for k, _ in shown], schema=schema)
        join.keep(rows, np.array([t for _, t in shown], np.int64), mark[: len(shown)])

    first, second = begin(), begin()
    push(first, [CLICK, CLICK, IMPRESSION, CLICK], [1, 1, 2, 2], [220, 210, 200, 205], [4.0, 2.5, 7.0])
    counters, tables = first.export()
    known = {name: np.empty(0, kind) for name, kind in COLUMNS.items()}
    second.restore(counters, tables, known)
    assert str(second.export()[1]) == str(tables)  # NaN is an amount, too
    push(second, [IMPRESSION, CLICK], [1, 2], [200, 206], [9.0])
    rows, label, _, amount = second.release(1_000)
    assert rows.column("id").to_pylist() == [2, 1]
    assert label.tolist() == [1, 1] and amount.tolist() == [7.0, 2.5]
