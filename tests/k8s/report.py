"""Table of every check and measure with its seconds, in the order of the run."""

from __future__ import annotations

import os
import time
from pathlib import Path

_rows: list[tuple[str, str, float]] = []
_facts: list[str] = []
_began = time.monotonic()


def note(what: str, seconds: float, result: str = "measured") -> None:
    """Add a line to the table."""
    _rows.append((what, result, seconds))


def fact(text: str) -> None:
    """Add a sentence below the table."""
    _facts.append(text)


def table() -> str:
    """The report as Markdown; $K8S_REPORT names a file that gets it, too."""
    lines = ["| check | result | seconds |", "|---|---|---|"]
    lines += [f"| {name} | {result} | {seconds:.1f} |" for name, result, seconds in _rows]
    lines += [f"| everything | | {time.monotonic() - _began:.0f} |", "", *_facts]
    text = "\n".join(lines)
    if file := os.environ.get("K8S_REPORT"):
        Path(file).write_text(text + "\n")
    return text
