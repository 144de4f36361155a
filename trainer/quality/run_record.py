"""Record of a run, written to its run log: windows of examples, and samples.

A sample has tables, dead letters and freshness. Rank 0 writes; the other ranks give their share of it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from livectr.ingest.pipeline import Pipeline
from livectr.store.manifest import VersionManifest
from livectr.trainer.comm.control import Control
from livectr.trainer.counts import summed
from livectr.trainer.part import Arrays, Part, Scored
from livectr.trainer.quality.run_log import RunLog
from livectr.trainer.quality.windows import BIN_WIDTH, BINS, FIRST_LOGIT, Windows
from livectr.trainer.setup import Setup

LENGTH = "length"
OFTENEST_S, RAREST_S, AGE_SHARE = 1.0, 300.0, 300
"""Seconds between samples: a share of the run's age, within limits."""


class Table(Protocol):
    """Table, as a sample sees it."""

    @property
    def nbytes(self) -> int:
        """Bytes in use."""

    def __len__(self) -> int: ...


@dataclass(frozen=True)
class Moment:
    """Point of a run.

    Attributes:
        step, examples: learned by all ranks.
    """

    step: int
    examples: int


class RunRecord(Part):
    """Record of a run on rank 0.

    Args:
        path: the run log.
        pipeline: its fingerprint and fields are in the first line.
        roles: models.
        began_ms: time at which the run's first process began.

    Raises:
        ConfigError: the file is no run log.
    """

    kind = "record"

    def __init__(self, path: Path, pipeline: Pipeline, roles: Iterable[str], began_ms: int) -> None:
        targets = [target.role for target in pipeline.targets]
        later = [target.role for target in pipeline.targets if target.label is None]
        weighted = pipeline.example_weights is not None
        worths = () if pipeline.worths is None else pipeline.worths.measured
        self._windows = Windows(
            tuple(roles), weighted=weighted, targets=targets, unknown=later, worths=worths
        )
        bins = {"first_logit": FIRST_LOGIT, "width": BIN_WIDTH, "count": BINS}
        head = {
            "began_ms": began_ms,
            "fingerprint": pipeline.fingerprint,
            "models": list(self._windows.roles),
            "fields": [field.name for field in pipeline.fields],
            "bins": bins,
        }
        self._log = RunLog(path, head)
        self._resumed = False
        self._began_ms = began_ms
        self._next_sample = time.monotonic() + OFTENEST_S
        self._shown: VersionManifest | None = None
        self._delays: list[tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]] = []

    @staticmethod
    def of(setup: Setup, roles: Iterable[str], began_ms: int) -> RunRecord | None:
        """Record of a run on rank 0; None without a run log, and on other ranks."""
        path = setup.options.run_log
        if setup.rank != 0 or path is None:
            return None
        return RunRecord(Path(path), setup.pipeline, roles, began_ms)

    def start(self, moment: Moment, world: int) -> None:
        """Say that a process of the run begins."""
        if not self._resumed:  # a new run, or one that kept no log until here
            self._log.begin()
            self._windows.before = moment.examples
        self._log.write("start", moment.step, {"examples": moment.examples, "world": world})

    def measure(self, scored: Scored) -> None:
        """Write a line for each window that these examples complete."""
        for closed_by, window in self._windows.add(scored.records):
            self._log.write("window", scored.step_of(closed_by), window)

    def finish(self, step: int) -> None:
        """Close the open window: no more examples will come."""
        for window in self._windows.finish():
            self._log.write("window", step, window)

    @property
    def due(self) -> bool:
        """Tell if it is time for a sample."""
        return time.monotonic() >= self._next_sample

    def published(self, version: VersionManifest | None) -> None:
        """Note the newest version that servers can use, as soon as they can."""
        if version is None or version is self._shown:
            return
        first, self._shown = self._shown is None, version
        if first and version.created_ms < self._began_ms:
            return  # of an earlier run
        age_s = time.time() - np.array(version.freshness.bin_ms, np.float64) / 1000
        self._delays.append((np.maximum(age_s, 0.0), np.array(version.freshness.counts, np.int64)))

    def sample(self, moment: Moment, share: Mapping[str, Any]) -> None:
        """Write a sample.

        Args:
            moment: of the run.
            share: "tables": name → rows and bytes, "dead_letters": reason → rows; of all ranks.
        """
        version = self._shown.version if self._shown is not None else None
        figures = {"examples": moment.examples, "version": version, "versions": len(self._delays)}
        self._log.write("sample", moment.step, {**figures, **share, "freshness": freshness(self._delays)})
        self._delays = []
        age_s = time.time() - self._began_ms / 1000
        self._next_sample = time.monotonic() + min(max(age_s / AGE_SHARE, OFTENEST_S), RAREST_S)

    def end(self, step: int, report: object) -> None:
        """Write the report of this process, a dataclass."""
        self._log.write("end", step, {"report": asdict(report)})  # type: ignore[call-overload]

    def state(self) -> Arrays:
        """State for a checkpoint; the log until here is on disk afterwards."""
        return self._windows.state() | {LENGTH: np.array([self._log.sync()])}

    def load(self, state: Arrays) -> None:
        """Resume from a `state`. Raises ConfigError; see `RunLog.resume`."""
        self._log.resume(int(state[LENGTH][0]))
        self._windows.load({name: values for name, values in state.items() if name != LENGTH})
        self._resumed = True

    def close(self) -> None:
        """Close the run log; lines that were written stay."""
        self._log.close()


def gathered(
    control: Control, tables: Mapping[str, Table], letters: Mapping[str, int], earlier: Mapping[str, int]
) -> dict[str, Any]:
    """Gather every rank's share of a sample. Collective.

    Args:
        control: gathers the shares of all ranks.
        tables: name → this rank's table.
        letters: reason → rows of this process.
        earlier: reason → rows of earlier processes; rank 0's.
    """
    held = {name: {"rows": len(table), "bytes": table.nbytes} for name, table in tables.items()}
    own = {"tables": held, "dead_letters": summed([dict(earlier), dict(letters)])}
    return summed(control.gather_json(own))


def freshness(
    delays: list[tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]],
) -> dict[str, float | int] | None:
    """Quantiles of event → servable in seconds; None where no version has learned an event of this run.

    Args:
        delays: seconds f64[n] and examples i64[n] of each bin of each version.
    """
    seconds = np.concatenate([np.empty(0), *(s for s, _ in delays)])
    counts = np.concatenate([np.empty(0, np.int64), *(n for _, n in delays)])
    if not counts.sum():
        return None
    order = np.argsort(seconds)
    below = np.cumsum(counts[order])
    at = {q: int(np.searchsorted(below, q / 100 * below[-1])) for q in (50, 99)}
    quantiles = {f"p{q}_s": round(float(seconds[order][i]), 3) for q, i in at.items()}
    return {"examples": int(below[-1]), **quantiles}
