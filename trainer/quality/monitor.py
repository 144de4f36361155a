"""Monitor of a run while it trains: gauges for Prometheus, and a status line for a person."""

import logging
import shutil
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.text import Text

from livectr.store.manifest import VersionManifest
from livectr.system.speed import Speed
from livectr.trainer.part import Arrays, Part, Scored
from livectr.trainer.quality import telemetry
from livectr.trainer.quality.metrics import Quality, SlidingWindow
from livectr.trainer.quality.predictions import as_floats, label_of, targets_of, weights_of
from livectr.trainer.quality.seen import is_cold
from livectr.trainer.setup import Setup
from livectr.trainer.tables.telemetry import OF_TABLES, TABLE_BYTES, TABLE_ROWS, TIER_ROWS
from livectr.trainer.telemetry import EXAMPLES_PER_SECOND

LOG = logging.getLogger(__name__)
GAUGES_EVERY_S = 5.0
GAUGES_PAUSE = 30.0
"""Seconds without new gauges for each second that they took: they take about 3 % of the time at most."""
LOG_EVERY_S = 10.0
LEAST = 1000
"""Examples from which measures are shown: those of fewer say nothing about a model."""
SAVED = 20_000
"""Newest examples of the window that a checkpoint has, some 25 bytes each."""


class Table(Protocol):
    """Table, as the monitor sees it."""

    @property
    def nbytes(self) -> int:
        """Bytes in use."""

    def __len__(self) -> int: ...


class Monitor(Part):
    """Monitor of one rank; a context manager, since a live line holds the terminal.

    Args:
        tables: name → this rank's table.
        roles: models whose quality is measured (none on ranks other than 0).
        window_ms: sliding window of the quality, in event time.
        folders: name → folder whose disk is measured.
        weighted: examples have weights.
        targets: roles with labels of their own.
    """

    kind = "window"

    def __init__(
        self,
        tables: Mapping[str, Table],
        roles: Iterable[str],
        window_ms: int,
        folders: Mapping[str, Path] | None = None,
        *,
        weighted: bool = False,
        targets: Iterable[str] = (),
    ) -> None:
        self.tables = tables
        self.folders = folders or {}
        for name in tables:
            for metric in OF_TABLES:
                metric.labels(name)
        self.window = SlidingWindow(window_ms, roles, weighted=weighted, targets=targets)
        self._quality: dict[str, Quality] = {}
        self._live: Live | None = None
        if self.window.roles and sys.stderr.isatty():
            self._live = Live(console=Console(stderr=True), refresh_per_second=4, transient=True)
        self._line_every_s = 0.25 if self._live is not None else LOG_EVERY_S
        self._next_gauges = time.monotonic() + 1.0
        self._next_line = time.monotonic() + self._line_every_s
        self._speed = Speed()

    @staticmethod
    def of(setup: Setup, tables: Mapping[str, Table], roles: Iterable[str]) -> "Monitor":
        """The monitor of a run; on rank 0 it measures the quality of all models."""
        options = setup.options
        named = {"checkpoint": options.checkpoint_folder, "spill": options.spill}
        folders = {name: Path(folder) for name, folder in named.items() if folder is not None}
        window_ms = int(options.metrics_window_s * 1000)
        weighted = setup.pipeline.example_weights is not None
        targets = [target.role for target in setup.pipeline.targets]
        if setup.rank != 0:
            roles, targets = (), []
        return Monitor(tables, roles, window_ms, folders, weighted=weighted, targets=targets)

    def state(self) -> Arrays:
        """The newest examples of the sliding window, on rank 0."""
        return self.window.state(SAVED) if self.window.roles else {}

    def load(self, state: Arrays) -> None:
        """Continue the sliding window of a checkpoint."""
        if self.window.roles:
            self.window.load(state)

    def measure(self, scored: Scored) -> None:
        """Add examples to the sliding window of every model's quality."""
        examples = scored.records
        cold = is_cold(examples["seen"])
        times = examples["time_ms"] if scored.at_ms is None else scored.at_ms
        label = as_floats(examples["label"])
        came = {role: as_floats(label_of(examples, role)) for role in targets_of(examples)}
        self.window.add(times, examples["user"], scored.logits, label, cold, weights_of(examples), came)

    def measure_again(self, again: Scored) -> None:
        """Add labels beside the click to the sliding window, at the time of the examples of their moment."""
        self.measure(again)

    def gauges(self) -> None:
        """Bring the Prometheus gauges up to date."""
        for name, table in self.tables.items():
            TABLE_ROWS.labels(name).set(len(table))
            TABLE_BYTES.labels(name).set(table.nbytes)
        if "spill" not in self.folders:  # else trainer.tables.tiers knows
            TIER_ROWS.labels("dram").set(sum(map(len, self.tables.values())))
            TIER_ROWS.labels("ssd").set(0)
        for name, folder in self.folders.items():
            disk = shutil.disk_usage(_existing(folder))
            telemetry.DISK_FREE_BYTES.labels(name).set(disk.free)
            telemetry.DISK_BYTES.labels(name).set(disk.total)
        self._quality = self.window.quality() if self.window.added >= LEAST else {}
        self._rates()
        for role, quality in self._quality.items():
            telemetry.AUC.labels(role).set(quality.auc)
            telemetry.GAUC.labels(role).set(quality.gauc)
            telemetry.COLD_AUC.labels(role).set(quality.cold_auc)
            telemetry.COLD_GAUC.labels(role).set(quality.cold_gauc)
            telemetry.LOGLOSS.labels(role).set(quality.logloss)
            telemetry.CALIBRATION.labels(role).set(quality.calibration)
            # The same examples for every model.
            telemetry.COLD_EXAMPLES.set(quality.cold_examples)
            telemetry.SKIPPED_USERS.set(quality.skipped_users)

    def _rates(self) -> None:
        """Measure click rates over the window."""
        if not self.window.roles:
            return
        rates = self.window.rates()
        telemetry.WINDOW_EXAMPLES.set(rates.examples)
        telemetry.WINDOW_CLICKS.set(rates.clicks)
        if self.window.added < LEAST:
            return
        telemetry.OBSERVED_CTR.set(rates.observed)
        for role, predicted in rates.predicted.items():
            telemetry.PREDICTED_CTR.labels(role).set(predicted)

    def show(self, examples: int, version: VersionManifest | None, notes: str = "") -> None:
        """Update gauges and status line, if it is time to. Called at every step.

        Args:
            examples: learned so far.
            version: that is served.
            notes: text about the backlog and unusable rows.
        """
        now = time.monotonic()
        if now >= self._next_gauges:
            self.gauges()
            took_s = time.monotonic() - now
            self._next_gauges = now + max(GAUGES_EVERY_S, GAUGES_PAUSE * took_s)
        per_s = self._speed.observe(now, examples)
        EXAMPLES_PER_SECOND.set(per_s)
        if not self.window.roles or now < self._next_line:
            return
        self._next_line = now + self._line_every_s
        line = self._line(examples, per_s, version) + (f"  ·  {notes}" if notes else "")
        if self._live is not None:
            self._live.update(Text(f"  training  {line}"))
        else:
            LOG.info("%s", line)

    def _line(self, examples: int, per_s: float, version: VersionManifest | None) -> str:
        parts = [f"{examples:,} examples", f"{per_s:,.0f}/s"]
        for role, quality in self._quality.items():
            if role == "prerank" or not quality.examples:
                continue
            text = f"AUC {quality.auc:.4f}  GAUC {quality.gauc:.4f}"
            if quality.cold_examples:
                text += f"  cold GAUC {quality.cold_gauc:.4f}"
            if role == "rank":
                text += f"  log loss {quality.logloss:.4f}"
            parts.append(text if role == "rank" else f"{role}: {text}")
        if version is not None:
            parts.append(f"version {version.version}")
        return "  ·  ".join(parts)

    def __enter__(self) -> "Monitor":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()


def _existing(folder: Path) -> Path:
    """Nearest folder above that exists; a checkpoint may make its folder later."""
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
