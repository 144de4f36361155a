"""Commands import what they use: pandas, which PyArrow imports where it is, takes a second of each start, and
clients of Kafka and Redis take a quarter of a second."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PIPELINE = str(ROOT / "examples" / "display_ads" / "pipeline.py")
COMMAND = """
import sys
from livectr.cli import main

assert main() == 0
assert "pyarrow" in sys.modules
print(*sys.modules)
"""


def imported(*words: str) -> set[str]:
    """Run a command; return names of the modules that its process has imported."""
    done = subprocess.run([sys.executable, "-c", COMMAND, *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


def has_pandas(*words: str) -> bool:
    """Run a command and tell if its process has imported pandas."""
    return "pandas" in imported(*words)


@pytest.mark.full
def test_no_command_with_a_log_has_pandas(tmp_path: Path) -> None:
    assert find_spec("pandas"), "without it nothing is tested here"
    logs, checkpoint = f"file:{tmp_path / 'logs'}", str(tmp_path / "checkpoint")
    reads = ["--pipeline", PIPELINE, "--source", logs]
    assert not has_pandas("logs", "simulate", "--to", logs, "--fast", "--seconds", "3", "--rate", "100")
    assert not has_pandas("check", *reads)
    assert not has_pandas("inspect", "--pipeline", PIPELINE, "--source", logs)
    (tmp_path / "clicks.csv").write_text("user,ts,clicked\n1,1700000000000,0\n2,1700000001000,1\n")
    csv = [
        str(tmp_path / "clicks.csv"),
        "--format",
        "csv",
        "--topic",
        "clicks",
        "--key",
        "user",
        "--time",
        "ts",
    ]
    assert not has_pandas("logs", "replay", *csv, "--to", f"file:{tmp_path / 'replayed'}")
    train = imported("train", *reads, "--until-end", "--checkpoint", checkpoint, "--set", "batch_ramp=64")
    assert "torch" in train
    assert not train & {"pandas", "kafka", "redis", "opentelemetry", "grpc"}
    score = ["--checkpoint", checkpoint, "--to", str(tmp_path / "scores"), "--from-start"]
    assert not has_pandas("evaluate", *reads, *score)


def test_a_program_that_calls_a_command_keeps_its_pandas(tmp_path: Path) -> None:
    code = f"""
from livectr.cli import main
assert main(["logs", "simulate", "--to", "file:{tmp_path}", "--fast", "--seconds", "1", "--rate", "9"]) == 0
import pandas, pyarrow
print(pyarrow.array(pandas.Series([1.0, None])).null_count)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1:] == ["1"], done.stderr


def test_a_screen_of_status_does_without_torch() -> None:
    """It is drawn again and again beside processes that need the cores; torch takes seconds of them."""
    code = "import sys, livectr.status.gather, livectr.status.screen; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr
