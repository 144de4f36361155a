"""Arrow messages: each is an IPC stream of many records; reading may resume inside a message.

A message begins with 0xFFFFFFFF, the continuation marker of the IPC format, which is no UTF-8.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.ingest.chunks import Position, UnreadableMessage
from livectr.ingest.dead_letters.letters import Reason
from livectr.ingest.dead_letters.row_text import row_text
from livectr.ingest.decode.arrow_rows import UnusableError, WireColumns, names_of, read_stream
from livectr.ingest.decode.pending import PendingLetters
from livectr.ingest.decode.rows import Parsed
from livectr.ingest.limits import RecordLimits

I64 = npt.NDArray[np.int64]
ARROW_MARK = b"\xff\xff\xff\xff"


class ArrowMessages:
    """Reads the Arrow messages of a topic.

    Args:
        wire: columns to read.
        limits: of a message.
        pending: receives the letters of messages and rows that cannot be used.
    """

    def __init__(self, wire: WireColumns, limits: RecordLimits, pending: PendingLetters) -> None:
        self._wire, self._limits, self._pending = wire, limits, pending
        self._rows: dict[int, int] = {}  # offset of a message of the chunk → rows

    def read(
        self, partition: int, offsets: I64, values: Sequence[bytes], start: Position
    ) -> Iterator[Parsed]:
        """Read n messages.

        Args:
            partition: of the messages.
            offsets: int64[n].
            values: of the messages, n.
            start: rows before it are skipped.
        """
        batches, where, index = [], [], []
        for offset, value in zip(offsets.tolist(), values, strict=True):
            if isinstance(value, UnreadableMessage):
                self._pending.add(
                    partition, offset, 0, Reason.BAD_BATCH, value.detail, bytes(value), rows=value.rows
                )
                continue
            try:
                batch = read_stream(value, self._wire.columns, self._limits)
                wire, rows, bad = self._wire.conform(
                    batch, unpacked_bytes=self._limits.unpacked_bytes, seen=partial(names_of, value)
                )
            except UnusableError as error:
                self._rows[offset] = error.rows
                self._pending.add(partition, offset, 0, error.reason, str(error), value, rows=error.rows)
                continue
            skip = start.index if offset == start.offset else 0
            self._rows[offset] = batch.num_rows - skip
            if skip:
                keep = rows >= skip
                wire, rows = wire.filter(pa.array(keep)), rows[keep]
                bad = [item for item in bad if item.row >= skip]
            for item in bad:
                text = row_text(batch, item.row)
                self._pending.add(partition, offset, item.row, item.reason, item.detail, text)
            batches.append(wire)
            where.append(np.full(len(rows), offset, np.int64))
            index.append(rows.astype(np.int32))
        if batches:
            wire = pa.concat_batches(batches)
            yield Parsed(wire, np.concatenate(where), np.concatenate(index), partial(row_text, wire))

    def take_extra_rows(self) -> int:
        """Rows of the messages since the last call, less one for each message."""
        extra = sum(count - 1 for count in self._rows.values())
        self._rows.clear()
        return extra
