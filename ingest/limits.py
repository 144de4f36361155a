"""Bounds on records, on features of a request, and on letters. The command line reads it: import little."""

from __future__ import annotations

from dataclasses import dataclass

from livectr.kernels.errors import ConfigError

MOST_DEPTH = 256
"""Python's JSON reader, which names the mistakes, calls itself for each level and stops at 1,000 calls."""


@dataclass(frozen=True)
class RecordLimits:
    """Limits of one record or message.

    record_bytes: longest JSON record or line. depth: most JSON objects and lists within each other, in
    columns that are not in use too. message_rows: most rows of an Arrow message. unpacked_bytes: most bytes
    of an Arrow message, or of a Kafka batch, once it is decompressed and its dictionaries are replaced by
    values. Raises ConfigError for a limit that cannot work.
    """

    record_bytes: int = 1 << 20
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
    """Limits of what one call extracts.

    values      of lists, over all rows, in the fields that are not shared
    pool_bytes  of the strings and lists between features, of one block of rows and kind
    read        bytes of strings and values of lists that all rows together read of what is shared
    """

    values: int = 2**62
    pool_bytes: int = 2**62
    read: int = 2**62


LIMITS = RecordLimits()
"""The limits where no setting says otherwise; a record beyond one is a dead letter."""
SPOOL_BYTES = 1 << 30
"""Dead letters that may wait for their topic."""
