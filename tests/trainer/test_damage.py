"""Damaged checkpoints are refused; a full disk is a sentence; counts survive a kill -9."""

from __future__ import annotations

import contextlib
import json
import logging
import resource
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import redis

from livectr.cli import main
from livectr.ingest.content.files import KINDS
from livectr.ingest.content.store import ContentStore
from livectr.system.errors import CheckpointError, ConfigError, DiskFullError
from livectr.trainer.checkpoint.manifest import newest_manifest
from livectr.trainer.options import TrainOptions
from livectr.trainer.quality.predictions import read_predictions
from livectr.trainer.run import train
from tests.redis_values import manifest_in
from tests.trainer.ad_logs import ad_pipeline, write_files
from tests.trainer.kills import kill_group
from tests.trainer.processes import finish, start
from tests.waiting import left_s, until

IMPRESSIONS = 2_000
BAD = 7
OPTIONS = dict(batch_size=64, batch_ramp=0, publish_interval_s=0.1, threads=1, until_end=True)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A log with bad records in its middle."""
    url = write_files(tmp_path_factory.mktemp("logs"), IMPRESSIONS)
    for number in range(BAD):
        files = sorted(Path(url.removeprefix("file:"), "impressions").glob("*"))
        file = files[number % len(files)]
        lines = file.read_bytes().splitlines(keepends=True)
        lines.insert(len(lines) * (number + 1) // (BAD + 1), b'{"torn": \n')
        file.write_bytes(b"".join(lines))
    return url


def go(source: str, root: Path, steps: int | None = None) -> None:
    letters = str(root.with_name("letters"))
    options = OPTIONS | {"checkpoint": str(root), "max_steps": steps, "dead_letters": letters}
    options["publish_interval_s"] = 1000.0  # commits at the start and at the end alone
    train(ad_pipeline(), TrainOptions(source, **options))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory, source: str) -> bytes:
    root = tmp_path_factory.mktemp("unbroken") / "checkpoint"
    go(source, root)
    return read_predictions(root / "predictions").tobytes()


def flip(path: Path, at: int) -> None:
    """Flip a bit of a file's byte."""
    held = bytearray(path.read_bytes())
    held[at] ^= 4
    path.write_bytes(held)


def test_a_flipped_bit_of_the_prediction_log(
    tmp_path: Path, source: str, unbroken: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "checkpoint"
    log = root / "predictions"
    go(source, root, 10)
    before = log.stat().st_size
    go(source, root, 20)
    early = shutil.copytree(root, tmp_path / "early")
    # Among the newest generation's own records: the one before is whole.
    flip(log, log.stat().st_size - 50)
    with caplog.at_level(logging.INFO):
        go(source, root)
    assert "predictions is not what was written" in caplog.text and "resumed after step 1" in caplog.text
    assert read_predictions(log).tobytes() == unbroken
    # Among records of all generations: nothing is whole, and the message says what to do.
    flip(early / "predictions", before - 50)
    with pytest.raises(CheckpointError, match="move it away to continue without what it holds"):
        go(source, early)
    (early / "predictions").unlink()
    caplog.clear()
    go(source, early)
    assert "records where the checkpoint counts" in caplog.text


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_of_a_content_store(tmp_path: Path, kind: str) -> None:
    ids = np.arange(40)
    store = ContentStore.create(tmp_path / "store", width=8, encoder="e", shards=2)
    store.append(ids, np.random.default_rng(1).normal(size=(40, 8)).astype(np.float16))
    ContentStore.open(store.root).verify()
    (path, *_) = sorted(store.root.glob(f"shard-*/*.{kind}.npy"))
    flip(path, path.stat().st_size - 3)
    with pytest.raises(ConfigError, match=rf"{path.name} is not what was written; delete .*000001\.\*"):
        ContentStore.open(store.root).verify()
    with pytest.raises(ConfigError, match="is not what was written"):  # nor is it merged into another chunk
        for _ in range(4):
            store.append(ids, np.zeros((40, 8), np.float16))


@contextmanager
def room(size: int) -> Iterator[None]:
    """Files of this process may have so many bytes: the system then answers as for a full disk.

    Modules that are imported meanwhile keep no bytecode: CPython would cut it, and every later import fail.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "dont_write_bytecode", True)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_run_that_finds_the_disk_full_resumes_once_there_is_space(
    tmp_path: Path, source: str, unbroken: bytes
) -> None:
    root = tmp_path / "checkpoint"
    with room(6_000), pytest.raises(DiskFullError, match="no space is left for the checkpoint"):
        go(source, root, 1)
    go(source, root, 5)
    with room(18_000), pytest.raises(DiskFullError, match="no space is left for"):
        go(source, root)
    alone = TrainOptions(
        source, until_end=True, batch_size=64, batch_ramp=0, predictions=str(tmp_path / "predictions")
    )
    with room(10_000), pytest.raises(DiskFullError, match="no space is left for the prediction log"):
        train(ad_pipeline(), alone)
    newest = newest_manifest(root)
    assert newest is not None
    folders = sorted(path.name for path in root.glob("gen-*/rank-0"))
    assert len(folders) <= 2, "no part of a generation takes up space"
    go(source, root)
    assert read_predictions(root / "predictions").tobytes() == unbroken


def test_a_full_disk_is_a_sentence(tmp_path: Path, source: str, capsys: pytest.CaptureFixture[str]) -> None:
    """By the command line, wherever something is written."""
    (tmp_path / "pipeline.py").write_text(
        "from tests.trainer.ad_logs import ad_pipeline\n\npipeline = ad_pipeline()\n"
    )
    (tmp_path / "rows.jsonl").write_text('{"a": 1, "text": "long enough to fill what there is"}\n' * 3000)
    train_ = ["train", "--pipeline", str(tmp_path / "pipeline.py"), "--source", source, "--until-end"]
    train_ += ["--set", f"dead_letters={tmp_path / 'letters'}", "threads=1"]
    logs = f"file:{tmp_path / 'written'}"
    replay = ["logs", "replay", str(tmp_path / "rows.jsonl"), "--format", "jsonl", "--to", logs]
    for words, size in (
        ([*train_, "--report", "/dev/full"], 1 << 30),
        ([*train_, "--checkpoint", str(tmp_path / "c")], 20_000),
        (["logs", "simulate", "--to", logs, "--fast", "--seconds", "5"], 20_000),
        (["logs", "simulate", "--to", logs, "--fast", "--seconds", "5", "--ledger", "/dev/full"], 1 << 30),
        (replay, 20_000),
    ):
        with room(size):
            assert main(words) == 2, words
        said = capsys.readouterr().err.strip().splitlines()[-1]
        assert said.startswith("livectr: no space is left") and "free" in said, said


def test_a_content_store_on_a_full_disk(tmp_path: Path) -> None:
    store = ContentStore.create(tmp_path / "store", width=512, encoder="e", shards=1)
    rows = np.ones((50, 512), np.float16)
    with room(20_000), pytest.raises(ConfigError, match=r"cannot be written .*; free space there"):
        store.append(np.arange(50), rows)
    assert not list(store.root.glob("shard-*/.*")), "what was begun takes up no space"
    assert store.append(np.arange(50), rows) == 50
    ContentStore.open(store.root).verify()


def kill_after(step: int, options: dict[str, object]) -> None:
    """Start a trainer and kill -9 it once a checkpoint of this step or a later one is there.

    A trainer that is too fast for the kill stops by itself after some steps more.
    """
    root = Path(str(options["checkpoint"]))
    process = start(1, {**options, "max_steps": step + 20})

    def committed() -> bool:
        newest = newest_manifest(root) if root.exists() else None
        return newest is not None and newest.step >= step

    until(committed, turn=lambda: time.sleep(0.003))
    with contextlib.suppress(ProcessLookupError):
        kill_group(process.pid)
    process.communicate(timeout=left_s())
    assert process.returncode in (-signal.SIGKILL, 0)


def test_counts_survive_a_kill(tmp_path: Path, source: str, redis_url: str) -> None:
    """The report of a run that was killed again and again counts what that of an unbroken run counts."""
    reports = []
    client = redis.Redis.from_url(redis_url)
    for name, kills in (("unbroken", ()), ("killed", (12, 40))):
        root = tmp_path / name / "checkpoint"
        space = f"counts-{name}"
        options = {**OPTIONS, "source": source, "checkpoint": str(root), "publish": redis_url}
        options |= {"namespace": space, "report": str(tmp_path / name / "report.json")}
        options |= {"dead_letters": str(tmp_path / name / "letters")}
        options |= {
            "batch_size": 16,
            "batch_ramp": 0,
            "checkpoint_interval_s": 0.0,
        }  # so that steps are many, commits often
        for step in kills:
            kill_after(step, options)
            newest = newest_manifest(root)
            # Between them a process has learned something: one that counts itself alone counts wrong.
            assert newest is not None and step <= newest.step < IMPRESSIONS // 16
        finish(start(1, options))
        report = json.loads((tmp_path / name / "report.json").read_text())
        version = manifest_in(client, space).version
        # A version that was flipped after the last checkpoint of a killed process may be missing.
        assert 0 < report["published_versions"] <= version
        assert kills or report["published_versions"] == version
        reports.append(report)
    whole, killed = reports
    for count in ("examples_trained", "steps", "events", "dead_letters", "field_keys", "table_rows"):
        assert killed[count] == whole[count], count
    assert whole["dead_letters"] == BAD
    of_stream = ("events", "duplicates", "late_clicks", "unmatched_clicks", "late_positives", "pending")
    for count in (*of_stream, "examples", "clicked", "lookups"):
        assert killed["stream"][count] == whole["stream"][count], count
    assert whole["stream"]["examples"] == whole["examples_trained"]
