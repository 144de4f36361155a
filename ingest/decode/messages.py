"""Consecutive messages of a partition, as sources give them to a decoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from livectr.ingest.decode.texts import Texts

I64 = npt.NDArray[np.int64]


class Messages(Protocol):
    """n messages with rising offsets."""

    @property
    def offsets(self) -> I64:
        """int64[n]."""

    @property
    def append_ms(self) -> I64 | None:
        """Append times of the broker in ms, int64[n]; a record's time may exceed it by at most max_ahead.

        Times of a table's records: its deletes delete as of them. None: unknown.
        """

    @property
    def texts(self) -> Texts | None:
        """Values, where they lie in memory as one block; None: they do not, and are no JSON objects."""

    def values(self) -> Sequence[bytes | None]:
        """Values, one by one; None deletes a table's key."""

    def keys(self) -> Sequence[bytes | None]:
        """Keys, one by one."""


@dataclass(frozen=True)
class MessageList:
    """Messages as Python objects. The arguments are described in `Messages`."""

    offsets: I64
    listed: Sequence[bytes | None]
    listed_keys: Sequence[bytes | None] | None = None
    append_ms: I64 | None = None

    @staticmethod
    def of(
        offsets: Sequence[int], values: Sequence[bytes | None], keys: Sequence[bytes | None] | None = None
    ) -> MessageList:
        """Messages of offsets and values, and of keys if they have any."""
        return MessageList(np.array(offsets, np.int64), values, keys)

    @property
    def texts(self) -> Texts | None:
        """Values joined as one block, if the first looks like a JSON object and none is missing."""
        values = self.listed
        if not values or None in values or not (values[0] or b"").startswith(b"{"):
            return None
        return Texts.of(values)  # type: ignore[arg-type]

    def values(self) -> Sequence[bytes | None]:
        """Values, as they were given."""
        return self.listed

    def keys(self) -> Sequence[bytes | None]:
        """Keys as they were given, or None for each message."""
        return [None] * len(self.listed) if self.listed_keys is None else self.listed_keys
