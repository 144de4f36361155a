"""Runs the tests again and again, and writes a table: `python -m tests.tally 10 --busy 2 --shuffle`.

A green suite is one that is green each time: beside busy loops that take the CPUs from it, and in any order.
The table has a line for each run with its seconds, the CPU seconds of all of its processes, and what failed.
`tests/runs.md` keeps whole runs of all days: `--record` adds to it.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import random
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import psutil

from bench.machine import commit, processor

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "tests/runs.md"
SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER of prctl(2): who outlives its parent becomes our child, and counts."""
USUAL = ("--numprocesses=4", "--dist=loadscope")


@dataclass
class Run:
    """One run of the tests.

    Attributes:
        seed: of the order; None: the files' own.
        seconds, cpu_s: from start to end, and of all processes.
        tests: number that ran.
        failed: names of tests.
        costs: CPU seconds and seconds of each test, with its name.
        left: command lines of processes that the run left behind.
        code: exit code of pytest.
    """

    seed: int | None
    seconds: float = 0.0
    cpu_s: float = 0.0
    tests: int = 0
    failed: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    costs: list[tuple[float, float, str]] = field(default_factory=list)
    code: int = 0

    @property
    def green(self) -> bool:
        return self.code == 0 and not self.failed and not self.left


def run(arguments: Sequence[str], seed: int | None) -> Run:
    """Run pytest once; its output is copied to ours."""
    done = Run(seed)
    with tempfile.TemporaryDirectory(prefix="livectr-tally-") as folder:
        results = Path(folder) / "results.xml"
        order = [f"--shuffle={seed}"] if seed is not None else []
        command = [
            sys.executable,
            "-m",
            "pytest",
            *arguments,
            *order,
            f"--junit-xml={results}",
            "-o",
            "junit_family=xunit1",
        ]
        before_s, began = _reaped_s(), time.monotonic()
        done.code = _run_and_reap(command)
        done.seconds = time.monotonic() - began
        done.left = end_orphans()
        done.cpu_s = _reaped_s() - before_s
        if results.exists():
            _read(results, done)
    return done


def _run_and_reap(command: Sequence[str]) -> int:
    """Run a command. Orphans that end meanwhile are reaped, as init would: tests wait until they are gone."""
    process = subprocess.Popen(command, cwd=ROOT)
    while True:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        if ended.si_pid == process.pid:
            return process.wait()
        os.waitpid(ended.si_pid, 0)


def _read(results: Path, done: Run) -> None:
    """Take over what JUnit's file says."""
    for case in ElementTree.parse(results).iter("testcase"):
        name = f"{case.get('file') or case.get('classname')}::{case.get('name')}"
        done.tests += 1
        cpu_s = sum(float(p.get("value", 0)) for p in case.iter("property") if p.get("name") == "cpu_s")
        done.costs.append((cpu_s, float(case.get("time", 0)), name))
        if case.find("failure") is not None or case.find("error") is not None:
            done.failed.append(name)
    done.costs.sort(reverse=True)


def _reaped_s() -> float:
    """CPU seconds of the children that have ended, and of theirs."""
    times = os.times()
    return times.children_user + times.children_system


def end_orphans() -> list[str]:
    """Wait for processes that outlived the run, end those that do not end by themselves, and name these."""
    mine = psutil.Process()
    orphans = [p for p in mine.children() if p.pid not in _busy]
    _, alive = psutil.wait_procs(orphans, timeout=10)
    names = []
    for process in alive:
        names.append(" ".join(process.cmdline())[:100])
        process.kill()
    psutil.wait_procs(alive)
    return names


_busy: set[int] = set()


@contextmanager
def busy(loops: int) -> Iterator[None]:
    """Let some processes compute for nothing."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    _busy.update(process.pid for process in started)
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()
        _busy.clear()


def table(runs: Sequence[Run], most: int = 0) -> str:
    """Markdown table of the runs, of failures, and of the files and tests that cost most in the last run."""
    lines = [
        "| run | order | seconds | CPU seconds | tests | failed | left behind |",
        "|---|---|---|---|---|---|---|",
    ]
    for number, done in enumerate(runs, start=1):
        order = "files" if done.seed is None else f"seed {done.seed}"
        failed = str(len(done.failed)) if done.code in (0, 1) else f"exit code {done.code}"
        lines.append(
            f"| {number} | {order} | {done.seconds:.0f} | {done.cpu_s:.0f} | {done.tests} | {failed} "
            f"| {len(done.left)} |"
        )
    lines += ["", f"{sum(done.green for done in runs)} of {len(runs)} runs were green."]
    failures = Counter(name for done in runs for name in done.failed)
    lines += [f"- {times} × `{name}`" for name, times in failures.most_common()]
    lines += [f"- left behind: `{name}`" for done in runs for name in done.left]
    if most and runs:
        files: dict[str, float] = defaultdict(float)
        for cpu_s, _, name in runs[-1].costs:
            files[name.split("::")[0]] += cpu_s
        costliest = sorted(files.items(), key=lambda file: -file[1])[:most]
        lines += ["", "| CPU seconds | file |", "|---|---|"]
        lines += [f"| {cpu_s:.1f} | `{name}` |" for name, cpu_s in costliest]
        lines += ["", "| CPU seconds | seconds | test |", "|---|---|---|"]
        tests = runs[-1].costs[:most]
        lines += [f"| {cpu_s:.1f} | {seconds:.1f} | `{name}` |" for cpu_s, seconds, name in tests]
    return "\n".join(lines) + "\n"


def record(done: Run, loops: int, of: str) -> str:
    """Line of `tests/runs.md` for a run of a commit beside some busy loops."""
    bad = [f"`{name}`" for name in (*done.failed, *done.left)]
    cells = (
        f"{datetime.now(UTC):%Y-%m-%d %H:%M}",
        of[:8],
        processor().rpartition(", model")[0],
        f"{loops} loops" if loops else "–",
        "files" if done.seed is None else str(done.seed),
        f"{done.seconds:.0f}",
        f"{done.cpu_s:.0f}",
        f"{done.tests:,}",
        ", ".join(bad) or ("none" if done.green else f"exit code {done.code}"),
    )
    return f"| {' | '.join(cells)} |\n"


def main(words: Sequence[str] | None = None) -> int:
    """Parse the command line and run; returns 0 if every run was green."""
    parser = argparse.ArgumentParser(prog="python -m tests.tally", description=__doc__)
    parser.add_argument("runs", type=int, help="number of runs")
    parser.add_argument(
        "--busy", type=int, default=0, metavar="LOOPS", help="loops that compute meanwhile [0]"
    )
    parser.add_argument("--shuffle", action="store_true", help="in a new random order each time")
    parser.add_argument("--seed", type=int, default=1, help="of the first order [1]")
    parser.add_argument("--costs", type=int, default=0, metavar="ROWS", help="list what costs most")
    parser.add_argument("--table", type=Path, help="write the table to a file, too, after each run")
    parser.add_argument("--record", action="store_true", help=f"add each run to {RECORD.name}")
    parser.epilog = f"What comes after `--` are pytest's arguments [{' '.join(USUAL)}]"
    own = [*(sys.argv[1:] if words is None else words)]
    own, arguments = (own[: own.index("--")], own[own.index("--") + 1 :]) if "--" in own else (own, [*USUAL])
    given = parser.parse_args(own)
    ctypes.CDLL(None, use_errno=True).prctl(SUBREAPER, 1, 0, 0, 0)
    seeds, measured = random.Random(given.seed), commit()
    runs: list[Run] = []
    with busy(given.busy):
        for number in range(given.runs):
            seed = (given.seed if number == 0 else seeds.randrange(1 << 31)) if given.shuffle else None
            runs.append(run(arguments, seed))
            if given.record:
                with RECORD.open("a") as file:
                    file.write(record(runs[-1], given.busy, measured))
            text = table(runs, given.costs)
            if given.table is not None:
                given.table.write_text(text)
            print(text, flush=True)
    return 0 if all(done.green for done in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
