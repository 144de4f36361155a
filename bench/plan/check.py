"""Predictions of `livectr plan` beside measured runs that were not fitted."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from bench.plan.fit import fit, fitted_runs
from bench.plan.runs import Run, network, of_workload, rates, result, scaling
from bench.whole_run import KEYS, PIPELINE, SIXTEEN, STEPS, WHOLE
from livectr.ingest.pipeline import load_pipeline
from livectr.kernels.table.layout import AdaGrad, RowLayout, Segment
from livectr.plan.model import of_pipeline, table_row_bytes
from livectr.plan.store import row_bytes
from livectr.plan.trainer import example_core_s, read_s, sent_bytes, wire_s
from livectr.trainer.step_settings import FIELD_EXCHANGES


@dataclass(frozen=True)
class Checked:
    """Prediction beside a measured value, in equal units."""

    file: str
    name: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Share by which the prediction is too large."""
        return self.predicted / self.measured - 1


def sent(run: Run) -> float:
    """Predicted bytes that a rank sends in a step."""
    found = sent_bytes(run.model, run.ids, run.ranks, run.batch, run.wire)
    return found[run.way] if run.way in FIELD_EXCHANGES else min(found.values())


def seconds(run: Run) -> float:
    """Predicted seconds of a step, from fitted points alone."""
    fitted = fit()[0]
    own = run.batch / run.ranks * example_core_s(run.model, fitted.__getitem__) / run.cores
    return own + (fitted["wait_s"] if run.ranks > 1 else 0.0) + wire_s(sent(run), run.gbit)


def steps_of_others() -> list[Checked]:
    """Steps of runs that were not fitted, without a limit of the network."""
    runs = [*scaling(), *rates(), *(run for run in network() if run.gbit is None and run.wire == 4)]
    fitted = {(run.file, run.name) for run in fitted_runs()}
    held = [run for run in runs if (run.file, run.name) not in fitted]
    return [Checked(run.file, run.name, seconds(run), run.seconds) for run in held]


def steps_over_wires() -> list[Checked]:
    """Steps at each bandwidth, with the contestant's own seconds without a limit, as `--report` has them."""
    runs = list(network())
    free = {run.name.rpartition(",")[0]: run.seconds for run in runs if run.gbit is None}
    return [
        Checked(
            run.file, run.name, free[run.name.rpartition(",")[0]] + wire_s(sent(run), run.gbit), run.seconds
        )
        for run in runs
        if run.gbit is not None
    ]


def sent_in_a_step() -> list[Checked]:
    """Bytes that a rank sends in a step."""
    runs = [run for run in (*scaling(), *network()) if run.sent is not None and run.gbit is None]
    return [Checked(run.file, run.name, sent(run), run.sent or 0.0) for run in runs]


def rows_in_memory() -> list[Checked]:
    """Bytes of a row in a table, and in Redis."""
    table = next(row for row in result("tables")["rows"] if row["figure"] == "bytes per row")
    layout = RowLayout((Segment("v", 16, AdaGrad(), 0.01),))
    found = [Checked("tables", table["workload"], table_row_bytes(layout), table["ours"])]
    for row in result("redis-memory")["rows"]:
        width = int(re.findall(r"D = (\d+)", row["workload"])[0])
        if width != 17:
            found.append(Checked("redis-memory", row["workload"], row_bytes(width), row["ours"]))
    return found


def whole_run() -> list[Checked]:
    """Core-seconds of an example of a whole run: steps, and reading the log.

    The measured CPU time is at the fit's speed: known steps, measured in turns with it, tell the machine's.
    """
    rows = {row["figure"]: row for row in result("whole-run")["rows"]}
    fitted = fit()[0].__getitem__
    speed = 1e6 * example_core_s(of_workload(SIXTEEN)[0], fitted) / rows[STEPS]["ours"]
    model = of_pipeline(load_pipeline(PIPELINE), rows[KEYS]["ours"])
    predicted = example_core_s(model, fitted) + read_s()
    return [Checked("whole-run", rows[WHOLE]["workload"], predicted, 1e-6 * speed * rows[WHOLE]["ours"])]


def spread(checked: Iterable[Checked]) -> tuple[float, float, float]:
    """Least, median and greatest error."""
    errors = [one.error for one in checked]
    return min(errors), statistics.median(errors), max(errors)
