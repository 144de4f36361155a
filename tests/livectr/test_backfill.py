"""A run over a bounded log that is stopped says so by its exit code; the same command resumes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from livectr.cli import main
from livectr.local.ranks import UNFINISHED
from livectr.trainer.checkpoint.manifest import newest_manifest
from livectr.trainer.run import Training
from livectr.trainer.stream.batcher import Round
from tests.tiers import few
from tests.trainer.ad_logs import write_files
from tests.trainer.break_off import BREAK_OFF, write_pipeline
from tests.trainer.run_result import Result, assert_close, assert_same
from tests.waiting import left_s, until

ROOT = Path(__file__).parents[2]
STEPS = 20
"""Steps of the log with batches of 64."""
SAID = "livectr: stopped before the log's end; what was learned is committed, and the same command resumes"
Ends = Callable[[Training, Round], bool]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_files(tmp_path_factory.mktemp("logs"), STEPS * 64)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory, source: str) -> Result:
    folder = tmp_path_factory.mktemp("unbroken")
    assert main(command(folder, source)) == 0
    assert report(folder)["complete"] is True
    return Result(folder / "checkpoint")


def command(folder: Path, source: str, *more: str, ranks: int = 1) -> list[str]:
    pipeline = write_pipeline(folder / "pipeline.py", ranks)
    flags = {"pipeline": pipeline, "source": source, "checkpoint": folder / "checkpoint", "ranks": ranks}
    flags |= {"report": folder / "report.json"}
    return ["train", "--until-end", "--json", *(f"--{name}={value}" for name, value in flags.items()), *more]


def report(folder: Path) -> dict[str, object]:
    return dict(json.loads((folder / "report.json").read_text()))


def step(folder: Path) -> int:
    manifest = newest_manifest(folder / "checkpoint")
    assert manifest is not None
    return manifest.step


@pytest.fixture
def at_step(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Lets this process get SIGTERM at a step."""
    ends: Ends = Training._ends

    def set_step(number: int) -> None:
        def stopping(self: Training, round_: Round) -> bool:
            if self._begun == number:
                os.kill(os.getpid(), signal.SIGTERM)
            return ends(self, round_)

        monkeypatch.setattr(Training, "_ends", stopping)

    return set_step


def test_a_stopped_run_resumes_to_the_same_bits(
    tmp_path: Path,
    source: str,
    unbroken: Result,
    at_step: Callable[[int], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    at_step(7)
    assert main(command(tmp_path, source)) == UNFINISHED
    said = capsys.readouterr()
    assert [line for line in said.err.splitlines() if line.startswith("livectr: ")] == [f"{SAID} from there."]
    assert json.loads(said.out)["complete"] is report(tmp_path)["complete"] is False
    assert 7 <= step(tmp_path) < unbroken.step
    at_step(-1)
    assert main(command(tmp_path, source)) == 0
    assert report(tmp_path)["complete"] is True
    assert_same(Result(tmp_path / "checkpoint"), unbroken)


@pytest.mark.parametrize(
    ("number", "more"),
    [
        (7, ["--no-until-end", "--set", "until_idle_s=600"]),
        (7, ["--set", "max_steps=7"]),  # the signal comes with the last step
    ],
)
def test_other_runs_that_are_stopped_end_well(
    tmp_path: Path, source: str, at_step: Callable[[int], None], number: int, more: list[str]
) -> None:
    at_step(number)
    assert main(command(tmp_path, source, *more)) == 0
    assert step(tmp_path) >= 7


def test_a_signal_at_the_end_changes_nothing(
    tmp_path: Path, source: str, unbroken: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: Ends = Training._ends

    def stopping(self: Training, round_: Round) -> bool:
        if round_.ended:
            os.kill(os.getpid(), signal.SIGTERM)
        return ends(self, round_)

    monkeypatch.setattr(Training, "_ends", stopping)
    assert main(command(tmp_path, source)) == 0
    assert step(tmp_path) == unbroken.step and report(tmp_path)["complete"] is True


def test_without_a_checkpoint_the_sentence_says_so(
    tmp_path: Path, source: str, at_step: Callable[[int], None], capsys: pytest.CaptureFixture[str]
) -> None:
    at_step(2)
    words = [word for word in command(tmp_path, source) if not word.startswith("--checkpoint")]
    assert main(words) == UNFINISHED
    assert "without --checkpoint, the same command begins again." in capsys.readouterr().err


@pytest.mark.parametrize("where", few(["flag", "environment", "file"], "file"))
def test_told_to_stop_while_it_imports(tmp_path: Path, where: str) -> None:
    """Nothing is known of the pipeline's settings, but the user has said that the log is to be learned."""
    imports, pipeline, toml = tmp_path / "imports", tmp_path / "pipeline.py", tmp_path / "livectr.toml"
    pipeline.write_text(f"import time, pathlib\npathlib.Path({str(imports)!r}).touch()\ntime.sleep(6000)\n")
    toml.write_text("until_end = true\n" if where == "file" else "")
    words = [f"--pipeline={pipeline}", f"--config={toml}", "--source=file:/nowhere"]
    words += ["--until-end"] * (where == "flag")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    environment |= {"LIVECTR_UNTIL_END": "true"} if where == "environment" else {}
    process = subprocess.Popen([sys.executable, "-m", "livectr", "train", *words], cwd=ROOT, env=environment)
    try:
        until(imports.exists, process=process)
        process.terminate()
        assert process.wait(left_s()) == UNFINISHED
    finally:
        process.kill()
        process.wait()


@pytest.mark.full
@pytest.mark.parametrize("ranks", [1, 2])
def test_processes(tmp_path: Path, source: str, unbroken: Result, ranks: int) -> None:
    """As a user runs them: one process, and a supervisor with two ranks."""
    words = [sys.executable, "-m", "livectr", *command(tmp_path, source, ranks=ranks)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}

    def run(**more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words, cwd=ROOT, env=environment | more, capture_output=True, text=True, timeout=left_s()
        )

    stopped = run(**{BREAK_OFF: "7"})
    assert stopped.returncode == UNFINISHED, stopped.stderr
    assert stopped.stderr.count(SAID) == 1 and 7 <= step(tmp_path) < unbroken.step
    done = run()
    assert done.returncode == 0, done.stderr
    result = Result(tmp_path / "checkpoint")
    if ranks == 1:
        assert_same(result, unbroken)
    else:
        assert_close(result, unbroken)
