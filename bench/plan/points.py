"""Measured points of `livectr plan`, from bench/results: `python -m bench.plan.points` writes points.json."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from bench.environment import ROOT
from bench.plan.check import steps_of_others
from bench.plan.fit import fit, fitted_runs
from bench.plan.runs import network, rates, result, scaling
from bench.serving.ids import pipeline as serving_pipeline
from livectr.plan.model import of_pipeline
from livectr.plan.points import Point
from livectr.system.errors import InternalError

FILE = ROOT / "livectr" / "plan" / "points.json"
RANK = "rank 400 of 20,000 ads, 16 ids, DeepFM 256-128"

ROWS = {
    "join": ("kafka", "join and features, all cores", ""),
    "held": ("freshness", "largest rate that holds", ""),
    "table_row": ("tables", "bytes per row", ""),
    "trainer_memory": ("memory", "resident memory of the trainer, last tenth of the run", ""),
    "publish": ("publish", "changed rows of a version, to the flip", ""),
    "redis_row": ("redis-memory", "memory of a row in Redis", "D = 17 "),
    "open_loop": ("serving", "most requests a second at p99 ≤ 20 ms, open loop", RANK),
    "closed_loop": ("serving", "requests a second, 4 clients", RANK),
    "worker_memory": ("serving", "private memory of one more worker", ""),
}
"""Point → file, figure, and part of the workload's text; the first row counts."""

STAGES = {
    "request fixed": ("enrich", "gRPC, client"),
    "request rows": ("parse", "respond", "protobuf"),
    "request values": ("extract", "look_up"),
    "request score": ("score",),
}
"""Point → stages of a rank request in serving-profile.json."""


def points() -> dict[str, Point]:
    """Points by name.

    Raises:
        InternalError: bench/results lacks a figure.
    """
    found = {name: _row(*where) for name, where in ROWS.items()}
    profile = result("serving-profile")
    for name, stages in STAGES.items():
        spent = sum(profile["stages_us"][stage] for stage in stages)
        found[name] = _point(profile, ", ".join(stages), profile["workload"], spent, "µs")
    supervisor = next(
        line[1]
        for table in result("serving")["tables"]
        for line in table["lines"]
        if line[0] == "supervisor: all"
    )
    tiers = result("tiers")["rows"][0]
    found["spilled"] = _point(
        result("tiers"), tiers["figure"], tiers["workload"], tiers["ratio"], "of the speed"
    )
    found["server_memory"] = _point(
        result("serving"),
        "private memory of a rank server's supervisor",
        "before its workers",
        float(supervisor),
        "MiB",
    )
    return found | _fitted() | _ranges()


def _ranges() -> dict[str, Point]:
    """Least and most of the sizes that were measured: "least ranks", "most ranks", …"""
    runs = [*scaling(), *rates(), *network()]
    sizes: dict[str, list[float]] = {
        "ranks": [run.ranks for run in runs],
        "examples of a rank": [run.batch / run.ranks for run in runs],
        "cores of a rank": [run.cores for run in runs],
        "Gbit/s": [run.gbit for run in runs if run.gbit is not None],
        "fields": [run.model.fields for run in runs],
        "keys of an example": [run.model.keys for run in runs],
        "values of a row": [run.model.row.dim for run in runs],
        "parameters": [run.model.parameters for run in runs],
    }
    found = {}
    for size, values in sizes.items():
        for which, number in (("least", min(values)), ("most", max(values))):
            files = "scaling, train, peers, mesh, network"
            found[f"{which} {size}"] = _point(
                result("scaling"), f"{which} {size}", "measured steps", number, "", files
            )
    texts = {
        "rows of a table": ("tables", "longest call of a growing table", r"([\d,]+) new keys"),
        "rows in Redis": ("publish", "changed rows of a version, to the flip", r"([\d,]+) rows"),
        "candidates": ("serving", "requests a second, 4 clients", r"rank (\d+) of"),
        "items": ("serving", "requests a second, 4 clients", r"of ([\d,]+) ads"),
        "ids of an example": ("serving", "requests a second, 4 clients", r"(\d+) ids"),
    }
    for size, (file, figure, pattern) in texts.items():
        row = _row(file, figure, RANK if file == "serving" else "")
        match = re.search(pattern, row.workload)
        assert match is not None, row.workload
        found[f"most {size}"] = replace(row, figure=size, value=float(match[1].replace(",", "")), unit="")
    served = of_pipeline(serving_pipeline)
    request = _row("serving", "requests a second, 4 clients", RANK)
    found["parameters of a request"] = replace(request, figure="parameters", value=served.parameters, unit="")
    return found


def _fitted() -> dict[str, Point]:
    """Coefficients of the trainer's steps."""
    coefficients, error = fit()
    workload = f"fit of {len(fitted_runs())} steps on 1 and 2 ranks, median error {error:.0%}"
    figures = {
        "wait_s": ("waits of a step", "s"),
        "key_s": ("computing of a key", "core-s"),
        "value_s": ("computing of a field's value", "core-s"),
        "mac_s": ("computing of a parameter and example", "core-s"),
    }
    found = {
        name: _point(result("scaling"), figure, workload, coefficients[name], unit, "scaling, peers")
        for name, (figure, unit) in figures.items()
    }
    slowest = max(steps_of_others(), key=lambda one: one.measured / one.predicted)
    return found | {
        "slowest": _point(
            result(slowest.file),
            "slowest measured step to its prediction",
            slowest.name,
            slowest.measured / slowest.predicted,
            "",
        )
    }


def _row(name: str, figure: str, workload: str) -> Point:
    found = result(name)
    for row in found["rows"]:
        if row["figure"] == figure and workload in row["workload"]:
            return _point(found, figure, row["workload"], row["ours"], row["unit"])
    raise InternalError(f"bench/results/{name}.json has no row {figure!r} of {workload!r}")


def _point(
    found: Mapping[str, Any], figure: str, workload: str, value: float, unit: str, file: str = ""
) -> Point:
    machine = found["hardware"]
    rounded = float(f"{value:.6g}")
    where = machine["processor"], machine["cores"], found["commit"], file or found["name"]
    return Point(figure, workload, rounded, unit, *where)


def text() -> str:
    """Content of points.json."""
    return (
        json.dumps({name: asdict(point) for name, point in points().items()}, indent=2, ensure_ascii=False)
        + "\n"
    )


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
