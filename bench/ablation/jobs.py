"""Trainings of an ablation as processes: each trains a run of a seed, measures it and leaves a result.

A result is kept in DIR/results/<run>-<seed>.json with a digest of its inputs, and is not made twice: an
interrupted ablation can be resumed. Prediction logs and checkpoints are in DIR/work, removed at the end.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.ablation.span import Span
from bench.environment import ROOT
from livectr.local.parts import Part, PartError
from livectr.system.errors import ConfigError

POLL_S = 0.05
MISTAKE = 2
"""Exit code after a user's mistake; the last line of the log has a sentence about it."""


@dataclass(frozen=True)
class Job:
    """Run of a seed. key: digest of all inputs of its result. needs: the run whose checkpoint it starts from.
    folder: --out."""

    pipeline: str
    grids: tuple[str, ...]
    run: str
    seed: int
    source: str
    content: str | None
    ledger: str | None
    span: Span
    folder: str
    key: str
    needs: str | None = None
    keeps: bool = False
    """Another job starts from its checkpoint."""
    threads: int = 1

    @property
    def name(self) -> str:
        return f"{self.run}-{self.seed}"

    @property
    def result_file(self) -> Path:
        return Path(self.folder) / "results" / f"{self.name}.json"

    def work(self, run: str | None = None) -> Path:
        """Working folder of this job, or of another run of its seed."""
        return Path(self.folder) / "work" / f"{run or self.run}-{self.seed}"

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Job:
        found = json.loads(path.read_text())
        return cls(**found | {"span": Span(**found["span"]), "grids": tuple(found["grids"])})

    def result(self) -> dict[str, Any] | None:
        """Result, or None: it has not run, or the result has other inputs."""
        try:
            found = json.loads(self.result_file.read_text())
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) and found.get("key") == self.key else None


def run_jobs(
    jobs: Sequence[Job], *, at_once: int, progress: Callable[[str, int, int], None]
) -> dict[str, dict[str, Any]]:
    """Run the jobs that have no result yet, and return every job's result by its name.

    Args:
        jobs: all jobs.
        at_once: jobs that run at a time.
        progress: gets the name of an ended job ("" at the start), the number of ended jobs, and of all.

    Raises:
        ConfigError: a process reports a user's mistake.
        PartError: a process failed.
    """
    left = [job for job in jobs if job.result() is None]
    # Checkpoints are removed at the end, so their run is repeated for jobs that start from them.
    wanted = {(job.needs, job.seed) for job in left if job.needs is not None}
    left += [job for job in jobs if (job.run, job.seed) in wanted and job not in left]
    left.sort(key=lambda job: (not job.keeps, job.needs is not None, job.seed))
    total, running, ended = len(left), dict[str, tuple[Job, Part]](), set[str]()
    progress("", 0, total)
    try:
        while left or running:
            waiting = {job.name for job in left} | set(running)
            for job in list(left):
                if len(running) < at_once and f"{job.needs}-{job.seed}" not in waiting:
                    left.remove(job)
                    running[job.name] = job, _start(job)
            for name, (job, part) in list(running.items()):
                if part.exit_code is not None:
                    _check(job, part)
                    del running[name]
                    ended.add(name)
                    progress(name, len(ended), total)
            time.sleep(POLL_S)
    finally:
        for _, part in running.values():
            part.stop()
    return {job.name: _result(job) for job in jobs}


def _start(job: Job) -> Part:
    work = job.work()
    work.mkdir(parents=True, exist_ok=True)
    job.write(work / "job.json")
    log = work / "log.txt"
    log.unlink(missing_ok=True)
    command = [sys.executable, "-m", "bench.ablation.child", str(work / "job.json")]
    # The user's folder is kept: paths of the job are relative to it.
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {"LIVECTR_THREADS": str(job.threads), "PYTHONPATH": path}
    return Part(f"training of {job.name}", command, log, environment=environment)


def _check(job: Job, part: Part) -> None:
    """Raises for a process that did not end well."""
    if part.exit_code == MISTAKE:
        raise ConfigError(part.tail().splitlines()[-1].removeprefix("livectr: "))
    if part.exit_code or job.result() is None:
        raise part.failure()


def _result(job: Job) -> dict[str, Any]:
    found = job.result()
    if found is None:
        raise PartError(f"the result {job.result_file} went away while the ablation ran.")
    return found
