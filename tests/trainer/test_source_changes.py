"""State of a source that is saved as changes: any chain of files restores it, and each holds what is new."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from livectr.ingest.join.histories import BehaviorHistories, as_table
from livectr.ingest.join.state import Changes, SourceState
from livectr.kernels.stream.history import Histories, HistoryTable
from livectr.kernels.stream.join import ENTRY_BYTES, JoinIndex
from livectr.kernels.stream.known import Places
from livectr.trainer.checkpoint import changes
from livectr.trainer.checkpoint.changes import HistoryChain, KnownLog
from livectr.trainer.checkpoint.checkpoint import Checkpointer
from livectr.trainer.checkpoint.content import CheckpointState
from livectr.trainer.comm.control import Control
from tests.tiers import examples
from tests.trainer.log_files import Files

WINDOW, DEDUP = 20, 30
Chunk = list[tuple[int, int, int]]
CHUNKS = st.lists(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 30), st.integers(0, 12)), max_size=25),
    min_size=1,
    max_size=14,
)


class Joiner:
    """Joiner without histories."""

    def __init__(self, index: JoinIndex) -> None:
        self.index, self.behaviors = index, BehaviorHistories(())


def changes_of(joins: Mapping[int, JoinIndex]) -> Changes:
    return Changes({p: Joiner(join) for p, join in joins.items()})


def feed(joins: Mapping[int, JoinIndex], chunk: Chunk, now: int) -> int:
    """Push (kind, key, milliseconds since the event before) into the join of the key's partition."""
    for kind, key, after in chunk:
        now += after
        join = list(joins.values())[key % len(joins)]
        join.push(np.array([kind], np.uint8), np.array([key]), np.array([now]), np.array([now]))
        join.release(now)
    return now


def new_joins(room: int, wait: int | None) -> dict[int, JoinIndex]:
    return {p: JoinIndex(WINDOW, DEDUP, wait_ms=wait, max_bytes=room) for p in range(2)}


def equal(a: Mapping[str, npt.NDArray[Any]], b: Mapping[str, npt.NDArray[Any]]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


@examples(150)
@given(
    chunks=CHUNKS,
    room=st.sampled_from([1 << 20, 40 * ENTRY_BYTES]),
    wait=st.sampled_from([None, 5]),
    restarts=st.sets(st.integers(0, 13)),
)
def test_any_chain_of_parts_restores_the_keys(
    chunks: list[Chunk], room: int, wait: int | None, restarts: set[int]
) -> None:
    """With late clicks, keys that are forgotten by time and for lack of room, and restarts between."""
    joins, log, now = new_joins(room, wait), KnownLog(), 1000
    files = Files()
    for number, chunk in enumerate(chunks):
        now = feed(joins, chunk, now)
        named = log.write(changes_of(joins), files.write)
        parts = [files.read(entry) for entry in named]
        again = new_joins(room, wait)
        state = SourceState.from_parts({"partitions.json": b'{"0": {}, "1": {}}'}, parts)
        for p, join in again.items():
            join.restore(joins[p].export(), state.partitions[p].known)
            assert equal(join.export(), joins[p].export())
            assert equal(join.known(), joins[p].known())
            assert join.counts.bytes == joins[p].counts.bytes
        if number in restarts:
            joins, log = again, KnownLog()


def test_a_part_holds_what_is_new_and_old_parts_are_let_go() -> None:
    joins = {0: JoinIndex(WINDOW, 100_000)}
    log, files, now = KnownLog(), Files(), 0
    sizes, parts = [], []
    for start in range(0, 400_000, 1000):
        time = np.arange(now, now + 1000)
        joins[0].push(np.zeros(1000, np.uint8), np.arange(start, start + 1000), time, time)
        now += 1000
        joins[0].release(now)
        named = log.write(changes_of(joins), files.write)
        sizes.append(sum(len(v) for n, v in files.read(named[-1]).items() if n.endswith("/key")))
        parts.append(len(named))
    kept = len(joins[0].known()["key"])
    assert kept == pytest.approx(100_000, abs=2000)
    written = sum(sizes)
    assert written < 400_000 * 12  # each key about log₂ of the number of parts; whole: 30 million
    assert max(parts) <= 20
    assert sum(entry.rows for entry in named) <= 2.2 * kept


def test_a_late_click_is_written_although_its_key_was() -> None:
    joins = {0: JoinIndex(WINDOW, 1000)}
    log, files = KnownLog(), Files()
    feed(joins, [(0, 1, 0), (0, 2, 50)], 0)
    assert len(log.write(changes_of(joins), files.write)) == 1
    feed(joins, [(1, 1, 30)], 50)  # too late for its impression: the next one is a duplicate
    named = log.write(changes_of(joins), files.write)
    again = JoinIndex(WINDOW, 1000)
    state = SourceState.from_parts({"partitions.json": b'{"0": {}}'}, [files.read(entry) for entry in named])
    again.restore(joins[0].export(), state.partitions[0].known)
    assert again.known()["clicked"].tolist() == joins[0].known()["clicked"].tolist() == [2, 0]


def test_nothing_new_writes_nothing() -> None:
    joins, log, files = {0: JoinIndex(WINDOW, 1000)}, KnownLog(), Files()
    assert log.write(changes_of(joins), files.write) == []
    feed(joins, [(0, 1, 0), (0, 2, 50)], 0)
    first = log.write(changes_of(joins), files.write)
    assert log.write(changes_of(joins), files.write) == first and len(files.held) == 1


def test_a_full_part_is_not_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "PART_ROWS", 4)
    joins, log, files, now = {0: JoinIndex(0, 10**6)}, KnownLog(), Files(), 0
    for key in range(32):
        now = feed(joins, [(0, key, 1)], now)
        named = log.write(changes_of(joins), files.write)
    assert max(entry.rows for entry in named) == 4 and len(named) >= 8


def test_a_checkpoint_names_the_parts_of_earlier_generations(tmp_path: Path) -> None:
    joins = {3: JoinIndex(WINDOW, 10**6)}
    checkpoint = Checkpointer(tmp_path, Control(), {})
    now = 0
    for generation in range(1, 8):
        count = 2 ** (8 - generation)  # fewer each time, so that no part is written again
        now = feed(joins, [(0, 1000 * generation + key, 1) for key in range(count)], now)
        manifest = checkpoint.commit(content(joins))
    known = [entry for entry in manifest.files if entry.kind == "known"]
    assert len(known) > 3 and len({entry.path for entry in known}) == len(known)
    assert all((tmp_path / entry.path).exists() for entry in known)
    checkpoint.close()
    restored = Checkpointer(tmp_path, Control(), {}).restore()
    assert restored is not None
    again = JoinIndex(WINDOW, 10**6)
    again.restore(joins[3].export(), restored.source().partitions[3].known)
    assert equal(again.known(), joins[3].known())


def content(joins: Mapping[int, JoinIndex]) -> CheckpointState:
    return CheckpointState(
        step=1,
        examples=1,
        predictions=0,
        cursor=None,
        tables={},
        marks={},
        dense={},
        source={"partitions.json": b'{"3": {}}'},
        changes=changes_of(joins),
        statistics={},
    )


class Clicks:
    """Behaviors of one history, and a join without keys."""

    index = None

    def __init__(self, table: HistoryTable) -> None:
        self.table = table

    @property
    def behaviors(self) -> Any:
        return self

    def changes(self, since: int) -> dict[str, Histories]:
        return {"ad": self.table.export(since)}


@examples(100)
@given(
    chunks=st.lists(
        st.lists(st.tuples(st.integers(0, 9), st.integers(0, 30)), max_size=20), min_size=1, max_size=12
    ),
    restarts=st.sets(st.integers(0, 11)),
    renewed=st.sets(st.integers(0, 11)),
)
def test_any_chain_of_changes_restores_the_histories(
    chunks: list[list[tuple[int, int]]], restarts: set[int], renewed: set[int]
) -> None:
    """Users click, expire, and come back; lists of expired users are forgotten with each file."""
    horizon_ms, now, files = 100, 0, Files()
    table, chain = HistoryTable(3, horizon_ms=horizon_ms), HistoryChain()
    table.track()
    for number, chunk in enumerate(chunks):
        for user, after in chunk:
            now += after
            one = np.array([user]), np.array([now % 7]), np.array([now])
            table.push(np.array([1], np.uint8), *one, [], mark=np.array([now]))
        mark = table.mark()
        if number in renewed:
            chain.begin_again()
        source = Changes({0: Clicks(table)})
        named = [files.read(entry) for entry in chain.write(source, mark, files.write)]
        table.forget_left(mark)
        state = SourceState.from_parts({"partitions.json": b'{"0": {}}'}, histories=named)
        saved = state.partitions[0].tables.get("history.ad", as_table(table.export()).slice(0, 0))
        assert saved.equals(as_table(table.export()))
        if number in restarts:
            again, chain = HistoryTable(3, horizon_ms=horizon_ms), HistoryChain()
            again.assign(table.export())
            again.track()
            table = again


def test_histories_that_did_not_change_are_not_written() -> None:
    table, chain, files = HistoryTable(3), HistoryChain(), Files()
    table.track()
    users = np.arange(1000)
    table.push(np.ones(1000, np.uint8), users, users, users, [])
    source = Changes({0: Clicks(table)})
    chain.write(source, table.mark(), files.write)
    assert chain.write(source, table.mark(), files.write)[0].rows == 1000 and len(files.held) == 1
    for _ in range(10):
        table.push(np.ones(5, np.uint8), users[:5], users[:5], users[:5] + 2000, [])
        named = chain.write(source, table.mark(), files.write)
        assert named[-1].rows == 5
    assert len(named) == 11


def test_places_of_a_new_join_are_at_its_start() -> None:
    assert JoinIndex(WINDOW, DEDUP).places == Places()
