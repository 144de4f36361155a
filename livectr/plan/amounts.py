"""Amounts on the command line: rates, counts, memory, bandwidths.

Types of argparse: a text that cannot be read raises ArgumentTypeError, which says what to write.
"""

from __future__ import annotations

import argparse
import re

from livectr.system.byte_units import parse_bytes
from livectr.system.errors import ConfigError

_FACTORS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_NUMBER = r"(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)"


def quantity(text: str) -> float:
    """Number above 0: "1e10", "20M", "1_000_000"."""
    return _parse(text, "", 'a number such as "1e10", "20M" or "1000000"')


def rate(text: str) -> float:
    """Number a second, above 0: "1M/s", "20k/s"."""
    return _parse(text, r"(?:/s)?", 'a rate such as "1M/s", "20k/s" or "500/s"')


def memory(text: str) -> int:
    """Bytes, above 0: "256GiB", "300"."""
    try:
        size = parse_bytes(text, "flag")
    except ConfigError:
        size = 0
    if not size:
        raise argparse.ArgumentTypeError(f'{text!r} is no amount of memory such as "256GiB" or "512MiB"')
    return size


def bandwidth(text: str) -> float:
    """Gbit a second, above 0: "10Gbit/s", "800Mbit/s"."""
    if re.search(r"[bB](?:ytes?)?/s\s*$", text) and not text.rstrip().endswith("bit/s"):
        raise argparse.ArgumentTypeError(
            f'{text!r}: bits or bytes? Write bits, as "10Gbit/s"; a byte is eight of them'
        )
    return _parse(text, r"bit/s", 'a bandwidth such as "10Gbit/s" or "800Mbit/s"') / 1e9


def throughput(text: str) -> float:
    """Bytes a second, above 0: "500MB/s"."""
    if not text.rstrip().endswith("/s"):
        raise argparse.ArgumentTypeError(f'{text!r} is no speed of a disk such as "500MB/s"')
    return float(memory(text.rstrip().removesuffix("/s")))


def latency(text: str) -> float:
    """Seconds, above 0: "50us", "0.2ms"."""
    for unit, seconds in (("us", 1e-6), ("µs", 1e-6), ("ms", 1e-3)):
        if text.rstrip().endswith(unit):
            return _parse(text.rstrip().removesuffix(unit), "", 'a latency such as "50us"') * seconds
    raise argparse.ArgumentTypeError(f'{text!r} is no latency such as "50us" or "0.2ms"')


def price(text: str) -> float:
    """Price of an hour, at least 0."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f'{text!r} is no price of an hour such as "1.2"')
    return value


def share(text: str) -> float:
    """Number from 0 to 1, or percents: "0.05", "5%"."""
    percent = text.strip().endswith("%")
    try:
        value = float(text.strip().removesuffix("%")) / (100 if percent else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f'{text!r} is no share such as "0.05" or "5%"')
    return value


def widths(text: str) -> tuple[int, ...]:
    """Widths of layers: "256,128"."""
    parts = text.split(",")
    if not all(re.fullmatch(r"\s*[1-9]\d*\s*", part) for part in parts):
        raise argparse.ArgumentTypeError(f'{text!r} are no widths of layers such as "256,128"')
    return tuple(map(int, parts))


def _parse(text: str, unit: str, wanted: str) -> float:
    match = re.fullmatch(rf"\s*{_NUMBER}\s*([kKmMgGtT]?){unit}\s*", text.replace("_", ""))
    value = float(match[1]) * _FACTORS[match[2].lower()] if match else 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no amount above 0; write {wanted}")
    return value
