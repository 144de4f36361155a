"""Limits of records, of features of a request, and of dead letters.

The command line imports it: import little.
"""

from __future__ import annotations

from dataclasses import dataclass

from livectr.system.errors import ConfigError

MOST_DEPTH = 256
"""Greatest depth: Python's JSON reader, which explains mistakes, recurses for each level, up to 1,000
calls."""


@dataclass(frozen=True)
class RecordLimits:
    """Limits of one record or message.

    Args:
        record_bytes: longest JSON record, and longest row of a file that `init` and `logs` read.
        depth: deepest nesting of JSON objects and lists, also in columns that are not in use.
        message_rows: most rows of an Arrow message.
        unpacked_bytes: greatest size of an Arrow message, or of a Kafka batch, after decompression and with
            dictionaries replaced by values.

    Raises:
        ConfigError: a limit is out of range.
    """

    record_bytes: int = 4 << 20
    depth: int = 64
    message_rows: int = 1 << 20
    unpacked_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        for name in ("record_bytes", "depth", "message_rows", "unpacked_bytes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"the limit {name} is {getattr(self, name)}; it must be at least 1")
        if self.depth > MOST_DEPTH:
            raise ConfigError(f"the limit depth is {self.depth}; it must be at most {MOST_DEPTH}")


@dataclass(frozen=True)
class FeatureLimits:
    """Limits of one extraction call.

    Args:
        values: total list values over all rows, in fields that are not common to rows.
        pool_bytes: bytes of strings and lists between features, for one block of rows and one kind.
        read: bytes of strings and values of lists that all rows together read from common columns.
    """

    values: int = 2**62
    pool_bytes: int = 2**62
    read: int = 2**62


LIMITS = RecordLimits()
"""Default limits; a record beyond one becomes a dead letter."""
SPOOL_BYTES = 1 << 30
"""Default for the bytes of dead letters that may wait for their topic."""
