"""Amounts of memory: "8GiB", "512 MiB", "2GB", or an integer of bytes."""

from __future__ import annotations

import re

from livectr.system.errors import ConfigError

_UNITS: dict[str, int] = {
    "": 1,
    **{f"{prefix}b": 1000**power for power, prefix in enumerate(("", "k", "m", "g", "t"))},
}
_UNITS |= {f"{prefix}ib": 1024**power for power, prefix in enumerate(("k", "m", "g", "t"), start=1)}


def parse_bytes(value: str | int, where: str) -> int:
    """Parse an amount to bytes, at least 0.

    Raises:
        ConfigError: it cannot be parsed; the message names `where`.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", str(value))
    if match is None or match[2].lower() not in _UNITS or isinstance(value, bool):
        raise ConfigError(f'{where}: {value!r} is no amount of memory; write "8GiB", "512MiB" or bytes')
    size = float(match[1]) * _UNITS[match[2].lower()]
    if not size < 2**63:
        raise ConfigError(f"{where}: {value!r} is more than any machine has; write less than 8 EiB")
    return round(size)


def show_bytes(count: int) -> str:
    """Format bytes with at least three digits: "812 B", "1.21 KiB", "40.0 MiB"."""
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1000:
            break
        size, unit = size / 1024, larger
    return f"{count} B" if unit == "B" else f"{size:.{2 if size < 10 else 1 if size < 100 else 0}f} {unit}"
