"""Pipeline file that follows from guesses, as a person would write it.

Columns with a running number are one line, and a column is an attribute where its name allows it.
"""

from __future__ import annotations

import json
import keyword
import math
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from livectr.guess.columns import BINS, rounded
from livectr.guess.delays import written
from livectr.guess.facts import Facts
from livectr.guess.pair import Pair
from livectr.ingest.language.streams import Stream, View

FEW_CLICKS = 1_000
"""Clicks up to which a linear model learns more than a network (docs/first-hour.md)."""
LINE = 100
"""Characters of a line after which it is broken."""
ALIKE = 4
"""Columns with a running number that become one line."""
HIDDEN = {*dir(Stream), *dir(View), *Stream.__dataclass_fields__, *View.__dataclass_fields__}
UNITS = {"s", "us", "ns"}

HEAD = '''"""{what}, as `livectr init` guessed them. The file is yours: change what is wrong.

{commands}
"""

'''


@dataclass(frozen=True)
class Entry:
    """Entry of a dictionary: the column that names it, and its value as a function of the column's name."""

    column: str
    value: str


def pipeline_text(facts: Facts, topic: str, commands: Sequence[str]) -> str:
    """Text of the pipeline file of a log with a label.

    Args:
        facts: guesses about the log.
        topic: name of the log.
        commands: that a person runs next, for its head.
    """
    variable = _variable(topic, "impressions")
    body = _stream(facts, topic, variable)
    body += f"\nlog = labelled({variable}, label={_quoted(facts.label or '')})\n"
    return _whole(facts, f"Clicks of {facts.sample.name}", body, commands)


def pair_text(pair: Pair, topics: Sequence[str], commands: Sequence[str]) -> str:
    """Text of the pipeline file of impressions and clicks.

    Args:
        pair: guesses about the logs.
        topics: of impressions, clicks, and the other events.
        commands: that a person runs next, for its head.
    """
    shown, clicked = _variable(topics[0], "impressions"), _variable(topics[1], "clicks")
    if shown == clicked:
        shown, clicked = "impressions", "clicks"
    body = _stream(pair.shown, topics[0], shown) + _stream(pair.clicked, topics[1], clicked)
    names = [_label_name(topic) for topic in topics[2:]]
    labels: list[str] = []
    for number, (kind, topic) in enumerate(zip(pair.labels, topics[2:], strict=True)):
        variable = _variable(topic, f"label_{number + 1}")
        variable = f"{variable}_" if variable in (shown, clicked, *labels) else variable
        body += _stream(kind.clicked, topic, variable)
        body += f"# {topic} {kind.delays.words_of_others}.\n"
        window = written(kind.delays.window_s)
        labels.append(f'Label({_quoted(names[number])}, {variable}, window="{window}")')
    on = _quoted(pair.on[0]) if len(pair.on) == 1 else f"({', '.join(map(_quoted, pair.on))})"
    window, delays = written(pair.delays.window_s), pair.delays
    body += f"\n# {delays.words[0].upper()}{delays.words[1:]}.\n"
    slack = f', clock_slack="{written(delays.slack_s)}"' if delays.slack_s is not None else ""
    more = "".join(f"\n    {label}," for label in labels)
    more = f", labels=[{more}\n]" if labels else ""
    body += f'log = label_join({shown}, {clicked}, on={on}, window="{window}"{slack}{more})\n'
    if delays.wait_s is not None and not labels:
        body += (
            f'# Examples come when the window has passed. wait="{written(delays.wait_s)}", delayed="fnw" '
            "learns them sooner\n# (docs/pipeline.md, labels that come late).\n"
        )
    what = f"Clicks of {pair.clicked.sample.name} on {pair.shown.sample.name}"
    return _whole(pair.shown, what, body, commands, names)


def _label_name(topic: str) -> str:
    """Name of a label: what one event of a topic is."""
    name = re.sub(r"\W", "_", topic)
    return name[:-1] if re.fullmatch(r".*[^\Ws_]s", name) else name


def _whole(facts: Facts, what: str, body: str, commands: Sequence[str], targets: Sequence[str] = ()) -> str:
    """The file, from its head to the pipeline."""
    sparse, dense = _sparse(facts), _dense(facts)
    network = facts.clicks > FEW_CLICKS
    model = "DeepFM(dim=8, hidden=(64, 32))" if network else "LR()"
    if bounds := _bounds(facts):
        values = [Entry(name, repr(of)) for name, of in bounds.items()]
        body += "\n# Numbers are learned by bins, too: bounds of bins with about equally many rows.\n"
        body += f"bins = {_dictionary(values)}\n"
    body += f"\nsparse = {_dictionary(sparse, _binned(facts) if bounds else '')}\n"
    body += f"dense = {_dictionary(dense)}\n" if dense else ""
    body += "\npipeline = Pipeline(\n    log,\n    sparse=sparse,\n"
    body += "    dense=dense,\n" if dense else ""
    why = f"{facts.clicks:,} clicks in {facts.rows:,} rows"
    hint = "" if network else f"  # {why}: begin linear, and try DeepFM with more clicks"
    body += f"    rank={model},{hint}\n"
    if targets:
        body += f"    targets=[{', '.join(f'Target({_quoted(name)})' for name in targets)}],\n"
    body += ")\n"
    known = ("EventTime", "Label", "Pipeline", "Stream", "Target", "label_join", "labelled", "ops")
    names = [name for name in known if re.search(rf"\b{name}[.(]", body)]
    imports = f"from livectr import {', '.join(sorted(names, key=lambda name: (name.islower(), name)))}\n"
    imports += f"from livectr.models import {'DeepFM' if network else 'LR'}\n\n"
    return HEAD.format(what=what, commands="\n".join(f"    {line}" for line in commands)) + imports + body


def _stream(facts: Facts, topic: str, variable: str) -> str:
    paths = {name: path for name, path in facts.sample.paths.items() if name in facts.kept}
    entries = [Entry(name, _quoted(use.dtype)) for name, use in facts.kept.items()]
    origins = dict.fromkeys(path.split(".")[0] for path in paths.values())
    entries += [Entry(name, '"string"') for name in origins if name not in facts.kept]
    text = f"{variable} = Stream(\n    {_quoted(topic)},\n    key={_quoted(facts.key)},\n"
    if facts.time is not None and facts.form is not None:
        unit = facts.form.unit
        declared = (
            f'EventTime({_quoted(facts.time)}, unit="{unit}")'
            if unit in UNITS and not facts.form.converted
            else _quoted(facts.time)
        )
        comment = "  # epoch milliseconds" if "EventTime" not in declared else ""
        text += f"    time={declared},{comment}\n"
    text += f"    columns={_inner(entries)},\n"
    if paths:
        fields = [Entry(name, _quoted(path)) for name, path in paths.items()]
        text += f"    json_fields={_inner(fields)},\n"
    fills = [
        Entry(name, _quoted(value) if isinstance(value, str) else repr(value))
        for name, value in facts.fills.items()
    ]
    if fills:
        text += f"    # For nulls; a request may leave these columns out.\n    fill={_inner(fills)},\n"
    if facts.where:
        text += f"    where=lambda s: {facts.where},  # the others are no clicks\n"
    return text + ")\n"


def _inner(entries: Sequence[Entry]) -> str:
    """Dictionary inside of a call."""
    return _dictionary(entries).replace("\n", "\n    ")


def _sparse(facts: Facts) -> list[Entry]:
    wanted = {"user": "{}", "item": "{}", "id": "{}", "list": "{}", "words": 'ops.split(ops.lower({}), " ")'}
    entries = []
    for name, use in facts.kept.items():
        if use.role not in wanted or (use.role == "user" and not facts.user):
            continue
        form = (
            f"ops.split({{}}, {_quoted(use.separator)})"
            if use.role == "list" and use.separator
            else wanted[use.role]
        )
        entries.append(Entry(name, form.format(_column(name))))
    if facts.time is not None:
        time = _column(facts.time)
        parts = [Entry("hour", f"ops.hour({time})"), Entry("weekday", f"ops.weekday({time})")]
        own = {name for name, use in facts.kept.items() if use.role not in ("label", "time", "join")}
        entries += [entry for entry in parts if entry.column not in own]
    return entries


def _bounds(facts: Facts) -> dict[str, list[float] | list[int]]:
    """Column of numbers → bounds of its bins: the quantiles of the sample that differ."""
    found: dict[str, list[float] | list[int]] = {}
    shares = [number / BINS for number in range(1, BINS)]
    for name, use in facts.kept.items():
        if use.role != "number" or use.flat:
            continue
        ends = pc.quantile(facts.sample.table.column(name), shares, interpolation="lower").to_pylist()
        known = {int(end) if use.dtype == "int64" else rounded(end) for end in ends if end is not None}
        if len(known) > 1:
            found[name] = sorted(known | _floor(facts, name))
    return found


def _floor(facts: Facts, name: str) -> set[float] | set[int]:
    """Least bound of a column with nulls, whose fill is below it."""
    if name not in facts.medians:
        return set()
    least = pc.min(facts.sample.table.column(name)).as_py()
    if facts.kept[name].dtype == "int64":
        return {min(0, int(least))}
    return {0.0 if least >= 0 else rounded(1.5 * least)}


def _binned(facts: Facts) -> str:
    """Line of the bins in the dictionary of sparse features."""
    suffix = "_bin"
    while any(name + suffix in facts.kept for name in facts.kept):
        suffix += "_"
    return (
        f'    **{{f"{{name}}{suffix}": ops.bucketize(log[name], bounds) for name, bounds in bins.items()}},'
    )


def _dense(facts: Facts) -> list[Entry]:
    entries = []
    for name, use in facts.kept.items():
        if use.role == "number":
            inner = _column(name)
            if name in facts.medians:
                inner = f"ops.where({inner} > {facts.fills[name]!r}, {inner}, {facts.medians[name]!r})"
            least, most = _range(facts, name)
            inner = f"ops.clip({inner}, {least!r}, {most!r})"
            inner = f"ops.log1p({inner})" if use.log1p else inner
            entries.append(Entry(name, _normalised(facts, name, inner)))
    return entries


def _normalised(facts: Facts, name: str, inner: str) -> str:
    """A number by mean and deviation of the file: running ones would make the first batches slow."""
    use, given = facts.kept[name], facts.sample.table.column(name).cast(pa.float64())
    numbers = pc.fill_null(given, float(facts.medians.get(name, facts.fills[name]))).to_numpy()
    numbers = np.log1p(numbers) if use.log1p else numbers
    mean, std = rounded(float(numbers.mean())), rounded(float(numbers.std()))
    known = not use.flat and math.isfinite(mean) and math.isfinite(std) and std > 0
    return f"ops.normalise({inner}, {mean!r}, {std!r})" if known else inner


def _range(facts: Facts, name: str) -> tuple[float, float] | tuple[int, int]:
    """Least and largest number of a column: a slope says nothing of numbers that nobody has seen."""
    ends = pc.min_max(facts.sample.table.column(name)).as_py()
    if facts.kept[name].dtype == "int64":
        return int(ends["min"]), int(ends["max"])
    return rounded(ends["min"]), rounded(ends["max"])


def _column(name: str) -> str:
    """Expression of a column: log.name, or log["name"]."""
    plain = name.isidentifier() and not keyword.iskeyword(name) and name not in HIDDEN and name[0] != "_"
    plain = plain and unicodedata.normalize("NFKC", name) == name  # Python reads log.ᴬ as log.A
    return f"log.{name}" if plain else f"log[{_quoted(name)}]"


def _dictionary(entries: Sequence[Entry], last: str = "") -> str:
    """Dictionary of the entries; entries that differ in a running number alone are one line.

    Args:
        entries: in their order.
        last: line behind them; "" for none.
    """
    lines, at = [], 0
    while at < len(entries):
        count = run_length(
            [entry.column for entry in entries[at:]], [_numbered(entry) for entry in entries[at:]]
        )
        entry = entries[at]
        if count < ALIKE:
            lines.append(f"    {_quoted(entry.column)}: {entry.value},")
            at += 1
            continue
        numbers = [number_of(one.column) for one in entries[at : at + count]]
        of = f'f"{prefix_of(entry.column)}{{i}}"'
        loop = f"for i in {_span(numbers)}"
        line = f"    **{{{of}: {_numbered(entry)} {loop}}},"
        if len(line) > LINE:
            line = f"    **{{\n        {of}: {_numbered(entry)}\n        {loop}\n    }},"
        lines.append(line)
        at += count
    return "{\n" + "\n".join([*lines, *([last] if last else [])]) + "\n}"


def _span(numbers: Sequence[int]) -> str:
    """Numbers of a run, as an iterable, with a condition if some in between are missing."""
    first, stop = numbers[0], numbers[-1] + 1
    start = f"{first}, " if first else ""
    steps = {after - before for before, after in pairwise(numbers)}
    if len(steps) == 1:
        step = steps.pop()
        return f"range({start}{stop})" if step == 1 else f"range({first}, {stop}, {step})"
    gaps = sorted({*range(first, stop)} - {*numbers})
    if len(gaps) < len(numbers):
        return f"range({start}{stop}) if i not in {{{', '.join(map(str, gaps))}}}"
    return f"({', '.join(map(str, numbers))})"


def run_length(names: Sequence[str], alike: Sequence[object]) -> int:
    """Number of leading names that have the first's prefix and rising numbers, and are alike in all else.

    Args:
        names: of columns; at least one.
        alike: of each column, what must be equal.
    """
    prefix, count = prefix_of(names[0]), 1
    if prefix == names[0] or not re.fullmatch(r"[\w. -]*", prefix):
        return 1
    for before, name, like in zip(names, names[1:], alike[1:], strict=False):
        if prefix_of(name) != prefix or name == prefix or like != alike[0]:
            break
        if number_of(name) <= number_of(before):
            break
        count += 1
    return count


def _numbered(entry: Entry) -> str:
    """Value of an entry for the running number i."""
    return entry.value.replace(_column(entry.column), f'log[f"{prefix_of(entry.column)}{{i}}"]')


def prefix_of(name: str) -> str:
    """Name without its number; a number with leading zeros belongs to the name."""
    return re.sub(r"(?<!\d)(0|[1-9]\d*)$", "", name)


def number_of(name: str) -> int:
    """Number at the end of a name that has one."""
    return int(name[len(prefix_of(name)) :])


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _variable(topic: str, other: str) -> str:
    """Name of the stream's variable."""
    name = re.sub(r"\W", "_", topic)
    taken = {"log", "bins", "sparse", "dense", "pipeline", "ops", "labelled", "label_join"}
    usable = name.isidentifier() and not keyword.iskeyword(name) and name not in taken
    return name if usable else other
