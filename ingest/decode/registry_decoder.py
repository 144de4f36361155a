"""Decoder of a topic whose messages may be in the wire format of a schema registry, beside JSON and Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from livectr.ingest.chunks import Chunk
from livectr.ingest.dead_letters.letters import DeadLetters, Reason
from livectr.ingest.decode import arrow_rows
from livectr.ingest.decode.decoder import FURTHER, Decoder
from livectr.ingest.decode.registered import RegisteredRows, schema_id
from livectr.ingest.decode.registry import HEAD_BYTES, Wanted
from livectr.ingest.decode.rows import Decoded, UnreadableError
from livectr.ingest.language.streams import Stream, Table

_I64 = npt.NDArray[np.int64]


class RegistryDecoder(Decoder):
    """Decodes the records of one topic.

    Args:
        rows: reads the messages of a registry.
        stream, dead_letters, options: as in `Decoder`.
    """

    def __init__(
        self, rows: RegisteredRows, stream: Stream | Table, dead_letters: DeadLetters, **options: Any
    ) -> None:
        super().__init__(stream, dead_letters, **options)
        self._registered = rows
        nanos = frozenset(name for name, unit in self._units.items() if unit == "ns")
        self._wanted = Wanted(tuple(self._wire), nanos)
        self._ready: set[bytes] = set()  # beginnings of messages that need no `prepare`

    def messages(
        self,
        partition: int,
        offsets: Sequence[int],
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None = None,
        **rest: Any,
    ) -> Chunk:
        """Decode as `Decoder.messages`; keys that delete may be in the wire format, too."""
        if keys is not None:
            pairs = zip(keys, values, strict=True)
            keys = [self._registered.key(key) if value is None else key for key, value in pairs]
        return super().messages(partition, offsets, values, keys, **rest)

    def _kind(self, value: bytes | None) -> int:
        kind = super()._kind(value)
        if kind == FURTHER and value is not None and not self._is_ready(value):
            # Here, for it may wait; errors of what follows are a record's.
            head = self._registered.prepare(value, self._wanted)
            if head is not None and len(head) <= HEAD_BYTES + 1:
                self._ready.add(head)
        return kind

    def _is_ready(self, value: bytes) -> bool:
        return value[:HEAD_BYTES] in self._ready or value[: HEAD_BYTES + 1] in self._ready

    def _further(self, partition: int, offsets: _I64, values: Sequence[bytes]) -> Decoded:
        head = self._registered.head(values[0])
        if head in self._ready and all(value.startswith(head) for value in values):  # nearly every run
            return self._of_schema(partition, offsets, values)
        parts = []
        first = 0
        for _, run in groupby(values, self._registered.head):
            stop = first + len(list(run))
            parts.append(self._of_schema(partition, offsets[first:stop], values[first:stop]))
            first = stop
        return Decoded.merged(parts, self._cleaner.schema)

    def _of_schema(self, partition: int, offsets: _I64, values: Sequence[bytes]) -> Decoded:
        """Decode messages of one head. A message that cannot be read leaves the others as they are."""
        try:
            read = self._registered.batch(values, self._wanted)
            wire, rows, bad = arrow_rows.conform(
                read.batch,
                self._wire,
                self._cleaner.declared_fill,
                seen=lambda: read.names,
                units=self._units,
            )
        except (UnreadableError, arrow_rows.UnusableError) as error:
            if len(values) > 1:
                middle = len(values) // 2
                halves = (offsets[:middle], values[:middle]), (offsets[middle:], values[middle:])
                parts = [self._of_schema(partition, *half) for half in halves]
                return Decoded.merged(parts, self._cleaner.schema)
            detail = str(error)
            if isinstance(error, arrow_rows.UnusableError):
                detail = f"{error} (schema {schema_id(values[0])})"
            self._pending.add(partition, int(offsets[0]), 0, error.reason, detail, values[0])
            return Decoded.empty(self._cleaner.schema)
        for row, detail in read.refused:
            self._pending.add(partition, int(offsets[row]), 0, Reason.BAD_PROTOBUF, detail, values[row])
        for item in bad:
            row = int(read.rows[item.row])
            detail = f"{item.detail} (schema {schema_id(values[0])})"
            self._pending.add(partition, int(offsets[row]), 0, item.reason, detail, values[row])
        places = read.rows[rows]
        raw = partial(_of_row, values, places.tolist())
        return self._finish(partition, wire, offsets[places], np.zeros(len(places), np.int32), raw)


def _of_row(values: Sequence[bytes], rows: Sequence[int], row: int) -> bytes:
    return values[rows[row]]
