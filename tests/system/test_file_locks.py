"""Locks of folders: a process that only looks must not keep a trainer, a run or a rollout from starting."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from livectr.rollout.record import RolloutFolder
from livectr.system import file_locks
from livectr.system.errors import InUseError
from livectr.trainer.checkpoint.folder import lock
from livectr.up.folder import RunFolder


@pytest.mark.parametrize("name", ["LOCK", "lock", "rollout.lock"])
def test_who_looks_is_waited_for(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / name).touch()
    looker = (tmp_path / name).open("rb")
    fcntl.flock(looker, fcntl.LOCK_SH)
    monkeypatch.setattr("time.sleep", lambda seconds: looker.close())  # it has seen enough
    if name == "LOCK":
        lock(tmp_path).close()
    else:
        folder = RunFolder(tmp_path) if name == "lock" else RolloutFolder(tmp_path)
        with folder.owned():
            assert folder.running
        assert not folder.running
    assert looker.closed


def test_who_holds_is_named(tmp_path: Path) -> None:
    with lock(tmp_path), pytest.raises(InUseError, match="another trainer"):
        lock(tmp_path)
    assert not file_locks.is_held(tmp_path / "LOCK") and not file_locks.is_held(tmp_path / "none")
