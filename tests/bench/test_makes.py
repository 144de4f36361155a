"""Results by make of CPU: the table that compares makes, and the overview of all benchmarks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import makes, overview
from bench.makes import MAKES, Result
from bench.rows import bounded, row
from bench.sections import RESULTS, fill

ZEN_4 = "AMD EPYC, family 25, model 17, avx2, avx512f, avx512_bf16"
ZEN_3 = "AMD EPYC, family 25, model 1, avx2"
INTEL = "Intel(R) Xeon(R) Processor, family 6, model 167, avx2"


def _result(name: str, processor: str, *rows: dict[str, Any]) -> Result:
    return {"name": name, "hardware": {"processor": processor}, "rows": list(rows)}


def _step(ours: float, goal: float | None, workload: str = "P, 1 rank") -> dict[str, Any]:
    return row("step", workload, "rows/s", ours, peer_name="peer", peer=100.0, goal=goal)


def test_a_figure_of_three_makes_is_one_line() -> None:
    results = [
        _result("peers, on Zen 4", ZEN_4, _step(120.0, 1.5, "P, 1 rank, products in fp32")),
        _result("peers", INTEL, _step(130.0, None), row("no goal", "P", "ms", 3.0)),
        _result("peers", "Z9", _step(140.0, None, "P, 1 rank, products in bf16 operands")),
    ]
    assert makes.lines(results) == [
        "| figure | workload | beside | Zen 4 | Intel Xeon | Z9 |",
        "|---|---|---|---:|---:|---:|",
        "| step | P, 1 rank | peer | **1.2 × (goal 1.5)** | 1.3 × | 1.4 × |",
    ]
    assert makes.lines([_result("peers", INTEL, _step(130.0, None))]) == []


@pytest.mark.parametrize(
    ("processor", "name"),
    [
        (ZEN_4, "Zen 4"),
        (ZEN_3, "Zen 3"),
        (INTEL, "Intel Xeon"),
        ("AMD EPYC", "AMD EPYC"),
        ("AMD EPYC, family 26, model 2, avx2", "Zen 5"),
        ("AMD EPYC, family 29, model 1, avx2", "AMD EPYC, family 29, model 1"),
    ],
)
def test_makes_have_short_names(processor: str, name: str) -> None:
    assert makes.make_of(_result("peers", processor)) == name


def test_results_are_read_by_benchmark_and_make(tmp_path: Path) -> None:
    written = {
        "start": _result("start", INTEL),
        "start-zen4": _result("start, on Zen 4", ZEN_4),
        "day": _result("day", ZEN_3),
        "serving-profile": {"name": "serving-profile", "hardware": {"processor": ZEN_3}},
    }
    for name, result in written.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(result))
    assert makes.read(tmp_path) == {
        "day": [written["day"]],
        "start": [written["start-zen4"], written["start"]],
    }


def test_the_overview_counts_missed_goals_and_names_the_farthest() -> None:
    rate = bounded("rate", "2 nodes, 1 rank", "rows/s", 250_000.0, goal=500_000.0, better="more")
    held = bounded("wait", "2 nodes", "ms", 9.0, goal=10.0)
    found = {
        "day": [_result("day", ZEN_3, held)],
        "peers": [_result("peers", ZEN_4, _step(120.0, 1.5), rate, held), _result("peers", ZEN_3, held)],
    }
    assert overview.missed(found)[2:] == [
        "| [`peers`](benchmarks/peers.md) | 2 of 3 | 0 of 1 | "
        "rate (2 nodes), on Zen 4: **250,000 rows/s (goal 500,000)** |"
    ]


def test_each_benchmark_with_a_result_has_one_or_two_figures_in_the_overview() -> None:
    found = makes.read(RESULTS)
    assert set(overview.CHOSEN) == set(found)
    assert all(1 <= len(chosen) <= 2 for chosen in overview.CHOSEN.values())
    header, _, *lines = overview.figures(found)
    assert header.endswith(f"| {' | '.join(MAKES)} |")
    assert len(lines) == sum(map(len, overview.CHOSEN.values()))


def test_a_figure_that_no_row_has_is_named() -> None:
    found = {"memory": [_result("memory", ZEN_3, _step(120.0, 1.5))]}
    with pytest.raises(ValueError, match="memory: 'memory after a quarter, beside the end' is 0 rows"):
        overview.figures(found)


def test_a_page_without_its_place_is_refused() -> None:
    assert fill("a\n<!-- x -->\nold\n<!-- end of x -->\n", "x", "new\n") == (
        "a\n<!-- x -->\nnew\n<!-- end of x -->\n"
    )
    with pytest.raises(ValueError, match="'x' 0 times"):
        fill("a\n", "x", "new\n")
