"""Panels and dashboards in the way that all boards have them: templated, described, with units, read-only.

In an expression `@` stands for the matchers of the board's variables:

    rate(livectr_events_total{@}[$__rate_interval])
    livectr_lookups_total{@, outcome="hit"}
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Literal

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders import heatmap, prometheus, stat, timeseries
from grafana_foundation_sdk.models import common, dashboard
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

MATCHERS = 'job=~"$job", namespace=~"$namespace", pod=~"$pod"'
OF_RULES = 'namespace=~"$namespace"'
"""Matchers of recorded series, which are sums over the jobs and pods of a namespace."""
SOURCE = dashboard.DataSourceRef(type_val="prometheus", uid="${datasource}")
TAG = "livectr"
WIDTH = 24
"""Columns of Grafana's grid."""
_EVERY = ".+"

Unit = Literal[
    "short", "percentunit", "s", "dtdurations", "bytes", "Bps", "reqps", "ops", "cps", "none", "bool"
]  # fmt: skip


@dataclass(frozen=True)
class Query:
    """Expression of a panel.

    Args:
        expr: PromQL with `@` for the matchers of the variables.
        legend: name of each series, with {{label}}.
    """

    expr: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """Panel of a board.

    Args:
        title: at most a few words.
        about: sentences for the reader: what is shown, and when to worry.
        unit: Grafana's name of the unit.
        queries: one or more.
        kind: lines over time, one number, or the buckets of a histogram over time.
        width: columns of 24.
        stacked: lines add up.
        most: upper end of the axis; None: as the data have it.
        worst: value from which a number turns red; None: it has no color.
        falls: a number is bad below `worst`, not above.
        good: least and most good value of lines, each drawn as a dashed line; None: no bound.
    """

    title: str
    about: str
    unit: Unit
    queries: Sequence[Query]
    kind: Literal["lines", "number", "heatmap"] = "lines"
    width: int = 8
    stacked: bool = False
    most: float | None = None
    worst: float | None = None
    falls: bool = False
    good: tuple[float | None, float | None] = (None, None)


@dataclass(frozen=True)
class Board:
    """Dashboard.

    Args:
        name: end of its uid and name of its file.
        title: in Grafana's list.
        about: one sentence.
        rows: title of a row and its panels.
    """

    name: str
    title: str
    about: str
    rows: Sequence[tuple[str, Sequence[Panel]]]


def lines(
    title: str,
    about: str,
    unit: Unit,
    *queries: tuple[str, str],
    width: int = 8,
    least: float | None = None,
    most: float | None = None,
) -> Panel:
    """Lines over time; each query is an expression and the name of its series.

    Args:
        title: at most a few words.
        about: sentences for the reader.
        unit: Grafana's name of the unit.
        queries: expression and legend of each.
        width: columns of 24.
        least: good values are not below it.
        most: good values are not above it.
    """
    return Panel(title, about, unit, [Query(*query) for query in queries], width=width, good=(least, most))


def areas(title: str, about: str, unit: Unit, *queries: tuple[str, str], width: int = 8) -> Panel:
    """Lines that add up."""
    return Panel(title, about, unit, [Query(*query) for query in queries], width=width, stacked=True)


def number(
    title: str, about: str, unit: Unit, expr: str, *, worst: float | None = None, falls: bool = False
) -> Panel:
    """Newest value of an expression."""
    queries = [Query(expr, title)]
    return Panel(title, about, unit, queries, "number", width=4, worst=worst, falls=falls)


def heat(title: str, about: str, histogram: str, matchers: str = "", width: int = 12) -> Panel:
    """Heat map of a histogram in seconds."""
    more = f", {matchers}" if matchers else ""
    expr = f"sum by (le) (increase({histogram}_bucket{{@{more}}}[$__rate_interval]))"
    return Panel(title, about, "s", [Query(expr, "{{le}}")], "heatmap", width=width)


def rate(metric: str, *by: str, only: str = "") -> str:
    """PromQL of a counter's rate, summed by labels.

    Args:
        metric: name of the counter.
        by: labels that are kept.
        only: further matchers.
    """
    matchers = f"@, {only}" if only else "@"
    return f"sum by ({', '.join(by)}) (rate({metric}{{{matchers}}}[$__rate_interval]))"


def quantile(q: float, histogram: str, *by: str, only: str = "") -> str:
    """PromQL of a histogram's quantile, by labels."""
    return f"histogram_quantile({q}, {rate(histogram + '_bucket', 'le', *by, only=only)})"


def build(board: Board) -> dashboard.Dashboard:
    """Make Grafana's model of a board."""
    made = (
        builders.Dashboard(board.title)
        .uid(f"livectr-{board.name}")
        .description(board.about)
        .tags([TAG])
        .readonly()
        .refresh("30s")
        .time("now-1h", "now")
        .timezone("browser")
        .tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
        .link(
            builders.DashboardLink("LiveCTR")
            .type(dashboard.DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .as_dropdown(True)
            .include_vars(True)
            .keep_time(True)
        )
        .with_variable(builders.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for variable in _variables():
        made.with_variable(variable)
    numbers = count(1)
    for title, panels in board.rows:
        made.with_row(builders.Row(title).id(next(numbers)))
        for panel in panels:
            made.with_panel(_panel(panel).id(next(numbers)))
    return made.build()


def _variables() -> list[builders.QueryVariable]:
    """Namespace, job and pod of every process of LiveCTR; each may be several, or all."""
    seen: list[str] = []
    found = []
    for name in ("namespace", "job", "pod"):
        known = ", ".join(f'{label}=~"${label}"' for label in seen)
        seen.append(name)
        found.append(
            builders.QueryVariable(name)
            .label(name.capitalize())
            .datasource(SOURCE)
            .query(f"label_values(livectr_build_info{{{known}}}, {name})")
            .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(dashboard.VariableSort.ALPHABETICAL_ASC)
            .multi(True)
            .include_all(True)
            .all_value(_EVERY)
            .current(dashboard.VariableOption(text="All", value="$__all", selected=True))
        )
    return found


def _panel(panel: Panel) -> timeseries.Panel | stat.Panel | heatmap.Panel:
    if panel.kind == "number":
        return _number(panel)
    if panel.kind == "heatmap":
        return _heatmap(panel)
    made = timeseries.Panel().height(8).fill_opacity(10).show_points(common.VisibilityMode.NEVER)
    made.legend(
        common_builders.VizLegendOptions()
        .display_mode(common.LegendDisplayMode.TABLE)
        .placement(common.LegendPlacement.BOTTOM)
        .calcs(["lastNotNull", "max"])
        .show_legend(True)
    )
    made.tooltip(
        common_builders.VizTooltipOptions()
        .mode(common.TooltipDisplayMode.MULTI)
        .sort(common.SortOrder.DESCENDING)
    )
    if panel.stacked:
        made.stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL))
        made.fill_opacity(50)
    if panel.most is not None:
        made.max(panel.most)
    _common(made, panel)
    if panel.good != (None, None):
        style = common_builders.GraphThresholdsStyleConfig().mode(common.GraphThresholdsStyleMode.DASHED)
        made.thresholds_style(style).thresholds(_limits(*panel.good))
    return made


def _limits(least: float | None, most: float | None) -> builders.ThresholdsConfig:
    """Thresholds of lines: Grafana draws each at its value in its color, but the first."""
    steps = [dashboard.Threshold(None, "green" if least is None else "red")]
    steps += [dashboard.Threshold(least, "green")] * (least is not None)
    steps += [dashboard.Threshold(most, "red")] * (most is not None)
    return builders.ThresholdsConfig().mode(dashboard.ThresholdsMode.ABSOLUTE).steps(steps)


def _number(panel: Panel) -> stat.Panel:
    made = stat.Panel().height(4).reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"]))
    made.color_mode(common.BigValueColorMode.VALUE).graph_mode(common.BigValueGraphMode.AREA)
    _common(made, panel)
    if panel.worst is not None:
        colors = ("red", "green") if panel.falls else ("green", "red")
        steps = [dashboard.Threshold(None, colors[0]), dashboard.Threshold(panel.worst, colors[1])]
        made.thresholds(builders.ThresholdsConfig().mode(dashboard.ThresholdsMode.ABSOLUTE).steps(steps))
    return made


def _heatmap(panel: Panel) -> heatmap.Panel:
    made = heatmap.Panel().height(8).calculate(False).hide_legend()
    made.color(_Color().mode(HeatmapColorMode.SCHEME).scheme("Spectral").steps(64))
    made.y_axis(heatmap.YAxisConfig().unit(panel.unit))
    _common(made, panel)
    return made


_Color = heatmap.HeatmapColorOptions


def _common(made: timeseries.Panel | stat.Panel | heatmap.Panel, panel: Panel) -> None:
    made.title(panel.title).description(panel.about).unit(panel.unit).span(panel.width).datasource(SOURCE)
    for index, query in enumerate(panel.queries):
        target = prometheus.Dataquery().expr(filled(query.expr)).legend_format(query.legend)
        target.ref_id(chr(ord("A") + index)).datasource(SOURCE)
        if panel.kind == "number":
            target.instant()
        else:
            target.range()
        if panel.kind == "heatmap":
            target.format(PromQueryFormat.HEATMAP)
        made.with_target(target)


def filled(expr: str) -> str:
    """Put matchers in the place of `@`."""
    return expr.replace("{@rules", "{" + OF_RULES).replace("{@", "{" + MATCHERS)
