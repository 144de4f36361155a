"""The demo, for real and short: nothing lost, nothing left behind, also when a part fails or Ctrl-C comes."""

import json
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from livectr.demo.demo import PIPELINE
from livectr.demo.report import KEYS
from tests.commands import Command
from tests.waiting import alive, left_s, until

DEMO = [sys.executable, "-m", "livectr", "demo"]


def writers(folder: Path, name: str = "*") -> list[psutil.Process]:
    """Processes that write the log of a part, or a log of the demo's folder. Forks have no command line."""
    logs = {str(path) for path in folder.glob(f"{name}.log")}
    found = []
    for process in psutil.process_iter():
        with suppress(OSError):
            if str(Path(f"/proc/{process.pid}/fd/1").readlink()) in logs:
                found.append(process)
    return alive(found)


def test_demo_on_files_whose_trainer_dies(tmp_path: Path) -> None:
    """The trainer resumes from its checkpoint, and the account at the end is whole."""
    keep, report = tmp_path / "keep", tmp_path / "out" / "report.json"
    process = Command(
        [*DEMO, "--seconds", "12", "--rate", "1000", "--keep", str(keep), "--report", str(report)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout
    lines = [""]
    while "prerank server ready on 127.0.0.1:" not in lines[-1]:
        assert process.poll() is None, "".join(lines)
        lines.append(process.stdout.readline())
    until(lambda: list((keep / "checkpoint").glob("gen-*/MANIFEST.json")), process=process)
    trainers = writers(keep, "trainer")
    assert trainers
    for trainer in trainers:
        trainer.kill()
    rest, _ = process.communicate(timeout=left_s())
    said = "".join(lines) + rest
    assert process.returncode == 0, said
    assert "rank server ready on 127.0.0.1:" in said
    found = json.loads(report.read_text())
    assert set(KEYS) <= set(found)
    for name in ("lost_events", "duplicated_events", "unknown_events"):
        assert found[name] == 0, name
    assert found["trainer_restarts"] == 1
    assert found["impressions"] == found["examples_trained"] > 5000
    simulated = found["simulator"]
    assert found["dead_letters"] == simulated["broken"] + simulated["broken_images"]
    assert found["events"] == found["trainer"]["events"] + simulated["broken"]
    assert simulated["broken_images"] > 0
    shadow = found["whole_run"]["shadows"]["without_images"]
    assert shadow["examples"] == found["whole_run"]["examples"]
    assert shadow["cold_examples"] == found["whole_run"]["cold_examples"] > 0
    for quality in (shadow, found["whole_run"]):
        assert 0 < quality["gauc"] < 1 and 0 < quality["cold_gauc"] < 1
    assert "(without images 0." in said and "new ads: AUC 0." in said
    assert found["published_versions"] > 1 and found["published_rows"] > 0
    for role in ("rank", "prerank"):
        assert found[role]["errors"] == found[role]["older"] == 0, found[role]
        assert found[role]["requests"] > 0 and found[role]["candidates"] > 0
        assert 0 < found[role]["p50_ms"] <= found[role]["p99_ms"]
    assert 0 < found["freshness_seconds"]["p50"] <= found["freshness_seconds"]["p99"]
    assert 0.5 < found["bayes_auc"] < 1
    assert writers(keep) == []


@pytest.mark.full
def test_ctrl_c_stops_every_part(tmp_path: Path) -> None:
    """`make test` ends a demo of one rank by Ctrl-C, in tests/watch/test_watch.py."""
    keep = tmp_path / "keep"
    process = subprocess.Popen(
        [*DEMO, "--seconds", "600", "--ranks", "2", "--keep", str(keep)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout
        while "prerank server ready" not in process.stdout.readline():
            assert process.poll() is None
        family = psutil.Process(process.pid).children(recursive=True)
        assert len(family) >= 8  # simulator, Redis and its parent, two ranks and theirs, two servers, clients
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=left_s())
    finally:
        process.kill()
    assert process.returncode == 130
    assert said.strip().splitlines()[-1] == "livectr: stopped."
    assert alive(family) == []


@pytest.mark.full
def test_a_part_that_fails_ends_the_demo_with_its_last_words(tmp_path: Path) -> None:
    """The trainer refuses the model; everything else is stopped."""
    broken = tmp_path / "broken.py"
    broken.write_text(PIPELINE.read_text().replace("rank=dicm,", "rank=dict(),"))
    keep = tmp_path / "keep"
    done = subprocess.run(
        [*DEMO, "--seconds", "3600", "--pipeline", str(broken), "--keep", str(keep)],
        capture_output=True,
        text=True,
        timeout=left_s(),
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "ended with exit code 2; its log ends:" in done.stderr
    assert "must be a model" in done.stderr
    assert "Traceback" not in done.stderr
    assert writers(keep) == []


def test_the_demo_needs_a_pipeline_that_joins_clicks(tmp_path: Path) -> None:
    from livectr.demo.demo import DemoOptions, demo
    from livectr.system.errors import ConfigError

    with pytest.raises(ConfigError, match="is not there"):
        demo(DemoOptions(pipeline=str(tmp_path / "nothing.py")))
