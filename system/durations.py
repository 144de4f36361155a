"""Durations: "500ms", "30s", "10m", "2h", "14d", or an integer of milliseconds."""

from __future__ import annotations

import re

from livectr.system.errors import ConfigError

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def duration_ms(value: str | int, where: str) -> int:
    """Parse a duration to milliseconds, above 0.

    Raises:
        ConfigError: it cannot be parsed; the message names `where`.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        result = value
    else:
        match = (
            re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*", value) if isinstance(value, str) else None
        )
        if match is None:
            raise ConfigError(
                f'{where}: {value!r} is not a duration; write "30s", "10m", "2h", "14d" or milliseconds'
            )
        result = round(float(match[1]) * _UNITS_MS[match[2]])
    if result <= 0:
        raise ConfigError(f"{where}: a duration must be positive, not {value!r}")
    return result


def duration_text(ms: int) -> str:
    """Duration in its largest unit of which it is a whole number, such as "90s"."""
    unit = next(unit for unit, size in reversed(_UNITS_MS.items()) if ms % size == 0)
    return f"{ms // _UNITS_MS[unit]}{unit}"
