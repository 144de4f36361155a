"""`livectr evaluate --checkpoint`: a checkpoint's model on the examples of a log, in parts or at once."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import livectr
from livectr.analysis.partition_batches import ARRAYS, by_partition
from livectr.cli import main
from livectr.evaluation import read_predictions
from livectr.ingest.join.example_columns import Examples
from livectr.trainer.checkpoint.manifest import newest_manifest
from tests.trainer.ad_logs import write_files, write_kafka
from tests.trainer.short_logs import constants
from tests.waiting import until

IMPRESSIONS, LEARNED, BATCH = 1_500, 640, 64
SETTINGS: dict[str, Any] = {"threads": 1, "seed": 5, "batch_size": BATCH, "batch_ramp": 0}
FAILING = (1_000, 1_400)
"""Impressions that cannot be extracted."""


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Logs, a pipeline, and a checkpoint that has learned the first examples of the logs."""
    desk = tmp_path_factory.mktemp("desk")
    write_files(desk / "logs", IMPRESSIONS, failing=FAILING)
    prepare(desk, "", f"file:{desk / 'logs'}")
    return desk


def prepare(desk: Path, prefix: str, source: str) -> None:
    (desk / "p.py").write_text(
        f"from tests.trainer.ad_logs import ad_pipeline\n\npipeline = ad_pipeline({prefix!r})\n"
    )
    steps = LEARNED // BATCH
    trained = livectr.train(desk / "p.py", source=source, checkpoint=desk / "c", max_steps=steps, **SETTINGS)
    assert trained.report.examples_trained == LEARNED


def command(desk: Path, to: Path, *more: str, source: str | None = None) -> list[str]:
    return [
        *("evaluate", "--pipeline", str(desk / "p.py"), "--checkpoint", str(desk / "c")),
        *("--source", source or f"file:{desk / 'logs'}", "--to", str(to), "--json", *more),
    ]


@pytest.fixture(scope="module")
def whole(desk: Path) -> Path:
    """Folder that one process wrote."""
    assert main(command(desk, desk / "whole")) == 0
    return desk / "whole"


def printed(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Measures, without the name of the log."""
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    for row in found["rows"]:
        del row["log"]
    return found


def test_the_first_predictions_are_those_of_the_next_step(desk: Path, whole: Path, tmp_path: Path) -> None:
    """Resumed training scores its next batch before it learns it: the same numbers in the same order."""
    shutil.copytree(desk / "c", tmp_path / "c")
    (tmp_path / "c" / "predictions").unlink(missing_ok=True)
    with constants(online=0):
        livectr.train(
            desk / "p.py",
            source=f"file:{desk / 'logs'}",
            checkpoint=tmp_path / "c",
            predictions=tmp_path / "next",
            max_steps=LEARNED // BATCH + 1,
            **SETTINGS,
        )
    expected, found = read_predictions(tmp_path / "next")[-BATCH:], read_predictions(whole / "predictions")
    found = found[:BATCH]
    assert len(expected) == BATCH
    for name in ("instance", "user", "item", "time_ms", "label"):
        assert (found[name] == expected[name]).all(), name
    np.testing.assert_allclose(found["rank"], expected["rank"], rtol=0, atol=1e-5)
    assert np.ptp(found["rank"]) > 0.01
    first = np.unique(found["item"], return_index=True)[1]
    assert (found["seen"][first] == expected["seen"][first]).all()  # nothing is counted while it is scored


def test_parts_write_what_one_process_writes(
    desk: Path, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three processes, one of which is run twice, while training replaces the checkpoint's generations."""
    assert main(command(desk, whole)) == 0
    expected = printed(capsys)
    held = read_predictions(whole / "predictions")
    assert len(held) == IMPRESSIONS - LEARNED - len(FAILING) == expected["rows"][0]["examples"]
    assert len(np.unique(held["user"] % 4)) == 4, "there are several partitions"
    mine, to = tmp_path / "mine", tmp_path / "parts"
    mine.mkdir()
    shutil.copy(desk / "p.py", mine)
    shutil.copytree(desk / "c", mine / "c")
    source = f"file:{desk / 'logs'}"
    assert main(command(mine, to, "--part", "2/3", source=source)) == 0
    livectr.train(mine / "p.py", source=source, checkpoint=mine / "c", **SETTINGS)
    assert main(command(mine, to, "--part", "0/3", source=source)) == 0
    written = (tmp_path / "parts.parts" / "0-of-3" / "predictions").stat()
    assert main(command(mine, to, "--part", "0/3", source=source)) == 0
    assert (tmp_path / "parts.parts" / "0-of-3" / "predictions").stat() == written
    said = capsys.readouterr()
    assert "part 0 of 3 is there already" in said.err and "waits for other parts" in said.err
    assert not said.out and not to.exists()
    assert main(command(mine, to, "--part", "1/3", source=source)) == 0
    assert printed(capsys) == expected
    assert (to / "predictions").read_bytes() == (whole / "predictions").read_bytes()
    assert main(command(mine, to, "--part", "1/3", source=source)) == 0  # a Job's pod that is run again
    assert printed(capsys) == expected


def test_parts_of_two_generations_are_refused(
    desk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Somebody deletes the kept generation between two parts, and training has continued."""
    shutil.copy(desk / "p.py", tmp_path)
    shutil.copytree(desk / "c", tmp_path / "c")
    source = f"file:{desk / 'logs'}"
    assert main(command(tmp_path, tmp_path / "to", "--part", "0/2", source=source)) == 0
    shutil.rmtree(tmp_path / "to.parts" / "checkpoint")
    livectr.train(tmp_path / "p.py", source=source, checkpoint=tmp_path / "c", **SETTINGS)
    capsys.readouterr()
    assert main(command(tmp_path, tmp_path / "to", "--part", "1/2", source=source)) == 2
    assert "was scored by step" in capsys.readouterr().err
    assert not (tmp_path / "to").exists()


def test_the_whole_log(desk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """More parts than partitions: two are empty."""
    to = tmp_path / "all"
    for index in range(6):
        assert main(command(desk, to, "--from-start", "--part", f"{index}/6")) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["rows"][0]["examples"] == IMPRESSIONS - len(FAILING)
    assert f"{IMPRESSIONS - len(FAILING):,} examples, scored by step {LEARNED // BATCH}" in said.err
    assert f"{len(FAILING)} unusable rows left out" in said.err


def test_mistakes(desk: Path, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each is one sentence and exit code 2; what is there stays."""
    to = tmp_path / "some"
    assert main(command(desk, to, "--part", "0/2")) == 0
    (tmp_path / "other").mkdir()
    shutil.copytree(desk / "c", tmp_path / "elsewhere")
    write_files(tmp_path / "short", 8)
    empty = tmp_path / "learned"
    livectr.train(desk / "p.py", source=f"file:{tmp_path / 'short'}", checkpoint=empty, **SETTINGS)
    short = ["--source", f"file:{tmp_path / 'short'}"]
    capsys.readouterr()
    for flags, says in [
        (command(desk, to, "--part", "1/3"), "holds parts of 2, but part is 1/3"),
        (command(desk, to, "--part", "1/2", "--from-start"), "with another choice of examples (not learned"),
        (command(desk, to, "--part", "1/2", *short), "was made with another log"),
        (
            command(desk, to, "--part", "1/2", "--checkpoint", str(tmp_path / "elsewhere")),
            "another checkpoint",
        ),
        (command(desk, whole, "--from-start"), f"delete {whole}, or name another folder"),
        (command(desk, tmp_path / "other"), "holds no predictions of a checkpoint"),
        (command(desk, tmp_path / "x", *short), "give the folder that it was made from"),
        (
            command(desk, tmp_path / "x", *short, "--checkpoint", str(empty)),
            f"has no examples that {empty} has not learned; add --from-start",
        ),
        (command(desk, tmp_path / "x", "--part", "2/2"), "must be I/N"),
        (command(desk, tmp_path / "x", "--plot", "x.pdf"), "ends in .png or .svg"),
        (["evaluate", "--checkpoint", str(desk / "c")], "give --pipeline, --source, --to, too"),
        (["evaluate", "a.log", "--checkpoint", str(desk / "c")], "give either PREDICTIONS"),
        (["evaluate", "a.log", "--part", "0/2"], "give either PREDICTIONS"),
    ]:
        assert main(flags) == 2, flags
        assert says in capsys.readouterr().err
    assert not (tmp_path / "x").exists() and not to.exists()
    assert main(command(desk, to, "--part", "1/2")) == 0 and to.exists()


def test_batches_depend_on_their_partition_alone() -> None:
    rng = np.random.default_rng(2)
    rows = 500
    partition = rng.integers(0, 3, rows).astype(np.int32)
    number = np.arange(rows)

    def examples(start: int, end: int) -> Examples:
        words = pa.array([f"w{i % 7}" for i in range(start, end)]).dictionary_encode()
        columns = pa.RecordBatch.from_arrays([pa.array(number[start:end]), words], names=["n", "word"])
        ids: dict[str, np.ndarray] = {name: number[start:end] for name in ARRAYS}
        return Examples(columns, **{**ids, "partition": partition[start:end]})

    def batches(cuts: list[int]) -> list[tuple[int, list[int], list[str]]]:
        arrived = (examples(a, b) for a, b in zip([0, *cuts], [*cuts, rows], strict=True))
        found = []
        for batch in by_partition(arrived, rows=32):
            (own,) = np.unique(batch.partition)
            assert batch.columns.column(0).to_pylist() == batch.instance.tolist()
            found.append((int(own), batch.instance.tolist(), batch.columns.column(1).to_pylist()))
        return sorted(found)

    expected = [
        (p, own[at : at + 32].tolist(), [f"w{i % 7}" for i in own[at : at + 32]])
        for p in range(3)
        for own in [np.flatnonzero(partition == p)]
        for at in range(0, len(own), 32)
    ]
    assert batches([]) == expected
    for _ in range(5):
        assert batches(sorted(rng.integers(0, rows, 20).tolist())) == expected


@pytest.mark.full
def test_a_killed_part_is_run_again(
    desk: Path, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A part that is killed after the checkpoint was copied leaves nothing that counts."""
    to, parts = tmp_path / "killed", tmp_path / "killed.parts"
    words = command(desk, to, "--part", "0/2")
    process = subprocess.Popen([sys.executable, "-m", "livectr", *words])
    until((parts / "checkpoint").exists, process=process, turn=lambda: time.sleep(0.002))
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (parts / "0-of-2").exists()
    for part in ("0/2", "1/2"):
        assert main(command(desk, to, "--part", part)) == 0
    assert (to / "predictions").read_bytes() == (whole / "predictions").read_bytes()
    manifest = newest_manifest(parts / "checkpoint")
    assert manifest is not None and manifest.step == LEARNED // BATCH


@pytest.mark.full
def test_parts_of_a_topic(kafka_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_kafka(kafka_url, "scored-", IMPRESSIONS)
    prepare(tmp_path, "scored-", kafka_url)
    assert main(command(tmp_path, tmp_path / "one", source=kafka_url)) == 0
    expected = printed(capsys)
    for index in range(3):
        flags = command(tmp_path, tmp_path / "parts", "--part", f"{index}/3", source=kafka_url)
        assert main(flags) == 0
    assert printed(capsys) == expected and expected["rows"][0]["examples"] == IMPRESSIONS - LEARNED
    one, many = (tmp_path / name / "predictions" for name in ("one", "parts"))
    assert one.read_bytes() == many.read_bytes()
