"""Run of a benchmark: its rows, with name, commit, hardware and settings, as a table and as JSON.

A benchmark is a module bench/<name>.py with `run(quick: bool) -> list[row]`. A row has `figure`, `workload`,
`unit`, `ours`, `peer_name`, `peer`, `ratio`, `goal`, `met` (`bench.rows.row`). `run` may also return
{"rows": …, "settings": …, "tables": …}; a table has a `title`, `lines` of cells, the header first, and
perhaps a `note`.
"""

import importlib
import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bench.machine import commit, hardware
from livectr.system.errors import ConfigError, InternalError
from livectr.trainer.process import share_cores

ROW = ("figure", "workload", "unit", "ours", "peer_name", "peer", "ratio", "goal", "met")

STEPS = ("step", "scaling", "images")
"""Benchmarks of our own training steps, whose OpenMP threads sleep while they wait."""


def run_benchmark(
    name: str, *, json_file: Path | None, quick: bool, options: Mapping[str, float] = MappingProxyType({})
) -> None:
    """Run a benchmark, print its table and write its JSON. A missed goal is a result, not a failure.

    Args:
        name: of the module, with - for _.
        json_file: written with its folder; None: no file.
        quick: small workloads.
        options: further arguments of its `run`.

    Raises:
        ConfigError: the benchmark has no such option.
    """
    if name in STEPS:
        share_cores()  # before torch is imported, as `livectr train` does
    run = importlib.import_module(f"bench.{name.replace('-', '_')}").run
    takes = inspect.signature(run).parameters
    for option in options:
        if option not in takes:
            raise ConfigError(f"bench {name} takes no --{option}")
    found = run(**options, **({"quick": quick} if "quick" in takes else {}))
    given: dict[str, Any] = {"rows": found} if isinstance(found, list) else found
    result = {
        "name": name,
        "commit": commit(),
        "hardware": hardware(),
        "settings": {"quick": quick, **given.get("settings", {})},
        "rows": [_complete(name, row) for row in given["rows"]],
    }
    if "tables" in given:
        result["tables"] = given["tables"]
    if json_file:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(result, indent=2) + "\n")
    _print(result)


def _complete(name: str, row: Mapping[str, Any]) -> dict[str, Any]:
    if unknown := set(row) - set(ROW):
        raise InternalError(f"bench {name}: a row has the unknown columns {', '.join(sorted(unknown))}")
    if missing := {"figure", "workload", "unit", "ours"} - set(row):
        raise InternalError(f"bench {name}: a row lacks {', '.join(sorted(missing))}")
    return {column: _plain(row.get(column)) for column in ROW}


def _plain(value: Any) -> Any:
    """A JSON value: NumPy's numbers as Python's."""
    return value.item() if hasattr(value, "item") else value


def _print(result: Mapping[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{result['name']} at {result['commit']}", caption=_hardware_line(result["hardware"]))
    for column in ("figure", "workload", "ours", "unit", "peer", "ratio", "goal", "met"):
        table.add_column(column, justify="right" if column in ("ours", "peer", "ratio", "goal") else "left")
    for row in result["rows"]:
        peer = f"{_number(row['peer'])} ({row['peer_name']})" if row["peer"] is not None else ""
        met = {True: "yes", False: "no", None: ""}[row["met"]]
        table.add_row(
            row["figure"], row["workload"], _number(row["ours"]), row["unit"], peer,
            _number(row["ratio"]), _number(row["goal"]), met,
        )  # fmt: skip
    console = Console()
    console.print(table)
    for extra in result.get("tables", ()):
        header, *lines = extra["lines"]
        shown = Table(*header, title=extra["title"], caption=extra.get("note"))
        for line in lines:
            shown.add_row(*line)
        console.print(shown)


def _number(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def _hardware_line(hardware: Mapping[str, Any]) -> str:
    return f"{hardware['cores']} cores of {hardware['processor']}, {hardware['memory_gib']:g} GiB"
