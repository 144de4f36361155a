"""Temporary folders: removed at the end, and those of a killed process when the next one is made."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from livectr.system.scratch import remove_scratch, scratch, scratch_folder
from livectr.trainer.checkpoint.stored import Stored

MAKE = """
import os, sys
from livectr.system.scratch import scratch_folder
print(scratch_folder("test"), flush=True)
if "fork" in sys.argv and os.fork():
    os._exit(0)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make this test's folder that of temporary files, for processes, too."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def owner(*words: str) -> tuple[subprocess.Popen[str], Path]:
    """A process with a folder, which lives until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", MAKE, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    folder = Path(process.stdout.readline().strip())
    (folder / "file").touch()
    return process, folder


def test_a_folder_goes_with_its_block_and_with_its_process(temporary: Path) -> None:
    with scratch("test") as folder:
        (folder / "file").touch()
        assert folder.parent == temporary and folder.name.startswith("livectr-test-")
    process, other = owner()
    assert not folder.exists() and other.exists()
    process.communicate()
    assert process.returncode == 0 and not other.exists()


def test_the_folder_of_a_killed_process_goes_with_the_next(temporary: Path) -> None:
    (temporary / "livectr-of-somebody").mkdir()
    (temporary / "livectr-file").touch()
    living, used = owner()
    killed, abandoned = owner()
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert abandoned.exists()
    with scratch("test") as folder:
        assert not abandoned.exists()
        left = {path.name for path in temporary.iterdir()}
        assert left == {"livectr-of-somebody", "livectr-file", used.name, folder.name}
    living.communicate()


def test_a_fork_keeps_the_folder_and_does_not_remove_it(temporary: Path) -> None:
    process, folder = owner("fork")
    assert process.wait() == 0
    remove_scratch(scratch_folder("test"))
    assert folder.exists()
    assert process.stdin is not None and process.stdout is not None
    process.stdin.close()
    process.stdout.read()
    assert folder.exists(), "the fork is not its owner"
    remove_scratch(scratch_folder("test"))
    assert [*temporary.iterdir()] == []


def test_downloads_of_a_checkpoint_go_with_their_reader(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Stored, "reach", lambda self: None)
    stored = Stored.temporary("s3://bucket/prefix")
    root = stored.root
    assert root.exists() and root.stat().st_uid == os.getuid()
    del stored
    assert not root.exists()
