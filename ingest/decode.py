"""Messages, lines and file batches → chunks of clean records; what cannot be used goes to the dead letters.

A message is one JSON object, or an Arrow IPC stream of many records, which begins with 0xFFFFFFFF (the
continuation marker of the IPC format, no byte of UTF-8). Only the columns in use are decoded.
"""

from __future__ import annotations

import base64
import itertools
import json
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ingest import arrow_rows, dtypes
from ingest.clean import Cleaner, Mask
from ingest.deadletter import DeadLetters, Reason
from ingest.json_rows import Bad, JsonRows
from ingest.sources.base import BEGINNING, Chunk, Position
from ingest.streams import Stream, Table

ARROW_MARK = b"\xff\xff\xff\xff"
_JSON, _ARROW, _OVERSIZE, _NONE = range(4)

_I64 = npt.NDArray[np.int64]


class Decoder:
    """Decodes one topic.

    stream: what its records are; columns, required, mask: see `Cleaner`.
    max_record_bytes: longer JSON records are dead letters; Arrow ones may be as long as the broker allows.
    """

    def __init__(
        self,
        stream: Stream | Table,
        dead_letters: DeadLetters,
        *,
        columns: Sequence[str] | None = None,
        required: Collection[str] = (),
        mask: Mask | None = None,
        max_record_bytes: int = 1 << 20,
    ) -> None:
        self._topic = stream.topic
        self._letters = dead_letters
        self._max_record_bytes = max_record_bytes
        self._cleaner = Cleaner(stream, columns, required=required, mask=mask)
        self._key = stream.key
        self._is_table = isinstance(stream, Table)
        cleaner = self._cleaner
        origins = dict.fromkeys(path[0] for path in cleaner.json_fields.values())
        plain = {name: dtype for name, dtype in cleaner.columns.items() if name not in cleaner.json_fields}
        # name → type of what is read; a JSON field is read through its origin, a column of text.
        self._wire = {**plain, **{name: stream.columns[name] for name in origins}}
        must = [name for name in self._wire if name not in cleaner.declared_fill and name not in origins]
        text: dict[tuple[str, ...], str] = {(name,): dtype for name, dtype in self._wire.items()}
        self._readers = [JsonRows(text, must)]
        if origins and not set(origins) & set(plain):
            # JSON producers often send the origin as an object inside the event instead of as text.
            nested: dict[tuple[str, ...], str] = {(name,): dtype for name, dtype in plain.items()}
            nested.update({path: cleaner.columns[name] for name, path in cleaner.json_fields.items()})
            self._readers.append(JsonRows(nested, must))
        self._about_origins = tuple(f"column {name}{mark}" for name in origins for mark in ":.")
        self._renames = {".".join(path): name for name, path in cleaner.json_fields.items()}

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
    ) -> Chunk:
        """The records of consecutive messages.

        keys: the messages' keys, read for a table's deletes.
        start: records before it are left out: a resume may begin inside an Arrow message.
        next_offset: where reading goes on; by default behind the last message.
        """
        parts: list[_Part] = []
        kinds = [self._kind(value) for value in values]
        first = 0
        for kind, run in itertools.groupby(kinds):
            stop = first + len(list(run))
            part_offsets = np.array(offsets[first:stop], np.int64)
            part_values = values[first:stop]
            if kind == _JSON:
                parts.append(self._json(partition, part_offsets, part_values))  # type: ignore[arg-type]
            elif kind == _ARROW:
                parts.append(self._arrow(partition, part_offsets, part_values, start))  # type: ignore[arg-type]
            elif kind == _OVERSIZE:
                for offset, value in zip(part_offsets.tolist(), part_values, strict=True):
                    assert value is not None
                    detail = f"longer than {self._max_record_bytes} bytes"
                    self._letter(partition, offset, 0, Reason.OVERSIZE, detail, value)
            else:
                part_keys = keys[first:stop] if keys is not None else [None] * (stop - first)
                parts.append(self._deletes(partition, part_offsets, part_keys))
            first = stop
        if next_offset is None:
            next_offset = int(offsets[-1]) + 1
        return self._chunk(partition, parts, Position(next_offset, 0))

    def rows(self, partition: int, first: int, batch: pa.RecordBatch) -> Chunk:
        """The rows of an Arrow or Parquet file, numbered from `first`."""
        offsets = np.arange(first, first + batch.num_rows, dtype=np.int64)
        try:
            wire, rows, bad = arrow_rows.conform(batch, self._wire, self._cleaner.declared_fill)
        except arrow_rows.UnusableError as error:
            detail = f"records {first} to {first + batch.num_rows - 1}: {error}"
            self._letter(partition, first, 0, error.reason, detail, b"")
            return self._chunk(partition, [], Position(first + batch.num_rows, 0))
        index = np.zeros(len(rows), np.int32)
        part = self._finish(partition, wire, offsets[rows], index, partial(_row_text, wire))
        for item in bad:
            value = _row_text(batch, item.row)
            self._letter(partition, first + item.row, 0, item.reason, item.detail, value)
        return self._chunk(partition, [part], Position(first + batch.num_rows, 0))

    def _kind(self, value: bytes | None) -> int:
        if value is None:
            return _NONE
        if value[:4] == ARROW_MARK:
            return _ARROW
        return _JSON if len(value) <= self._max_record_bytes else _OVERSIZE

    def _json(self, partition: int, offsets: _I64, values: Sequence[bytes]) -> _Part:
        texts = [value.strip() for value in values]
        left = np.arange(len(texts), dtype=np.int64)
        parts: list[_Part] = []
        complaints: dict[int, list[Bad]] = {}
        # A text is good when any reader takes it; the one that fits the log comes first next time.
        for number, reader in enumerate(list(self._readers)):
            batch, taken, bad = reader.parse(texts if number == 0 else [texts[row] for row in left])
            rows = left[taken]
            left = left[[item.row for item in bad]]
            for row, item in zip(left.tolist(), bad, strict=True):
                complaints.setdefault(row, []).append(item)
            if number and len(rows) > len(left):
                self._readers.insert(0, self._readers.pop(number))
            if len(rows):
                batch = batch.rename_columns([self._renames.get(name, name) for name in batch.schema.names])
                index = np.zeros(len(rows), np.int32)
                raw = partial(_raw_text, values, rows)
                parts.append(self._finish(partition, batch, offsets[rows], index, raw))
            if not len(left):
                break
        for row in left.tolist():
            # A reader that expects the other form of a JSON field's origin has nothing to say.
            said = complaints[row]
            item = next((item for item in said if not item.detail.startswith(self._about_origins)), said[0])
            self._letter(partition, int(offsets[row]), 0, item.reason, item.detail, values[row])
        return _Part.merged(parts, self._cleaner.schema)

    def _arrow(self, partition: int, offsets: _I64, values: Sequence[bytes], start: Position) -> _Part:
        batches, where, index = [], [], []
        for offset, value in zip(offsets.tolist(), values, strict=True):
            try:
                batch = arrow_rows.read_stream(value, self._wire)
                wire, rows, bad = arrow_rows.conform(batch, self._wire, self._cleaner.declared_fill)
            except arrow_rows.UnusableError as error:
                self._letter(partition, offset, 0, error.reason, str(error), value)
                continue
            skip = start.index if offset == start.offset else 0
            if skip:
                keep = rows >= skip
                wire, rows = wire.filter(pa.array(keep)), rows[keep]
                bad = [item for item in bad if item.row >= skip]
            for item in bad:
                text = _row_text(batch, item.row)
                self._letter(partition, offset, item.row, item.reason, item.detail, text)
            batches.append(wire)
            where.append(np.full(len(rows), offset, np.int64))
            index.append(rows.astype(np.int32))
        if not batches:
            return _Part.empty(self._cleaner.schema)
        wire = pa.concat_batches(batches)
        return self._finish(
            partition, wire, np.concatenate(where), np.concatenate(index), partial(_row_text, wire)
        )

    def _deletes(self, partition: int, offsets: _I64, keys: Sequence[bytes | None]) -> _Part:
        """Null values: a table's deletes by message key; of a stream, they are no events."""
        found: list[tuple[int, Any]] = []
        for offset, key in zip(offsets.tolist(), keys, strict=True):
            if not self._is_table:
                self._letter(partition, offset, 0, Reason.NO_VALUE, "a message without value", b"")
                continue
            try:
                found.append((offset, self._parse_key(key)))
            except ValueError as error:
                self._letter(partition, offset, 0, Reason.BAD_KEY, f"delete: {error}", key or b"")
        schema = self._cleaner.schema
        columns = [
            pa.array([key for _, key in found], field.type)
            if field.name == self._key
            else pa.nulls(len(found), field.type)
            for field in schema
        ]
        return _Part(
            pa.RecordBatch.from_arrays(columns, schema=schema),
            np.array([offset for offset, _ in found], np.int64),
            np.zeros(len(found), np.int32),
            np.ones(len(found), bool),
        )

    def _parse_key(self, key: bytes | None) -> int | str:
        """A message key as UTF-8 text; integers in decimal."""
        if key is None:
            raise ValueError("the message has no key")
        text = key.decode()
        dtype = self._cleaner.columns[self._key]
        if dtype == "string":
            return text
        try:
            pa.array([int(text)], dtypes.arrow_type(dtype))
        except (ValueError, pa.ArrowInvalid, OverflowError):
            raise ValueError(f"message key {text[:100]!r} is no {dtype}") from None
        return int(text)

    def _finish(
        self,
        partition: int,
        wire: pa.RecordBatch,
        offset: _I64,
        index: npt.NDArray[np.int32],
        raw: Callable[[int], bytes],
    ) -> _Part:
        """Cleans; raw(row) is a record as it came, for the letters."""
        batch, rows, bad = self._cleaner.clean(wire)
        for item in bad:
            place = int(offset[item.row]), int(index[item.row])
            self._letter(partition, *place, item.reason, item.detail, raw(item.row))
        return _Part(batch, offset[rows], index[rows], None)

    def _chunk(self, partition: int, parts: list[_Part], after: Position) -> Chunk:
        part = _Part.merged(parts, self._cleaner.schema)
        return Chunk(
            self._topic,
            partition,
            part.batch,
            part.offset,
            part.index,
            int(time.time() * 1000),
            after,
            part.deleted,
        )

    def _letter(
        self, partition: int, offset: int, index: int, reason: Reason, detail: str, value: bytes
    ) -> None:
        self._letters.write(self._topic, partition, offset, index, reason, detail, value)


class _Part:
    """Rows with their positions."""

    def __init__(
        self,
        batch: pa.RecordBatch,
        offset: _I64,
        index: npt.NDArray[np.int32],
        deleted: npt.NDArray[np.bool_] | None,
    ) -> None:
        self.batch, self.offset, self.index, self.deleted = batch, offset, index, deleted

    @staticmethod
    def empty(schema: pa.Schema) -> _Part:
        return _Part(
            pa.RecordBatch.from_pylist([], schema), np.empty(0, np.int64), np.empty(0, np.int32), None
        )

    @staticmethod
    def merged(parts: Sequence[_Part], schema: pa.Schema) -> _Part:
        """One part, in order of position."""
        parts = [part for part in parts if len(part.offset)]
        if not parts:
            return _Part.empty(schema)
        if len(parts) == 1:
            return parts[0]
        batch = pa.concat_batches([part.batch for part in parts])
        offset = np.concatenate([part.offset for part in parts])
        index = np.concatenate([part.index for part in parts])
        deleted = None
        if any(part.deleted is not None for part in parts):
            masks = [
                np.zeros(len(part.offset), bool) if part.deleted is None else part.deleted for part in parts
            ]
            deleted = np.concatenate(masks)
        order = np.lexsort((index, offset))
        if (np.diff(order) == 1).all():
            return _Part(batch, offset, index, deleted)
        deleted = deleted[order] if deleted is not None else None
        return _Part(batch.take(pa.array(order)), offset[order], index[order], deleted)


def _raw_text(values: Sequence[bytes], rows: _I64, row: int) -> bytes:
    return values[int(rows[row])]


def _row_text(batch: pa.RecordBatch, row: int) -> bytes:
    return json.dumps(batch.slice(row, 1).to_pylist()[0], default=_text, ensure_ascii=False).encode()


def _text(value: object) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
