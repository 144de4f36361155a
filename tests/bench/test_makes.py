"""Table of figures by make of CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.makes import lines
from bench.rows import bounded, row


def _write(folder: Path, file: str, name: str, make: str, rows: list[dict[str, Any]]) -> None:
    result = {"name": name, "hardware": {"processor": make}, "rows": rows}
    (folder / f"{file}.json").write_text(json.dumps(result))


def test_a_figure_of_two_makes_is_one_line(tmp_path: Path) -> None:
    def step(ours: float, goal: float | None, workload: str = "P, 1 rank") -> dict[str, Any]:
        return row("step", workload, "rows/s", ours, peer_name="peer", peer=100.0, goal=goal)

    _write(tmp_path, "peers", "peers", "A", [step(130.0, None), row("no goal", "P", "ms", 3.0)])
    _write(tmp_path, "peers-b", "peers, on B", "B", [step(120.0, 1.5, "P, 1 rank, products in fp32")])
    _write(
        tmp_path, "peers-c", "peers, on C", "C", [step(140.0, None, "P, 1 rank, products in bf16 operands")]
    )
    rate = bounded("rate", "2 nodes", "rows/s", 525_161.0, goal=500_000.0, better="more")
    _write(tmp_path, "publish", "publish", "B", [rate])
    _write(tmp_path, "learning", "learning", "D", [rate])  # not of start, step and store
    assert lines(tmp_path) == [
        "| benchmark | figure | workload | beside | A | B | C |",
        "|---|---|---|---|---:|---:|---:|",
        "| `peers` | step | P, 1 rank | peer | 1.3 × | **1.2 × of 1.5** | 1.4 × |",
        "| `publish` | rate | 2 nodes | – | – | 525,161 rows/s of 500,000 | – |",
    ]
