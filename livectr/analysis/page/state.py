"""Sections on the run itself: importance of fields, tables, dead letters, freshness, speed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from livectr.analysis.compare import Z95
from livectr.analysis.page.axes import clock, linear
from livectr.analysis.page.parts import Figure, Section, Table, bytes_text, moment, number
from livectr.analysis.page.reading import RunData
from livectr.analysis.page.svg import SERIES, Chart, bars, thinned

if TYPE_CHECKING:
    from livectr.analysis.page.importance import Importance

MOST_FIELDS = 40
LARGEST = SERIES - 1
"""Tables with a line of their own; the others share one."""

Series = dict[str, list[float]]


def importance_section(importance: Importance | None) -> Section:
    """Permutation importance by field."""
    title, key = "Permutation importance by field", "importance"
    if importance is None:
        return Section(
            key,
            title,
            "Not computed: it needs the model and examples. Give livectr report --pipeline, --checkpoint and "
            "--source, too.",
        )
    rows = sorted(importance.fields, key=lambda field: -field.logloss)
    learned = (
        "The model may have learned these examples: what it has memorized looks more important than it is."
        if importance.learned
        else "The model has not learned these examples."
    )
    about = (
        f"Rise of log loss when a field's values are shuffled among {importance.examples:,} examples, mean "
        f"of {importance.repeats} shuffles, ± 95 % over examples. {learned} Fields that say the same share "
        "their importance: each alone may look useless."
    )
    picture = bars(
        title,
        f"{len(rows)} fields, the most important is {rows[0].name if rows else 'none'}.",
        [(f.name, f.logloss, Z95 * f.error, f"{f.logloss:+.4f}") for f in rows[:MOST_FIELDS]],
        name_width=150,
    )
    note = (
        f"As they are: log loss {importance.logloss:.4f}, AUC {number(importance.auc)}; step "
        f"{importance.step:,} of the model."
    )
    if len(rows) > MOST_FIELDS:
        note += f" The {MOST_FIELDS} largest of {len(rows)} are drawn."
    table = Table(
        ["field", "log loss", "± 95 %", "AUC"],
        [[f.name, f"{f.logloss:+.5f}", number(Z95 * f.error, 5), f"{-f.auc:+.5f}"] for f in rows],
    )
    return Section(
        key, title, about, [Figure("Rise of log loss without the field", picture, note, table=table)]
    )


def tables_section(data: RunData) -> Section:
    """Rows and bytes of the embedding tables, over examples and over time."""
    return Section(
        "tables",
        "Table growth",
        "Rows and memory of the embedding tables of all ranks. A table that grows without end needs an "
        "expiry or a budget (max_age, max_rows).",
        [
            _growth(data, what, axis)
            for axis in ("examples", "time")
            for what in ("rows", "bytes")
        ],
    )  # fmt: skip


def _growth(data: RunData, what: str, axis: str) -> Figure:
    title = f"Table {what} over " + ("examples" if axis == "examples" else "time")
    if not data.samples:
        return Figure(title, "", "There is no sample yet.", axis=axis)
    last = data.samples[-1]["tables"]
    order = sorted(last, key=lambda name: -last[name][what])
    names = order if len(order) <= LARGEST + 1 else order[:LARGEST]
    series: Series = {name: [_held(s, name, what) for s in data.samples] for name in names}
    if others := order[len(names) :]:
        series[f"{len(others)} others"] = [sum(_held(s, n, what) for n in others) for s in data.samples]
    text: Callable[[float], str] = bytes_text if what == "bytes" else lambda value: f"{value:,.0f} rows"
    total = sum(last[name][what] for name in last)
    table = None
    if axis == "examples" and what == "rows":
        rows = [[name, f"{last[name]['rows']:,}", f"{last[name]['bytes']:,}"] for name in order]
        rows.append(
            [
                "all",
                f"{sum(v['rows'] for v in last.values()):,}",
                f"{sum(v['bytes'] for v in last.values()):,}",
            ]
        )
        table = Table(["table", "rows", "bytes"], rows)
    return _over(data.samples, axis, title, series, f"All tables at the end: {text(total)}.", text, table)


def _held(sample: dict[str, Any], name: str, what: str) -> float:
    return float(sample["tables"].get(name, {}).get(what, 0))


def _over(
    samples: Sequence[dict[str, Any]],
    axis: str,
    title: str,
    series: Series,
    note: str,
    text: Callable[[float], str],
    table: Table | None = None,
) -> Figure:
    """Lines of samples over examples or over the clock."""
    kept = thinned(samples)
    column = "examples" if axis == "examples" else "at_ms"
    place = [float(samples[i][column]) for i in kept]
    x = (
        linear(place, "examples", from_zero=True, exact=True)
        if axis == "examples"
        else clock(place, "time (UTC)")
    )
    values = [v for line in series.values() for v in line]
    chart = Chart(x, linear(values, "", from_zero=True), title, f"{len(kept)} samples. {note}")
    for i, (name, line) in enumerate(series.items()):
        points = [(p, line[k]) for p, k in zip(place, kept, strict=True)]
        at = [f"{int(p):,} examples" if axis == "examples" else moment(int(p)) for p, _ in points]
        chart.line(points, i, [f"{name}: {text(v)} at {p}" for p, (_, v) in zip(at, points, strict=True)])
    return Figure(title, chart.render(), note, list(series), table, axis)


def letters_section(data: RunData) -> Section:
    """Rows that could not be used, by reason."""
    counts: dict[str, int] = data.samples[-1]["dead_letters"] if data.samples else {}
    counts = {reason: n for reason, n in sorted(counts.items(), key=lambda item: -item[1]) if n}
    title, key = "Dead letters by reason", "dead-letters"
    if not counts:
        return Section(key, title, "Every row could be used." if data.samples else "There is no sample yet.")
    picture = bars(
        title,
        f"{sum(counts.values()):,} rows could not be used.",
        [(reason, float(n), 0.0, f"{n:,}") for reason, n in counts.items()],
        name_width=130,
    )
    rows = [[reason, f"{n:,}"] for reason, n in counts.items()]
    table = Table(["reason", "rows"], [*rows, ["all", f"{sum(counts.values()):,}"]])
    about = "Rows that could not be used since the run began. The dead letters hold each with its error."
    return Section(key, title, about, [Figure(title, picture, table=table)])


def freshness_section(data: RunData) -> Section:
    """Time from an event to the version that learned it."""
    title, key = "Freshness", "freshness"
    known = [s for s in data.samples if s["freshness"]]
    if not known:
        return Section(
            key,
            title,
            "No version with events of this run was published. It is measured with --publish, of events that "
            "came while the run was there; what it found at its start is backfill.",
        )
    series: Series = {
        name: [s["freshness"][part] for s in known] for name, part in (("median", "p50_s"), ("99 %", "p99_s"))
    }
    rows = [
        [
            moment(s["at_ms"]),
            f"{s['version']}",
            number(s["freshness"]["p50_s"], 2),
            number(s["freshness"]["p99_s"], 2),
            f"{s['freshness']['examples']:,}",
        ]
        for s in known
    ]  # fmt: skip
    table = Table(["time (UTC)", "version", "median, s", "99 %, s", "examples"], rows)
    note = f"Newest: version {known[-1]['version']}, median {known[-1]['freshness']['p50_s']:.2f} s."
    figure = _over(
        known, "time", "Seconds from event to servable", series, note, lambda v: f"{v:.2f} s", table
    )
    about = (
        "Time from an event to the moment when servers can use a version that learned it, the wait for its "
        "label included."
    )
    return Section(key, title, about, [Figure(figure.title, figure.svg, note, figure.legend, table)])


def speed_section(data: RunData) -> Section:
    """Examples learned over the clock."""
    title, key = "Speed", "speed"
    if len(data.samples) < 2:
        return Section(key, title, "There are no two samples yet.")
    line = [float(s["examples"]) for s in data.samples]
    figure = _over(
        data.samples, "time", "Examples learned", {"examples": line}, _speed(data), lambda v: f"{v:,.0f}"
    )
    return Section(key, title, "Examples learned over time; a flat part waits for events, or for a restart.",
                   [Figure(figure.title, figure.svg, figure.note)])  # fmt: skip


def _speed(data: RunData) -> str:
    first, last = data.samples[0], data.samples[-1]
    seconds = (last["at_ms"] - first["at_ms"]) / 1000
    if seconds <= 0:
        return ""
    rate = (last["examples"] - first["examples"]) / seconds
    return (
        f"{rate:,.0f} examples/s on the whole; the run was started {len(data.starts)} times."
        if len(data.starts) > 1
        else f"{rate:,.0f} examples/s on the whole."
    )


def sections(data: RunData, importance: Importance | None) -> Iterator[Section]:
    """Sections on the run itself."""
    yield importance_section(importance)
    yield tables_section(data)
    yield letters_section(data)
    yield freshness_section(data)
    yield speed_section(data)
