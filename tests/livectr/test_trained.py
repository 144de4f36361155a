"""End of `livectr train`: a table that a person reads, JSON with --json; and how much a process logs."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from livectr.cli import main
from livectr.inspection.trained import facts_of, size
from livectr.store.manifest import Freshness
from livectr.system.logs import LEVELS
from livectr.trainer.publish.delays import Delays
from livectr.trainer.report import Report
from tests import commands
from tests.livectr.wrong_logs import JOINED, LABELLED, request, row, write_json
from tests.waiting import left_s

ROWS = 800


@pytest.fixture
def train(tmp_path: Path) -> list[str]:
    rows = [row(number, **({"click": 5} if number in (10, 20) else {})) for number in range(ROWS)]
    write_json(tmp_path / "logs", "shown", rows)
    (tmp_path / "p.py").write_text(LABELLED)
    words = ["train", "--pipeline", str(tmp_path / "p.py"), "--source", f"file:{tmp_path / 'logs'}"]
    return [*words, "--until-end", "--set", "batch_size=64", "threads=1"]


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "livectr", *words]
    return commands.run(
        command,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=left_s(),
        check=False,
    )


def test_the_end_is_a_table(train: list[str], redis_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    publish = ["--publish", redis_url, "--namespace", "trained", "--set", "min_examples=0"]
    assert main([*train, *publish]) == 0
    out = capsys.readouterr().out
    lines = {
        cells[1].strip(): cells[2].strip() for line in out.splitlines() if len(cells := line.split("│")) > 2
    }
    assert lines["examples"].startswith("798 in ") and lines["examples"].endswith("with a click")
    assert "examples a second on 1 rank" in lines["time"]
    assert lines["rows"] == "798 used, 2 set aside"
    assert lines["set aside"].startswith("2 bad_label; shown: ")
    assert " with " in lines["versions"] and "the newest is " in lines["versions"]
    assert lines["freshness"] == "not measured: no event of this run's time was published"  # it is backfill
    header = next(line for line in out.splitlines() if "calibration" in line)
    assert [cell.strip() for cell in header.split("┃")[1:-1]] == [
        *("model", "over", "examples", "AUC", "GAUC", "log loss", "calibration")
    ]
    assert "│ rank  │ whole run  │" in out and "│ rank  │ last fifth │" in out
    tables = out.partition("embedding tables")[2]
    assert (
        "│ user     │" in tables and "│ campaign │" in tables and "│ all      │" in tables and "KiB" in tables
    )


def test_json_has_what_the_table_has(
    train: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*train, "--json", "--report", str(tmp_path / "report.json")]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report == json.loads((tmp_path / "report.json").read_text())
    assert report["dead_letter_reasons"] == {"bad_label": 2} and report["version"] is None
    assert report["table_bytes"].keys() == report["table_rows"].keys() == {"user", "campaign"}
    assert all(report["table_bytes"][name] > rows for name, rows in report["table_rows"].items())


@pytest.mark.parametrize(("bad", "code"), [(16, 4), (6, 0)])
def test_a_run_that_resumes_judges_the_rows_of_the_whole_input(
    bad: int, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both parts have read rows of their own; what matters is the share of all, 1 % of 900."""
    rows = [row(number, **({"click": 5} if number < bad else {})) for number in range(900)]
    write_json(tmp_path / "logs", "shown", rows)
    (tmp_path / "p.py").write_text(LABELLED)
    words = ["train", "--pipeline", str(tmp_path / "p.py"), "--source", f"file:{tmp_path / 'logs'}"]
    words += ["--until-end", "--checkpoint", str(tmp_path / "c"), "--set", "batch_size=64", "threads=1"]
    main([*words, "max_steps=5"])  # all rows are read by then, and a part is learned
    assert main(words) == code
    assert f"livectr: {bad} of 900 rows set aside, most as bad_label" in capsys.readouterr().err or not code


def test_hints_and_lookups_are_in_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_json(tmp_path / "logs", "shown", [request(number) for number in range(ROWS)])
    write_json(tmp_path / "logs", "clicks", [request(number) for number in range(0, ROWS, 4)])
    write_json(tmp_path / "logs", "ads", [{"ad": 3, "category": "c"}])
    (tmp_path / "p.py").write_text(JOINED)
    words = ["train", "--pipeline", str(tmp_path / "p.py"), "--source", f"file:{tmp_path / 'logs'}"]
    assert main([*words, "--until-end", "--set", "threads=1"]) == 0
    out = capsys.readouterr().out
    assert "1,000 used, none set aside; ads: a row for 5% of 800 look-ups" in out
    assert "200 (100.0%) label an impression" in out
    assert "! table ads has a row for 40 of 800 look-ups (5%)" in out


def test_fresh_versions_and_many_letters_are_told() -> None:
    fresh = {"examples": 1200, "p50_s": 4.9, "p99_s": 7.31}
    letters = {"bad_json": 1, "bad_time": 2, "bad_key": 0}
    report = Report(
        10,
        2,
        1.0,
        10.0,
        2,
        10,
        3,
        4,
        5000,
        complete=False,
        dead_letter_reasons=letters,
        version=7,
        freshness=fresh,
    )
    found = dict(facts_of(report))
    assert found["freshness"] == "event to servable p50 4.9 s, p99 7.31 s, of 1,200 examples"
    assert found["versions"] == "4 with 5,000 rows; the newest is 7"
    unpublished = dict(facts_of(Report(10, 2, 1.0, 10.0, 1, 10, 0, 0, 0)))
    assert unpublished["versions"] == "none: --publish REDIS publishes, as soon as min_examples are learned"
    assert unpublished["rows"] == "10 used, none set aside" and "set aside" not in unpublished
    assert found["rows"] == "10 used, 3 set aside" and found["set aside"] == "2 bad_time, 1 bad_json"
    assert "clicks" not in found
    stream = {"matched_clicks": 90, "late_clicks": 0, "unmatched_clicks": 4, "waiting_clicks": 6}
    clicks = dict(facts_of(Report(10, 2, 1.0, 10.0, 1, 10, 0, 0, 0, stream=stream)))["clicks"]
    assert clicks == "90 (90.0%) label an impression, 10 (10.0%) have no impression"
    assert found["time"].endswith("on 2 ranks; stopped before the end of the log")


def test_delays_are_those_of_the_events() -> None:
    delays, now_ms = Delays(), 1_800_000_000_000
    assert delays.report() == {}
    times = now_ms - np.random.default_rng(3).integers(100, 60_000, 5000)
    for part in np.array_split(times, 7):
        delays.add(Freshness.of(part.astype(np.int64)), now_ms)
    report = delays.report()
    assert report["examples"] == 5000
    for name, share in (("p50_s", 0.5), ("p99_s", 0.99)):
        exact = float(np.quantile((now_ms - times) / 1000, share))
        assert exact <= report[name] * 1.01 and math.isclose(report[name], exact, rel_tol=0.03, abs_tol=0.3)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (1023, "1,023 bytes"),
        (1536, "1.5 KiB"),
        (5 << 30, "5.0 GiB"),
        (3 << 50, "3,072.0 TiB"),
    ],
)
def test_sizes_are_for_people(count: int, text: str) -> None:
    assert size(count) == text


def test_the_level_says_how_much_is_logged(train: list[str]) -> None:
    usual, quiet = run(*train), run(*train, "--log-level", "warning")
    assert usual.returncode == quiet.returncode == 0
    assert " INFO livectr." in usual.stderr and quiet.stderr == ""
    loud = run(*train, LIVECTR_LOG_LEVEL="debug")
    assert loud.returncode == 0 and " INFO livectr." in loud.stderr
    wrong = run(*train, "--log-level", "loud")
    assert wrong.returncode == 2
    assert f"log_level is 'loud', but must be {' or '.join(LEVELS)}." in wrong.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["logs", "replay", "nothing.csv", "--format", "csv", "--to", "file:x"],
        ["logs", "simulate", "--to", "nowhere:x"],
        ["features", "materialize", "--pipeline", "no.py", "--source", "file:x", "--out", "y"],
        ["features", "encode", "nothing", "--encoder", "small", "--out", "y"],
        ["local", "redis", "--listen", "nonsense"],
        ["local", "kafka", "--listen", "nonsense"],
        ["demo", "--pipeline", "no.py"],
        ["serve", "json", "--listen", "nonsense", "--target", "127.0.0.1:1"],
        ["experiment", "tune", "--pipeline", "no.py", "--source", "file:x", "--grid", "dim=4"],
    ],
)
def test_commands_that_run_long_log_json(words: list[str], tmp_path: Path) -> None:
    done = commands.run(
        [sys.executable, "-m", "livectr", *words, "--log-format", "json", "--log-level", "warning"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=left_s(),
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert done.returncode in (2, 4), done.stderr
    (line,) = [json.loads(line) for line in done.stderr.splitlines()]
    own = words[:2] if words[1].isalpha() else words[:1]
    assert line["level"] == "ERROR" and line["role"] == own[-1]
