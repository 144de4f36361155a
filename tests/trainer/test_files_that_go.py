"""Runs over a folder whose old files go, and to which files come."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from livectr.ingest.language.streams import Stream, labelled
from livectr.ingest.pipeline import Pipeline
from livectr.models import LR
from livectr.system.errors import MismatchError
from livectr.trainer.quality.predictions import read_predictions
from livectr.trainer.run import TrainOptions, train

STREAM = Stream("shown", key="user", columns=dict(user="int64", ad="int64", clicked="int32"))
LOG = labelled(STREAM, label="clicked")
PIPELINE = Pipeline(LOG, sparse={"ad": LOG.ad}, rank=LR())


def write(root: Path, name: str, first: int, rows: int) -> Path:
    file = root / "logs" / "shown" / f"{name}.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        json.dumps({"user": i, "ad": i % 7, "clicked": int(i % 5 == 0)}) for i in range(first, first + rows)
    ]
    file.write_text("".join(line + "\n" for line in lines))
    return file


def run(root: Path, checkpoint: str = "c") -> list[int]:
    """Users of all examples so far, in order."""
    options = TrainOptions(
        f"file:{root / 'logs'}", until_end=True, threads=1, batch_size=32, checkpoint=str(root / checkpoint)
    )
    train(PIPELINE, options)
    users: list[int] = read_predictions(root / checkpoint / "predictions")["user"].tolist()
    return users


def test_a_run_goes_on_where_old_files_are_gone(tmp_path: Path) -> None:
    first, second = write(tmp_path, "day-1", 0, 100), write(tmp_path, "day-2", 100, 60)
    assert run(tmp_path) == [*range(160)]
    first.unlink()
    write(tmp_path, "day-2", 100, 80)  # it has grown
    write(tmp_path, "day-3", 180, 500)
    assert run(tmp_path) == [*range(680)]
    second.unlink()
    (tmp_path / "logs" / "shown" / "day-3.jsonl").unlink()
    write(tmp_path, "day-4", 680, 30)
    assert run(tmp_path) == [*range(710)]


def test_a_file_that_comes_before_what_was_read_is_left_out_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, "day-1", 0, 100)
    write(tmp_path, "day-2", 100, 60)
    run(tmp_path)
    write(tmp_path, "day-0", 1_000, 300)
    write(tmp_path, "day-3", 160, 40)
    with caplog.at_level(logging.WARNING):
        assert run(tmp_path) == [*range(200)]
    assert "1 files of" in caplog.text and "came later than day-2.jsonl" in caplog.text


def test_a_file_that_goes_before_its_end_is_an_error(tmp_path: Path) -> None:
    file = write(tmp_path, "day-1", 0, 100)
    options = TrainOptions(
        f"file:{tmp_path / 'logs'}",
        threads=1,
        batch_size=32,
        batch_ramp=0,
        checkpoint=str(tmp_path / "c"),
        max_steps=2,
    )
    train(PIPELINE, options)
    file.unlink()
    write(tmp_path, "day-2", 100, 100)
    with pytest.raises(
        MismatchError, match=r"day-1.jsonl is gone, and the checkpoint goes on in it: bring it"
    ):
        run(tmp_path)
