"""A trainer whose dead letters find no broker: it commits, learns on, and a kill loses none of them."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from livectr.local.kafka import Broker
from livectr.trainer.checkpoint.manifest import newest_manifest
from tests.commands import Command, run
from tests.ingest.letter_keys import keys_in
from tests.waiting import until

DEADLINE_S = 120
PIPELINE = """
from livectr.ingest.pipeline import Pipeline
from livectr.ingest.language.streams import Stream, labelled
from livectr.models import LR

shown = Stream("shown", key="user", columns={"user": "int64", "click": "int32"})
log = labelled(shown, label="click")
pipeline = Pipeline(log, sparse={"user": log.user}, rank=LR())
"""
DEEP = b'{"click": 1, "unused": ' + b'{"a":' * 1200 + b"1" + b"}" * 1200 + b"}"


def append(log: Path, first: int, count: int, *more: bytes) -> None:
    lines = [json.dumps({"user": user, "click": user % 2}).encode() for user in range(first, first + count)]
    with log.open("ab") as file:
        file.write(b"\n".join([*more, *lines]) + b"\n")


def committed(checkpoint: Path) -> int:
    """Examples in the newest checkpoint."""
    manifest = newest_manifest(checkpoint)
    return manifest.examples if manifest is not None else 0


@pytest.mark.full
def test_commits_continue_while_letters_wait_and_a_kill_loses_none(tmp_path: Path) -> None:
    pipeline, checkpoint = tmp_path / "pipeline.py", tmp_path / "checkpoint"
    pipeline.write_text(PIPELINE)
    log = tmp_path / "logs" / "shown" / "00000-0.jsonl"
    log.parent.mkdir(parents=True)
    append(log, 0, 100)
    errors = tmp_path / "errors"

    rows = 100

    def learn(trainer: subprocess.Popen[bytes], *bad: bytes) -> None:
        """Log `bad`, then enough rows that rows behind it are in a checkpoint."""
        nonlocal rows
        wanted = rows + 100

        def append_more() -> None:
            nonlocal rows, bad
            append(log, rows, 50, *bad)
            rows, bad = rows + 50, ()
            time.sleep(0.5)

        enough = lambda: committed(checkpoint) >= wanted  # noqa: E731
        until(enough, process=trainer, why=errors.read_text, turn=append_more)

    with Broker(data_dir=tmp_path / "kafka") as broker, errors.open("wb") as stderr:
        command = [sys.executable, "-m", "livectr", "train", "--pipeline", str(pipeline)]
        command += ["--source", f"file:{tmp_path / 'logs'}", "--set", f"dead_letters={broker.url}"]
        command += ["--checkpoint", str(checkpoint), "--set", "batch_size=50", "publish_interval_s=0.2"]
        trainer = Command(command, stderr=stderr, stdout=subprocess.DEVNULL)
        try:
            learn(trainer)
            broker.kill()
            bad = rows
            learn(trainer, b"{", DEEP)
            learn(trainer)
            trainer.kill()
            trainer.wait()
            broker.start()
            resumed = run(
                [*command, "--until-end", "--json"], stderr=stderr, stdout=subprocess.PIPE, timeout=DEADLINE_S
            )
        finally:
            trainer.kill()
            trainer.wait()
        assert resumed.returncode == 0, errors.read_text()
        report = json.loads(resumed.stdout)
        assert (report["examples_trained"], report["dead_letters"]) == (rows, 2)  # counts survive a kill
        assert set(keys_in(broker.url)) == {f"shown/0/{bad}/0", f"shown/0/{bad + 1}/0"}
    assert not list((checkpoint / "dead_letters").iterdir())
