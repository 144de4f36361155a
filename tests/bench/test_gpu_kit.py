"""The kit for a machine with a GPU, on one without: its steps, its report, and kernels brought along."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from bench.environment import ROOT
from bench.gpu_kit import events, kernels, mode, report, runner
from bench.gpu_kit.card import FIELDS, card
from bench.gpu_kit.events import note, noted
from bench.gpu_kit.steps import Step, steps
from bench.gpu_timing import traffic
from bench.rows import bounded
from livectr.ingest import operators as op
from livectr.ingest.extract.device_extractor import DeviceExtractor
from livectr.kernels.gpu_table.device_store import DeviceStore
from livectr.kernels.gpu_table.device_table import DeviceTable
from livectr.kernels.runtime import compiler
from livectr.kernels.runtime.device import EmulatedDevice
from livectr.kernels.table.layout import SGD, RowLayout, Segment
from tests.ingest.operator_check import plan_of
from tests.ingest.operator_expressions import I64, TEXT
from tests.ingest.random_plans import random_batch

HANGS = """
import subprocess, sys, time
print("begun", flush=True)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
time.sleep(600)
"""
MACHINE = {"commit": "abc", "dry": False, "hardware": {"cores": 16, "processor": "a CPU", "torch": "2.11"}}
SAID = "NVIDIA H200, GPU-1, 580.1, 143771 MiB, 9.0, 345 MHz, 1980 MHz, 3201 MHz, 700.00 W, 30, 5, 16"


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(events.OUT, str(tmp_path))
    return tmp_path


def program(name: str, text: str, **needs: object) -> Step:
    return Step(name, (sys.executable, "-c", text), 60, **needs)  # type: ignore[arg-type]


def test_a_step_that_fails_or_hangs_does_not_end_the_rest(
    out: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    given = [
        (program("fails", "print('why it failed'); raise SystemExit(3)"), 60),
        (program("hangs", HANGS), 3),
        (program("late", "raise SystemExit('never begun')"), 0),
        (program("bare", "", packages=("no_such_package",)), 60),
        (program("unchecked", "", tool="no-such-sanitizer"), 60),
        (program("works", "print('done')"), 60),
    ]
    for step, limit_s in given:
        runner.run(step, out, limit_s)
    found = {step["name"]: (step["status"], step["why"]) for step in noted(out, "step")}
    assert found == {
        "fails": ("failed", "ended with 3\nwhy it failed"),
        "hangs": ("failed", "did not end in 3 s\nbegun"),
        "late": ("not run", "no time was left"),
        "bare": ("not run", "needs no_such_package, which this Python lacks"),
        "unchecked": ("not run", "no-such-sanitizer is not there"),
        "works": ("passed", ""),
    }
    log = (out / runner.LOG).read_text()
    assert "why it failed" in log and "begun" in log and "=== works" in log and "never begun" not in log
    assert "hangs" in capfd.readouterr().out


def test_the_report_says_what_did_not_run(out: Path) -> None:
    (out / report.MACHINE).write_text(
        json.dumps(MACHINE | {"card": dict(zip(FIELDS, SAID.split(", "), strict=True))})
    )
    note("step", name="tests", status="failed", seconds=3.0, limit_s=60.0, why="ended with 1\na | b")
    note("test", name="a", status="passed", seconds=1.0, why="")
    note("test", name="b", status="not run", seconds=0.0, why="Skipped: needs two GPUs")
    note("kernel", key="k", source="brought", seconds=0.1)
    note("kernel", key="k", source="brought", seconds=0.1)
    note("kernel", key="l", source="compiled", seconds=2.5)
    note("row", **bounded("waits", "200 features", "a batch", 3, goal=1))
    with (out / events.FILE).open("a") as log:
        log.write('{"kind": "row", "fig')  # its process was ended
    report.write(out)
    page, result = (out / report.REPORT).read_text(), json.loads((out / report.RESULT).read_text())
    for words in (
        "NVIDIA H200, driver 580.1, 143771 MiB, 700.00 W, SM clock 345 MHz of 1980 MHz",
        "| tests | failed | 3.0 | 60 | ended with 1 / a \\| b |",
        "1 passed, 0 failed, 1 were not run",
        "| `b` | not run | Skipped: needs two GPUs |",
        "1 were brought along, 1 were compiled here in 2.5 s of NVRTC, 0 are missing",
        "| waits | 200 features | 3 a batch | – | – | 1 | **no** |",
    ):
        assert words in page, page
    assert [row["figure"] for row in result["rows"]] == ["waits"]
    assert result["commit"] == "abc" and result["hardware"]["card"]["driver_version"] == "580.1"


def test_a_report_of_nothing(out: Path) -> None:
    """The machine was taken away in the first step."""
    report.write(out)
    assert "did not come as far" in (out / report.REPORT).read_text()
    assert json.loads((out / report.RESULT).read_text())["rows"] == []


def test_both_modes_have_the_same_steps() -> None:
    """A dry run names another program where the sanitizer is, and smaller sizes."""
    real, dry = steps(dry=False), steps(dry=True)
    assert [a.command[0] == "compute-sanitizer" for a in real] == ["its program alone" in b.name for b in dry]
    for one, other in zip(real, dry, strict=True):
        modules = [words[words.index("-m") + 1] for words in (one.command, other.command)]
        assert modules[0] == modules[1] and find_spec(modules[0]) is not None
        assert all((ROOT / word).exists() for word in one.command if word.startswith("tests/"))
    assert sum(step.limit_s for step in real[:4]) < 560, "what is worth most has time"


def test_a_dry_run_knows_which_kernels_a_gpu_would_load(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Missing, then built, then found without NVRTC; a changed plan is missing again."""
    for owner in (DeviceExtractor, DeviceStore):
        monkeypatch.setattr(owner, "__init__", owner.__init__)  # to be as before
    monkeypatch.setenv(mode.DRY, "1")
    kernels.watch()
    folder = tmp_path / "brought"
    monkeypatch.setenv("LIVECTR_KERNELS", str(folder))

    def asked() -> list[str]:
        before = len(noted(out, "kernel"))
        DeviceExtractor(plan_of([I64 + 1]), EmulatedDevice)
        DeviceTable(RowLayout((Segment("v", 1, SGD(0.1)),)), ["t"], seed=1, target=EmulatedDevice)
        return [kernel["source"] for kernel in noted(out, "kernel")[before:]]

    assert set(asked()) == {"missing"}
    with monkeypatch.context() as context:
        context.setenv(kernels.BUILD, str(folder))
        asked()
    with monkeypatch.context() as context:
        context.setattr(compiler, "compile_cubin", lambda source, arch: pytest.fail("NVRTC ran"))
        assert set(asked()) == {"brought"}
        before = len(noted(out, "kernel"))
        DeviceExtractor(plan_of([op.lower(op.lower(TEXT))]), EmulatedDevice)
        changed = [kernel["source"] for kernel in noted(out, "kernel")[before:]]  # in any order: threads ask
        assert set(changed) == {"missing", "brought"}, "layers are missing, packing is every plan's"


def test_traffic_is_counted() -> None:
    with traffic(EmulatedDevice) as asked:
        plan = plan_of([I64 + 1])
        extract = DeviceExtractor(plan, EmulatedDevice)
        built = asked.allocations
        extract(random_batch(random.Random(1), 50))
    assert asked.allocations > built > 0 and asked.waits > 0
    assert asked.up >= 50 * 8 and asked.down >= 50 * 8
    before = asked.up
    extract(random_batch(random.Random(1), 50))
    assert asked.up == before, "closed"


def test_the_card_is_what_nvidia_smi_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert card() is None
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\necho '{SAID}'\n")
    tool.chmod(0o755)
    found = card()
    assert found is not None and found["name"] == "NVIDIA H200" and found["clocks.max.sm"] == "1980 MHz"


def test_the_script_says_how_it_is_called() -> None:
    done = subprocess.run([ROOT / "bench/gpu_kit/run.sh"], capture_output=True, text=True)
    assert done.returncode == 2 and "bench/gpu_kit/run.sh OUT [--dry]" in done.stderr
