"""Plots as PNG or SVG files: curves over time (DICM Fig. 6) and bars of an ablation (DICM Fig. 5).

Plots need no display and ignore a user's matplotlib settings: equal numbers give equal files. Colours are
from Okabe & Ito (2008), which colour-blind people can tell apart, and each has its own line style. The ground
is white, so that plots are readable on a dark page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from livectr.system.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Values = npt.ArrayLike
KINDS = (".png", ".svg")
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#000000")
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)), (0, (1, 3)))
"""One more than colours: two lines of a plot share a colour or a style, never both."""
SIZE_IN = (7.2, 4.0)
CUT = 0.5
"""The axis is cut when the lowest bar is above this share of the highest."""
STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 12,
    "date.converter": "concise",
    "figure.dpi": 144,
    "font.family": ["DejaVu Sans"],  # comes with matplotlib
    "font.size": 10,
    "grid.color": "#dddddd",
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "savefig.dpi": 144,
    "svg.fonttype": "path",  # a page has no font to find
    "svg.hashsalt": "livectr",
}


def check_plot(path: Path) -> None:
    """Check the name of a file before there is anything to draw. Raises ConfigError."""
    if path.suffix.lower() not in KINDS:
        raise ConfigError(f"a plot cannot be written as {path.name}; name a file that ends in .png or .svg.")


def curve(
    path: Path,
    title: str,
    series: Mapping[str, tuple[Values, Values]],
    xlabel: str,
    ylabel: str,
    *,
    log: bool = False,
) -> None:
    """Lines over a common axis.

    Args:
        path: FILE.png or FILE.svg; its folder is made.
        title: above the plot.
        series: legend entry → (x, y), both [n]; x are numbers or datetime64 (UTC), and NaN in y is a gap in
            the line.
        xlabel: of the horizontal axis.
        ylabel: of the vertical axis.
        log: x is drawn by its logarithm.

    Raises:
        ConfigError: `path` is neither PNG nor SVG, or has no folder that can be made.
    """
    with _axes(path, title, ylabel) as axes:
        looks = zip(cycle(COLOURS), cycle(LINES), strict=True)
        for (name, (x, y)), (colour, line) in zip(series.items(), looks, strict=False):
            axes.plot(np.asarray(x), np.asarray(y), label=name, color=colour, linestyle=line)
        axes.set_xlabel(xlabel)
        if log:
            axes.set_xscale("log")
        if series:
            axes.legend()


def bars(
    path: Path,
    title: str,
    labels: Sequence[str],
    means: Sequence[float],
    spreads: Sequence[float] | None,
    ylabel: str,
) -> None:
    """Bar chart with the value above each bar.

    The axis is cut, and says so, where bars from 0 would hide the differences.

    Args:
        path: FILE.png or FILE.svg; its folder is made.
        title: above the plot.
        labels: n names under the bars.
        means: n heights.
        spreads: half the length of the error bars, in units of the means; NaN: no error bar; None: no error
            bars at all.
        ylabel: of the vertical axis.

    Raises:
        ConfigError: `path` is neither PNG nor SVG, or has no folder that can be made.
        ValueError: labels, means and spreads differ in number.
    """
    spreads = [float("nan")] * len(means) if spreads is None else spreads
    if not len(labels) == len(means) == len(spreads):
        raise ValueError(f"{len(labels)} labels, {len(means)} means and {len(spreads)} spreads")
    height = np.asarray(means, np.float64)
    error = np.nan_to_num(np.asarray(spreads, np.float64))
    bottom, top = _ends(height, error)
    with _axes(path, title, ylabel if bottom == 0 else f"{ylabel} (axis from {bottom:.4g})") as axes:
        at = np.arange(len(labels))
        axes.bar(at, height - bottom, bottom=bottom, width=0.6, color=[COLOURS[i % 5] for i in at])
        some = error > 0
        axes.errorbar(
            at[some], height[some], error[some], fmt="none", ecolor="black", elinewidth=1.2, capsize=4
        )
        for x, (value, above) in enumerate(zip(height, error, strict=True)):
            if np.isfinite(value):
                axes.annotate(
                    f"{value:#.4g}",
                    (x, max(value + above, 0)),
                    xytext=(0, 3),
                    textcoords="offset points",
                    ha="center",
                )
        crowded = len(labels) * max(map(len, labels), default=0) > 70
        slanted: dict[str, Any] = dict(rotation=20, ha="right") if crowded else {}
        axes.set_xticks(at, labels, **slanted)
        axes.set_xlim(-0.6, len(labels) - 0.4)
        axes.grid(axis="x", visible=False)
        if (height - error < 0).any():
            axes.axhline(0, color="black", linewidth=0.8)
        if bottom != top:
            axes.set_ylim(bottom if bottom > 0 else None, top)


def _ends(height: npt.NDArray[np.float64], error: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Lower end of the bars, and upper end of the axis."""
    known = np.isfinite(height)
    if not known.any():
        return 0.0, 0.0
    low, high = float((height - error)[known].min()), float((height + error)[known].max())
    bottom = 0.0
    if low > CUT * high > 0:
        room = max(high - low, 1e-3 * high)
        step = 10.0 ** np.floor(np.log10(room))
        bottom = float(max(0.0, np.floor((low - 0.5 * room) / step) * step))
    return bottom, max(high, 0.0) + 0.12 * (high - min(bottom, low))


@contextmanager
def _axes(path: Path, title: str, ylabel: str) -> Iterator[Axes]:
    """Axes to draw on; the file is written when the context ends."""
    check_plot(path)
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        figure = Figure(figsize=SIZE_IN, layout="constrained")
        axes = figure.add_subplot()
        axes.set_title(title)
        axes.set_ylabel(ylabel)
        yield axes
        kind = path.suffix.lower()[1:]
        # Without date and version, equal numbers give equal files.
        unsaid: dict[str, Any] = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, format=kind, metadata=unsaid)
        except OSError as error:
            raise ConfigError(f"{path} cannot be written ({error.strerror}); name another file.") from None
