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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from livectr.kernels.runtime.compiler import cache_folder
from livectr.system.errors import ConfigError, LiveCTRError
from tests.fuzz import native_programs as native
from tests.fuzz import sanitized
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
    with _fuzzer(target) as fuzzer:
        runs, edges, began = 0, 0, time.monotonic()
        while True:
            known = {*findings.iterdir()}
            left = max(1, seconds - round(time.monotonic() - began))
            limits = (f"-max_total_time={left}", f"-max_len={target.most_bytes}")
            words = (*_LIMITS, *limits, f"-artifact_prefix={findings}/", str(inputs))
            status, text = fuzzer.run([*words, str(CORPUS / target.name)])
            (folder / "report.txt").write_text(text)
            counted = re.search(r"number_of_executed_units: *(\d+)", text)
            runs += int(counted[1]) if counted else 0
            edges = max([edges, *map(int, re.findall(r"\bcov: (\d+)", text))])
            new = sorted({*findings.iterdir()} - known)
            if not (status and new and new[0].name.startswith("timeout-") and fuzzer.ends(new[0])):
                break
            new[0].unlink()
    report = _last_words(text) if status else ""
    return Result(target, runs, edges, time.monotonic() - began, report, new[0] if new else None)


@dataclass(frozen=True)
class _Fuzzer:
    """Program of a target.

    Args:
        command: without the words of libFuzzer.
        variables: of its process, besides ours.
        reports: folder that sanitizers write to; None: standard error has their reports.
    """

    command: Sequence[str]
    variables: Mapping[str, str]
    reports: Path | None = None

    def run(self, words: Sequence[str], before: Sequence[str] = ()) -> tuple[int, str]:
        """Run it with words of libFuzzer: its exit status, and what it has said."""
        done = subprocess.run(
            ["nice", "-n", "10", *before, *self.command, *words],
            cwd=ROOT,
            env={**os.environ, **native.ENVIRONMENT, **self.variables, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            errors="replace",
        )
        said = [done.stdout, done.stderr]
        for file in sorted(self.reports.iterdir()) if self.reports else ():
            if file.suffix != ".so":
                said.append(file.read_text(errors="replace"))
        return done.returncode, "\n".join(said)

    def ends(self, given: Path) -> bool:
        """Tell if an input ends within `_CPU_S` seconds of a core.

        The fuzzer's own limit is by the clock, and a busy machine stops it for as long.
        """
        status, _ = self.run(["-timeout=0", str(given)], ["prlimit", f"--cpu={_CPU_S}"])
        return not status


@contextmanager
def _fuzzer(target: Target) -> Iterator[_Fuzzer]:
    """Fuzzer of a target. Raises as `run`."""
    if target.native:
        yield _Fuzzer([str(native.fuzzer(target.name))], {})
        return
    if not PYTHON.exists():
        raise ConfigError(_NO_ATHERIS)
    command = [str(PYTHON), "-m", "tests.fuzz.python_target", target.name]
    if not target.sanitized:
        yield _Fuzzer(command, {})
        return
    with sanitized.variables(PYTHON) as (variables, folder):
        yield _Fuzzer(command, variables, folder)


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
