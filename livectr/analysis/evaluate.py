"""Quality of the models of a run, from its log of predictions (test-then-train).

The measures of `trainer.quality.metrics` are taken over the whole log, its last 20 % and periods of event
time. The plots follow DICM (Fig. 5, 6).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich import box
from rich.console import Console
from rich.table import Table

from livectr.analysis.compare import MEASURES, Z95, differences
from livectr.analysis.plots import bars, check_plot, curve
from livectr.system.errors import ConfigError
from livectr.trainer.quality.metrics import LAST, Quality, gauc_error
from livectr.trainer.quality.predictions import (
    Records,
    known_of,
    label_of,
    quality_of,
    read_predictions,
    roles_of,
    targets_of,
    weights_of,
)
from livectr.trainer.quality.seen import COLD, is_cold
from livectr.trainer.quality.value import ValueSums, total_value, value_sums

PERIODS_S = (1, 10, 60, 300, 600, 1800, 3600, 6 * 3600, 86_400, 7 * 86_400)
MOST_PERIODS = 8
WINDOW = 0.1
"""Width of the sliding window of a curve, as a share of the log's event time."""
POINTS = 100


@dataclass(frozen=True)
class EvaluateOptions:
    """Options of an evaluation.

    Args:
        files: prediction logs.
        as_json: print JSON in place of tables.
        plot: file of a plot of `measure` over event time.
        bars: file of a bar chart of `measure` over the whole log.
        measure: name in MEASURES.
        period_s: event time of a row; None: a round time that gives at most MOST_PERIODS rows.
        window_s: event time of a point of the plot; None: the share WINDOW of the log.
    """

    files: Sequence[Path]
    as_json: bool = False
    plot: Path | None = None
    bars: Path | None = None
    measure: str = "gauc"
    period_s: float | None = None
    window_s: float | None = None


@dataclass(frozen=True)
class Lift:
    """Paired difference `model` − `over` of a measure, over "all" or the "last" 20 % of the examples.

    Difference and error are None for too few users or examples.
    """

    log: str
    model: str
    over: str
    of: str
    measure: str
    difference: float | None
    standard_error: float | None


@dataclass(frozen=True)
class Row:
    """Quality of a model over a part of a log: "all", the "last" 20 %, or a "period" from `start_ms`."""

    log: str
    model: str
    of: str
    start_ms: int | None
    quality: Quality

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        values = dict(log=self.log, model=self.model, of=self.of, start_ms=self.start_ms)
        return values | self.quality.as_dict()


@dataclass(frozen=True)
class ValueRow:
    """Value of a part of a log by a model: "all", or the "last" 20 %, of one label or of all."""

    log: str
    model: str
    of: str
    label: str | None
    sums: ValueSums

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return dict(log=self.log, model=self.model, of=self.of, label=self.label) | self.sums.as_dict()


def check_plots(options: EvaluateOptions) -> None:
    """Raise ConfigError for a plot that cannot be drawn, before hours of work."""
    for path in (options.plot, options.bars):
        if path is not None:
            check_plot(path)


def evaluate(options: EvaluateOptions) -> int:
    """Print the measures and draw the plots. Raises ConfigError for a file that is no prediction log."""
    check_plots(options)
    logs = {str(file): read_predictions(file) for file in options.files}
    for name, held in logs.items():
        if len(held) == 0:
            raise ConfigError(f"{name} holds no predictions yet.")
    rows = [row for name, held in logs.items() for row in rows_of(name, held, period_s=options.period_s)]
    lifts = [lift for name, held in logs.items() for lift in lifts_of(name, held)]
    if options.plot is not None:
        _curve(options.plot, logs, options)
    if options.bars is not None:
        _bars(options.bars, logs, options.measure)
    values = [value for name, held in logs.items() for value in values_of(name, held)]
    if options.as_json:
        found = {"rows": [row.as_dict() for row in rows], "lifts": list(map(asdict, lifts))}
        print(json.dumps(found | ({"values": [value.as_dict() for value in values]} if values else {})))
    else:
        _show(rows, lifts, values)
    return 0


def rows_of(name: str, held: Records, *, period_s: float | None = None) -> Iterator[Row]:
    """Rows of a log that is not empty, model by model."""
    time_ms = held["time_ms"]
    end = slice(int(len(held) * (1 - LAST)), None)
    width = round(1000 * (_round_period_s(time_ms) if period_s is None else period_s))
    order = np.argsort(time_ms // width, kind="stable")
    numbers, starts = np.unique((time_ms // width)[order], return_index=True)
    periods = list(zip(numbers.tolist(), np.split(order, starts[1:]), strict=True))
    for model in roles_of(held):
        yield Row(name, model, "all", None, quality_of(held, model))
        yield Row(name, model, "last", None, quality_of(held[end], model))
        for number, part in periods:
            yield Row(name, model, "period", number * width, quality_of(held[part], model))


def lifts_of(name: str, held: Records) -> Iterator[Lift]:
    """Lifts of the ranking model over each shadow of a log."""
    roles = roles_of(held)
    end = slice(int(len(held) * (1 - LAST)), None)
    others = ("rank", "prerank", *targets_of(held))
    for shadow in (role for role in roles if role not in others and "rank" in roles):
        for of, part in (("all", held), ("last", held[end])):
            label, cold = part["label"].astype(np.float32), is_cold(part["seen"])
            pair = part[shadow], part["rank"]
            by_measure = differences(part["user"], *pair, label, cold, weights_of(part))
            for measure, by in by_measure.items():
                yield Lift(
                    name, "rank", shadow, of, measure, _finite(by.difference), _finite(by.standard_error)
                )


def values_of(name: str, held: Records) -> Iterator[ValueRow]:
    """Values of a log by model, of all labels together and of each of several; none without worths."""
    end = slice(int(len(held) * (1 - LAST)), None)
    others = ("prerank", *targets_of(held))
    for model in (role for role in roles_of(held) if role not in others):
        for of, part in (("all", held), ("last", held[end])):
            by_label = value_sums(part, model)
            if by_label:
                yield ValueRow(name, model, of, None, total_value(by_label))
            for label, sums in by_label.items() if len(by_label) > 1 else ():
                yield ValueRow(name, model, of, label, sums)


def sliding(
    held: Records, model: str, measure: str, *, window_ms: int, points: int = POINTS
) -> tuple[npt.NDArray[np.datetime64], npt.NDArray[np.float64]]:
    """Measure over a sliding window of event time.

    Returns:
        Times datetime64[ms][points], the last of which is the newest example's, and values f64[points] over
        the `window_ms` before each time; NaN where the window has no value.
    """
    order = np.argsort(held["time_ms"], kind="stable")
    held = held[order]
    time_ms = held["time_ms"]
    first, last = int(time_ms[0]), int(time_ms[-1])
    ends = np.unique(np.linspace(min(first + window_ms, last), last, points).round().astype(np.int64))
    left = np.searchsorted(time_ms, ends - window_ms, side="right")
    right = np.searchsorted(time_ms, ends, side="right")
    values = [
        getattr(quality_of(held[a:b], model), measure)
        for a, b in zip(left.tolist(), right.tolist(), strict=True)
    ]
    return ends.astype("datetime64[ms]"), np.array(values, np.float64)


def _round_period_s(time_ms: npt.NDArray[np.int64]) -> float:
    """Shortest round period that divides the log's event time into at most MOST_PERIODS."""
    first, last = int(time_ms.min()), int(time_ms.max())
    for period_s in PERIODS_S:
        if last // (1000 * period_s) - first // (1000 * period_s) < MOST_PERIODS:
            return period_s
    return (last - first) / 1000 / (MOST_PERIODS - 1)


def _curve(path: Path, logs: Mapping[str, Records], options: EvaluateOptions) -> None:
    series = {}
    for name, held in logs.items():
        window_ms = round(1000 * options.window_s) if options.window_s else _share(held["time_ms"])
        for model in roles_of(held):
            series[_label(name, model, logs)] = sliding(held, model, options.measure, window_ms=window_ms)
    measure = MEASURES[options.measure]
    curve(path, f"{measure} over event time", series, "event time (UTC)", measure)


def _share(time_ms: npt.NDArray[np.int64]) -> int:
    return max(1, round(WINDOW * float(time_ms.max() - time_ms.min())))


def _bars(path: Path, logs: Mapping[str, Records], measure: str) -> None:
    labels, values, spreads = [], [], []
    for name, held in logs.items():
        for model in roles_of(held):
            labels.append(_label(name, model, logs))
            values.append(getattr(quality_of(held, model), measure))
            part = known_of(held, model)
            part = part[is_cold(part["seen"])] if measure == "cold_gauc" else part
            error = float("nan")
            if measure in ("gauc", "cold_gauc"):
                label = label_of(part, model).astype(np.float32)
                error = gauc_error(part["user"], part[model], label, weight=weights_of(part))
            spreads.append(Z95 * error)
    bars(path, f"{MEASURES[measure]} of the whole log", labels, values, spreads, MEASURES[measure])


def _label(log: str, model: str, logs: Mapping[str, Records]) -> str:
    return model if len(logs) == 1 else f"{model}, {Path(log).name}"


def _show(rows: Sequence[Row], lifts: Sequence[Lift], values: Sequence[ValueRow]) -> None:
    console = Console()
    for log in dict.fromkeys(row.log for row in rows):
        for model in dict.fromkeys(row.model for row in rows if row.log == log):
            own = [row for row in rows if (row.log, row.model) == (log, model)]
            _say(console, f"{model} of {log}")
            console.print(_table(own))
        for shadow in dict.fromkeys(lift.over for lift in lifts if lift.log == log):
            own_lifts = [lift for lift in lifts if (lift.log, lift.over) == (log, shadow)]
            _say(console, f"rank − {shadow} of {log}, ± 95 %")
            console.print(_lift_table(own_lifts))
        if own_values := [value for value in values if value.log == log]:
            _say(console, f"value of {log}: worth × probability, and what came")
            console.print(_value_table(own_values))
    _say(
        console,
        "Last: the last 20 % of the examples; times are UTC. Cold: of items of which fewer than "
        f"{COLD} examples were learned before. Users left out of GAUC have only clicks, or none.",
    )


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True, markup=False)


def _table(rows: Sequence[Row]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0)
    for name in ("of", "examples", "AUC", "GAUC", "users\nleft out", "cold\nAUC", "cold\nGAUC"):
        table.add_column(name, justify="left" if name == "of" else "right", no_wrap=True)
    for name in ("log\nloss", "cali-\nbration"):
        table.add_column(name, justify="right", no_wrap=True)
    for i, row in enumerate(rows):
        q = row.quality
        table.add_row(
            row.of if row.start_ms is None else _time(row.start_ms),
            f"{q.examples:,}",
            *map(_number, (q.auc, q.gauc)),
            f"{q.skipped_users:,}",
            *map(_number, (q.cold_auc, q.cold_gauc, q.logloss, q.calibration)),
            end_section=row.of == "last" and i + 1 < len(rows),
        )
    return table


def _value_table(values: Sequence[ValueRow]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0)
    for name in ("model", "of", "label", "predicted", "realised", "calibration"):
        table.add_column(name, justify="left" if name in ("model", "of", "label") else "right", no_wrap=True)
    for value in values:
        sums = value.sums
        ratio = sums.predicted / sums.realised if sums.realised else float("nan")
        money = (f"{sums.predicted:,.2f}", f"{sums.realised:,.2f}")
        table.add_row(value.model, value.of, value.label or "all", *money, _number(ratio))
    return table


def _lift_table(lifts: Sequence[Lift]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0)
    table.add_column("measure", no_wrap=True)
    parts = list(dict.fromkeys(lift.of for lift in lifts))
    for of in parts:
        table.add_column(of, justify="right", no_wrap=True, min_width=16)
    by_part = {(lift.measure, lift.of): lift for lift in lifts}
    for measure, name in MEASURES.items():
        if (measure, parts[0]) in by_part:
            table.add_row(name, *(_difference(by_part[measure, of]) for of in parts))
    return table


def _difference(lift: Lift) -> str:
    if lift.difference is None:
        return "–"
    spread = "" if lift.standard_error is None else f" ±{Z95 * lift.standard_error:.4f}"
    return f"{lift.difference:+.4f}{spread}"


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _time(epoch_ms: int) -> str:
    return f"{datetime.fromtimestamp(epoch_ms / 1000, UTC):%m-%d %H:%M:%S}"


def _number(value: float) -> str:
    return "–" if np.isnan(value) else f"{value:.4f}"
