"""`livectr bench NAME`: run one benchmark of the folder `bench/` and write what it measured.

A benchmark is a module bench/<name>.py with `run(quick: bool) -> list[row]`; a row has `figure`, `workload`,
`unit`, `ours`, `peer_name`, `peer`, `ratio`, `goal`, `met`. It may also give {"rows": …, "settings": …,
"tables": …}; a table has a `title`, and `lines` of cells, the first of which is its header. Name, commit,
hardware, settings are added here.
`livectr --help` reads the names from here, so nothing heavy is imported before a benchmark runs.
"""

import importlib
import inspect
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from livectr.config import nearest
from livectr.kernels.errors import ConfigError, InternalError

NAMES = (
    "ingest",
    "features",
    "featurebox",
    "allocation",
    "gpu",
    "tables",
    "tiers",
    "train",
    "peers",
    "common",
    "des-bytes",
    "mesh",
    "quality",
    "scaling",
    "publish",
    "serving",
    "images",
    "memory",
)
ROW = ("figure", "workload", "unit", "ours", "peer_name", "peer", "ratio", "goal", "met")
ROOT = Path(__file__).resolve().parents[2]


def bench(name: str, *, json_file: Path | None, quick: bool) -> int:
    """Run benchmark `name`, print its table, write JSON. Returns 0: a missed goal is a result, no failure."""
    if name not in NAMES:
        raise ConfigError(f"there is no benchmark {name!r}; {nearest(name, NAMES)}")
    if not (ROOT / "bench").is_dir():
        raise ConfigError(
            "benchmarks are run from a checkout of the repository; this is an installed package."
        )
    sys.path.insert(0, str(ROOT))
    run = importlib.import_module(f"bench.{name.replace('-', '_')}").run
    found = run(quick=quick) if "quick" in inspect.signature(run).parameters else run()
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
    return 0


def _complete(name: str, row: Mapping[str, Any]) -> dict[str, Any]:
    if unknown := set(row) - set(ROW):
        raise InternalError(f"bench {name}: a row has the unknown columns {', '.join(sorted(unknown))}")
    if missing := {"figure", "workload", "unit", "ours"} - set(row):
        raise InternalError(f"bench {name}: a row lacks {', '.join(sorted(missing))}")
    return {column: _plain(row.get(column)) for column in ROW}


def _plain(value: Any) -> Any:
    """A JSON value: NumPy's numbers as Python's."""
    return value.item() if hasattr(value, "item") else value


def commit() -> str:
    """The checkout's commit, marked when files differ from it."""
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def hardware() -> dict[str, Any]:
    """What the figures were measured on."""
    import torch

    from livectr.models.precision import arithmetic_name

    processor = platform.processor() or platform.machine()
    memory = 0
    if (cpuinfo := Path("/proc/cpuinfo")).exists():
        models = [
            line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line
        ]
        processor = models[0] if models else processor
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": processor,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory / 2**30, 1),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": version("torch"),
        "bf16": arithmetic_name("bf16", torch.device("cpu")),
    }


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
        shown = Table(*header, title=extra["title"])
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


__all__: Sequence[str] = ("NAMES", "bench")
