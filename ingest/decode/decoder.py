"""Decoder of one topic: messages, lines and file batches become chunks of clean records.

A message is one JSON object, an Arrow IPC stream of many records, or in the wire format of a schema registry.
Each form has a module that reads it. Only the columns in use are decoded.

No record ends the process: a record that cannot be used becomes a dead letter. Foreseen mistakes are named.
Any other exception while records are decoded is traced to its record by bisection.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from enum import Enum
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.ingest.chunks import BEGINNING, Chunk, Position
from livectr.ingest.dead_letters.letters import DeadLetters, Reason
from livectr.ingest.dead_letters.row_text import row_text
from livectr.ingest.decode.arrow_messages import ARROW_MARK, ArrowMessages
from livectr.ingest.decode.arrow_rows import UnusableError
from livectr.ingest.decode.clean import Cleaner, Mask
from livectr.ingest.decode.json_messages import JsonMessages
from livectr.ingest.decode.message_key import parse_key
from livectr.ingest.decode.messages import Messages
from livectr.ingest.decode.pending import PendingLetters
from livectr.ingest.decode.registered import NO_REGISTRY, RegisteredRows, is_registered
from livectr.ingest.decode.registered_messages import RegisteredMessages
from livectr.ingest.decode.rows import Decoded, Parsed
from livectr.ingest.decode.texts import Texts
from livectr.ingest.language.streams import Stream
from livectr.ingest.language.tables import Table
from livectr.ingest.limits import LIMITS, RecordLimits

_I64 = npt.NDArray[np.int64]


class Form(Enum):
    """Form of a message."""

    JSON = "JSON"
    ARROW = "Arrow"
    REGISTERED = "in the wire format of a schema registry"
    OVERSIZE = "longer than a record may be"
    NO_VALUE = "without value"


class Decoder:
    """Decodes the records of one topic.

    Args:
        stream: declaration of the topic.
        dead_letters: receives bad records.
        columns: columns in use, as `Cleaner`; None: every declared column.
        required: columns that may not be null, besides key and time.
        label: column that holds labels.
        mask: filter in place of the compiled `where`.
        limits: records beyond them become dead letters; an Arrow message may be as long as the broker allows.
        registered: reads messages of a schema registry; None: there is none.
    """

    def __init__(
        self,
        stream: Stream | Table,
        dead_letters: DeadLetters,
        *,
        columns: Sequence[str] | None = None,
        required: Collection[str] = (),
        label: str | None = None,
        mask: Mask | None = None,
        limits: RecordLimits = LIMITS,
        registered: RegisteredRows | None = None,
    ) -> None:
        self._topic = stream.topic
        self._record_bytes = limits.record_bytes  # read for every record
        self._pending = pending = PendingLetters(stream.topic, dead_letters)
        self._cleaner = cleaner = Cleaner(
            stream, columns, required=required, label=label, mask=mask, depth=limits.depth
        )
        self._json = JsonMessages(cleaner, limits.depth, pending)
        self._arrow = ArrowMessages(cleaner.wire, limits, pending)
        self._registered = (
            None if registered is None else RegisteredMessages(registered, cleaner.wire, pending)
        )
        self._key = stream.key
        self._is_table = isinstance(stream, Table)
        self._told = [name for name in (stream.key, stream.time) if name is not None]  # by a delete
        self._time = stream.time if isinstance(stream, Stream) else None
        self._max_ahead_ms = stream.max_ahead_ms if isinstance(stream, Stream) else 0

    @property
    def wire_columns(self) -> list[str]:
        """Names of the columns that are read from Arrow and Parquet."""
        return list(self._cleaner.wire.columns)

    def messages(
        self,
        partition: int,
        messages: Messages,
        *,
        start: Position = BEGINNING,
        next_offset: int | None = None,
    ) -> Chunk:
        """Decode consecutive messages of a partition.

        Args:
            partition: number of the partition.
            messages: n messages.
            start: records before it are skipped; a resume may begin inside an Arrow message.
            next_offset: where reading continues; by default after the last message.
        """
        texts, rows = messages.texts, len(messages.offsets)
        if texts is not None and texts.are_objects(self._record_bytes):  # nearly every run
            parts = self._objects(partition, messages.offsets, texts)
        else:
            parts = self._by_form(partition, messages, start)
            rows += self._arrow.take_extra_rows()
        if messages.append_ms is not None:
            parts = self._within_append_time(partition, parts, messages.offsets, messages.append_ms)
        after = int(messages.offsets[-1]) + 1 if next_offset is None else next_offset
        return self._chunk(partition, parts, Position(after, 0), rows)

    def rows(
        self,
        partition: int,
        first: int,
        batch: pa.RecordBatch,
        *,
        seen: Callable[[], Collection[str]] | None = None,
    ) -> Chunk:
        """Decode rows of an Arrow or Parquet file.

        Args:
            partition: number of the partition.
            first: record number of the first row.
            batch: the rows.
            seen: returns the names of all columns of the file, when the batch lacks some.
        """
        after = Position(first + batch.num_rows, 0)

        def refuse(row: int, detail: str) -> None:
            value = row_text(batch, row)
            self._pending.add(partition, first + row, 0, Reason.NOT_DECODED, detail, value)

        def decode(begin: int, stop: int) -> Decoded:
            return self._rows(partition, first + begin, batch.slice(begin, stop - begin), seen)

        parts = self._pending.bisect(decode, 0, batch.num_rows, refuse)
        return self._chunk(partition, parts, after, batch.num_rows)

    def _rows(
        self,
        partition: int,
        first: int,
        batch: pa.RecordBatch,
        seen: Callable[[], Collection[str]] | None,
    ) -> Decoded:
        offsets = np.arange(first, first + batch.num_rows, dtype=np.int64)
        try:
            wire, rows, bad = self._cleaner.wire.conform(batch, seen=seen)
        except UnusableError as error:
            self._pending.add(partition, first, 0, error.reason, str(error), b"", rows=batch.num_rows)
            return Decoded.empty(self._cleaner.schema)
        index = np.zeros(len(rows), np.int32)
        part = self._clean(partition, [Parsed(wire, offsets[rows], index, partial(row_text, wire))])
        for item in bad:
            value = row_text(batch, item.row)
            self._pending.add(partition, first + item.row, 0, item.reason, item.detail, value)
        return part

    def _objects(self, partition: int, offsets: _I64, texts: Texts) -> list[Decoded]:
        """Decode messages of which each looks like a JSON object."""

        def decode(first: int, stop: int) -> Decoded:
            block = texts.part(first, stop)
            read = self._json.read(partition, offsets[first:stop], block, lambda row: block.texts[row])
            return self._clean(partition, read)

        def refuse(row: int, detail: str) -> None:
            value = texts.part(row, row + 1).texts[0]
            self._pending.add(partition, int(offsets[row]), 0, Reason.NOT_DECODED, detail, value)

        return self._pending.bisect(decode, 0, len(texts), refuse)

    def _by_form(self, partition: int, messages: Messages, start: Position) -> list[Decoded]:
        """Decode messages of any form, run by run of equal ones."""
        offsets, values = messages.offsets, messages.values()
        forms = [self._form(value) for value in values]
        keys = self._keys_of_deletes(messages, forms)
        times_ms: Sequence[int | None] = [None] * len(values)
        if messages.append_ms is not None:
            times_ms = messages.append_ms.tolist()

        def decode(form: Form, first: int, stop: int) -> Decoded:
            where, run = offsets[first:stop], values[first:stop]
            if form is Form.NO_VALUE:
                return self._deletes(partition, where, keys[first:stop], times_ms[first:stop])
            return self._clean(partition, self._read(form, partition, where, run, start))  # type: ignore[arg-type]

        def refuse(row: int, detail: str) -> None:
            value = values[row] or b""
            self._pending.add(partition, int(offsets[row]), 0, Reason.NOT_DECODED, detail, value)

        parts: list[Decoded] = []
        first = 0
        for form, run in itertools.groupby(forms):
            stop = first + len(list(run))
            parts += self._pending.bisect(partial(decode, form), first, stop, refuse)
            first = stop
        return parts

    def _form(self, value: bytes | None) -> Form:
        if value is None or value[:4] == ARROW_MARK:
            return Form.NO_VALUE if value is None else Form.ARROW
        if len(value) > self._record_bytes:
            return Form.OVERSIZE
        if not is_registered(value):
            return Form.JSON
        if self._registered is not None:  # here, for it may wait; errors of what follows are a record's
            self._registered.prepare(value)
        return Form.REGISTERED

    def _read(
        self, form: Form, partition: int, offsets: _I64, values: Sequence[bytes], start: Position
    ) -> Iterable[Parsed]:
        """Read messages of one form that have values."""
        if form is Form.JSON:
            block = Texts.of([text.strip() for text in values])
            return self._json.read(partition, offsets, block, values.__getitem__)
        if form is Form.ARROW:
            return self._arrow.read(partition, offsets, values, start)
        if form is Form.REGISTERED and self._registered is not None:
            return self._registered.read(partition, offsets, values)
        reason, detail = Reason.OVERSIZE, f"longer than {self._record_bytes} bytes (max_record_bytes)"
        if form is Form.REGISTERED:
            reason, detail = Reason.NO_SCHEMA, NO_REGISTRY
        for offset, value in zip(offsets.tolist(), values, strict=True):
            self._pending.add(partition, offset, 0, reason, detail, value)
        return ()

    def _keys_of_deletes(self, messages: Messages, forms: Sequence[Form]) -> Sequence[bytes | None]:
        """Keys of the messages; they are needed where a table's message has no value."""
        if not self._is_table or Form.NO_VALUE not in forms:
            return [None] * len(forms)
        keys = messages.keys()
        if self._registered is None:
            return keys
        pairs = zip(keys, forms, strict=True)
        return [self._registered.key(key) if form is Form.NO_VALUE else key for key, form in pairs]

    def _deletes(
        self, partition: int, offsets: _I64, keys: Sequence[bytes | None], times_ms: Sequence[int | None]
    ) -> Decoded:
        """Decode messages without value: deletes of a table by message key; dead letters of a stream."""
        found: list[tuple[Any, ...]] = []
        for offset, key, time_ms in zip(offsets.tolist(), keys, times_ms, strict=True):
            if not self._is_table:
                self._pending.add(partition, offset, 0, Reason.NO_VALUE, "a message without value", b"")
                continue
            try:
                found.append((offset, parse_key(key, self._cleaner.columns[self._key]), time_ms))
            except ValueError as error:
                self._pending.add(partition, offset, 0, Reason.BAD_KEY, f"delete: {error}", key or b"")
        at, *columns = zip(*found, strict=True) if found else ((), (), ())
        return Decoded.deletes(self._cleaner.schema, dict(zip(self._told, columns, strict=False)), at)

    def _clean(self, partition: int, parts: Iterable[Parsed]) -> Decoded:
        """Clean parts as they are read, and combine them."""
        cleaned = [decoded for part in parts for decoded in self._clean_part(partition, part)]
        return Decoded.merged(cleaned, self._cleaner.schema)

    def _clean_part(self, partition: int, part: Parsed) -> list[Decoded]:
        offset, index = part.offset, part.index

        def letter(row: int, reason: Reason, detail: str) -> None:
            self._pending.add(partition, int(offset[row]), int(index[row]), reason, detail, part.raw(row))

        def clean(first: int, stop: int) -> Decoded:
            batch, rows, bad = self._cleaner.clean(part.batch.slice(first, stop - first))
            for item in bad:
                letter(first + item.row, item.reason, item.detail)
            if len(rows) == len(offset):
                return Decoded(batch, offset, index, None)
            return Decoded(batch, offset[first + rows], index[first + rows], None)

        def refuse(row: int, detail: str) -> None:
            letter(row, Reason.NOT_DECODED, detail)

        return self._pending.bisect(clean, 0, part.batch.num_rows, refuse)

    def _within_append_time(
        self, partition: int, parts: Sequence[Decoded], offsets: _I64, append_ms: _I64
    ) -> list[Decoded]:
        """Parts without the rows whose time is too far behind their message's append time."""
        if self._time is None:
            return list(parts)
        within = []
        for part in parts:
            kept, ahead = part.within_append_time(self._time, offsets, append_ms, self._max_ahead_ms)
            within.append(kept)
            for row, detail in ahead:
                place = int(part.offset[row]), int(part.index[row])
                self._pending.add(partition, *place, Reason.BAD_TIME, detail, row_text(part.batch, row))
        return within

    def _chunk(self, partition: int, parts: list[Decoded], after: Position, rows: int) -> Chunk:
        """Combine the parts and write pending letters; rows: count of rows read, usable or not."""
        self._pending.write(rows)
        part = Decoded.merged(parts, self._cleaner.schema)
        return Chunk(self._topic, partition, part.batch, part.offset, part.index, after, part.deleted)
