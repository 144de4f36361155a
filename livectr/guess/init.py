"""`livectr init`: a log file, or two raw logs, become a pipeline file and the commands to continue with."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from livectr.guess.convert import write_log
from livectr.guess.facts import Facts, look
from livectr.guess.marked import marked, why_no_time
from livectr.guess.pair import Pair, label_of, pair_of
from livectr.guess.raw import raw_logs
from livectr.guess.roles import NOBODY, ROW_ORDER, Wanted
from livectr.guess.text import pair_text, pipeline_text
from livectr.ingest.addresses import topic_address
from livectr.logs.account import Account
from livectr.logs.files import Progress, layout_of
from livectr.logs.formats import LAYOUTS
from livectr.system.errors import ConfigError
from livectr.system.texts import visible
from livectr.trainer.options import TrainOptions

LISTEN = "127.0.0.1:50051"
SHOWN = "impression|exposure|shown|show|view|served"
"""Name of a log of impressions."""
SHOWN_ITEMS = 3
"""Candidates of the example query."""


@dataclass(frozen=True)
class Made:
    """Result of `init`.

    Args:
        facts: guesses about the log, or about its impressions.
        folder: with pipeline.py, and with logs/ of files.
        accounts: of the rows of the files; none for topics.
        commands: to continue with, one a line.
        pair: guesses about impressions and clicks; None: a log with a label.
    """

    facts: Facts
    folder: Path
    accounts: list[Account]
    commands: list[str]
    pair: Pair | None = None


def init(
    path: Path, wanted: Wanted, out: Path | None, most_set_aside: float, progress: Callable[[str, int], None]
) -> Made:
    """Guess, and write DIR/pipeline.py and DIR/logs.

    Args:
        path: of the log file, or of a folder of files.
        wanted: columns that the user named.
        out: folder that does not exist yet; None: the file's name without its suffix.
        most_set_aside: share of rows that may be left out.
        progress: called with "looking" or "writing", and the bytes that were read.

    Raises:
        ConfigError: the file cannot be read, a guess fails, or the folder exists.
        RowsError: more rows do not fit than may be left out; nothing is written.
    """
    topic = topic_of(path)
    folder = _folder(topic, out)
    if layout_of(path) is LAYOUTS["criteo"]:  # it has no header, no users and no times
        wanted = replace(
            wanted,
            label=wanted.label or "label",
            time=wanted.time or ROW_ORDER,
            user=wanted.user or (NOBODY,),
        )
    facts = look(path, wanted, lambda done: progress("looking", done))
    return _written(path, facts, topic, folder, most_set_aside, [], lambda done: progress("writing", done))


def _written(
    path: Path,
    facts: Facts,
    topic: str,
    folder: Path,
    most_set_aside: float,
    others: list[Account],
    progress: Progress = lambda done: None,
) -> Made:
    """Write log and pipeline file of a file with a label; `others` are accounts of files that gave it."""
    commands = next_commands(facts, folder, f"file:{folder}/logs")
    accounts = [Account(path), *others]
    with _whole(folder) as half:
        facts = write_log(facts, topic, half / "logs", accounts[0], progress)
        for account in accounts:
            account.judge(most_set_aside)
        (half / "pipeline.py").write_text(pipeline_text(facts, topic, commands[:1]))
    return Made(facts, folder, accounts, commands)


def init_pair(
    shown: str,
    clicked: str,
    wanted: Wanted,
    on: Sequence[str],
    click_time: str | None,
    out: Path | None,
    most_set_aside: float,
    labels: Sequence[str] = (),
    *,
    found: bool = False,
) -> Made:
    """Guess what joins impressions and clicks; write DIR/pipeline.py, and DIR/logs of files.

    Args:
        shown: impressions, FILE or kafka://HOST:PORT/TOPIC.
        clicked: clicks, another file, or another topic of the same brokers.
        wanted: columns of the impressions that the user named.
        on: columns that name an impression in both; () to guess.
        click_time: column of the clicks' time; None to guess.
        out: folder that does not exist yet; None: the name of the impressions.
        most_set_aside: share of a file's rows that may be left out.
        labels: other events that follow an impression, as logs like that of the clicks.
        found: nobody has named these: those that cannot be joined are left out.

    Raises:
        ConfigError: the logs cannot be read or joined, a guess fails, or the folder exists.
        ConnectError: no broker answers, or there is no such topic.
        RowsError: more rows of a file do not fit than may be left out; nothing is written.
    """
    addresses = (shown, clicked, *labels)
    in_kafka = [address.startswith("kafka:") for address in addresses]
    if any(in_kafka) and (not all(in_kafka) or len({topic_address(one)[0] for one in addresses}) > 1):
        flags = "--impressions, --clicks and --labels" if labels else "--impressions and --clicks"
        places = ("files", "topics of the same brokers") if labels else (
            "two files", "two topics of the same brokers"
        )  # fmt: skip
        raise ConfigError(f"{flags} must be {places[0]}, or {places[1]}.")
    if shown == clicked:
        raise ConfigError("--impressions and --clicks are the same log; name two.")
    if len(set(addresses)) < len(addresses):
        raise ConfigError("--labels names a log twice, or that of the impressions or clicks; name others.")
    topics = _topics(addresses, in_kafka=all(in_kafka))
    folder = _folder(topics[0], out)
    logs = raw_logs(shown, clicked)
    no_time = why_no_time(logs[1]) if click_time is None and (found or not labels) else None
    if no_time is not None:
        clicks = Account(Path(clicked))
        facts = marked(*logs, Path(shown), clicks, wanted, on, no_time)
        return _written(Path(shown), facts, topics[0], folder, most_set_aside, [clicks])
    pair = pair_of(*logs, wanted, on, click_time)
    kinds: dict[str, Pair] = {}
    for label in labels:
        try:
            kinds[label] = label_of(*raw_logs(shown, label), wanted, pair)
        except ConfigError as error:
            if not found:
                raise
            pair.remarks.append(f"the log {label} is left out: {str(error).rstrip('.')}")
    pair = replace(pair, labels=tuple(kinds.values()))
    addresses = (shown, clicked, *kinds)
    topics = _topics(addresses, in_kafka=all(in_kafka))
    source = topic_address(shown)[0] if all(in_kafka) else f"file:{folder}/logs"
    commands = next_commands(pair.shown, folder, source)
    accounts = []
    with _whole(folder) as half:
        if not any(in_kafka):
            every = [pair.shown, pair.clicked, *(kind.clicked for kind in kinds.values())]
            for number, (path, topic) in enumerate(zip(addresses, topics, strict=True)):
                accounts.append(Account(Path(path)))
                every[number] = write_log(every[number], topic, half / "logs", accounts[-1])
                accounts[-1].judge(most_set_aside)
            others = zip(pair.labels, every[2:], strict=True)
            labelled = tuple(replace(kind, clicked=facts) for kind, facts in others)
            pair = replace(pair, shown=every[0], clicked=every[1], labels=labelled)
        half.mkdir(parents=True, exist_ok=True)
        (half / "pipeline.py").write_text(pair_text(pair, topics, commands[:1]))
    return Made(pair.shown, folder, accounts, commands, pair)


def logs_in(folder: Path) -> tuple[str, str, list[str]] | None:
    """Logs of impressions, of clicks, and others in a folder, by their names; None: they do not say so."""
    logs = [str(one) for one in sorted(folder.iterdir()) if one.name[0] not in "._"]
    names = {log: Path(log).name.split(".")[0].lower() for log in logs}
    clicks = [log for log, name in names.items() if "click" in name]
    shown = [log for log, name in names.items() if log not in clicks and re.search(SHOWN, name)]
    if len(clicks) != 1 or len(shown) != 1:
        return None
    return shown[0], clicks[0], [log for log in logs if log not in (*shown, *clicks)]


def _topics(addresses: Sequence[str], *, in_kafka: bool) -> list[str]:
    """Topics of impressions, clicks and labels; those of files are named by them."""
    if in_kafka:
        return [topic_address(address)[1] for address in addresses]
    topics = [topic_of(Path(address)) for address in addresses]
    if len(set(topics)) < len(topics):
        topics = ["impressions", "clicks", *(f"label_{number}" for number in range(1, len(topics) - 1))]
    return topics


def topic_of(path: Path) -> str:
    """Name of a file's log."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", path.name.split(".")[0]) or "impressions"


def _folder(topic: str, out: Path | None) -> Path:
    """Folder to write. Raises ConfigError where something is in it."""
    folder = Path(topic) if out is None else out
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(
            f"{folder} exists and is not written over; say --out with another folder, or remove it."
        )
    return folder


@contextmanager
def _whole(folder: Path) -> Iterator[Path]:
    """Folder beside it, which gets its name at the end; after an error nothing is left."""
    half = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(half, ignore_errors=True)
    try:
        yield half
        if folder.exists():
            folder.rmdir()
        half.rename(folder)
    except BaseException:
        shutil.rmtree(half, ignore_errors=True)
        raise


def next_commands(facts: Facts, folder: Path, address: str) -> list[str]:
    """Commands from the check of the log to a query, that run as they are."""
    place = shlex.quote(str(folder))
    file, source = f"--pipeline {place}/pipeline.py", f"--source {shlex.quote(address)}"
    # Fewer rows than that would publish no version, and a server would wait for ever.
    early = f" --set min_examples={facts.rows // 2}" if facts.rows < TrainOptions.min_examples else ""
    return [
        f"livectr check {file} {source}",
        f"livectr up {place}/pipeline.py {source} --listen {LISTEN} --detach{early}",
        f"livectr query rank --server {LISTEN} {_query_flags(facts)}",
        f"livectr down {place}/pipeline.py",
    ]


def _query_flags(facts: Facts) -> str:
    """Flags of a query with values of the log: the last row as the context, some items as candidates."""
    last = facts.rows - 1
    by_item = {facts.item, *facts.of_item} if facts.item is not None else set()
    context: list[str] = []
    candidates: list[str] = []
    rows = _items(facts) if facts.item is not None else [last]
    for name, use in facts.kept.items():
        if use.role in ("label", "number", "join") or (use.role == "user" and not facts.user):
            continue
        if name == facts.time:
            continue  # the server's clock
        if name in by_item or (facts.item is None and not candidates and use.role == "id"):
            values = [_text(facts, name, row) for row in rows]
            if all(value and "," not in value and visible(value) == value for value in values):
                candidates.append(f"{name}={','.join(values)}")
        elif (value := _text(facts, name, last)) and visible(value) == value:
            context.append(f"{name}={value}")
    if not candidates:  # nothing but the user and numbers: numbers make the candidates differ
        numbers = [name for name, use in facts.kept.items() if use.role == "number"][:1]
        candidates = [f"{name}={_text(facts, name, 0)},{_text(facts, name, last)}" for name in numbers]
    said = f"--context {shlex.join(context)} " if context else ""
    return f"{said}--candidates {shlex.join(candidates)}"


def _items(facts: Facts) -> list[int]:
    """Rows of the sample with the first items."""
    assert facts.item is not None
    items = facts.sample.table.column(facts.item).to_pylist()
    return [
        items.index(item)
        for item in list(dict.fromkeys(one for one in items if one is not None))[:SHOWN_ITEMS]
    ]


def _text(facts: Facts, name: str, row: int) -> str:
    """Value of a row as a request has it; "" where it is empty."""
    if name not in facts.sample.table.column_names:
        return "|".join(_text(facts, one, row) for one in facts.user)
    value: Any = facts.sample.table.column(name)[row].as_py()
    while value is None and row > 0 and name not in facts.fills:
        row -= 1
        value = facts.sample.table.column(name)[row].as_py()
    if isinstance(value, list):
        return " ".join(map(str, value))
    return "" if value is None else str(value)
