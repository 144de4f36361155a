"""Messages in the wire format of a schema registry, run by run of equal schemas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby

import numpy as np
import numpy.typing as npt

from livectr.ingest.dead_letters.letters import Reason
from livectr.ingest.decode.arrow_rows import UnusableError, WireColumns
from livectr.ingest.decode.pending import PendingLetters
from livectr.ingest.decode.registered import RegisteredRows, schema_id
from livectr.ingest.decode.registry import HEAD_BYTES, Wanted
from livectr.ingest.decode.rows import Parsed, UnreadableError

I64 = npt.NDArray[np.int64]


class RegisteredMessages:
    """Reads the messages of a topic that a schema registry describes.

    Args:
        rows: reads the messages of a registry.
        wire: columns to read.
        pending: receives the letters of messages and rows that cannot be used.
    """

    def __init__(self, rows: RegisteredRows, wire: WireColumns, pending: PendingLetters) -> None:
        self._registered, self._wire, self._pending = rows, wire, pending
        nanos = frozenset(name for name, unit in wire.units.items() if unit == "ns")
        self._wanted = Wanted(tuple(wire.columns), nanos)
        self._ready: set[bytes] = set()  # beginnings of messages that need no `prepare`

    def prepare(self, value: bytes) -> None:
        """Fetch what reading a message needs; may wait for the registry."""
        if value[:HEAD_BYTES] in self._ready or value[: HEAD_BYTES + 1] in self._ready:
            return
        head = self._registered.prepare(value, self._wanted)
        if head is not None and len(head) <= HEAD_BYTES + 1:
            self._ready.add(head)

    def key(self, key: bytes | None) -> bytes | None:
        """Message key as text, from the wire format, too; may wait for the registry."""
        return self._registered.key(key)

    def read(self, partition: int, offsets: I64, values: Sequence[bytes]) -> Iterator[Parsed]:
        """Read n messages, which are prepared; offsets: int64[n]."""
        head = self._registered.head(values[0])
        if head in self._ready and all(value.startswith(head) for value in values):  # nearly every run
            yield from self._of_schema(partition, offsets, values)
            return
        first = 0
        for _, run in groupby(values, self._registered.head):
            stop = first + len(list(run))
            yield from self._of_schema(partition, offsets[first:stop], values[first:stop])
            first = stop

    def _of_schema(self, partition: int, offsets: I64, values: Sequence[bytes]) -> Iterator[Parsed]:
        """Read messages of one head. A message that cannot be read leaves the others as they are."""
        try:
            read = self._registered.batch(values, self._wanted)
            wire, rows, bad = self._wire.conform(read.batch, seen=lambda: read.names)
        except (UnreadableError, UnusableError) as error:
            if len(values) > 1:
                middle = len(values) // 2
                yield from self._of_schema(partition, offsets[:middle], values[:middle])
                yield from self._of_schema(partition, offsets[middle:], values[middle:])
                return
            detail = str(error)
            if isinstance(error, UnusableError):
                detail = f"{error} (schema {schema_id(values[0])})"
            self._pending.add(partition, int(offsets[0]), 0, error.reason, detail, values[0])
            return
        for row, detail in read.refused:
            self._pending.add(partition, int(offsets[row]), 0, Reason.BAD_PROTOBUF, detail, values[row])
        for item in bad:
            row = int(read.rows[item.row])
            detail = f"{item.detail} (schema {schema_id(values[0])})"
            self._pending.add(partition, int(offsets[row]), 0, item.reason, detail, values[row])
        places = read.rows[rows]
        raw = partial(_of_row, values, places.tolist())
        yield Parsed(wire, offsets[places], np.zeros(len(places), np.int32), raw)


def _of_row(values: Sequence[bytes], rows: Sequence[int], row: int) -> bytes:
    return values[rows[row]]
