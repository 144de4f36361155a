"""`livectr init`: a pipeline file to start from, guessed from a log file or copied from an example."""

from __future__ import annotations

import argparse
import sys
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
  livectr init --from log.parquet --label buy --user none --time row
  livectr init --example display_ads --out my_ads"""
OF_A_FILE = ("label", "time", "user", "item")
"""Flags about the columns of --from."""


def add(commands: Any) -> None:
    """Add the command."""
    parser = command(
        commands,
        "init",
        run,
        "write a pipeline file to start from: guessed from a log file, with its log, or an example",
        EXAMPLES,
    )
    origin = parser.add_mutually_exclusive_group(required=True)
    origin.add_argument(
        "--from",
        metavar="FILE",
        dest="file",
        help="log that nobody prepared: CSV, JSON lines or Parquet; .gz is unpacked",
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
        help="share of the rows of --from that may not fit [0.01]",
    )
    columns = parser.add_argument_group("columns of --from")
    columns.add_argument("--label", metavar="COLUMN", help="column that is 1 after a click, else 0; needed")
    columns.add_argument(
        "--time", metavar="COLUMN", help="time of the impression; row: order of the file [guessed]"
    )
    columns.add_argument(
        "--user", metavar="COLUMN,…", help="column that names the user, or several together; none [guessed]"
    )
    columns.add_argument("--item", metavar="COLUMN", help="column that names what is shown [guessed]")


def run(given: argparse.Namespace) -> int:
    """Write the folder, and print what was written."""
    if given.example is None:
        return _guess(given)
    if named := [f"--{name}" for name in OF_A_FILE if getattr(given, name) is not None]:
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
        from livectr.guess.init import init
        from livectr.guess.roles import Wanted

    if given.label is None:
        raise ConfigError("say --label COLUMN, too: the column that is 1 after a click, else 0.")
    path = Path(given.file)
    if not path.is_file():
        raise ConfigError(f"there is no file {path}; --from names the log.")
    users = tuple(name for name in (given.user or "").split(",") if name)
    wanted = Wanted(given.label, given.time, users, given.item)
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        size = path.stat().st_size
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


def _show(made: Made) -> None:
    from rich.table import Table
    from rich.text import Text

    from livectr.console import make_console
    from livectr.guess.columns import listed

    facts, console = made.facts, make_console()
    title = Text(f"{visible(facts.path.name)}: guessed from {facts.rows:,} rows", style="table.title")
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
    lines = [f"{made.folder}/pipeline.py is the pipeline, {made.folder}/logs has {made.account.kept:,} rows."]
    if out:
        lines.append(f"Left out: {listed(out)}. To use one, write it into the pipeline and the log.")
    if facts.item is None:
        lines.append("No column is named like an item; say --item COLUMN if there is one.")
    for line in (*lines, "Continue with:", *(f"  {one}" for one in made.commands)):
        console.print(visible(line), highlight=False, markup=False, soft_wrap=True)
    for remark in (*made.account.remarks, made.account.line()):
        print(visible(remark), file=sys.stderr)


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
