"""Comparison of two runs, from their reports or their prediction logs.

Prediction logs are compared example by example, which gives differences a standard error: of AUC and log loss
over examples, of GAUC over users. The runs may still be running: what both have scored is compared.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.table import Table

from livectr.analysis.paired_auc import Difference, paired_auc, paired_gauc
from livectr.analysis.paired_runs import PairedRuns, common
from livectr.console import make_console
from livectr.system.errors import ConfigError
from livectr.trainer.quality.metrics import LAST, Quality, bounded, example_losses, quality
from livectr.trainer.quality.predictions import (
    is_prediction_log,
    knows,
    label_of,
    read_predictions,
    roles_of,
    weights_of,
    weights_of_both,
)
from livectr.trainer.quality.seen import is_cold

MEASURES = {
    "auc": "AUC",
    "gauc": "GAUC",
    "cold_auc": "cold AUC",
    "cold_gauc": "cold GAUC",
    "logloss": "log loss",
    "calibration": "calibration",
}
SIGNIFICANT = 0.05
Z95 = 1.959964  # half the width of a 95 % interval, in standard errors


@dataclass(frozen=True)
class Row:
    """Measure of both runs.

    Args:
        model: role of the model.
        of: "all" examples or the "last" 20 %.
        measure: name in MEASURES.
        a, b: values of the runs.
        difference: b − a.
        standard_error, p_value: of the difference; None where they are not known.
    """

    model: str
    of: str
    measure: str
    a: float
    b: float
    difference: float
    standard_error: float | None = None
    p_value: float | None = None

    @property
    def verdict(self) -> str:
        """Significance: "yes" if `p_value` is below SIGNIFICANT, else "no"; "" where it is not known."""
        if self.p_value is None:
            return ""
        return "yes" if self.p_value < SIGNIFICANT else "no"


def compare(
    runs: Sequence[Path], predictions: Sequence[Path] | None, *, as_json: bool, every_s: float | None = None
) -> int:
    """Print the comparison of two runs.

    Args:
        runs: reports, prediction logs or checkpoint folders of both runs; none: `predictions` says which.
        predictions: prediction logs of both runs; None: those of `runs`, or compare the reports.
        as_json: print JSON in place of a table.
        every_s: print it again whenever there are more examples, looked at so often; None: once.

    Raises:
        ConfigError: a file is no report and no prediction log, or the logs share no example.
    """
    logs = [found for found in map(log_of, runs) if found is not None]
    if len(logs) == 1:
        raise ConfigError(f"{logs[0]} is a log of predictions; name another one, or a report of each run.")
    if not logs and runs:
        a, b = (_report(file) for file in runs)
    predictions = predictions or logs or None
    names = runs or predictions or ()
    if every_s is not None:
        if predictions is None:
            raise ConfigError(
                "--watch needs runs that go on: name their checkpoint folders or prediction logs."
            )
        _watch(names, predictions, every_s, as_json=as_json)
    if predictions is None:
        rows, said = list(_of_reports(a, b)), []
        if a["examples_trained"] != b["examples_trained"]:
            counts = " and ".join(f"{run['examples_trained']:,}" for run in (a, b))
            said.append(f"The runs have {counts} examples: the difference is also one of the logs.")
    else:
        left, right, said = _matched(predictions)
        rows = list(_of_predictions(left, right))
    _show(names, rows, said, errors=predictions is not None, as_json=as_json)
    return 0


def log_of(run: Path) -> Path | None:
    """Prediction log of a checkpoint folder, or the file itself if it is one; None: another file."""
    if run.is_dir():
        return run / "predictions"
    return run if is_prediction_log(run) else None


def _watch(names: Sequence[Path], files: Sequence[Path], every_s: float, *, as_json: bool) -> NoReturn:
    """Follow two running trainers until Ctrl-C."""
    paired, console = PairedRuns(*files), make_console()
    waits = "no example is in both prediction logs yet"
    while True:
        if paired.look() and paired.left is not None and paired.right is not None:
            ours, theirs = paired.alone
            said = [
                f"{paired.count:,} examples are in both; {ours:,} of A and {theirs:,} of B alone, so far."
            ]
            if console.is_terminal and not as_json:
                console.clear()
            rows = list(_of_predictions(paired.left, paired.right))
            _show(names, rows, said, errors=True, as_json=as_json)
        elif waits and not as_json and not paired.count:
            console.print(waits)
            waits = ""
        time.sleep(every_s)


def _show(
    names: Sequence[Path], rows: Sequence[Row], said: Sequence[str], *, errors: bool, as_json: bool
) -> None:
    if as_json:
        print(json.dumps({"rows": [asdict(row) for row in rows], "notes": [*said]}), flush=True)
        return
    console = make_console()
    console.print(_table(rows, errors=errors))
    for line in (f"A is {names[0]}, B is {names[1]}; last: the last 20 % of the examples.", *said):
        console.print(line, highlight=False, soft_wrap=True)


def _report(file: Path) -> dict[str, Any]:
    try:
        report = json.loads(file.read_text())
    except FileNotFoundError:
        raise ConfigError(f"there is no report {file}; livectr train --report writes one.") from None
    except ValueError as error:
        raise ConfigError(f"{file} is no JSON ({error}); name a report of livectr train --report.") from None
    if not isinstance(report, dict) or not {"auc", "last_20_percent", "prerank"} <= set(report):
        raise ConfigError(f"{file} is no report of livectr train --report.")
    return report


def _of_reports(a: dict[str, Any], b: dict[str, Any]) -> Iterator[Row]:
    mine, theirs = _beside_rank(a), _beside_rank(b)
    for model in ("rank", "prerank", *(name for name in mine if name in theirs)):
        x, y = (_model(run, model) for run in (a, b))
        for of in ("all", "last"):
            left, right = (run if of == "all" else run.get("last_20_percent", {}) for run in (x, y))
            for measure in MEASURES:
                if left.get(measure) is not None and right.get(measure) is not None:
                    yield Row(
                        model, of, measure, left[measure], right[measure], right[measure] - left[measure]
                    )


def _model(report: dict[str, Any], role: str) -> dict[str, Any]:
    if role == "rank":
        return report
    return dict(report["prerank"] if role == "prerank" else _beside_rank(report)[role])


def _beside_rank(report: dict[str, Any]) -> dict[str, Any]:
    """Measures of challengers and shadows, by name."""
    return {**report.get("challengers", {}), **report.get("shadows", {})}


def _matched(files: Sequence[Path]) -> tuple[NDArray[np.void], NDArray[np.void], list[str]]:
    """Inner join of two logs, in the order of the first log, with remarks."""
    logs = [read_predictions(file) for file in files]
    left, right = common(*logs)
    if not len(left):
        raise ConfigError(
            f"{files[0]} and {files[1]} have no example in common: are they runs over the same log?"
        )
    said = [f"{len(left):,} examples are in both prediction logs."]
    for file, log in zip(files, logs, strict=True):
        if len(log) != len(left):
            said.append(f"{len(log) - len(left):,} of {file} are left out: the other has no such example.")
    a, b = logs[0][left], logs[1][right]
    weights, own = weights_of_both(a, b), weights_of(a)
    if weights is not None and (own is None or not np.array_equal(weights, own)):
        said.append(f"They weigh examples otherwise: the weights of {files[1]} count for both.")
    return a, b, said


def _of_predictions(a: NDArray[np.void], b: NDArray[np.void]) -> Iterator[Row]:
    """a, b: records[n] of the same examples (trainer.quality.predictions)."""
    both = a, b
    for model in (role for role in roles_of(a) if role in roles_of(b)):
        known = knows(both[0], model) & knows(both[1], model)  # orders of the last day may be open
        a, b = (run[known] for run in both)
        start = int(len(a) * (1 - LAST))
        for of, part in (("all", slice(None)), ("last", slice(start, None))):
            label = label_of(a[part], model).astype(np.float32)
            x, y = a[model][part], b[model][part]
            # Cold by the first run's counts, so that both runs are measured on the same examples.
            cold = is_cold(a["seen"][part])
            weight = weights_of_both(a[part], b[part])
            qualities = [quality(run["user"][part], run[model][part], label, cold, weight) for run in (a, b)]
            errors = differences(a["user"][part], x, y, label, cold, weight)
            for measure in MEASURES:
                row = _row(model, of, measure, qualities, errors.get(measure))
                if not np.isnan(row.difference):  # nothing cold, or one class only
                    yield row


def differences(
    user: NDArray[np.int64],
    a: NDArray[np.float32],
    b: NDArray[np.float32],
    label: NDArray[np.float32],
    cold: NDArray[np.bool_],
    weight: NDArray[np.float32] | None = None,
) -> dict[str, Difference]:
    """Difference b − a of each measure that has a standard error.

    Args:
        user: [n].
        a: logits of the first model [n].
        b: logits of the second model [n], for the same examples.
        label: 0 or 1 [n].
        cold: mask of cold examples [n].
        weight: of the examples [n]; None: 1.
    """
    of_cold = None if weight is None else weight[cold]
    return {
        "auc": paired_auc(a, b, label > 0.5, weight),
        "gauc": paired_gauc(user, a, b, label, weight),
        "cold_auc": paired_auc(a[cold], b[cold], label[cold] > 0.5, of_cold),
        "cold_gauc": paired_gauc(user[cold], a[cold], b[cold], label[cold], of_cold),
        "logloss": _paired_logloss(a, b, label, weight),
    }


def _row(model: str, of: str, measure: str, qualities: list[Quality], error: Difference | None) -> Row:
    a, b = (getattr(one, measure) for one in qualities)
    if error is None or np.isnan(error.standard_error):  # too few examples or users
        return Row(model, of, measure, a, b, b - a)
    return Row(model, of, measure, a, b, b - a, error.standard_error, error.p_value)


def _paired_logloss(
    a: NDArray[np.float32],
    b: NDArray[np.float32],
    label: NDArray[np.float32],
    weight: NDArray[np.float32] | None,
) -> Difference:
    """Mean log losses of logits a, b [n], with the standard error of the mean difference."""
    losses = [example_losses(bounded(z), label) for z in (a, b)]
    if weight is not None:
        if not weight.any():
            return Difference(np.nan, np.nan, np.nan)
        means = [float(np.average(of, weights=weight)) for of in losses]
        apart = weight * (losses[1] - losses[0] - (means[1] - means[0]))
        return Difference(means[0], means[1], float(np.sqrt(np.sum(apart**2)) / weight.sum(dtype=np.float64)))
    error = np.std(losses[1] - losses[0], ddof=1) / np.sqrt(len(label)) if len(label) > 1 else np.nan
    return Difference(float(losses[0].mean()), float(losses[1].mean()), float(error))


def _table(rows: Sequence[Row], *, errors: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("of", overflow="fold")
    table.add_column("measure", no_wrap=True)
    for name in ("A", "B", "B − A", *(("± 95 %",) if errors else ())):
        table.add_column(name, justify="right", no_wrap=True)
    if errors:
        table.add_column(f"p < {SIGNIFICANT}", no_wrap=True)
    before = ""
    for row in rows:
        part = f"{row.model}, {row.of}"
        if before not in ("", part):
            table.add_section()
        head = part if part != before else ""
        before = part
        cells = [head, MEASURES[row.measure], f"{row.a:.4f}", f"{row.b:.4f}", f"{row.difference:+.4f}"]
        if errors:
            error = row.standard_error
            cells += ["" if error is None else f"{Z95 * error:.4f}", row.verdict]
        table.add_row(*cells)
    return table
