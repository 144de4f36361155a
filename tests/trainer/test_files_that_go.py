"""Runs over a folder whose old files go, and to which files come."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from livectr.ingest.language.streams import Stream, labelled
from livectr.ingest.pipeline import Pipeline
from livectr.ingest.sources import files
from livectr.ingest.sources.part_file import first_record
from livectr.models import LR
from livectr.system.errors import MismatchError
from livectr.trainer.quality.predictions import read_predictions
from livectr.trainer.report import Report
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


def learn(root: Path) -> Report:
    options = TrainOptions(
        f"file:{root / 'logs'}", until_end=True, threads=1, batch_size=32, checkpoint=str(root / "c")
    )
    return train(PIPELINE, options)


def run(root: Path) -> list[int]:
    """Users of all examples so far, in order."""
    learn(root)
    users: list[int] = read_predictions(root / "c" / "predictions")["user"].tolist()
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


def test_another_file_of_the_same_name_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, "export", 0, 100)
    run(tmp_path)
    write(tmp_path, "export", 0, 140)  # the same rows, and more
    assert run(tmp_path) == [*range(140)]
    write(tmp_path, "export", 5_000, 300)
    with pytest.raises(
        MismatchError, match=r"export.jsonl has other rows .* name of its own .* or begin another checkpoint"
    ):
        run(tmp_path)


def test_a_checkpoint_that_knows_the_names_of_files_alone_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older versions write such ones."""
    written = files._PartitionLog.files
    monkeypatch.setattr(
        files._PartitionLog, "files", lambda log, record: [entry[:4] for entry in written(log, record)]
    )
    write(tmp_path, "day-1", 0, 100)
    write(tmp_path, "day-2", 100, 60)
    run(tmp_path)
    monkeypatch.undo()
    write(tmp_path, "day-3", 160, 40)
    assert run(tmp_path) == [*range(200)]


def test_a_file_that_was_empty_may_get_rows(tmp_path: Path) -> None:
    write(tmp_path, "export", 0, 0)
    learn(tmp_path)
    write(tmp_path, "export", 0, 40)
    assert run(tmp_path) == [*range(40)]


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".arrows"])
def test_another_file_of_rows_of_the_same_name_is_an_error(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"export{suffix}"

    def export(first: int, rows: int, *more: str) -> None:
        users = pa.array(range(first, first + rows))
        table = pa.table({"user": users, "ad": pc.bit_wise_and(users, 7), **dict.fromkeys(more, users)})
        if suffix == ".parquet":
            pq.write_table(table, file)
            return
        opened = pa.ipc.new_stream if suffix == ".arrows" else pa.ipc.new_file
        with opened(str(file), table.schema) as out:
            out.write_table(table)

    export(0, 100)
    known = first_record(file, ["user", "ad", "price"])
    assert known.keys() == {"user", "ad"}
    export(0, 140, "price")
    assert first_record(file, known) == known, "more rows and columns"
    export(5_000, 300)
    assert first_record(file, known)["user"] != known["user"]
    file.write_bytes(b"")
    assert first_record(file, known) == {}


def test_rows_behind_the_end_of_an_older_file_are_left_out_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, "day-1", 0, 100)
    write(tmp_path, "day-2", 100, 60)
    assert learn(tmp_path).hints == []
    write(tmp_path, "day-1", 0, 130)
    write(tmp_path, "day-3", 160, 40)
    (tmp_path / "logs" / "shown" / "day-4.jsonl.gz").write_bytes(b"")
    with caplog.at_level(logging.WARNING):
        hints = learn(tmp_path).hints
    assert "files before day-2.jsonl, in which the checkpoint goes on, have grown by " in hints[1]
    assert "what is not read: day-4.jsonl.gz" in hints[0]
    assert all(hint in caplog.text for hint in hints)
    assert run(tmp_path) == [*range(200)]
