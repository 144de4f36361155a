"""`livectr init`: a pipeline file to start from, guessed from a log file or copied from an example."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from livectr.commands.data.example import copy_example, example_names
from livectr.commands.flags import command, share
from livectr.system.errors import ConfigError
from livectr.system.heap import loading
from livectr.system.texts import visible

if TYPE_CHECKING:
    from livectr.guess.columns import Use
    from livectr.guess.facts import Facts
    from livectr.guess.init import Made

EXAMPLES = """\
  livectr init --from impressions.csv --label clicked
  livectr init --from logs.jsonl.gz --label click --user visitor --time seen_at --out first_try
  livectr init --from ratings.csv --label 'rating>=4' --time timestamp
  livectr init --from log.parquet --label buy --user none --time row
  livectr init --impressions shown.jsonl --clicks clicks.jsonl --on view_id
  livectr init --impressions shown.jsonl --clicks clicks.jsonl --labels carts.jsonl,orders.jsonl
  livectr init --impressions kafka://localhost:9092/views --clicks kafka://localhost:9092/clicks
  livectr init --example display_ads --out my_ads"""
OF_A_LOG = ("label", "time", "user", "item", "clicks", "on", "click_time")
"""Flags about logs."""


def add(commands: Any) -> None:
    """Add the command."""
    parser = command(
        commands,
        "init",
        run,
        "write a pipeline file to start from: guessed from a log file or two raw logs, or an example",
        EXAMPLES,
    )
    origin = parser.add_mutually_exclusive_group(required=True)
    origin.add_argument(
        "--from",
        metavar="FILE",
        dest="file",
        help="log that nobody prepared: a file or folder of CSV, JSON lines or Parquet; .gz is unpacked. A "
        "folder may hold logs of impressions, clicks and other events, each a file or folder of that name",
    )
    origin.add_argument(
        "--impressions",
        metavar="LOG",
        help="raw log of what was shown, with --clicks: FILE or kafka://HOST:PORT/TOPIC",
    )
    names = example_names()
    origin.add_argument(
        "--example", choices=names, metavar="NAME", help=f"copy this example: {', '.join(names)}"
    )
    parser.add_argument(
        "--out", metavar="DIR", help="new folder of pipeline.py [name of the file or of the example]"
    )
    parser.add_argument(
        "--max-bad",
        type=share,
        default=0.01,
        metavar="SHARE",
        help="share of a file's rows that may not fit [0.01]",
    )
    pair = parser.add_argument_group("clicks of --impressions")
    pair.add_argument("--clicks", metavar="LOG", help="raw log of clicks: FILE or kafka://HOST:PORT/TOPIC")
    pair.add_argument(
        "--on", metavar="COLUMN,…", help="column or columns that name an impression in both [guessed]"
    )
    pair.add_argument(
        "--labels",
        metavar="LOG,…",
        help="raw logs of other events that follow an impression, such as orders, as that of --clicks",
    )
    pair.add_argument("--click-time", metavar="COLUMN", help="time of the click [guessed]")
    columns = parser.add_argument_group("columns of --from or --impressions")
    columns.add_argument(
        "--label",
        metavar="COLUMN",
        help="column of --from that is 1 after a click, else 0, or a rule: 'rating>=4', event=click; needed",
    )
    columns.add_argument(
        "--time", metavar="COLUMN", help="time of the impression; row: order of the file [guessed]"
    )
    columns.add_argument(
        "--user", metavar="COLUMN,…", help="column that names the user, or several together; none [guessed]"
    )
    columns.add_argument("--item", metavar="COLUMN", help="column that names what is shown [guessed]")


def run(given: argparse.Namespace) -> int:
    """Write the folder, and print what was written."""
    if given.impressions is not None:
        return _guess_pair(given)
    if given.clicks or given.on or given.click_time or given.labels:
        raise ConfigError(
            "--clicks, --labels, --on and --click-time go with --impressions, the log of what was shown."
        )
    if given.example is None:
        return _guess(given)
    if named := [f"--{name}" for name in OF_A_LOG if getattr(given, name) is not None]:
        raise ConfigError(f"an example has its columns; leave out {', '.join(named)}.")
    for file in copy_example(given.example, Path(given.out or given.example)):
        print(file)
    return 0


def _guess(given: argparse.Namespace) -> int:
    """Make pipeline and log of a file; print the guesses and the commands to continue with.

    Shows progress on a terminal.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    with loading(lean=given.alone):
        from livectr.guess.init import init, logs_in
        from livectr.guess.roles import Wanted

    path = Path(given.file)
    if given.file.startswith("kafka:"):
        raise ConfigError(
            "--from takes a file or a folder. Topics of impressions and clicks are joined by "
            f"--impressions {given.file} --clicks kafka://HOST:PORT/TOPIC."
        )
    if not path.exists():
        raise ConfigError(f"there is no file {path}; --from names the log.")
    if path.is_dir() and given.label is None and (logs := logs_in(path)) is not None:
        given.impressions, given.clicks, others = logs
        given.out = given.out or path.name
        return _guess_pair(given, others)
    wanted = Wanted(given.label or "", given.time, _names(given.user), given.item)
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
        size = sum(one.stat().st_size for one in files)
        task = bar.add_task("looking", total=size)
        made = init(
            path,
            wanted,
            Path(given.out) if given.out else None,
            given.max_bad,
            lambda what, done: bar.update(task, description=f"{what} {path.name}", completed=min(done, size)),
        )
    _show(made)
    return 0


def _guess_pair(given: argparse.Namespace, others: Sequence[str] = ()) -> int:
    """Make the pipeline of impressions and clicks; print the guesses and the commands to continue with.

    Args:
        given: flags.
        others: logs beside them in a folder; labels, where they can be joined.
    """
    with loading(lean=given.alone):
        from livectr.guess.init import init_pair
        from livectr.guess.roles import Wanted

    if given.clicks is None:
        raise ConfigError("say --clicks, too: the log of clicks, FILE or kafka://HOST:PORT/TOPIC.")
    if given.label is not None:
        raise ConfigError("--label is of --from; the clicks of --clicks are the label.")
    labels = _names(given.labels)
    named = [("--impressions", given.impressions), ("--clicks", given.clicks)]
    for flag, address in (*named, *(("--labels", label) for label in labels)):
        if not address.startswith("kafka:") and not Path(address).exists():
            raise ConfigError(f"there is no file {address}; {flag} names a FILE or kafka://HOST:PORT/TOPIC.")
    made = init_pair(
        given.impressions,
        given.clicks,
        Wanted("", given.time, _names(given.user), given.item),
        _names(given.on),
        given.click_time,
        Path(given.out) if given.out else None,
        given.max_bad,
        labels or others,
        found=not labels,
    )
    _show(made)
    return 0


def _names(said: str | None) -> tuple[str, ...]:
    """Names of a flag that takes several."""
    return tuple(name for name in (said or "").split(",") if name)


def _show(made: Made) -> None:
    from rich.table import Table
    from rich.text import Text

    from livectr.console import make_console
    from livectr.guess.columns import listed

    facts, console = made.facts, make_console()
    title = Text(f"{visible(facts.sample.name)}: guessed from {facts.rows:,} rows", style="table.title")
    table = Table(title=title, title_justify="left")
    for name in ("column", "type", "used as", "why"):
        table.add_column(name, overflow="fold")
    for names in _alike(facts):
        use = facts.uses[names[0]]
        role = f"{use.role} of the item" if names[0] in facts.of_item else use.role
        shown = names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}, {len(names)} columns"
        table.add_row(*(Text(visible(cell)) for cell in (shown, use.dtype, role, use.why)))
    console.print(table)
    out = [name for name, use in facts.uses.items() if use.role == "left out"]
    kept = sum(account.kept for account in (made.accounts if made.pair is not None else made.accounts[:1]))
    logs = f", {made.folder}/logs has {kept:,} rows" if made.accounts else ""
    lines = [*_joined(made), f"{made.folder}/pipeline.py is the pipeline{logs}."]
    lines += filter(None, (facts.repeats, facts.few_clicks))
    if out:
        lines.append(f"Left out: {listed(out)}. To use one, write it into the pipeline and the log.")
    if facts.item is None:
        lines.append("No column is known to be the item that is shown; say --item COLUMN if there is one.")
    for line in (*lines, "Continue with:", *(f"  {one}" for one in made.commands)):
        console.print(visible(line), highlight=False, markup=False, soft_wrap=True)
    for account in made.accounts:
        where = f"{account.path.name}: " if len(made.accounts) > 1 else ""
        for remark in (*account.remarks, account.line()):
            print(visible(f"{where}{remark}"), file=sys.stderr)


def _joined(made: Made) -> list[str]:
    """Lines about the clicks that are joined."""
    from livectr.guess.delays import written

    if made.pair is None:
        return []
    pair, delays = made.pair, made.pair.delays
    names = [facts.sample.name for facts in (pair.shown, pair.clicked)]
    lines = [
        f"{names[1]} joins {names[0]} on {', '.join(pair.on)}; both are keyed by {pair.shown.key}.",
        f"{delays.words[0].upper()}{delays.words[1:]}.",
    ]
    wait = ""
    if delays.wait_s is not None:
        wait = f'; to learn sooner, wait "{written(delays.wait_s)}" with delayed="fnw" (docs/pipeline.md)'
    lines.append(f'window "{written(delays.window_s)}": examples come when it has passed{wait}.')
    for kind in pair.labels:
        name, words = kind.clicked.sample.name, kind.delays.words_of_others
        window = written(kind.delays.window_s)
        lines.append(f'{name} joins as a label of its own: they {words}; window "{window}".')
    remarks = [*pair.remarks, *(f"{k.clicked.sample.name}: {r}" for k in pair.labels for r in k.remarks)]
    return [
        *lines,
        *(f"{remark[0].upper()}{remark[1:]}{'' if remark.endswith('?') else '.'}" for remark in remarks),
    ]


def _alike(facts: Facts) -> list[list[str]]:
    """Columns by line of the table: many with a running number and an equal use share a line."""
    from livectr.guess.text import ALIKE, prefix_of

    groups: dict[tuple[str, Use, bool], list[str]] = {}
    for name, use in facts.uses.items():
        groups.setdefault((prefix_of(name), use, name in facts.of_item), []).append(name)
    lines: list[list[str]] = []
    for names in groups.values():
        lines += [names] if len(names) >= ALIKE else [[name] for name in names]
    return lines
