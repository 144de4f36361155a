"""Run log, read for its page: lines by kind, and sums over windows."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from livectr.system.errors import ConfigError
from livectr.trainer.quality.metrics import LAST
from livectr.trainer.quality.predictions import FORMAT as PREDICTIONS
from livectr.trainer.quality.run_log import VERSION, is_run_log

MOST_SAMPLES = 2000
"""Samples that are held: those of months are thinned."""

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class RunData:
    """Content of a run log.

    Attributes:
        name: file name of the log.
        head: first line.
        starts, windows, samples: lines of these kinds, in order.
        end: last line, if it is the report of a process; None: the run is under way, or was killed.
    """

    name: str
    head: dict[str, Any]
    starts: list[dict[str, Any]]
    windows: list[dict[str, Any]]
    samples: list[dict[str, Any]]
    end: dict[str, Any] | None

    @property
    def models(self) -> list[str]:
        """Names of the models, the ranking model first."""
        return list(self.head["models"])

    @property
    def report(self) -> dict[str, Any]:
        """Report of the last process; {} before its end."""
        return self.end["report"] if self.end is not None else {}

    def last_windows(self) -> list[dict[str, Any]]:
        """Fewest windows at the end that hold the last 20 % of the examples."""
        if not self.windows:
            return []
        first = (1 - LAST) * self.windows[-1]["examples"]
        return [window for window in self.windows if window["examples"] > first]

    def bins(self, model: str, windows: list[dict[str, Any]]) -> F64:
        """Sum of the bins of scores, f64[count, 3]: examples, clicks, predicted clicks."""
        total = np.zeros((self.head["bins"]["count"], 3))
        for window in windows:
            held = np.array(window["models"][model]["bins"], np.float64).reshape(-1, 4)
            total[held[:, 0].astype(np.int64)] += held[:, 1:]
        return total


def read_run_log(path: Path) -> RunData:
    """Read a run log, also while it is written.

    Raises:
        ConfigError: there is no such file, or it is no run log.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(
            f"there is no run log {path}; livectr train --set run_log={path} writes it."
        ) from None
    if not is_run_log(data[:200]):
        more = "livectr train --set run_log=FILE writes one"
        if PREDICTIONS.encode() in data[:200]:
            more = "it is a log of predictions, for livectr evaluate; --set run_log=FILE writes a run log"
        raise ConfigError(f"{path} is no run log; {more}.")
    return run_of(path.name, thinned_samples(lines_of(path.name, whole_lines(data))))


def whole_lines(data: bytes) -> bytes:
    """The data without a line at its end that is not whole yet."""
    return data[: data.rfind(b"\n") + 1]


def lines_of(name: str, data: bytes) -> list[dict[str, Any]]:
    """Parse whole lines. Raises ConfigError for a line that is no JSON object with a kind."""
    lines = []
    for number, text in enumerate(data.splitlines(), 1):
        try:
            line = json.loads(text)
            _ = line["kind"]
        except (ValueError, KeyError, TypeError):
            raise ConfigError(f"line {number} of {name} is damaged; it is no object with a kind.") from None
        lines.append(line)
    return lines


def thinned_samples(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Lines without every second sample, again and again until MOST_SAMPLES are left; the newest stays."""
    while sum(line["kind"] == "sample" for line in lines) > MOST_SAMPLES:
        places = [i for i, line in enumerate(lines) if line["kind"] == "sample"]
        left_out = set(places[-2::-2])
        lines = [line for i, line in enumerate(lines) if i not in left_out]
    return lines


def run_of(name: str, lines: list[dict[str, Any]]) -> RunData:
    """Content of the lines of a run log. Raises ConfigError for none, or a newer format."""
    if not lines:
        raise ConfigError(f"{name} is empty: the run has not begun.")
    head = lines[0]
    if head["version"] > VERSION:
        raise ConfigError(f"{name} is of format {head['version']}; this LiveCTR reads {VERSION}: update it.")
    kinds = ("start", "window", "sample")
    by_kind = {kind: [line for line in lines if line["kind"] == kind] for kind in kinds}
    end = lines[-1] if lines[-1]["kind"] == "end" else None
    return RunData(name, head, by_kind["start"], by_kind["window"], by_kind["sample"], end)
