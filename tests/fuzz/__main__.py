"""Coverage-guided fuzzing of what reads bytes from outside: python -m tests.fuzz [TARGET …] [--seconds 60].

A target starts with the inputs of `tests/fuzz/corpus/TARGET` and with what earlier runs found. New inputs
and findings go to a folder of the cache. A finding ends its target; the table counts it, its report is
printed, and the command exits with 1. Mend it, and keep its input as `corpus/TARGET/found-NAME`:
`test_corpus.py` runs it.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from livectr.kernels.runtime.compiler import cache_folder
from livectr.system.errors import ConfigError, LiveCTRError
from tests.fuzz import native_programs as native
from tests.fuzz.targets import CORPUS, TARGETS, Target

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-fuzz/bin/python"
_CPU_S = 20
_LIMITS = (f"-timeout={_CPU_S}", "-rss_limit_mb=4096", "-print_final_stats=1")
_NO_ATHERIS = "the targets in Python need atheris in .venv-fuzz, for Python 3.11 to 3.13: run `make fuzz`"


@dataclass(frozen=True)
class Result:
    """Result of a target.

    Args:
        edges: branches of the measured code that some input took.
        report: end of the fuzzer's report on a finding; "": no finding.
        finding: its input.
    """

    target: Target
    runs: int
    edges: int
    seconds: float
    report: str
    finding: Path | None


def run(target: Target, seconds: int) -> Result:
    """Fuzz a target for some seconds.

    Raises:
        ConfigError: what it needs is not installed.
        KernelError: a harness does not compile.
    """
    folder = cache_folder().parent / "fuzz" / target.name
    inputs, findings = folder / "inputs", folder / "findings"
    for each in (inputs, findings):
        each.mkdir(parents=True, exist_ok=True)
    if target.native:
        command = [str(native.fuzzer(target.name))]
    elif PYTHON.exists():
        command = [str(PYTHON), "-m", "tests.fuzz.python_target", target.name]
    else:
        raise ConfigError(_NO_ATHERIS)
    runs, edges, began = 0, 0, time.monotonic()
    while True:
        known = {*findings.iterdir()}
        left = max(1, seconds - round(time.monotonic() - began))
        words = (f"-max_total_time={left}", f"-max_len={target.most_bytes}", f"-artifact_prefix={findings}/")
        done = _fuzzer([*command, *_LIMITS, *words, str(inputs), str(CORPUS / target.name)])
        text = f"{done.stdout}\n{done.stderr}"
        (folder / "report.txt").write_text(text)
        counted = re.search(r"number_of_executed_units: *(\d+)", text)
        runs += int(counted[1]) if counted else 0
        edges = max([edges, *map(int, re.findall(r"\bcov: (\d+)", text))])
        new = sorted({*findings.iterdir()} - known)
        if not (done.returncode and new and new[0].name.startswith("timeout-") and _ends(command, new[0])):
            break
        new[0].unlink()
    report = _last_words(text) if done.returncode else ""
    return Result(target, runs, edges, time.monotonic() - began, report, new[0] if new else None)


def _fuzzer(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["nice", "-n", "10", *command],
        cwd=ROOT,
        env={**os.environ, **native.ENVIRONMENT, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        errors="replace",
    )


def _ends(command: Sequence[str], given: Path) -> bool:
    """Tell if an input ends within `_CPU_S` seconds of a core: the fuzzer's own limit is by the clock, and a
    busy machine stops it for as long."""
    return not _fuzzer(["prlimit", f"--cpu={_CPU_S}", *command, "-timeout=0", str(given)]).returncode


def _last_words(text: str) -> str:
    """Lines that say what failed, without the fuzzer's progress."""
    lines = [line for line in text.splitlines() if not line.startswith(("#", "stat::", "INFO:"))]
    return "\n".join(lines[-40:])


def main() -> int:
    """Fuzz targets one after the other and print a table. Returns 1 for a finding, 2 if one cannot run."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description="Fuzz what reads bytes from outside."
    )
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"{', '.join(TARGETS)} [all]")
    parser.add_argument("--seconds", type=int, default=60, help="seconds of each target [60]")
    given = parser.parse_args()
    if unknown := sorted({*given.targets} - {*TARGETS}):
        parser.error(f"there is no target {unknown[0]}; the targets are {', '.join(TARGETS)}")
    print(f"{'target':<20} {'executions':>12} {'edges':>7} {'seconds':>8} {'findings':>9}", flush=True)
    failed = 0
    for name in given.targets or TARGETS:
        try:
            result = run(TARGETS[name], given.seconds)
        except LiveCTRError as error:
            print(f"{name:<20} {error}", flush=True)
            failed = 2
            continue
        row = f"{result.runs:>12,} {result.edges:>7,} {result.seconds:>8.1f} {bool(result.report):>9}"
        print(f"{name:<20} {row}", flush=True)
        if result.report:
            failed = failed or 1
            print(f"{result.report}\ninput: {result.finding}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
