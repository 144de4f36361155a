"""The tables of DICM §7 out of measured variants, with intervals that the paper does not give.

A cell is "mean(standard deviation over seeds)"; a gain is "mean ± half of its 95 % interval" over the same
seeds of the variant that the row is compared with, and has a star where 0 is outside of that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.ablation.student import Gain, gain, mean_and_spread

Measured = Mapping[str, Mapping[str, float]]
"""Variant's values: seed → measure → value."""
Results = Mapping[str, Measured]
"""Variant → its values."""

NAMES = {"gauc": "GAUC", "auc": "AUC", "cold_gauc": "cold GAUC"}


@dataclass(frozen=True)
class Row:
    """Row of a table. than: the variant that its gains are over. paper: its gain of GAUC in the paper."""

    label: str
    variant: str
    than: str | None = None
    paper: float | None = None


@dataclass(frozen=True)
class Table:
    """A table of the paper."""

    name: str
    title: str
    rows: tuple[Row, ...]
    measures: tuple[str, ...] = ("gauc", "auc", "cold_gauc")


IMAGES = Table(
    "table3",
    "Table 3: ad image, behavior images, and both",
    (
        Row("baseline", "ids"),
        Row("ad image", "ad_image", "ids", 0.0030),
        Row("behavior images", "behaviour_images", "ids", 0.0014),
        Row("joint", "joint", "ids", 0.0055),
    ),
)
AGGREGATORS = Table(
    "table4",
    "Table 4: aggregators of behavior images, beside the ad image",
    (
        Row("baseline", "ids"),
        Row("only ad image", "ad_image", "ids", 0.0030),
        Row("concatenation", "concat", "ids", 0.0027),
        Row("max pooling", "max", "ids", 0.0031),
        Row("sum pooling", "sum", "ids", 0.0043),
        Row("mean pooling", "mean", "ids"),
        Row("attentive pooling", "attentive", "ids", 0.0052),
        Row("multi-query attentive pooling", "joint", "ids", 0.0055),
    ),
)
WARM_UP = Table(
    "table5",
    "Table 5: warm-up",
    (
        Row("non", "joint"),
        Row("partial", "partial", "joint", 0.0023),
        Row("full", "full", "joint", -0.0030),
    ),
)
BEST = Table(
    "table6",
    "Table 6: the baseline and the best DICM",
    (Row("baseline", "ids"), Row("DICM", "joint", "ids", 0.0055)),
)
BEST_WARM = Table(
    "table6",
    "Table 6: the baseline and the best DICM, with partial warm-up",
    (Row("baseline", "ids"), Row("DICM", "partial", "ids", 0.0078)),
)
PRERANK = Table(
    "table8",
    "Table 8: pre-rank",
    (Row("baseline", "towers_ids"), Row("DICM", "towers", "towers_ids", 0.0060)),
)
BASIC_NETS = Table(
    "figure5",
    "Figure 5: basic nets without and with images",
    (
        Row("LR", "lr_ids"),
        Row("LR with images", "lr", "lr_ids"),
        Row("Embedding&MLP", "ids"),
        Row("Embedding&MLP with images", "joint", "ids"),
        Row("DIN", "din_ids"),
        Row("DIN with images", "din", "din_ids"),
    ),
)
OF_GRID: dict[str, tuple[Table, ...]] = {
    "images": (IMAGES,),
    "aggregator": (AGGREGATORS,),
    "basic_net": (BASIC_NETS,),
    "warm_up": (WARM_UP,),
    "prerank": (PRERANK,),
}
"""Tables by grid; Table 6 follows the tables of images and warm-up (see `tables_of`)."""


def tables_of(grids: Sequence[str]) -> list[Table]:
    """The tables that these grids fill."""
    found = [table for grid in grids for table in OF_GRID[grid]]
    if "warm_up" in grids:
        found.append(BEST_WARM)
    elif "images" in grids:
        found.append(BEST)
    return sorted(found, key=lambda table: (table.name.startswith("figure"), table.name))


def markdown(table: Table, results: Results) -> str:
    """The table as Markdown."""
    paper = any(row.paper is not None for row in table.rows)
    gains = [name for name in table.measures for _ in range(2)]
    header = ["variant", *(NAMES[m] + " gain" * (i % 2) for i, m in enumerate(gains))]
    header += ["GAUC gain in the paper"] * paper
    lines = [header, ["---", *["---:"] * (len(header) - 1)]]
    for row in table.rows:
        cells = [row.label]
        for measure in table.measures:
            cells += [_cell(values(results, row.variant, measure)), _gain(table_gain(row, results, measure))]
        if paper:
            cells.append("" if row.paper is None else f"{row.paper:+.4f}")
        lines.append(cells)
    return f"**{table.title}**\n\n" + "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def values(results: Results, variant: str, measure: str) -> list[float]:
    """A variant's values of a measure, in the order of the seeds."""
    return [one[measure] for one in results[variant].values()]


def table_gain(row: Row, results: Results, measure: str) -> Gain | None:
    """A row's gain over the variant that it is compared with; None: compared with no variant."""
    if row.than is None:
        return None
    return gain(values(results, row.than, measure), values(results, row.variant, measure))


def _cell(found: Sequence[float]) -> str:
    mean, spread = mean_and_spread(found)
    return f"{mean:.4f}" if spread != spread else f"{mean:.4f}({spread:.4f})"


def _gain(found: Gain | None) -> str:
    if found is None:
        return ""
    if found.half_width != found.half_width:
        return f"{found.mean:+.4f}"
    return f"{found.mean:+.4f} ± {found.half_width:.4f}{' *' if found.sure else ''}"
