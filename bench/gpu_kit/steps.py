"""Steps of the kit, in order of worth: what comes first is done if time ends."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

SIZES = (1 << 12, 1 << 15, 1 << 20)
"""Rows of a batch in the benchmarks."""
DRY_SIZES = (200, 400, 800)


@dataclass(frozen=True)
class Step:
    """Program of the kit.

    Attributes:
        name: in report and log.
        command: command line.
        limit_s: most seconds on a machine with a GPU.
        packages: modules without which it is not run.
        tool: program on the PATH without which it is not run.
    """

    name: str
    command: tuple[str, ...]
    limit_s: float
    packages: tuple[str, ...] = ()
    tool: str | None = None


def steps(*, dry: bool) -> list[Step]:
    """All steps in their order."""
    sizes = DRY_SIZES if dry else SIZES
    return [
        Step("kernel library", _python("bench.gpu_kit.library"), 120),
        Step("smoke", _python("bench.gpu_kit.smoke"), 60),
        Step("tests", _tests("tests/gpu", "--ignore=tests/gpu/test_ranks.py", workers=_workers()), 150),
        *(Step(f"bench, {rows:,} rows", _figures("rows", str(rows)), 100) for rows in sizes),
        *(_sanitizer(tool, dry=dry) for tool in ("memcheck", "racecheck")),
        Step("tests of ranks", _tests("tests/gpu/test_ranks.py", workers=1), 90),
        Step("bench, training step", _figures("step"), 90),
        Step("bench, pictures", _figures("images"), 60),
        Step("training end to end", _figures("train"), 90, packages=("safetensors", "PIL", "rich")),
    ]


def _workers() -> int:
    """Processes of the tests: most cores of a machine with a GPU, all of a small one."""
    return min(12, len(os.sched_getaffinity(0)))


def _python(module: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", module, *arguments)


def _figures(*arguments: str) -> tuple[str, ...]:
    return _python("bench.gpu_kit.figures", *arguments)


def _tests(*arguments: str, workers: int) -> tuple[str, ...]:
    """Command of pytest, without the settings and the conftest of tests/, which need more packages."""
    settings = ("-c", os.devnull, "--rootdir=.", "--confcutdir=tests/gpu", "--import-mode=importlib")
    quiet = ("-q", "-ra", "-p", "no:cacheprovider", "-p", "bench.gpu_kit.plugin")
    several = ("-n", str(workers), "--dist=worksteal") if workers > 1 else ()
    return _python("pytest", *settings, *quiet, *several, *arguments)


def _sanitizer(tool: str, *, dry: bool) -> Step:
    """Step under a tool of compute-sanitizer; a dry run runs its program alone."""
    program = _python("bench.gpu_kit.sanitized")
    if dry:
        return Step(f"{tool}, its program alone", program, 75)
    checked = ("compute-sanitizer", "--tool", tool, "--error-exitcode=9", "--print-limit=20", *program)
    return Step(tool, checked, 75, tool="compute-sanitizer")
