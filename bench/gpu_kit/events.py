"""Log of the kit: a JSON object a line in OUT/events.jsonl, from any of its processes, as things happen.

    {"kind": "step", "name": "smoke", "status": "passed", "seconds": 4.1, "limit_s": 60.0, "why": ""}
    {"kind": "test", "name": "tests/gpu/…", "status": "passed", "seconds": 0.3, "why": ""}
    {"kind": "kernel", "key": "…", "source": "brought", "seconds": 0.0}
    {"kind": "row", "figure": …}

A status is `passed`, `failed` or `not run`; `why` has the reason of the last two. A kernel was `brought`
along, `compiled` here, or is `missing` where a dry run has looked for it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Literal

OUT = "LIVECTR_KIT_OUT"
"""Variable of the environment: folder of the log. Without it nothing is logged."""
FILE = "events.jsonl"

Kind = Literal["step", "test", "kernel", "row"]
Status = Literal["passed", "failed", "not run"]


def note(kind: Kind, **facts: Any) -> None:
    """Append an event; the lines of several processes do not mix."""
    folder = os.environ.get(OUT)
    if folder is None:
        return
    line = json.dumps({"kind": kind, **facts}, default=_plain) + "\n"
    with Path(folder, FILE).open("ab", buffering=0) as log:
        log.write(line.encode())


def noted(folder: Path, kind: Kind) -> list[dict[str, Any]]:
    """Events of a kind, in their order; a line that was cut off is left out."""
    path = folder / FILE
    found = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            event = json.loads(line)
        except json.JSONDecodeError:
            continue
        if event["kind"] == kind:
            found.append(event)
    return found


def _plain(value: Any) -> Any:
    """A JSON value: NumPy's numbers as Python's."""
    return value.item()
