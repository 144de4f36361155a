"""Histories leave memory and checkpoints: no feature changes, for any number of ranks and over restarts."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from livectr.ingest.dead_letters.letters import DeadLetters
from livectr.ingest.join.examples import ExampleSource, ReadOptions
from livectr.ingest.join.state import SourceState
from livectr.ingest.language.event_times import EventTime
from livectr.ingest.language.streams import Stream, label_join, recent
from livectr.ingest.pipeline import Pipeline
from tests.ingest.partition_reader import Reader
from tests.tiers import examples

COLUMNS = {"id": "int64", "user": "int64", "ad": "int64", "ts": "int64"}
WITHIN_MS, AHEAD_MS = 60_000, 1_000
ROOT = "recent(clicks.ad,3,60000)"


def pipeline(max_bytes: int | str = "1GiB") -> Pipeline:
    time = EventTime("ts", max_ahead=AHEAD_MS)
    shown, clicks = (Stream(name, key="user", time=time, columns=COLUMNS) for name in ("shown", "clicks"))
    log = label_join(shown, clicks, on="id", window=1_000, max_bytes=max_bytes)
    return Pipeline(log, sparse={"ad": log.ad, "past": recent(clicks.ad, n=3, within=WITHIN_MS)}, rank=None)


def churn(rows: int, *, pause_ms: int, live: int, seed: int = 0) -> tuple[list[dict[str, int]], ...]:
    """Impressions and clicks of `live` users at a time, who come for a while and never again."""
    rng = np.random.default_rng(seed)
    shown = [
        {"id": i, "user": int(i // live * live + rng.integers(0, 2 * live)), "ad": i, "ts": i * pause_ms}
        for i in range(1, rows + 1)
    ]
    clicked = [{**row, "ts": row["ts"] + int(rng.integers(1, 900))} for row in shown if rng.random() < 0.7]
    return shown, sorted(clicked, key=lambda row: row["ts"])


def brute_force(shown: list[dict[str, int]], clicked: list[dict[str, int]]) -> dict[int, list[int]]:
    """Impression → its history: nothing ever expires."""
    return {
        row["id"]: [
            c["ad"]
            for c in clicked
            if c["user"] == row["user"] and row["ts"] - WITHIN_MS <= c["ts"] < row["ts"]
        ][-3:]
        for row in shown
    }


def histories(readers: list[Any]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for part in readers:
        found |= dict(zip(part.rows["shown.ad"].to_pylist(), part.rows[ROOT].to_pylist(), strict=True))
    return found


@examples(40)
@given(st.integers(0, 1000), st.lists(st.integers(1, 40), min_size=4, max_size=30), st.integers(1, 9_000))
def test_no_feature_changes_over_restarts(seed: int, steps: list[int], pause_ms: int) -> None:
    shown, clicked = churn(120, pause_ms=pause_ms, live=5, seed=seed)
    reader = Reader(pipeline(), [shown, clicked])
    for number, count in enumerate(steps):
        reader.step(number % 2, count)
        reader.pop(count)
        if number % 5 == 4:
            reader.restart()
    reader.rest()
    assert histories(reader.out) == brute_force(shown, clicked)


def test_users_who_have_left_are_in_no_checkpoint() -> None:
    shown, clicked = churn(6_000, pause_ms=1_000, live=5)
    reader = Reader(pipeline(), [shown, clicked])
    users, saved = [], []
    for _ in range(20):
        reader.step(0, 300)
        reader.step(1, 300)
        reader.pop(1 << 30)
        users.append(reader.partition.joiner.behaviors.users)
        saved.append(len(reader.partition.state().tables["history.ad"]))
    assert users == saved
    # At most an impression a second has a click that somebody may still see.
    assert max(users) <= (WITHIN_MS + AHEAD_MS) / 1_000 + 2
    assert reader.partition.joiner.behaviors.expired > 1_000


def write(folder: Path, partitions: int) -> None:
    for number in range(partitions):
        logs = churn(3_000, pause_ms=10, live=300, seed=number)
        for topic, log in zip(("shown", "clicks"), logs, strict=True):
            (folder / topic).mkdir(exist_ok=True, parents=True)
            lines = [json.dumps({**row, "user": row["user"] * partitions + number}) for row in log]
            (folder / topic / f"{number}.jsonl").write_text("\n".join(lines) + "\n")


def read(folder: Path, world: int, *, restart: bool = False) -> tuple[list[Any], int]:
    """Examples in the global sequence, and histories that were evicted."""

    def open_ranks(state: SourceState | None) -> list[ExampleSource]:
        return [
            ExampleSource(
                pipeline("64KiB"),
                f"file:{folder}",
                ReadOptions(until_end=True),
                rank=rank,
                world=world,
                dead_letters=DeadLetters(None),
                state=state,
            )
            for rank in range(world)
        ]

    sources, evicted = open_ranks(None), 0
    rows: list[Any] = []
    while not all(source.ended for source in sources):
        for source in sources:
            source.poll(0.01)
            examples = source.pop(len(source.orders(1 << 20)[0]))
            past = examples.columns[ROOT].to_pylist()
            rows += zip(examples.order.tolist(), examples.instance.tolist(), past, strict=True)
        if restart and len(rows) > 2_000:
            restart = False
            evicted += sum(source.stats.history_evicted for source in sources)
            state = SourceState.merge(source.snapshot() for source in sources)
            for source in sources:
                source.close()
            sources = open_ranks(SourceState.from_parts(state.parts()))
    evicted += sum(source.stats.history_evicted for source in sources)
    for source in sources:
        source.close()
    return sorted(rows), evicted


@pytest.mark.parametrize(("world", "restart"), [(2, False), (4, True), (1, True)])
def test_a_budget_forgets_the_same_users_on_any_number_of_ranks(
    tmp_path: Path, world: int, restart: bool
) -> None:
    write(tmp_path, 4)
    rows, evicted = read(tmp_path, 1)
    assert len(rows) == 12_000 and evicted > 100
    assert read(tmp_path, world, restart=restart) == (rows, evicted)
