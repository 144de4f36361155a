"""Readers of a checkpoint whose trainer replaces its generations as fast as it can."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from livectr.system.errors import CheckpointError
from livectr.system.object_store import ObjectStore
from livectr.trainer.checkpoint import lease
from livectr.trainer.checkpoint.checkpoint import Checkpointer
from livectr.trainer.checkpoint.lease import hold, hold_newest, remove_dead
from livectr.trainer.checkpoint.manifest import Folder
from livectr.trainer.checkpoint.stored import Stored
from livectr.trainer.comm.control import Control
from tests.s3_server import BUCKET, S3Server
from tests.trainer.checkpoint_run import IDENTITY, Run, content, restored_tables
from tests.waiting import until

Rows = dict[str, tuple[bytes, bytes]]


class Trainer(threading.Thread):
    """Commits one generation after the other until it is left.

    Args:
        pause_s: between two.

    Attributes:
        rows: generation → content of its tables.
    """

    def __init__(self, run: Run, pause_s: float = 0.0) -> None:
        super().__init__()
        self.run_, self.rows, self._pause_s = run, dict[int, Rows](), pause_s
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(self._pause_s):
            self.run_.train(5)
            rows = content(self.run_.tables)
            self.rows[self.run_.checkpoint._next] = rows  # known before the generation exists
            self.run_.commit()

    def __enter__(self) -> Trainer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()
        self.run_.checkpoint.close()


def no_links(*_: object, **__: object) -> None:
    raise OSError(errno.EXDEV, "no links here")


@pytest.mark.parametrize("links", [True, False])
def test_a_reader_has_one_generation_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    if not links:
        monkeypatch.setattr(os, "link", no_links)
    # Files are opened one by one, and a thread that computes lets this one run now and then only.
    with Trainer(Run(tmp_path), pause_s=0.0 if links else 0.05) as trainer:
        read = list[int]()
        while len(read) < 8:
            held = hold_newest(tmp_path, "")
            if held is None:
                continue  # not even the first exists
            with held:
                generation = held.manifest.generation
                # Until the trainer has removed its own:
                until(lambda: generation not in Folder(tmp_path).generations())  # noqa: B023
                assert content(restored_tables(held.restored)) == trainer.rows[generation]
                assert held.restored.checkpoint == tmp_path
            read.append(generation)
    assert len({*read}) == len(read) and not [*tmp_path.glob(f"{lease.READING}*")]


def test_a_reader_of_an_object_store_has_one_generation_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with S3Server() as server:
        server.use(monkeypatch)
        address = f"s3://{BUCKET}/fast"
        run = Run(tmp_path / "unused")
        run.checkpoint.close()
        stored = Stored(ObjectStore(address), tmp_path / "copy")
        run.checkpoint = Checkpointer(tmp_path / "copy", Control(), IDENTITY, stored=stored)
        with Trainer(run) as trainer:
            read = 0
            while read < 4:
                if (held := hold_newest(address, "")) is not None:
                    with held:
                        rows = content(restored_tables(held.restored))
                        assert rows == trainer.rows[held.manifest.generation]
                    read += 1


@contextmanager
def two_generations(root: Path) -> Iterator[Run]:
    run = Run(root)
    for _ in range(2):
        run.train()
        run.commit()
    yield run
    run.checkpoint.close()


def test_a_file_that_is_lacking_is_no_generation_that_has_gone(tmp_path: Path) -> None:
    with two_generations(tmp_path):
        (tmp_path / "gen-00000002" / "rank-0" / "dense.safetensors").unlink()
        with pytest.raises(CheckpointError, match=r"it lacks .*gen-00000002/rank-0/dense"):
            hold(Folder(tmp_path), 2)
        held = hold_newest(tmp_path, "")
        assert held is not None and held.manifest.generation == 1
        held.close()
        (tmp_path / "gen-00000001" / "rank-0" / "dense.safetensors").write_bytes(b"")
        with pytest.raises(CheckpointError, match=r"every generation is torn \(2, 1: .*; look for a backup"):
            hold_newest(tmp_path, "look for a backup")
        with pytest.raises(FileNotFoundError):
            hold(Folder(tmp_path), 3)


def test_links_of_a_reader_that_was_killed_are_removed(tmp_path: Path) -> None:
    with two_generations(tmp_path) as run:
        held = hold_newest(tmp_path, "")
        assert held is not None
        dead = tmp_path / f"{lease.READING}dead"
        dead.mkdir()
        (dead / "LOCK").touch()
        young = tmp_path / f"{lease.READING}young"
        young.mkdir()
        for folder in (dead, held.restored.root):
            os.utime(folder, (0, 0))
        run.train()
        run.commit()
        left = {path.name for path in tmp_path.glob(f"{lease.READING}*")}
        assert left == {young.name, held.restored.root.name}
        held.close()
        remove_dead(tmp_path)
        assert [path.name for path in tmp_path.glob(f"{lease.READING}*")] == [young.name]
        with (tmp_path / "LOCK").open("ab") as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # readers leave the trainer's alone
