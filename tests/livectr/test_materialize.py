"""`livectr features materialize` and `train --set materialized=DIR`: the same model, out of fewer bytes."""

import functools
import json
import os
import random
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.json as json_file
import pyarrow.parquet as pq
import pytest

from livectr.cli import main
from livectr.ingest.materialized.store import Manifest
from livectr.ingest.materialized.writer import choose
from livectr.ingest.pipeline import load_pipeline
from tests.commands import run
from tests.trainer.ad_logs import write_files
from tests.trainer.kills import OPTIONS, kill_group, kill_somewhere, kill_up_to
from tests.trainer.processes import finish, start
from tests.trainer.run_result import Result, assert_close, assert_same

IMPRESSIONS = 3_000
TOPICS = ("impressions", "clicks", "users", "ads")
PIPELINE = """\
from tests.trainer.ad_logs import ad_pipeline

pipeline = ad_pipeline()
"""
ROOT = Path(__file__).parents[2]
CHOSEN = "hour,age,category,age_x_category,behaviors,tag_pairs,price"
FAILING = (100, 2_000)
"""Impressions of which tag_pairs cannot be extracted."""


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Logs, a pipeline file, and the result of training without materialized features."""
    desk = tmp_path_factory.mktemp("desk")
    write_files(desk / "logs", IMPRESSIONS, failing=FAILING)
    (desk / "p.py").write_text(PIPELINE)
    train(desk, "computed")
    return desk


@pytest.fixture(scope="module")
def materialized(desk: Path) -> Path:
    assert main([*command(desk), "--out", str(desk / "materialized"), "--features", CHOSEN]) == 0
    return desk / "materialized"


def command(desk: Path) -> list[str]:
    return ["features", "materialize", "--pipeline", str(desk / "p.py"), "--source", f"file:{desk / 'logs'}"]


def train(desk: Path, name: str, *, world: int = 1, **options: object) -> dict[str, Any]:
    """Train into the checkpoint `name`; returns the report."""
    report = desk / f"{name}.json"
    run = {**OPTIONS, "source": f"file:{desk / 'logs'}", "checkpoint": str(desk / name)}
    finish(start(world, {**run, "report": str(report), **options}))
    return dict(json.loads(report.read_text()))


def test_it_tells_what_it_wrote(desk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "materialized"
    assert main([*command(desk), "--out", str(out)]) == 0
    output = capsys.readouterr()
    summary = json.loads(output.out)
    files = list(out.rglob("*.parquet"))
    assert summary["rows"] == IMPRESSIONS == sum(pq.read_metadata(file).num_rows for file in files)
    assert summary["bytes"] == sum(file.stat().st_size for file in files)
    names = [feature.name for feature in choose(load_pipeline(desk / "p.py"), None)]
    assert list(summary["features"]) == names and set(CHOSEN.split(",")) < set(names)
    assert all(size > 0 for size in summary["features"].values())
    for said in (f"{IMPRESSIONS:,} rows", f"{len(names)} features", f"--set materialized={out}"):
        assert said in " ".join(output.err.split())  # a long path wraps the title of the table
    assert main([*command(desk), "--out", str(out)]) == 2
    assert "exists; delete it or name another folder" in capsys.readouterr().err
    assert main([*command(desk), "--out", str(tmp_path / "b"), "--features", "ads"]) == 2
    assert "there is no feature 'ads'; the pipeline's are user, ad" in capsys.readouterr().err
    assert not (tmp_path / "b").exists()


def test_parts_make_what_one_process_makes(
    desk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three processes, one of which is run twice, write the bytes of a single one."""
    whole, out = tmp_path / "whole", tmp_path / "parts"
    assert main([*command(desk), "--out", str(whole)]) == 0
    for part in ("2/3", "0/3", "0/3", "1/3"):
        assert not out.exists()
        assert main([*command(desk), "--out", str(out), "--part", part]) == 0
    assert "part 0 of 3 is there already" in capsys.readouterr().err
    one, many = Manifest.read(whole), Manifest.read(out)
    assert {f.path: f.rows for f in one.files} == {f.path: f.rows for f in many.files}
    for file in one.files:
        assert (whole / file.path).read_bytes() == (out / file.path).read_bytes()
    assert replace(one, files=()) == replace(many, files=())
    assert main([*command(desk), "--out", str(out), "--part", "1/3"]) == 0  # a Job's pod that is run again
    assert main([*command(desk), "--out", str(out), "--part", "3/3"]) == 2
    assert "part is '3/3', but must be I/N" in capsys.readouterr().err


def test_more_parts_than_partitions(desk: Path, tmp_path: Path) -> None:
    """A part without a partition is empty."""
    out = tmp_path / "many"
    for index in range(6):
        assert main([*command(desk), "--out", str(out), "--part", f"{index}/6"]) == 0
    assert Manifest.read(out).rows == IMPRESSIONS


def test_parts_of_different_features_are_refused(
    desk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "mixed"
    assert main([*command(desk), "--out", str(out), "--part", "0/2", "--features", "hour"]) == 0
    assert main([*command(desk), "--out", str(out), "--part", "1/2", "--features", "age"]) == 2
    assert "were not made alike" in capsys.readouterr().err and not out.exists()


def test_parts_of_another_count_are_refused(
    desk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Parts of two counts would never become a whole."""
    out = tmp_path / "counted"
    assert main([*command(desk), "--out", str(out), "--part", "0/2", "--features", "hour"]) == 0
    assert main([*command(desk), "--out", str(out), "--part", "1/3", "--features", "hour"]) == 2
    assert "holds parts of 2, but part is 1/3; use I/2, or delete" in capsys.readouterr().err
    assert not (tmp_path / "counted.parts" / "1-of-3").exists()


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["features"], ["features", "materialize"]):
        with pytest.raises(SystemExit) as end:
            main([*arguments, "--help"])
        assert end.value.code == 0
        assert "livectr features materialize --pipeline p.py" in capsys.readouterr().out


def test_the_same_model_out_of_fewer_bytes(desk: Path, materialized: Path) -> None:
    report = train(desk, "read", materialized=str(materialized))
    computed = json.loads((desk / "computed.json").read_text())
    assert_same(Result(desk / "read"), Result(desk / "computed"))
    for reported in (report, computed):
        assert reported["examples_trained"] == IMPRESSIONS - len(FAILING)
        assert reported["dead_letters"] == len(FAILING)
    read, before = report["stream"]["bytes_read"], computed["stream"]["bytes_read"]
    assert read["impressions"] == before["impressions"] > 0  # JSON lines are read whole
    assert "users" not in read and before["users"] > 0  # their ages are read from the store
    assert read["materialized features"] > 0 and "materialized features" not in before


def test_two_ranks(desk: Path, materialized: Path) -> None:
    train(desk, "two", world=2, materialized=str(materialized))
    assert_close(Result(desk / "two"), Result(desk / "computed"))


def test_killed_anywhere_it_resumes(desk: Path, materialized: Path) -> None:
    root = desk / "killed"
    options = {
        **OPTIONS,
        "source": f"file:{desk / 'logs'}",
        "checkpoint": str(root),
        "materialized": str(materialized),
    }
    kill = functools.partial(kill_somewhere, root=root, rng=random.Random(), sudden=kill_group)
    kill_up_to(2, lambda: start(1, options), kill, lambda: shutil.rmtree(root))
    finish(start(1, options))
    assert_same(Result(root), Result(desk / "computed"))


def test_parquet_logs_are_read_by_column(desk: Path, materialized: Path, tmp_path: Path) -> None:
    """JSON logs as Parquet with 27 more columns: training reads the columns it uses, fewer with
    materialized."""
    logs = tmp_path / "logs"
    rng = np.random.default_rng(0)
    for path in (file for topic in TOPICS for file in (desk / "logs" / topic).iterdir()):
        target = logs / path.parent.name / f"{path.stem}.parquet"
        target.parent.mkdir(parents=True, exist_ok=True)
        table = json_file.read_json(path)
        if path.parent.name == "impressions":
            for number in range(27):
                table = table.append_column(f"c{number}", [rng.integers(0, 1 << 62, len(table))])
        pq.write_table(table, target)
    size = sum(path.stat().st_size for path in (logs / "impressions").iterdir())
    computed = train(tmp_path, "computed")["stream"]["bytes_read"]
    read = train(tmp_path, "read", materialized=str(materialized))["stream"]["bytes_read"]
    assert 0 < read["impressions"] <= computed["impressions"] < 0.15 * size
    assert_same(Result(tmp_path / "read"), Result(tmp_path / "computed"))


def test_training_refuses(desk: Path, materialized: Path, tmp_path: Path) -> None:
    """Before any state is touched, one sentence and exit code 2."""
    for folder, says in ((tmp_path, "half-made"), (tmp_path / "nowhere", "there is no folder")):
        done = run(
            [
                *(sys.executable, "-m", "livectr", "train", "--pipeline", str(desk / "p.py")),
                *("--source", f"file:{desk / 'logs'}", "--until-end", "--set", f"materialized={folder}"),
                *("--checkpoint", str(tmp_path / "c")),
            ],
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert done.returncode == 2 and says in done.stderr.splitlines()[-1]
        assert not (tmp_path / "c").exists()
