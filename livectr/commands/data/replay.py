"""`livectr logs replay`: send a log file as an event stream."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from livectr.commands.data.waiting import add_wait, wait_for_broker
from livectr.commands.flags import command, count, positive, share
from livectr.commands.settings import add_log_flags
from livectr.system.errors import ConfigError
from livectr.system.heap import loading
from livectr.system.texts import visible

EXAMPLES = """\
  livectr logs replay train.txt --format criteo --to kafka://localhost:9092
  livectr logs replay train.gz --format avazu --to file:/tmp/logs --rate 20000
  livectr logs replay items.csv --format csv --to file:/tmp/logs --topic items --key item --table"""


def add(commands: Any) -> None:
    """Add the command."""
    parser = command(commands, "replay", run, "send a log file as an event stream", EXAMPLES)
    parser.add_argument("file", metavar="FILE", help="the log; .gz is unpacked while it is read")
    parser.add_argument("--format", required=True, choices=("criteo", "avazu", "csv", "jsonl", "parquet"))
    parser.add_argument("--to", required=True, metavar="URL", help="kafka://HOST:PORT or file:DIR")
    parser.add_argument("--rate", type=positive, help="rows per second [full speed]")
    parser.add_argument("--topic", help="name of the topic [name of the format, or of the file]")
    parser.add_argument("--partitions", type=count, default=4, help="partitions of the topic [4]")
    parser.add_argument(
        "--key",
        metavar="COLUMN",
        help="rows with equal values share a partition [criteo: row, avazu: device_ip]",
    )
    parser.add_argument("--time", metavar="COLUMN", help="turn this column of times into epoch milliseconds")
    parser.add_argument(
        "--types",
        default="",
        metavar="COL=TYPE,…",
        help="int32, int64, float64 or string, for columns whose inferred type is wrong",
    )
    parser.add_argument(
        "--events", choices=("arrow", "json"), default="arrow", help="many rows a message, or one [arrow]"
    )
    parser.add_argument(
        "--table", action="store_true", help="make a look-up table: a compacted topic, one row a message"
    )
    parser.add_argument(
        "--append", action="store_true", help="write behind what the topic holds; else it has to be empty"
    )
    parser.add_argument(
        "--max-bad", type=share, default=0.01, metavar="SHARE", help="share of rows that may not fit [0.01]"
    )
    parser.add_argument("--bad-rows", metavar="FILE", help="write rows that do not fit here, with the reason")
    add_wait(parser)
    add_log_flags(parser, "replay")


def run(given: argparse.Namespace) -> int:
    """Send the file. Shows a progress bar on a terminal; prints the counts as JSON."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    with loading(lean=given.alone):
        from livectr.logs.replay import ReplayOptions, replay

    wait_for_broker(given.to, given.start_wait_s)
    path = Path(given.file)
    options = ReplayOptions(
        file=path,
        format=given.format,
        to=given.to,
        topic=given.topic,
        key=given.key,
        time=given.time,
        types=_types(given.types),
        partitions=given.partitions,
        rate=given.rate,
        events=given.events,
        table=given.table,
        append=given.append,
        bad_rows=Path(given.bad_rows) if given.bad_rows else None,
        most_set_aside=given.max_bad,
    )
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(path.name, total=_bytes_of(path))
        counts = replay(
            options,
            progress=lambda done, rows: bar.update(
                task, completed=done, description=f"{path.name} {rows:,} rows"
            ),
        )
    for said in (*counts.pop("remarks"), counts.pop("account")):
        print(f"{path.name}: {visible(said)}", file=sys.stderr)
    print(json.dumps(counts))
    return 0


def _bytes_of(path: Path) -> int | None:
    """Bytes of a file or a folder; None: there is none."""
    if path.is_dir():
        return sum(one.stat().st_size for one in path.rglob("*") if one.is_file())
    return path.stat().st_size if path.exists() else None


def _types(text: str) -> dict[str, str]:
    """Column → type, from "a=int32,b=string"."""
    from livectr.logs.values import KINDS

    types = dict(pair.partition("=")[::2] for pair in text.split(",") if pair)
    for name, kind in types.items():
        if kind not in KINDS:
            raise ConfigError(f"--types: {name} is {kind!r}, but must be one of {', '.join(KINDS)}.")
    return types
