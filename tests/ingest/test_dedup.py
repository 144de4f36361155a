"""`labelled(…, dedup=)`: equal rows within the window count once, however the log is cut and shared."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import livectr
from livectr.ingest.dead_letters.letters import DeadLetters
from livectr.ingest.join.examples import ExampleSource, ReadOptions
from livectr.ingest.language.event_times import EventTime
from livectr.ingest.language.streams import Stream, labelled
from livectr.ingest.materialized.writer import until_end
from livectr.ingest.pipeline import Pipeline
from livectr.inspection.show import show_pipeline
from livectr.models import LR
from livectr.system.errors import ConfigError
from tests.ingest.partition_reader import Reader
from tests.tiers import examples

WINDOW_MS = 60_000
COLUMNS = {
    "user": "int64",
    "request": "string",
    "ad": "int32",
    "ts": "int64",
    "click": "int32",
    "price": "float64",
}
Row = dict[str, Any]


def stream(**more: Any) -> Stream:
    return Stream("shown", key="user", columns=COLUMNS, **{"time": EventTime("ts", max_ahead="30d"), **more})


def pipeline(**more: Any) -> Pipeline:
    options: dict[str, Any] = {"dedup": ("request", "ad"), "window": "1m", **more}
    log = labelled(stream(), label="click", **options)
    return Pipeline(log, sparse={"ad": log.ad}, rank=None)


def once(rows: list[Row], known_ms: int = WINDOW_MS) -> list[int]:
    """Numbers of the rows of a partition that count, row by row."""
    first: dict[tuple[str, int], int] = {}
    mark, kept = -(1 << 62), []
    for number, row in enumerate(rows):
        mark = max(mark, row["ts"])
        key = row["request"], row["ad"]
        if key in first and mark - first[key] <= known_ms:
            continue
        first[key] = mark
        kept.append(number)
    return kept


def log_of(events: list[tuple[int, int, int]]) -> list[Row]:
    """Rows from (request, ad, step of time in s)."""
    ts, rows = 1_700_000_000_000, []
    for number, (request, ad, step_s) in enumerate(events):
        ts += 1000 * step_s
        row = {"user": request % 3, "request": f"r{request}", "ad": ad, "ts": ts, "click": number % 2}
        rows.append(row | {"price": float(number)})
    return rows


EVENTS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 1), st.integers(-20, 45)), max_size=60)


@examples(150)
@given(events=EVENTS, steps=st.lists(st.tuples(st.integers(1, 20), st.booleans()), max_size=12))
def test_repeats_do_not_count_however_the_log_is_cut(
    events: list[tuple[int, int, int]], steps: list[tuple[int, bool]]
) -> None:
    rows = log_of(events)
    reader = Reader(pipeline(), [rows])
    for count, restarts in steps:
        reader.step(0, count)
        reader.pop(count // 2)
        if restarts:
            reader.restart()
    kept = once(rows)
    assert [instance for *_, instance, _ in reader.rest()] == kept
    assert reader.partition.joiner.stats.duplicates == {"shown": len(rows) - len(kept)}


def write(root: Path, rows: list[Row], partitions: int = 4) -> None:
    (root / "shown").mkdir(parents=True, exist_ok=True)
    for number in range(partitions):
        own = [row for row in rows if row["user"] % partitions == number]
        lines = "".join(json.dumps(row) + "\n" for row in own)
        (root / "shown" / f"{number:05d}-log.jsonl").write_text(lines)


def read(root: Path, *, ranks: int = 1) -> tuple[list[tuple[int, int]], int]:
    """(instance, label) of all ranks' examples, and the repeats."""
    found, repeats = [], 0
    options = ReadOptions(until_end=True)
    for rank in range(ranks):
        where: dict[str, Any] = {"rank": rank, "world": ranks, "dead_letters": DeadLetters(None)}
        source = ExampleSource(pipeline(), f"file:{root}", options, **where)
        for batch in until_end(source):
            found += list(zip(batch.instance.tolist(), batch.label.tolist(), strict=True))
        repeats += source.stats.duplicates["shown"]
        source.close()
    return found, repeats


def random_rows(count: int, users: int = 12) -> list[Row]:
    """Rows of which a fifth come again after up to two minutes, from the same user."""
    rng = np.random.default_rng(4)
    rows: list[Row] = []
    ts = 1_700_000_000_000
    for number in range(count):
        ts += int(rng.integers(0, 300))
        if rows and rng.random() < 0.2:
            rows.append(rows[int(rng.integers(max(0, len(rows) - 800), len(rows)))] | {"ts": ts})
            continue
        row = {"user": int(rng.integers(users)), "request": f"r{number}", "ad": number % 7, "ts": ts}
        rows.append(row | {"click": int(rng.random() < 0.3), "price": 1.0})
    return rows


def test_one_two_and_four_ranks_read_the_same(tmp_path: Path) -> None:
    rows = random_rows(4000)
    write(tmp_path, rows)
    one, repeats = read(tmp_path)
    expected = set()
    for number in range(4):
        own = [row for row in rows if row["user"] % 4 == number]
        expected |= {((number << 40) + at, float(own[at]["click"])) for at in once(own)}
    assert set(one) == expected and len(one) == len(expected) and repeats == 4000 - len(one) > 300
    for ranks in (2, 4):
        several, again = read(tmp_path, ranks=ranks)
        assert sorted(several) == sorted(one) and again == repeats


def test_the_model_is_that_of_the_log_without_repeats(tmp_path: Path) -> None:
    rows = random_rows(1500)
    log = labelled(stream(), label="click", dedup=("request", "ad"), window="1m")
    made = Pipeline(log, sparse={"ad": log.ad}, rank=LR(), settings={"batch_size": 64, "threads": 1})
    with_, without = (
        livectr.train(made, kept, checkpoint=tmp_path / name)
        for name, kept in (("with", rows), ("without", [rows[number] for number in once(rows)]))
    )
    assert with_.report.examples_trained == without.report.examples_trained == len(once(rows)) < 1400
    assert with_.report.stream["duplicates"] == {"shown": 1500 - len(once(rows))}
    models = [livectr.read_embeddings(run.checkpoint, "ad") for run in (with_, without)]
    assert models[0].equals(models[1])


def test_a_run_to_the_end_forgets_nothing(tmp_path: Path) -> None:
    """A row sent again behind the end of a run is a repeat for the run that follows."""
    rows = log_of([(1, 0, 1), (2, 0, 1)])
    write(tmp_path, rows, partitions=1)
    options, letters = ReadOptions(until_end=True), DeadLetters(None)
    where: dict[str, Any] = {"rank": 0, "world": 1, "dead_letters": letters}
    first = ExampleSource(pipeline(), f"file:{tmp_path}", options, **where)
    assert sum(len(batch) for batch in until_end(first)) == 2
    state = first.snapshot()
    first.close()
    write(tmp_path, [*rows, *log_of([(1, 0, 10), (3, 0, 1)])], partitions=1)
    second = ExampleSource(pipeline(), f"file:{tmp_path}", options, **where, state=state)
    assert [batch.instance.tolist() for batch in until_end(second)] == [[3]]
    second.close()


def test_without_room_the_oldest_are_forgotten() -> None:
    rows = log_of([(number, 0, 0) for number in itertools.chain(range(300), range(300))])
    reader = Reader(pipeline(max_bytes="64KiB"), [rows])
    count = len(reader.rest())
    stats = reader.partition.joiner.stats
    assert 300 < count <= 600 and stats.forgotten > 0 and count + stats.duplicates["shown"] == 600


def test_a_row_without_its_columns_is_a_dead_letter(tmp_path: Path) -> None:
    rows = log_of([(1, 0, 1), (2, 0, 1), (3, 0, 1)])
    rows[1]["request"] = None
    write(tmp_path, rows, partitions=1)
    assert len(read(tmp_path)[0]) == 2


def test_pipelines_without_dedup_keep_their_fingerprint() -> None:
    log = labelled(stream(), label="click")
    assert "dedup" not in repr(log) and "dedup_ms=60000" in repr(pipeline().log)
    assert Pipeline(log, sparse={"ad": log.ad}, rank=None).fingerprint != pipeline().fingerprint


def test_inspect_names_the_columns(capsys: pytest.CaptureFixture[str]) -> None:
    log = labelled(stream(), label="click", dedup=("request", "ad"), window="1m")
    show_pipeline(Pipeline(log, sparse={"ad": log.ad}, rank=LR()), rows=64)
    said = capsys.readouterr().out
    assert "label: column click; rows of equal request, ad count once within 60 s" in said


def test_mistakes_are_sentences() -> None:
    with pytest.raises(ConfigError, match=r"dedup shown\.price is float64, not int64, int32 or string"):
        labelled(stream(), label="click", dedup="price")
    with pytest.raises(ConfigError, match="shown has no column 'requst'"):
        labelled(stream(), label="click", dedup="requst")
    with pytest.raises(ConfigError, match="dedup has a window of time, so shown needs a time column"):
        labelled(stream(time=None), label="click", dedup="request")
    with pytest.raises(ConfigError, match="labelled window"):
        labelled(stream(), label="click", dedup="request", window="soon")
