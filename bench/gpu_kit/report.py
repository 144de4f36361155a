"""Report of a run of the kit: OUT/report.md, and OUT/gpu.json, a result like those of bench/results."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from bench.gpu_kit.events import noted
from bench.run import ROW
from bench.sections import line, row_lines

REPORT, RESULT, MACHINE = "report.md", "gpu.json", "machine.json"
FILES = (REPORT, RESULT, MACHINE)

Facts = dict[str, Any]


def write(out: Path) -> None:
    """Write both from what has been noted so far."""
    machine = _machine(out)
    rows = [{column: row.get(column) for column in ROW} for row in noted(out, "row")]
    result = {
        "name": "gpu",
        "commit": machine.get("commit", "unknown"),
        "hardware": {**machine.get("hardware", {}), "card": machine.get("card")},
        "settings": {"dry": machine.get("dry")},
        "rows": rows,
    }
    (out / RESULT).write_text(json.dumps(result, indent=2) + "\n")
    (out / REPORT).write_text(
        page(machine, noted(out, "step"), noted(out, "test"), noted(out, "kernel"), rows)
    )


def page(
    machine: Facts, steps: list[Facts], tests: list[Facts], kernels: list[Facts], rows: list[Facts]
) -> str:
    """Markdown of the report."""
    parts = [
        ["# The kit's report", "", _title(machine)],
        _steps(steps),
        _kernels(kernels),
        _tests(tests),
        ["## Figures", "", *row_lines(rows)],
    ]
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def _machine(out: Path) -> Facts:
    path = out / MACHINE
    found: Facts = json.loads(path.read_text()) if path.exists() else {}
    return found


def _title(machine: Facts) -> str:
    """Card, clocks and commit in a sentence or two."""
    if not machine:
        return "The first step did not come as far as to say what machine this is."
    hardware, card = machine["hardware"], machine["card"]
    where = f"{hardware['cores']} cores of {hardware['processor']}, torch {hardware['torch']}"
    if machine["dry"]:
        return (
            f"A dry run at commit `{machine['commit']}` on {where}: no GPU, so that no figure means anything."
        )
    if card is None:
        return f"Commit `{machine['commit']}` on {where}; nvidia-smi did not answer."
    clocks = f"SM clock {card['clocks.sm']} of {card['clocks.max.sm']}, memory clock {card['clocks.mem']}"
    of_card = (
        f"{card['name']}, driver {card['driver_version']}, {card['memory.total']}, {card['power.limit']}"
    )
    return f"Commit `{machine['commit']}` on {of_card}, {clocks}, beside {where}."


def _steps(steps: list[Facts]) -> list[str]:
    lines = ["## Steps", "", "| step | status | seconds | limit | why |", "|---|---|---:|---:|---|"]
    for step in steps:
        why = _cell(step["why"])
        lines.append(
            line([step["name"], step["status"], f"{step['seconds']:.1f}", f"{step['limit_s']:.0f}", why])
        )
    return lines


def _kernels(kernels: list[Facts]) -> list[str]:
    """Kernels that were brought along, and those for which NVRTC ran or would have to run."""
    first: dict[str, Facts] = {}
    for kernel in kernels:
        first.setdefault(kernel["key"], kernel)
    of = Counter(kernel["source"] for kernel in first.values())
    seconds = sum(kernel["seconds"] for kernel in kernels if kernel["source"] == "compiled")
    return [
        "## Compiled kernels",
        "",
        f"{of['brought']} were brought along, {of['compiled']} were compiled here in {seconds:.1f} s of "
        f"NVRTC, {of['missing']} are missing.",
    ]


def _tests(tests: list[Facts]) -> list[str]:
    """Counts, and a line for each test that did not pass."""
    of = Counter(test["status"] for test in tests)
    lines = ["## Tests", "", f"{of['passed']} passed, {of['failed']} failed, {of['not run']} were not run."]
    rest = [test for test in tests if test["status"] != "passed"]
    if rest:
        lines += ["", "| test | status | why |", "|---|---|---|"]
        lines += [line([f"`{test['name']}`", test["status"], _cell(test["why"])]) for test in rest]
    return lines


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " / ")[:300]
