"""The paper's Figures 5 and 6, and bars of every table, as SVG."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from bench.ablation.student import mean_and_spread
from bench.ablation.tables import Results, Table, values
from livectr.analysis.plots import bars, curve

HOUR_MS = 3_600_000
Curves = Mapping[str, Mapping[str, list[float | None]]]
"""Variant → seed → GAUC of every stretch of the training part, None where it has no value."""


def draw_table(folder: Path, table: Table, results: Results) -> Path:
    """Bars of a table's GAUC with the spread over seeds; returns the file."""
    found = [mean_and_spread(values(results, row.variant, "gauc")) for row in table.rows]
    means, spreads = ([pair[i] for pair in found] for i in (0, 1))
    file = folder / f"{table.name}.svg"
    bars(file, table.title, [row.label for row in table.rows], means, spreads, "GAUC")
    return file


def draw_curve(
    folder: Path, variants: Mapping[str, str], curves: Curves, *, start_ms: int, end_ms: int
) -> Path:
    """Draw GAUC over event time, mean over seeds (Figure 6). variants: legend entry → variant."""
    series = {}
    for label, variant in variants.items():
        gaucs = np.array(list(curves[variant].values()), np.float64)  # None becomes NaN
        hours = (np.arange(gaucs.shape[1]) + 0.5) * (end_ms - start_ms) / gaucs.shape[1] / HOUR_MS
        series[label] = hours, gaucs.mean(0)
    file = folder / "figure6.svg"
    curve(file, "Figure 6: GAUC while training", series, "hours of event time", "GAUC")
    return file
