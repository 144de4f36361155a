"""Messages of `livectr up`: a line for each part that becomes ready or dies, and the table at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.table import Table

from livectr.config.settings import SETTINGS
from livectr.console import make_console
from livectr.local.scrape import scrape, total, value
from livectr.up.folder import Kind, Phase, Running, State
from livectr.up.runs import from_here
from livectr.up.supervisor import last_line

LINE_EVERY_S = 5.0
FIRST_LOOK_S = 10.0
_TAIL = 2000


def say(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)


class Progress:
    """Lines about changes of a run, and now and then about what it waits for.

    Args:
        known: state whose changes are told; None: all of it is.
        say: prints a line.
    """

    def __init__(self, known: State | None = None, say: Callable[[str], None] = say) -> None:
        self._say = say
        self._told: dict[tuple[str, bool], tuple[Phase, int]] = {}
        for one in known.parts if known is not None else ():
            self._told[one.name, one.phase is Phase.ENDING] = one.phase, one.restarts
        self._next_line = time.monotonic() + FIRST_LOOK_S

    def show(self, state: State) -> None:
        """Tell what has changed."""
        parts = {(one.name, one.phase is Phase.ENDING): one for one in state.parts}
        for name, ending in [key for key in self._told if key not in parts]:
            del self._told[name, ending]
            if ending or (name, True) not in parts:
                self._say(f"{name:<10} ended")
        for key, one in parts.items():
            known = self._told.get(key)
            if known != (one.phase, one.restarts):
                self._told[key] = one.phase, one.restarts
                if line := self._line(one, known):
                    self._say(f"{one.name:<10} {line}")

    def wait_for(self, state: State) -> None:
        """Say every few seconds how far a first version is."""
        if time.monotonic() < self._next_line:
            return
        self._next_line = time.monotonic() + LINE_EVERY_S
        waited = [o.name for o in state.parts if o.phase in (Phase.STARTING, Phase.WAITING)]
        trainer = next((o for o in state.parts if o.part.kind is Kind.TRAINER), None)
        if not waited or trainer is None:
            return
        self._say(f"{'':<10} {learned(trainer)}; waiting for {', '.join(waited)}")

    def _line(self, one: Running, known: tuple[Phase, int] | None) -> str:
        where = f" on {one.part.address}" if one.part.address else ""
        if one.phase is Phase.READY:
            return f"ready{where}"
        if one.phase in (Phase.FAILED, Phase.WAITING):
            return one.reason + ("; it starts again" if one.phase is Phase.WAITING else "")
        if one.phase is Phase.STARTING and known is not None:
            restarted = one.restarts > known[1] and known[0] not in (Phase.WAITING, Phase.FAILED)
            return f"{one.reason}; it has started again" if restarted else ""
        return {Phase.DONE: "has learned all, and ended", Phase.ENDING: "ends"}.get(one.phase, "")


def learned(trainer: Running) -> str:
    """Words on the examples of a trainer."""
    samples = scrape(int(trainer.metrics[0].rpartition(":")[2])) if trainer.metrics else None
    examples = value(samples, "livectr_examples_total")
    if examples is None:
        log = Path(trainer.log)
        last = last_line(log.read_text(errors="replace")[-_TAIL:]) if log.exists() else ""
        return f"the trainer starts: {last}" if last else "the trainer starts"
    waiting = total(samples, "livectr_pending_joins")
    version = value(samples, "livectr_published_version") or 0
    published = f"version {version:.0f} is published" if version else "no version is published yet"
    least = int(_given(trainer, "min_examples") or SETTINGS["min_examples"].default)
    if not version and examples < least:
        published += f" (it takes {least:,} examples, min_examples)"
    return f"{examples:,.0f} examples learned, {waiting:,.0f} wait for their label, {published}"


def _given(one: Running, name: str) -> str | None:
    """Value of a setting that a part's command has by `--set`."""
    found = [word.partition("=")[2] for word in one.part.command if word.startswith(f"{name}=")]
    return found[-1] if found else None


def show_parts(state: State, next_commands: Sequence[str]) -> None:
    """Print the table of a run, and the commands that one wants next."""
    table = Table()
    for name in ("part", "address", "state", "log file"):
        table.add_column(name, overflow="fold")
    for one in state.parts:
        log = str(from_here(Path(one.log)))
        table.add_row(one.name, one.part.address, state_of(one), log)
    console = make_console()
    console.print(table)
    if next_commands:
        console.print("Continue with:")
    for command in next_commands:
        console.print(f"  {command}", highlight=False, markup=False, soft_wrap=True)


def state_of(one: Running) -> str:
    """Words on the state of a part."""
    times = {1: "once", 2: "twice"}.get(one.restarts, f"{one.restarts} times")
    again = f", restarted {times}: {one.reason}" if one.restarts else ""
    return one.phase + (again or (f": {one.reason}" if one.reason else ""))
