"""Sections on quality: learning curve, reliability diagram, histogram of scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from livectr.analysis.compare import Z95
from livectr.analysis.page.axes import Axis, clock, linear, log_odds
from livectr.analysis.page.parts import Figure, Section, Table, moment, number
from livectr.analysis.page.reading import F64, RunData
from livectr.analysis.page.svg import Chart

MEASURES = {"auc": "AUC", "gauc": "GAUC", "logloss": "Log loss"}
POINTS = 50
"""Most points of a learning curve; more windows are averaged."""
GROUPS = 15
"""Most points of a reliability diagram."""


def learning_curve(data: RunData) -> Section:
    """AUC, GAUC and log loss of each window, over examples and over event time."""
    figures = [_curve(data, measure, axis) for axis in ("examples", "time") for measure in MEASURES]
    return Section(
        "learning-curve",
        "Learning curve",
        "Test-then-train: each example is scored before it is learned. The band is the 95 % interval (AUC: "
        "Hanley & McNeil, GAUC: over users, log loss: over examples).",
        figures,
    )


def _curve(data: RunData, measure: str, axis: str) -> Figure:
    title = f"{MEASURES[measure]} over " + ("examples" if axis == "examples" else "event time")
    if not data.windows:
        return Figure(title, "", "No window is full yet.", axis=axis)
    together = -(-len(data.windows) // POINTS)
    groups = [data.windows[i : i + together] for i in range(0, len(data.windows), together)]
    if len(groups) > 1 and 2 * _measured(groups[-1]) < _measured(groups[-2]):
        groups[-2:] = [groups[-2] + groups[-1]]  # the end of the log in a window that is not full
    column = "examples" if axis == "examples" else "last_ms"
    place = [float(group[-1][column]) for group in groups]
    x: Axis = (
        linear(place, "examples", from_zero=True, exact=True)
        if axis == "examples"
        else clock(place, "event time (UTC)")
    )
    series = {model: [_mean(group, model, measure) for group in groups] for model in data.models}
    ends = [
        end
        for points in series.values()
        for value, half in points
        if value is not None
        for end in _drawn(value, half, measure)
    ]
    chart = Chart(x, linear(ends, ""), title, f"{len(groups)} points, models {', '.join(data.models)}.")
    known = {
        model: [(p, v, h or 0.0) for p, (v, h) in zip(place, points, strict=True) if v is not None]
        for model, points in series.items()
    }
    for i, points in enumerate(known.values()):
        chart.band([(p, v - h, v + h) for p, v, h in points], i)
    for i, (model, points) in reversed([*enumerate(known.items())]):  # the ranking model on top
        names = [f"{model}: {v:.4f} ± {h:.4f} at {_at(axis, p)}" for p, v, h in points]
        chart.line([(p, v) for p, v, _ in points], i, names)
    note = f"A point is the mean of {together} windows; the table has each." if together > 1 else ""
    table = _curve_table(data, measure) if axis == "examples" else None
    return Figure(title, chart.render(), note, data.models, table, axis)


def newest(data: RunData, model: str, measure: str) -> float | None:
    """Measure over the last 20 % of the examples; None: not measured."""
    windows = data.last_windows()
    if measure == "calibration":
        _, clicks, predicted = data.bins(model, windows).sum(axis=0).tolist()
        return predicted / clicks if clicks else None
    return _mean(windows, model, measure)[0]


def _measured(windows: Sequence[dict[str, Any]]) -> int:
    return sum(window["measured"] for window in windows)


def _drawn(value: float, half: float | None, measure: str) -> tuple[float, float]:
    """Ends of an interval on the axis: a band of a window of few clicks may not stretch it."""
    half = min(half or 0.0, 0.15 if measure != "logloss" else 0.3 * value)
    return value - half, value + half if measure == "logloss" else min(value + half, 1.0)


def _mean(windows: Sequence[dict[str, Any]], model: str, measure: str) -> tuple[float | None, float | None]:
    """Mean of a measure over windows by their measured examples, and half of its 95 % interval."""
    held = [(window["models"][model], window["measured"]) for window in windows]
    parts = [(m[measure], m[f"{measure}_error"] or 0.0, n) for m, n in held if m[measure] is not None]
    if not parts:
        return None, None
    total = sum(n for _, _, n in parts)
    error = np.sqrt(sum((n * error) ** 2 for _, error, n in parts)) / total
    return sum(n * value for value, _, n in parts) / total, Z95 * float(error)


def _curve_table(data: RunData, measure: str) -> Table:
    columns = ["examples", "until (UTC)", "clicks"]
    columns += [text for model in data.models for text in (model, "± 95 %")]
    return Table(columns, [
        [
            f"{window['examples']:,}", moment(window["last_ms"]), f"{window['clicks']:,}",
            *(number(v) for model in data.models for v in _mean([window], model, measure)),
        ]
        for window in data.windows
    ])  # fmt: skip


@dataclass(frozen=True)
class Group:
    """Examples of neighbouring scores: how many, clicks, predicted clicks; of weighted ones their sums."""

    examples: float
    clicks: float
    predicted: float

    @property
    def promised(self) -> float:
        """Mean predicted probability."""
        return self.predicted / self.examples

    @property
    def rate(self) -> float:
        """Clicked share."""
        return self.clicks / self.examples

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the click rate (Wilson 1927)."""
        n, z2 = self.examples, Z95**2
        middle = (self.clicks + z2 / 2) / (n + z2)
        half = Z95 / (n + z2) * np.sqrt(self.clicks * max(n - self.clicks, 0) / n + z2 / 4)
        return float(max(middle - half, 0.0)), float(min(middle + half, 1.0))


def groups_of(bins: F64) -> list[Group]:
    """At most GROUPS + 1 groups of neighbouring bins f64[n, 3] with about equally many examples."""
    least = bins[:, 0].sum() / GROUPS
    found: list[Group] = []
    open_ = np.zeros(3)
    for one in bins:
        open_ = open_ + one
        if open_[0] >= least:
            found.append(Group(*open_.tolist()))
            open_ = np.zeros(3)
    if open_[0]:
        found.append(Group(*open_.tolist()))
    return found


def reliability(data: RunData) -> Section:
    """Predicted against observed click rates of the last 20 % of the examples."""
    windows = data.last_windows()
    return Section(
        "reliability",
        "Reliability diagram",
        f"Predicted against observed click rate{_of(data)}. On the dashed diagonal a model promises what "
        "comes; below it, it promises too much. A dot's bar is its 95 % interval; grey bars are counts.",
        [_diagram(data, model, windows) for model in data.models],
    )


def _diagram(data: RunData, model: str, windows: list[dict[str, Any]]) -> Figure:
    title = f"Reliability of {model}"
    found = groups_of(data.bins(model, windows)) if windows else []
    if not found:
        return Figure(title, "", "No window is full yet.")
    total, clicks = sum(g.examples for g in found), sum(g.clicks for g in found)
    top = max(max(group.promised, group.interval[1]) for group in found)
    x, y = linear([0.0, top], "predicted click rate", exact=True), linear([0.0, top], "")
    about = f"Observed click rate against the predicted, {total:,.0f} examples."
    chart = Chart(x, y, title, about, height=300)
    chart.rule((0.0, 0.0), (top, top))
    most = max(group.examples for group in found)
    for group in found:
        chart.count(group.promised, group.examples / most)
    chart.line([(g.promised, g.rate) for g in found], 0)
    for group in found:
        chart.whisker(group.promised, *group.interval, 0)
        text = f"predicted {group.promised:.4f}, observed {group.rate:.4f}, {group.examples:,.0f} examples"
        chart.dot(chart.place(group.promised, group.rate), 0, text, radius=3.5)
    apart = sum(abs(g.predicted - g.clicks) for g in found) / total
    ratio = f"{sum(g.predicted for g in found) / clicks:.4f}" if clicks else "–"
    note = (
        f"Vertical axis: observed. {total:,} examples, {clicks:,} clicks; calibration {ratio}; mean distance "
        f"from the diagonal {apart:.4f}. The grey bars are counts, the highest {most:,}."
    )
    table = Table(
        ["predicted", "observed", "95 % from", "to", "examples", "clicks"],
        [
            [
                *(number(v) for v in (g.promised, g.rate, *g.interval)),
                f"{g.examples:,.0f}",
                f"{g.clicks:,.0f}",
            ]
            for g in found
        ],
    )
    return Figure(title, chart.render(), note, table=table)


def histogram(data: RunData) -> Section:
    """Scores of clicked and of other examples, of the last 20 %."""
    windows = data.last_windows()
    return Section(
        "scores",
        "Score histogram",
        f"Predicted probabilities{_of(data)}, of clicked and of other examples, each as shares of its kind. "
        "The further apart the two are, the higher is AUC. The axis is in log-odds.",
        [_scores(data, model, windows) for model in data.models],
    )


def _scores(data: RunData, model: str, windows: list[dict[str, Any]]) -> Figure:
    title = f"Scores of {model}"
    bins = data.bins(model, windows) if windows else np.zeros((1, 3))
    used = np.flatnonzero(bins[:, 0])
    if not len(used):
        return Figure(title, "", "No window is full yet.")
    spec = data.head["bins"]
    bins = bins[used[0] : used[-1] + 1]
    edges = [spec["first_logit"] + spec["width"] * i for i in range(int(used[0]), int(used[-1]) + 2)]
    clicked, others = bins[:, 1], bins[:, 0] - bins[:, 1]
    shares = [kind / max(kind.sum(), 1) for kind in (others, clicked)]
    texts = [
        f"{_percent(left)} to {_percent(right)}: {int(n):,} examples, {int(c):,} clicked"
        for left, right, (n, c, _) in zip(edges, edges[1:], bins.tolist(), strict=False)
    ]
    y = linear([0.0, *(float(share.max()) for share in shares)], "")
    about = (
        f"Shares of scores, {int(bins[:, 0].sum()):,} examples of which {int(clicked.sum()):,} were clicked."
    )
    chart = Chart(log_odds(edges[0], edges[-1], "predicted probability"), y, title, about)
    for i, share in enumerate(shares):
        chart.steps(edges, share.tolist(), i, texts if i else ())
    table = Table(
        ["from", "to", "examples", "clicked"],
        [
            [_percent(left), _percent(right), f"{int(n):,}", f"{int(c):,}"]
            for left, right, (n, c, _) in zip(edges, edges[1:], bins.tolist(), strict=False)
        ],
    )
    return Figure(title, chart.render(), "", ("not clicked", "clicked"), table)


def _of(data: RunData) -> str:
    """Text that names the examples of the last windows."""
    windows = data.last_windows()
    if not windows:
        return ""
    return f" of examples {windows[0]['first_example'] + 1:,} to {windows[-1]['examples']:,} (the last 20 %)"


def _percent(logit: float) -> str:
    share = 100 / (1 + np.exp(-logit))
    return f"{share:.3g} %"


def _at(axis: str, value: float) -> str:
    return f"{int(value):,} examples" if axis == "examples" else moment(int(value))


def sections(data: RunData) -> Iterator[Section]:
    """Sections on quality."""
    yield learning_curve(data)
    yield reliability(data)
    yield histogram(data)
