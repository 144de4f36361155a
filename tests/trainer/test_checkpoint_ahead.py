"""Rows of a checkpoint are copied at boundaries before its own: training does not wait for all."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from livectr.kernels.table.table import DynamicTable
from livectr.trainer.checkpoint import table_chain
from livectr.trainer.commit_state import CommitState
from livectr.trainer.commits import Committer
from livectr.trainer.publish.boundary import Boundary, Left
from livectr.trainer.schedule import Due, Schedule
from tests.tiers import examples
from tests.trainer.checkpoint_run import Run, content, reopen, restored_tables
from tests.waiting import until

CHUNK = 7


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk of rows at a boundary, from 100 rows on."""
    for name, value in {"CHUNK": CHUNK, "AHEAD_S": 0.0, "AHEAD_ROWS": 100}.items():
        monkeypatch.setattr(table_chain, name, value, raising=False)


@examples(15)
@given(
    plan=st.lists(
        st.tuples(st.integers(1, 60), st.integers(0, 30), st.booleans(), st.sampled_from(["", "", "resume"])),
        min_size=1,
        max_size=10,
    ),
    sweep=st.sampled_from([1, 3, 64]),
    part=st.sampled_from([200, 1 << 25]),
)
def test_a_generation_holds_the_state_of_its_boundary(
    tmp_path_factory: pytest.TempPathFactory,
    plan: list[tuple[int, int, bool, str]],
    sweep: int,
    part: int,
) -> None:
    """Rows may change, leave, and come again at other places while they are copied."""
    run = Run(tmp_path_factory.mktemp("ahead"))
    run.train()
    run.commit()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"CHUNK": CHUNK, "AHEAD_S": 0.0, "SWEEP": sweep, "PART_BYTES": part}.items():
            patch.setattr(table_chain, name, value)
        for keys, chunks, erases, then in plan:
            run.train(keys)
            _erase(run, erases, 3)
            run.checkpoint.ahead({name: table.mark() for name, table in run.tables.items()})
            for _ in range(chunks):
                run.train(2)
                _erase(run, erases, 40)
                run.checkpoint.ahead()
            began = content(run.tables)
            run.checkpoint.begin(run.state())
            run.train(keys)
            run.checkpoint.finish()
            if then:
                restored = reopen(run)
                assert restored is not None
                run.tables = restored_tables(restored)
                assert content(run.tables) == began
                run.checkpoint.resume(run.tables, {name: table.mark() for name, table in run.tables.items()})
                run.train(1)
                began = content(run.tables)
                run.commit()
    restored = reopen(run)
    assert restored is not None and content(restored_tables(restored)) == began
    run.checkpoint.close()


def _erase(run: Run, erases: bool, step: int) -> None:
    for table in run.tables.values() if erases else ():
        table.erase(table.export()[0][::step])


def test_training_waits_for_what_changed_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path / "checkpoint")
    schedule = Schedule(publish_interval_s=1e-6, checkpoint_interval_s=0.0)
    commits = Committer(
        SimpleNamespace(rank=0),  # type: ignore[arg-type]
        run.checkpoint,
        None,
        Boundary({name: 0 for name in run.tables}, 0, 0),
        schedule,
    )
    read, copied = DynamicTable.read, [0]

    def counted(table: DynamicTable, rows: np.ndarray, *, state: bool = True) -> object:
        copied[0] += len(rows)
        return read(table, rows, state=state)

    monkeypatch.setattr(DynamicTable, "read", counted)

    def commit(due: Due) -> int:
        checkpoint = run.state()
        boundary = Boundary(dict(checkpoint.marks), 0, 0)
        given: dict[str, Any] = dict(boundary=boundary, tables=run.tables, began_s=time.monotonic())
        content = checkpoint if due is Due.ALL else None
        copied[0] = 0
        state = CommitState(run.step, 10, checkpoint=content, snapshots=None, left=Left(), **given)
        commits.commit(replace(state, ahead=due is Due.AHEAD))
        return copied[0]

    def settle() -> None:
        until(lambda: commits.written)
        assert commits.complete_checkpoint([True])
        schedule._next_checkpoint = schedule._next_commit = 0.0

    run.train(200)
    assert commit(commits.due) > 0, "the first holds all rows"
    settle()
    run.train(200)
    commits.changed()
    steps, most = 0, 0
    while not commits._checkpoint.busy:  # type: ignore[union-attr]
        due = commits.due
        most = max(most, commit(due))
        schedule._next_commit = 0.0
        assert commits.begins(Due.ALL) or due is Due.ALL, (
            "a checkpoint that is copied ahead comes, whatever the log does"
        )
        commits.copy()
        run.train(2 if steps % 4 == 0 else 0)
        steps += 1
    assert most < 60 and steps > 10, (most, steps)
    settle()
    restored = reopen(run)
    assert restored is not None
    run.checkpoint.close()
