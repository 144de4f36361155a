"""Findings as a table for a person, or as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rich.table import Table

from livectr.check.rules import DOUBTFUL, RIGHT, WRONG, Finding
from livectr.console import make_console
from livectr.guess.text import ALIKE, prefix_of
from livectr.system.texts import visible

WORDS = {RIGHT: "right", DOUBTFUL: "doubtful", WRONG: "wrong"}


def show(found: Sequence[Finding], title: str) -> None:
    """Print a table; a finding with advice has it below its numbers."""
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column("mark")
    table.add_column("what", overflow="fold")
    table.add_column("found", overflow="fold")
    colours = {RIGHT: "green", DOUBTFUL: "yellow", WRONG: "bold red"}
    for one in _merged(found):
        text = one.found + (f"\n{one.advice}" if one.advice else "")
        table.add_row(f"[{colours[one.mark]}]{one.mark}[/]", _plain(one.what), _plain(text))
    console = make_console()
    console.print(table)
    console.print(summary(found), highlight=False)


def summary(found: Sequence[Finding]) -> str:
    """Sentence with the counts of each mark."""
    wrong, doubtful = (sum(one.mark == mark for one in found) for mark in (WRONG, DOUBTFUL))
    if not wrong and not doubtful:
        return f"All {len(found)} checks are right: continue with `livectr train`."
    words = [f"{wrong} wrong (✗)" if wrong else "", f"{doubtful} doubtful (!)" if doubtful else ""]
    return f"{len(found)} checks: {' and '.join(filter(None, words))}."


def as_json(found: Sequence[Finding], rows: int) -> str:
    """JSON object: ok, rows, and the checks."""
    checks = [
        {"is": WORDS[one.mark], "what": one.what, "found": one.found, "advice": one.advice} for one in found
    ]
    return json.dumps({"ok": all(one.mark != WRONG for one in found), "rows": rows, "checks": checks})


def _merged(found: Sequence[Finding]) -> list[Finding]:
    """Findings; what is right of many columns with a running number is one line."""
    merged: list[Finding] = []
    at = 0
    while at < len(found):
        same = [
            one
            for one in found[at:]
            if one.mark == RIGHT and prefix_of(one.what) == prefix_of(found[at].what)
        ]
        count = next((n for n, one in enumerate(found[at:]) if one not in same), len(found) - at)
        if count >= ALIKE:
            what = f"{found[at].what} … {found[at + count - 1].what.split(' ', 1)[1]}"
            merged.append(Finding(RIGHT, what, f"{count} alike; the first: {found[at].found}"))
        else:
            count = 1
            merged.append(found[at])
        at += count
    return merged


def _plain(text: str) -> str:
    return "\n".join(map(visible, text.split("\n"))).replace("[", "\\[")
