"""One screen of the figures of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table

from livectr.status.figures import Delay, Published, Server, Status, Topic, Trainer

NONE = "–"


def screen(status: Status) -> RenderableType:
    """Tables of the figures; a section that has nothing to say is left out."""
    sections: list[Table | None] = [
        _parts(status),
        *(each for trainer in status.trainers for each in _trainer(trainer, status)),
        _versions(status),
        _servers(status.servers),
        _silent(status),
    ]
    return Group(
        *(Padding(section, (0, 0, 1, 0), expand=False) for section in sections if section is not None)
    )


def _parts(status: Status) -> Table | None:
    if not status.parts:
        return None
    table = _table("", "part", "address", "state", "log file")
    for part in status.parts:
        times = f", restarted {_times(part.restarts)}" if part.restarts else ""
        reason = f": {part.reason}" if part.reason else ""
        table.add_row(part.name, part.address, f"{part.state}{times}{reason}", part.log)
    return table


def _trainer(trainer: Trainer, status: Status) -> Iterator[Table]:
    facts = _table("", "trainer", trainer.name if trainer.name != "trainer" else "")
    ranks = "" if trainer.ranks == 1 else f" by {trainer.ranks} ranks"
    speed = f", {_count(trainer.examples_per_s)}/s" if trainer.examples_per_s is not None else ""
    facts.add_row("learned", f"{_count(trainer.examples)} examples since this start{speed}{ranks}")
    facts.add_row(
        "waiting",
        f"{_count(trainer.waiting)} impressions for the end of their label window, "
        f"{_count(trainer.ready)} examples to be learned",
    )
    facts.add_row("backlog", _backlog(trainer))
    facts.add_row("published", f"version {_count(trainer.version)}, {_ago(trainer.published_ms, status)}")
    facts.add_row("checkpoint", _checkpoint(trainer, status))
    facts.add_row("gate", _gate(trainer))
    dead = ", ".join(f"{_count(n)} {reason}" for reason, n in trainer.dead_letters.items())
    facts.add_row("dead letters", dead or "none")
    if trainer.skipped:
        facts.add_row("NOT LEARNED", f"{_count(trainer.skipped)} batches: their gradients are not finite")
    for contender in trainer.contest:
        word = "champion" if contender.champion else "challenger"
        over = f"over {_count(contender.examples)} examples"
        facts.add_row(word, f"{contender.model}: log loss {_number(contender.logloss)} {over}")
    if trainer.silent:
        facts.add_row("silent ranks", ", ".join(trainer.silent))
    yield facts
    if trainer.topics:
        yield _topics(trainer.topics)
    if trainer.quality:
        yield _quality(trainer)


def _backlog(trainer: Trainer) -> str:
    rows, seconds = trainer.backlog_rows, trainer.backlog_s
    if rows is None:
        return NONE
    if not rows:
        return "none"
    left = f"{_duration(seconds)} left" if seconds is not None and seconds >= 0 else "growing"
    return f"{_count(rows)} rows, {left}"


def _checkpoint(trainer: Trainer, status: Status) -> str:
    if not trainer.checkpoint_ms:
        return "none is written"
    written, one = _ago(trainer.checkpoint_ms, status), trainer.checkpoint
    if one is None:
        return written
    return f"{written}; generation {one.generation} with {_count(one.examples)} examples, in {one.folder}"


def _gate(trainer: Trainer) -> str:
    gate = trainer.gate
    newest = f"AUC {_number(gate.auc)} (usual {_number(gate.usual_auc)})"
    clicks = f"click rate {_number(gate.click_rate)} (usual {_number(gate.usual_click_rate)})"
    measured = f"{newest}, {clicks}, calibration {_number(gate.calibration)}"
    state = f"HOLDS versions by {', '.join(gate.held)}" if gate.held else "open"
    return f"{state}; {measured}" if gate.auc is not None else state


def _topics(topics: Sequence[Topic]) -> Table:
    table = _table(
        "", "topic", "read", "rows/s of 10 s", "lag", "newest is old", "in the checkpoint", right=1
    )
    for topic in topics:
        table.add_row(
            topic.name,
            _count(topic.read),
            _count(topic.rows_per_s),
            f"{_count(topic.lag)} in {len(topic.partitions)} partitions" if topic.lag else "0",
            _duration(topic.age_s) if topic.lag else "",
            _count(topic.committed),
        )
    return table


def _quality(trainer: Trainer) -> Table:
    table = _table("", "model", "over", "examples", "AUC", "GAUC", "log loss", "calibration", right=2)
    models = list(dict.fromkeys(one.model for one in trainer.quality))
    for one in sorted(trainer.quality, key=lambda q: models.index(q.model)):
        over = {"window": "last window"}.get(one.over, one.over)
        numbers = (one.auc, one.gauc, one.logloss, one.calibration)
        table.add_row(one.model, over, _count(one.examples), *map(_number, numbers))
    return table


def _versions(status: Status) -> Table | None:
    """Versions in Redis, and the newest checkpoints that no trainer has shown."""
    shown = [trainer.checkpoint for trainer in status.trainers]
    others = [one for one in status.checkpoints if one not in shown]
    if not status.published and not others:
        return None
    table = _table("", "where", "version", "written", "examples", "rows", "state", right=1)
    for one in status.published:
        table.add_row(f"Redis {one.redis} {one.namespace}", *_published(one, status))
    for each in others:
        kept = f"generation {each.generation}, one of {each.generations}"
        written = _ago(each.created_ms, status)
        table.add_row(f"checkpoint {each.folder}", "", written, _count(each.examples), "", kept)
    return table


def _published(one: Published, status: Status) -> list[str]:
    if one.version is None:
        return ["", "", "", "", "nothing is published"]
    hold = f"held: {one.hold}" if one.hold is not None else "served"
    state = hold if one.champion in ("", "rank") else f"{hold}, champion {one.champion}"
    return [str(one.version), _ago(one.created_ms, status), _count(one.examples), _count(one.rows), state]


def _servers(servers: Sequence[Server]) -> Table | None:
    if not servers:
        return None
    columns = ("server", "serves", "model", "requests", "p50, p99 ms", "event to servable", "after the label")
    table = _table("", *columns, "state")
    for one in servers:
        stable = one.versions.get("stable")
        others = "".join(f", {s} {n}" for s, n in one.versions.items() if s != "stable")
        age = f", {_duration(one.age_s)} old" if one.age_s is not None and stable else ""
        served = f"version {stable}{others}{age}" if stable else "no version yet"
        table.add_row(
            one.name if one.name == one.role else f"{one.name} {one.role}",
            served,
            one.model,
            _requests(one),
            f"{_number(one.p50_ms, 1)}, {_number(one.p99_ms, 1)}" if one.answered is not None else "",
            *_delay(one.delay),
            _state(one),
        )
    return table


def _requests(one: Server) -> str:
    if one.answered is None:
        return ""
    failed = "".join(f", {_count(n)} {code}" for code, n in one.failed.items())
    degraded = f", {_count(one.degraded)} degraded" if one.degraded else ""
    return f"{_count(one.answered)} OK{failed}{degraded}"


def _delay(delay: Delay | None) -> tuple[str, str]:
    if delay is None:
        return NONE, NONE
    pairs = (delay.event_p50_s, delay.event_p99_s), (delay.label_p50_s, delay.label_p99_s)
    event, label = (f"p50 {_seconds(p50)}, p99 {_seconds(p99)}" for p50, p99 in pairs)
    return event, label


def _state(one: Server) -> str:
    if one.trouble:
        return one.trouble
    state = {True: "ready", False: "NOT ready", None: "answers"}[one.ready]
    return f"{state}, held: {one.held}" if one.held else state


def _silent(status: Status) -> Table | None:
    if not status.silent:
        return None
    table = _table("", "cannot be reached", "why")
    for one in status.silent:
        table.add_row(one.address, one.why)
    return table


def _table(title: str, *columns: str, right: int | None = None) -> Table:
    """Table whose columns from number `right` on are numbers."""
    look: dict[str, Any] = {"box": SIMPLE_HEAD, "show_edge": False, "pad_edge": False}
    table = Table(title=title or None, title_justify="left", header_style="bold", **look)
    for at, name in enumerate(columns):
        numbers = right is not None and at >= right and name not in ("state", "written")
        table.add_column(name, justify="right" if numbers else "left", overflow="fold")
    return table


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _count(value: float | None) -> str:
    return NONE if value is None else f"{value:,.0f}"


def _number(value: float | None, digits: int = 4) -> str:
    return NONE if value is None else f"{value:.{digits}f}"


def _seconds(value: float | None) -> str:
    return NONE if value is None else f"{value:.1f} s"


def _ago(at_ms: float | None, status: Status) -> str:
    return NONE if not at_ms else f"{_duration(max(0.0, (status.at_ms - at_ms) / 1000))} ago"


def _duration(seconds: float | None) -> str:
    """Time in its largest unit, of which there are two at least."""
    if seconds is None:
        return NONE
    units = ((86_400, "d"), (3_600, "h"), (60, "min"))
    for size, name in units:
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name}"
    return f"{seconds:.0f} s"
