"""A checkpoint is written while training continues, and holds nothing of what is learned meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from livectr.system.errors import DiskFullError
from livectr.trainer.checkpoint import table_chain, writer
from livectr.trainer.checkpoint.manifest import MANIFEST, Manifest, newest_manifest
from livectr.trainer.checkpoint.restored import Restored
from livectr.trainer.commit_state import CommitState
from livectr.trainer.commits import Committer
from livectr.trainer.publish.boundary import Boundary, Left
from livectr.trainer.schedule import Due, Schedule
from tests.tiers import examples, few
from tests.trainer.checkpoint_run import Run, content, reopen, restored_tables
from tests.waiting import left_s, until

Content = dict[str, tuple[bytes, bytes]]
Write = Callable[[Path, bytes], None]


class Disk:
    """Disk that writes nothing until it is let go."""

    def __init__(self, write: Write) -> None:
        self.free = threading.Event()
        self._write = write

    def __call__(self, path: Path, data: bytes) -> None:
        assert self.free.wait(left_s())
        self._write(path, data)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    made = Disk(writer.write_synced)
    monkeypatch.setattr(writer, "write_synced", made)
    return made


@examples(20)
@given(
    plan=st.lists(
        st.tuples(st.integers(1, 60), st.booleans(), st.sampled_from(["", "", "restart", "continue"])),
        min_size=1,
        max_size=12,
    ),
    sweep=st.sampled_from([1, 3, 64]),
)
def test_a_generation_holds_the_state_at_which_it_began(
    tmp_path_factory: pytest.TempPathFactory, plan: list[tuple[int, bool, str]], sweep: int
) -> None:
    run = Run(tmp_path_factory.mktemp("background"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_chain, "SWEEP", sweep)
        began = _play(run, plan)
    restored = reopen(run)
    assert restored is not None and content(restored_tables(restored)) == began
    run.checkpoint.close()


def _play(run: Run, plan: list[tuple[int, bool, str]]) -> Content:
    """The tables at the last checkpoint."""
    began: Content = {}
    for keys, erases, then in plan:
        run.train(keys)
        began = content(run.tables)
        run.checkpoint.begin(run.state())
        run.train(keys)
        if erases:
            for table in run.tables.values():
                table.erase(table.export()[0][::3])
        run.checkpoint.finish()
        if then:
            restored = reopen(run)
            assert restored is not None
            run.tables = restored_tables(restored)
            assert content(run.tables) == began
        if then == "continue":
            run.checkpoint.resume(run.tables, {name: table.mark() for name, table in run.tables.items()})
    return began


@pytest.mark.parametrize("changed", few([1, 5, 60], 60))
def test_old_files_go_once_a_sweep_has_gone_around(tmp_path: Path, changed: int) -> None:
    """No checkpoint writes much more than twice what changed, and none is torn by a file that went."""
    run = Run(tmp_path / "checkpoint")
    for _ in range(40):
        run.train()
    whole = sum(f.rows for f in run.commit().files if f.kind == "tables")
    oldest, most = set(), 0
    for _ in range(200):
        run.train(changed)
        manifest = run.commit()
        files = [f for f in manifest.files if f.kind == "tables"]
        oldest.add(files[0].path)
        most = max(most, sum(f.rows for f in files))
        least = 2 * -(-200 // table_chain.SWEEP)  # of two tables
        assert files[-1].rows <= 2 * changed + max(2 * changed, least)
    assert len(oldest) > 100 and most <= 3 * whole + 4 * changed
    named = {
        f.path for m in run.root.glob(f"gen-*/{MANIFEST}") for f in Manifest.from_json(m.read_bytes()).files
    }
    on_disk = {str(p.relative_to(run.root)) for p in run.root.glob("gen-*/rank-*/*")}
    assert on_disk == named
    assert len(list(run.root.glob(f"gen-*/{MANIFEST}"))) == 2
    restored = reopen(run)
    assert restored is not None and content(restored_tables(restored)) == content(run.tables)
    run.checkpoint.close()


def test_a_restart_names_the_files_of_the_process_before_until_a_sweep_has_gone_around(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first checkpoint holds few rows: training does not wait until a whole table is copied."""
    monkeypatch.setattr(table_chain, "SWEEP", 10)
    run = Run(tmp_path / "checkpoint")
    for _ in range(40):
        run.train()
    before = {file.path for file in run.commit().files if file.kind == "tables"}
    restored = reopen(run)
    assert restored is not None
    run.tables = restored_tables(restored)
    run.checkpoint.resume(run.tables, {name: table.mark() for name, table in run.tables.items()})
    named = []
    for _ in range(12):
        run.train(1)
        files = [file for file in run.commit().files if file.kind == "tables"]
        assert files[-1].rows <= 2 * (1 + 20)
        named.append(before <= {file.path for file in files})
        again = Restored(run.root, newest_manifest(run.root))  # type: ignore[arg-type]
        assert content(restored_tables(again)) == content(run.tables)
    assert named[:9] == [True] * 9 and not named[-1]
    run.checkpoint.close()


def test_tables_with_other_rows_than_the_checkpoint_are_written_whole(tmp_path: Path) -> None:
    run = Run(tmp_path / "checkpoint")
    run.train()
    run.commit()
    restored = reopen(run)
    assert restored is not None
    run.tables = restored_tables(restored)
    run.tables["ad"].erase(run.tables["ad"].export()[0][:1])
    run.checkpoint.resume(run.tables, {name: table.mark() for name, table in run.tables.items()})
    run.commit()
    restored = reopen(run)
    assert restored is not None and content(restored_tables(restored)) == content(run.tables)
    run.checkpoint.close()


def test_training_does_not_wait_for_the_disk(tmp_path: Path, disk: Disk) -> None:
    """Meanwhile commits publish only; the next checkpoint is due once this one exists."""
    run = Run(tmp_path / "checkpoint")
    run.train()
    first = Boundary({name: 0 for name in run.tables}, 0, 0)
    commits = Committer(
        SimpleNamespace(rank=0),  # type: ignore[arg-type]
        run.checkpoint,
        None,
        first,
        Schedule(publish_interval_s=1e-6, checkpoint_interval_s=0.0),
    )
    due = commits.due
    assert due is Due.ALL

    def commit() -> None:
        checkpoint = run.state()
        boundary = Boundary(dict(checkpoint.marks), 0, 0)
        given: dict[str, Any] = dict(boundary=boundary, tables=run.tables, began_s=time.monotonic())
        left = Left()
        state = CommitState(run.step, 10, checkpoint=checkpoint, snapshots=None, left=left, **given)
        assert not commits.commit(state)

    commit()
    assert not commits.written and commits.due is Due.PUBLISH
    assert not commits.complete_checkpoint([commits.written])
    assert not list(run.root.glob("gen-*/MANIFEST.json"))
    run.train()
    disk.free.set()
    until(lambda: commits.written)
    assert not commits.complete_checkpoint([True, False]), "another rank is not done"
    assert commits.complete_checkpoint([True]) and not commits.written
    assert len(list(run.root.glob("gen-*/MANIFEST.json"))) == 1
    run.checkpoint.close()


def test_what_waits_for_the_disk_is_bounded(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables may be larger than memory: handing over more waits."""
    monkeypatch.setattr(writer, "WAITING_BYTES", 100)
    made = writer.Writer(tmp_path)
    made.file(tmp_path / "first", "dense", b"x" * 101)
    handed = threading.Event()

    def hand() -> None:
        made.file(tmp_path / "second", "dense", b"y")
        handed.set()

    thread = threading.Thread(target=hand)
    thread.start()
    assert not handed.wait(0.2)
    disk.free.set()
    assert handed.wait(left_s())
    thread.join()
    made.wait()
    made.close()
    assert (tmp_path / "second").read_bytes() == b"y"


def test_a_generation_that_is_not_finished_takes_no_space(tmp_path: Path) -> None:
    """The run may end for another reason meanwhile."""
    run = Run(tmp_path / "checkpoint")
    run.train()
    run.commit()
    run.train()
    run.checkpoint.begin(run.state())
    run.checkpoint.close()
    assert [path.parent.name for path in run.root.glob("gen-*/rank-0")] == ["gen-00000001"]


def test_a_full_disk_is_an_error_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is found while training continues, and takes this rank's files with it."""
    run = Run(tmp_path / "checkpoint")
    run.train()
    run.commit()
    whole = sorted(run.root.rglob("*"))

    def full(path: Path, data: bytes) -> None:
        path.write_bytes(data[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writer, "write_synced", full)
    run.train()
    run.checkpoint.begin(run.state())
    with pytest.raises(DiskFullError, match="no space is left for the checkpoint"):
        until(lambda: run.checkpoint.written)
    assert [path for path in sorted(run.root.rglob("*")) if path.parent.name == "rank-0"] == [
        path for path in whole if path.parent.name == "rank-0"
    ]
    run.checkpoint.close()
