"""Decoder of one topic: messages, lines and file batches become chunks of clean records.

A message is one JSON object, or an Arrow IPC stream of many records. The latter begins with 0xFFFFFFFF, the
continuation marker of the IPC format, which is no UTF-8. Only the columns in use are decoded. Messages of a
schema registry are for `ingest.decode.registry_decoder`.

No record ends the process: a record that cannot be used becomes a dead letter. Foreseen mistakes are named.
Any other exception while records are decoded is traced to its record by bisection.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.ingest.chunks import BEGINNING, Chunk, Position, UnreadableMessage
from livectr.ingest.dead_letters.letters import DeadLetters, Reason
from livectr.ingest.dead_letters.row_text import row_text
from livectr.ingest.decode import arrow_rows
from livectr.ingest.decode.clean import Cleaner, Mask
from livectr.ingest.decode.json_rows import Bad
from livectr.ingest.decode.message_key import parse_key
from livectr.ingest.decode.pending import PendingLetters
from livectr.ingest.decode.readers import readers_of
from livectr.ingest.decode.registered import NO_REGISTRY, is_registered
from livectr.ingest.decode.rows import Decoded
from livectr.ingest.decode.texts import Texts
from livectr.ingest.language.streams import Stream, Table
from livectr.ingest.limits import LIMITS, RecordLimits

ARROW_MARK = b"\xff\xff\xff\xff"
_JSON, _ARROW, _OVERSIZE, _NONE, FURTHER = range(5)

_I64 = npt.NDArray[np.int64]


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
    ) -> None:
        self._topic = stream.topic
        self._pending = PendingLetters(stream.topic, dead_letters)
        self._limits = limits
        self._record_bytes = limits.record_bytes  # read for every record
        self._message_rows: dict[int, int] = {}  # offset of an Arrow message of the chunk → rows
        self._cleaner = Cleaner(
            stream, columns, required=required, label=label, mask=mask, depth=limits.depth
        )
        self._units = {stream.time: stream.time_unit or "ms"} if stream.time else {}
        self._key = stream.key
        self._is_table = isinstance(stream, Table)
        self._told = [name for name in (stream.key, stream.time) if name is not None]  # by a delete
        self._time = stream.time if isinstance(stream, Stream) else None
        self._max_ahead_ms = stream.max_ahead_ms if isinstance(stream, Stream) else 0
        self._wire, self._readers = readers_of(self._cleaner, stream, limits.depth)
        origins = {path[0] for path in self._cleaner.json_fields.values()}
        self._about_origins = tuple(f"column `{name}{mark}" for name in origins for mark in "`.")
        self._renames = {".".join(path): name for name, path in self._cleaner.json_fields.items()}

    @property
    def wire_columns(self) -> list[str]:
        """Names of the columns that are read from Arrow and Parquet."""
        return list(self._wire)

    def messages(
        self,
        partition: int,
        offsets: Sequence[int],
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None = None,
        *,
        start: Position = BEGINNING,
        next_offset: int | None = None,
        append_ms: Sequence[int] | None = None,
    ) -> Chunk:
        """Decode consecutive messages of a partition.

        Args:
            partition: number of the partition.
            offsets: offset of each message.
            values: bytes of each message; None deletes a table's key.
            keys: message keys, read for a table's deletes.
            start: records before it are skipped; a resume may begin inside an Arrow message.
            next_offset: where reading continues; by default after the last message.
            append_ms: the broker's append times in ms; a record's time may exceed it by at most max_ahead.
                Times of a table's records: its deletes delete as of them.
        """
        where = np.array(offsets, np.int64)
        appended = None if append_ms is None else np.array(append_ms, np.int64)
        if values and None not in values and (values[0] or b"").startswith(b"{"):  # nearly every run
            texts = Texts.of(values)  # type: ignore[arg-type]
            chunk = self.objects(partition, where, texts, appended, next_offset=next_offset)
            if chunk is not None:
                return chunk
        parts: list[Decoded] = []
        kinds = [self._kind(value) for value in values]
        first = 0

        def decode(kind: int, first: int, stop: int) -> Decoded:
            some = where[first:stop], values[first:stop]
            if kind == _JSON:
                block = Texts.of([text.strip() for text in some[1]])  # type: ignore[union-attr]
                return self._json(partition, some[0], block, some[1].__getitem__)  # type: ignore[arg-type]
            if kind == _ARROW:
                return self._arrow(partition, *some, start)  # type: ignore[arg-type]
            if kind == FURTHER:
                return self._further(partition, *some)  # type: ignore[arg-type]
            if kind == _OVERSIZE:
                why = Reason.OVERSIZE, f"longer than {self._limits.record_bytes} bytes"
                return self._refused(partition, *some, *why)  # type: ignore[arg-type]
            cut, none = slice(first, stop), [None] * len(values)
            return self._deletes(partition, some[0], (keys or none)[cut], (append_ms or none)[cut])

        def refuse(row: int, detail: str) -> None:
            self._pending.add(partition, offsets[row], 0, Reason.NOT_DECODED, detail, values[row] or b"")

        for kind, run in itertools.groupby(kinds):
            stop = first + len(list(run))
            parts += self._pending.bisect(partial(decode, kind), first, stop, refuse)
            first = stop
        if next_offset is None:
            next_offset = int(offsets[-1]) + 1
        if appended is not None:
            parts = self._within_append_time(partition, parts, where, appended)
        rows = len(offsets) + sum(count - 1 for count in self._message_rows.values())
        self._message_rows.clear()
        return self._chunk(partition, parts, Position(next_offset, 0), rows)

    def objects(
        self,
        partition: int,
        offsets: _I64,
        texts: Texts,
        append_ms: _I64 | None = None,
        *,
        next_offset: int | None = None,
    ) -> Chunk | None:
        """Decode consecutive messages of which each looks like a JSON object; None: `messages` must do it.

        Args:
            partition: number of the partition.
            offsets: i64[n], offset of each message.
            texts: values of the n messages.
            append_ms: as in `messages`, i64[n].
            next_offset: as in `messages`.
        """
        if not texts.are_objects(self._record_bytes):
            return None

        def decode(first: int, stop: int) -> Decoded:
            block = texts.part(first, stop)
            return self._json(partition, offsets[first:stop], block, lambda row: block.texts[row])

        def refuse(row: int, detail: str) -> None:
            value = texts.part(row, row + 1).texts[0]
            self._pending.add(partition, int(offsets[row]), 0, Reason.NOT_DECODED, detail, value)

        parts = self._pending.bisect(decode, 0, len(texts), refuse)
        if append_ms is not None:
            parts = self._within_append_time(partition, parts, offsets, append_ms)
        after = int(offsets[-1]) + 1 if next_offset is None else next_offset
        return self._chunk(partition, parts, Position(after, 0), len(texts))

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
            wire, rows, bad = arrow_rows.conform(
                batch, self._wire, self._cleaner.declared_fill, seen=seen, units=self._units
            )
        except arrow_rows.UnusableError as error:
            self._pending.add(partition, first, 0, error.reason, str(error), b"", rows=batch.num_rows)
            return Decoded.empty(self._cleaner.schema)
        index = np.zeros(len(rows), np.int32)
        part = self._finish(partition, wire, offsets[rows], index, partial(row_text, wire))
        for item in bad:
            value = row_text(batch, item.row)
            self._pending.add(partition, first + item.row, 0, item.reason, item.detail, value)
        return part

    def _kind(self, value: bytes | None) -> int:
        if value is None or value[:4] == ARROW_MARK:
            return _NONE if value is None else _ARROW
        if len(value) > self._record_bytes:
            return _OVERSIZE
        return FURTHER if is_registered(value) else _JSON

    def _json(self, partition: int, offsets: _I64, block: Texts, raw: Callable[[int], bytes]) -> Decoded:
        """Decode JSON messages.

        Args:
            block: their values without surrounding space.
            raw: value of a message, for its dead letter.
        """
        left = np.arange(len(block), dtype=np.int64)
        parts: list[Decoded] = []
        complaints: dict[int, list[Bad]] = {}
        # A text is valid when any reader accepts it; the reader that fits the log is tried first next time.
        for number, reader in enumerate(list(self._readers)):
            batch, parsed, bad = reader.parse(block if number == 0 else block.take(left))
            rows = left[parsed]
            left = left[[item.row for item in bad]]
            for row, item in zip(left.tolist(), bad, strict=True):
                complaints.setdefault(row, []).append(item)
            if number and len(rows) > len(left):
                self._readers.insert(0, self._readers.pop(number))
            if len(rows):
                batch = batch.rename_columns([self._renames.get(name, name) for name in batch.schema.names])
                index = np.zeros(len(rows), np.int32)
                of_row = partial(_raw_text, raw, rows)
                parts.append(self._finish(partition, batch, offsets[rows], index, of_row))
            if not len(left):
                break
        for row in left.tolist():
            # Skip complaints of a reader that expects the other form of a JSON field's origin.
            reasons = complaints[row]
            item = next(
                (item for item in reasons if not item.detail.startswith(self._about_origins)), reasons[0]
            )
            self._pending.add(partition, int(offsets[row]), 0, item.reason, item.detail, raw(row))
        return Decoded.merged(parts, self._cleaner.schema)

    def _further(self, partition: int, offsets: _I64, values: Sequence[bytes]) -> Decoded:
        return self._refused(partition, offsets, values, Reason.NO_SCHEMA, NO_REGISTRY)

    def _refused(
        self, partition: int, offsets: _I64, values: Sequence[bytes], reason: Reason, detail: str
    ) -> Decoded:
        for offset, value in zip(offsets.tolist(), values, strict=True):
            self._pending.add(partition, offset, 0, reason, detail, value)
        return Decoded.empty(self._cleaner.schema)

    def _arrow(self, partition: int, offsets: _I64, values: Sequence[bytes], start: Position) -> Decoded:
        batches, where, index = [], [], []
        for offset, value in zip(offsets.tolist(), values, strict=True):
            if isinstance(value, UnreadableMessage):
                self._pending.add(
                    partition, offset, 0, Reason.BAD_BATCH, value.detail, bytes(value), rows=value.rows
                )
                continue
            try:
                batch = arrow_rows.read_stream(value, self._wire, self._limits)
                wire, rows, bad = arrow_rows.conform(
                    batch,
                    self._wire,
                    self._cleaner.declared_fill,
                    unpacked_bytes=self._limits.unpacked_bytes,
                    seen=partial(arrow_rows.names_of, value),
                    units=self._units,
                )
            except arrow_rows.UnusableError as error:
                self._message_rows[offset] = error.rows
                self._pending.add(partition, offset, 0, error.reason, str(error), value, rows=error.rows)
                continue
            skip = start.index if offset == start.offset else 0
            self._message_rows[offset] = batch.num_rows - skip
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
        if not batches:
            return Decoded.empty(self._cleaner.schema)
        wire = pa.concat_batches(batches)
        return self._finish(
            partition, wire, np.concatenate(where), np.concatenate(index), partial(row_text, wire)
        )

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

    def _finish(
        self,
        partition: int,
        wire: pa.RecordBatch,
        offset: _I64,
        index: npt.NDArray[np.int32],
        raw: Callable[[int], bytes],
    ) -> Decoded:
        """Clean rows; raw(row) returns the original bytes of a record for its dead letter."""

        def letter(row: int, reason: Reason, detail: str) -> None:
            self._pending.add(partition, int(offset[row]), int(index[row]), reason, detail, raw(row))

        def clean(first: int, stop: int) -> Decoded:
            batch, rows, bad = self._cleaner.clean(wire.slice(first, stop - first))
            for item in bad:
                letter(first + item.row, item.reason, item.detail)
            if len(rows) == len(offset):
                return Decoded(batch, offset, index, None)
            return Decoded(batch, offset[first + rows], index[first + rows], None)

        def refuse(row: int, detail: str) -> None:
            letter(row, Reason.NOT_DECODED, detail)

        return Decoded.merged(self._pending.bisect(clean, 0, wire.num_rows, refuse), self._cleaner.schema)

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


def _raw_text(raw: Callable[[int], bytes], rows: _I64, row: int) -> bytes:
    return raw(int(rows[row]))
