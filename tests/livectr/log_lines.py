"""Log lines in JSON."""

from __future__ import annotations

import json
from typing import Any

EVERY = {"time", "level", "logger", "message", "release", "role"}


def lines(text: str) -> list[dict[str, Any]]:
    """Parse every line; a line that is no JSON object is an error."""
    parsed = [json.loads(line) for line in text.splitlines()]
    assert parsed and all(set(line) >= EVERY for line in parsed), text
    return parsed
