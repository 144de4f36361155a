"""JSON parser: texts become an Arrow batch of the columns in use, and every bad text is named.

Plain objects are read by one compiled call (`kernels.stream.json_columns`). The others of a block are parsed
by one call of pyarrow's JSON reader. When that fails, they are divided until the bad texts are isolated. A
text is valid or not by itself, never by its neighbours in a block: so the rows that reach training depend on
the log alone, however it was cut into blocks. For this reason the depth limit also counts in columns that are
not in use: pyarrow reads them or not depending on the neighbours.

A numeric column may hold true and false, a bool column the numbers 0 and 1, and a column of whole numbers
17.0 (`system.values`). The columns that do are learned from the texts, and this schema is tried
first with the next block.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from livectr.ingest.dead_letters import complaints
from livectr.ingest.dead_letters.letters import Reason
from livectr.ingest.decode.texts import Texts
from livectr.ingest.language import dtypes
from livectr.ingest.limits import LIMITS
from livectr.kernels.stream import json_columns
from livectr.kernels.stream.json_columns import JsonColumns
from livectr.kernels.stream.json_depth import deeper_than
from livectr.system.json_objects import REPEATED, mark_repeated, said
from livectr.system.values import MOST_EXACT, Misfit, UnfitError, meaning

# A column path and its type: ("device", "browser") → "string".
Leaves: TypeAlias = Mapping[tuple[str, ...], str]

# Swapped columns with the type that they are read with: numeric columns that hold bools, bool columns that
# hold numbers, columns of whole numbers that are written 17.0.
_Swapped: TypeAlias = frozenset[tuple[tuple[str, ...], str]]

_AS_DECLARED: _Swapped = frozenset()
_MAX_SCHEMAS = 8
_BLOCK_PARTS = 8
_SMALL_BLOCK = 32  # texts; in smaller blocks each text is checked by itself


@dataclass(frozen=True)
class Bad:
    """Rejected row of a block, with the reason."""

    row: int
    reason: Reason
    detail: str


def parse_block(block: Texts, schema: pa.Schema) -> pa.RecordBatch | None:
    """Parse texts to rows with the columns of `schema`, null where absent; None when any text is bad.

    pyarrow sees the texts as one stream and would not notice two halves of a broken object that make a whole
    one. So each text must begin with `{`, end with `}` and hold no NUL. Then each text gives at least one
    row, and equal counts of rows and texts mean one row each.
    """
    if not len(block):
        return pa.RecordBatch.from_pylist([], schema=schema)
    if not block.are_objects():
        return None
    joined = block.joined().data
    if b"\0" in joined:
        return None
    try:
        table = arrow_json.read_json(
            pa.BufferReader(joined),
            read_options=arrow_json.ReadOptions(use_threads=False, block_size=len(joined) + 1),
            parse_options=arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
        )
        table.validate(full=True)  # UTF-8
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    if table.num_rows != len(block):
        return None
    batches = table.combine_chunks().to_batches()
    batch = batches[0] if batches else pa.RecordBatch.from_pylist([{}] * len(block), schema=schema)
    return batch.select(schema.names)


class JsonRows:
    """Parses JSON objects into the columns `leaves`; a nested path reads inside nested objects.

    Args:
        leaves: path → type; columns of the result are named ".".join(path). Binary columns are base64.
        required: first-level columns that an object must have, though perhaps as null.
        depth: deepest nesting of objects and lists.
    """

    def __init__(self, leaves: Leaves, required: Sequence[str] = (), *, depth: int = LIMITS.depth) -> None:
        self._leaves = dict(leaves)
        self._required = tuple(required)
        self._depth = depth
        self._empty = pa.RecordBatch.from_pylist(
            [], pa.schema([(".".join(path), dtypes.arrow_type(dtype)) for path, dtype in leaves.items()])
        )
        plain = {path: dtypes.arrow_type(dtype) for path, dtype in leaves.items()}
        fast = bool(plain) and all(map(json_columns.reads, plain.values())) and not _overlap(plain)
        self._columns = JsonColumns(plain, self._required, depth=depth) if fast else None
        # Swapped columns → the schema to read them with, most recently used first.
        self._schemas: dict[_Swapped, pa.Schema] = {_AS_DECLARED: pa.schema(_fields(leaves))}

    def parse(self, block: Texts) -> tuple[pa.RecordBatch, npt.NDArray[np.int64], list[Bad]]:
        """Parse a block.

        Returns:
            Batch of n rows, the numbers of their texts int64[n], and the bad texts.
        """
        if self._columns is None:
            return self._all(block)
        arrays, plain = self._columns.read(block.data, block.starts, block.stops)
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._empty.schema)
        if plain.all():
            return batch, np.arange(len(block)), []
        fast, left = np.flatnonzero(plain), np.flatnonzero(~plain)
        others, rows, bad = self._all(block.take(left))
        bad = [Bad(int(left[item.row]), item.reason, item.detail) for item in bad]
        if not len(rows):
            return batch, fast, bad
        where = np.concatenate([fast, left[rows]])
        order = np.argsort(where)
        return pa.concat_batches([batch, others]).take(pa.array(order)), where[order], bad

    def _all(self, block: Texts) -> tuple[pa.RecordBatch, npt.NDArray[np.int64], list[Bad]]:
        """As `parse`, for texts of which some may not be plain."""
        block = block.joined()
        deep = deeper_than(block.data, block.starts, block.stops, self._depth)
        if not len(deep):
            return self._parse(block)
        left = np.setdiff1d(np.arange(len(block)), deep)
        batch, rows, bad = self._parse(block.take(left))
        bad = [Bad(int(left[item.row]), item.reason, item.detail) for item in bad]
        why = f"more than {self._depth} objects and lists within each other"
        bad += [Bad(row, Reason.TOO_DEEP, why) for row in deep.tolist()]
        return batch, left[rows], sorted(bad, key=lambda item: item.row)

    def _parse(self, block: Texts) -> tuple[pa.RecordBatch, npt.NDArray[np.int64], list[Bad]]:
        texts = block.texts
        batch, rows, bad = self._divide(block)
        absent = list(self._absent(batch, rows, texts))
        batch, undecoded = _decode_base64(batch, self._leaves)
        late = [*absent, *(Bad(int(rows[bad_row]), Reason.WRONG_TYPE, text) for bad_row, text in undecoded)]
        if late:
            keep = ~np.isin(rows, [item.row for item in late])
            batch, rows = batch.filter(pa.array(keep)), rows[keep]
            seen: set[int] = set()
            bad += [item for item in late if not (item.row in seen or seen.add(item.row))]  # type: ignore[func-returns-value]
        return batch, rows, sorted(bad, key=lambda item: item.row)

    def _divide(self, block: Texts) -> tuple[pa.RecordBatch, npt.NDArray[np.int64], list[Bad]]:
        texts = block.texts
        batch = self._block(block)
        if batch is not None:
            return batch, np.arange(len(texts), dtype=np.int64), []
        if len(texts) <= _SMALL_BLOCK:
            return self._isolate(texts)
        size = max(_SMALL_BLOCK, -(-len(texts) // _BLOCK_PARTS))
        batches, rows, bad = [], [], []
        for first in range(0, len(texts), size):
            part, part_rows, part_bad = self._divide(block.part(first, min(first + size, len(texts))))
            batches.append(part)
            rows.append(part_rows + first)
            bad += [Bad(item.row + first, item.reason, item.detail) for item in part_bad]
        return pa.concat_batches(batches), np.concatenate(rows), bad

    def _block(self, block: Texts) -> pa.RecordBatch | None:
        """Parse all texts with the first known schema that fits, or return None."""
        for swapped in dict.fromkeys([*self._schemas, _AS_DECLARED]):
            batch = self._read(block, swapped)
            if batch is not None:
                return batch
        return None

    def _read(self, block: Texts, swapped: _Swapped) -> pa.RecordBatch | None:
        """Parse texts with given swapped columns, into flat columns of the declared types.

        None when any text is bad.
        """
        schema = self._schemas.pop(swapped, None)
        if schema is None:
            schema = pa.schema(_fields({**self._leaves, **dict(swapped)}))
        batch = parse_block(block, schema)
        flat = None if batch is None else self._declared(self._flat(batch), swapped)
        if flat is None:
            self._schemas[swapped] = schema
        else:
            self._schemas = dict([(swapped, schema), *self._schemas.items()][:_MAX_SCHEMAS])
        return flat

    def _declared(self, batch: pa.RecordBatch, swapped: _Swapped) -> pa.RecordBatch | None:
        """Cast swapped columns to their declared types; None when a number has no such value."""
        read_as = dict(swapped)
        for index, (path, dtype) in enumerate(self._leaves.items()):
            if path not in read_as:
                continue
            array = batch.column(index)
            if read_as[path] == "float64":  # NaN is null
                array = pc.if_else(pc.is_nan(array), pa.scalar(None, array.type), array)
            if read_as[path] == "bool":
                array = array.cast(pa.int8())
            elif dtype == "bool":
                as_bool = pc.equal(array, 1)
                if pc.any(pc.and_(pc.invert(as_bool), pc.not_equal(array, 0))).as_py():
                    return None
                array = as_bool
            elif not _are_whole(array.flatten() if dtypes.is_list(dtype) else array):
                return None
            try:
                cast = array.cast(dtypes.arrow_type(dtype))
            except pa.ArrowInvalid:
                return None
            batch = batch.set_column(index, ".".join(path), cast)
        return batch

    def _isolate(self, texts: Sequence[bytes]) -> tuple[pa.RecordBatch, npt.NDArray[np.int64], list[Bad]]:
        alike: dict[_Swapped, list[int]] = {}
        bad: list[Bad] = []
        unsure: list[tuple[int, Reason, str]] = []
        for row, text in enumerate(texts):
            swapped: dict[tuple[str, ...], str] = {}
            reason, detail, certain = self._explain(text, swapped)
            if certain and reason is None:
                alike.setdefault(frozenset(swapped.items()), []).append(row)
            elif certain and reason is not None:
                bad.append(Bad(row, reason, detail))
            else:
                unsure.append((row, reason or Reason.BAD_JSON, detail))
        good: list[int] = []
        batches = [self._empty]
        for columns, rows in alike.items():
            batch = self._read(Texts.of([texts[row] for row in rows]), columns)
            if batch is not None:
                good += rows
                batches.append(batch)
            else:
                unsure += [(row, Reason.BAD_JSON, "not strict JSON (a lone surrogate?)") for row in rows]
        for row, reason, detail in unsure:
            batch = self._block(Texts.of([texts[row]]))
            if batch is not None:
                good.append(row)
                batches.append(batch)
            else:
                bad.append(Bad(row, reason, detail))
        order = np.argsort(np.array(good, np.int64))
        return pa.concat_batches(batches).take(pa.array(order)), np.array(good, np.int64)[order], bad

    def _explain(self, text: bytes, swapped: dict[tuple[str, ...], str]) -> tuple[Reason | None, str, bool]:
        """Explain a text by Python's JSON reader.

        swapped: receives the swapped columns of the text, with the type that they are read with.

        Returns:
            (reason, detail, certain): the mistake, or None; certain means that pyarrow must agree.
        """
        if not text.startswith(b"{") or not text.endswith(b"}") or len(text) < 2:
            return Reason.BAD_JSON, "not one whole JSON object", True
        try:
            # An undecodable byte matters only in a column that is in use; pyarrow decides.
            event = json.loads(text.decode("utf-8", "surrogateescape"), object_pairs_hook=mark_repeated)
        except (ValueError, RecursionError) as error:
            # Without the place in the text, so that equal mistakes give equal sentences.
            message = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
            return Reason.BAD_JSON, f"not JSON: {message}", False
        for path, dtype in self._leaves.items():
            value: Any = event
            at = 0
            for depth, name in enumerate(path):
                if value is None or value is REPEATED:
                    break
                if not isinstance(value, dict):
                    parent = ".".join(path[:depth])
                    message = complaints.wrong_type(parent, "an object", complaints.words_of(value))
                    return Reason.WRONG_TYPE, message, True
                value, at = value.get(name), depth + 1
            if value is REPEATED:
                return Reason.BAD_JSON, said(".".join(path[:at])), True
            name = ".".join(path)
            if dtype in dtypes.BYTES:
                if not isinstance(value, str | None):
                    return Reason.WRONG_TYPE, complaints.of_value(name, dtype, value), True
                continue
            try:
                meaning(value, dtype)
            except UnfitError as error:
                reason = Reason.BAD_JSON if error.misfit is Misfit.NO_UTF8 else Reason.WRONG_TYPE
                return reason, complaints.misfit(name, dtype, value, error.misfit), True
            if read_as := _swapped(value, dtype):
                swapped[path] = read_as
        return None, "", True

    def _flat(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if all(len(path) == 1 for path in self._leaves):
            return batch
        arrays = []
        for path in self._leaves:
            array = batch.column(path[0])
            for name in path[1:]:
                # flatten() keeps the parents' nulls, field() would not.
                array = array.flatten()[array.type.get_field_index(name)]
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, names=[".".join(path) for path in self._leaves])

    def _absent(
        self, batch: pa.RecordBatch, rows: npt.NDArray[np.int64], texts: Sequence[bytes]
    ) -> list[Bad]:
        """Rows without a required column. pyarrow reads absent columns as null, so only nulls are checked."""
        bad = []
        for name in self._required:
            index = batch.schema.get_field_index(name)
            if index < 0 or batch.column(index).null_count == 0:
                continue
            null_token = (b'"%b":null' % name.encode(), b'"%b": null' % name.encode())
            for row in rows[np.asarray(batch.column(index).is_null())].tolist():
                text = texts[row]
                # Without an inner object the token can only be the column: quotes in strings are escaped.
                if text.count(b"{") == 1 and (null_token[0] in text or null_token[1] in text):
                    continue
                try:
                    event = json.loads(text.decode("utf-8", "surrogateescape"))
                except ValueError as error:  # pyarrow knows more numbers: Inf, and integers of any length
                    bad.append(Bad(row, Reason.BAD_JSON, str(error)))
                    continue
                if name not in event:
                    bad.append(Bad(row, Reason.MISSING_COLUMN, complaints.missing_column(name, event)))
        return bad


def _overlap(paths: Collection[tuple[str, ...]]) -> bool:
    """Return true if a path is the beginning of another."""
    return any(path == other[: len(path)] for path in paths for other in paths if other is not path)


def _fields(leaves: Leaves) -> list[pa.Field]:
    """Nested Arrow fields of paths, in order of first appearance."""
    groups: dict[str, dict[tuple[str, ...], str]] = {}
    for path, dtype in leaves.items():
        groups.setdefault(path[0], {})[path[1:]] = dtype
    return [
        pa.field(name, dtypes.arrow_type(inner[()]) if () in inner else pa.struct(_fields(inner)))
        for name, inner in groups.items()
    ]


def _swapped(value: Any, dtype: str) -> str | None:
    """Type to read a value with that is not written as its column's type, or None."""
    if dtype == "bool":
        return "float64" if type(value) in (int, float) else None
    if dtype in dtypes.NUMBERS and type(value) is bool:
        return "bool"
    item = dtypes.element(dtype)
    if item not in ("int64", "int32"):
        return None
    if isinstance(value, list):
        return dtypes.list_of("float64") if any(type(one) is float for one in value) else None
    return "float64" if type(value) is float else None


def _are_whole(array: pa.Array) -> bool:
    """Tell if every number float64[n] is a whole one that float64 tells from its neighbours."""
    numbers = array.drop_null().to_numpy()
    return bool(((np.abs(numbers) <= MOST_EXACT) & (numbers == np.floor(numbers))).all())


def _decode_base64(batch: pa.RecordBatch, leaves: Leaves) -> tuple[pa.RecordBatch, list[tuple[int, str]]]:
    """Decode columns of base64 text to bytes; undecodable texts are reported and become null."""
    bad = []
    for index, (path, dtype) in enumerate(leaves.items()):
        if dtype not in dtypes.BYTES:
            continue
        values: list[bytes | None] = []
        for row, text in enumerate(batch.column(index).to_pylist()):
            try:
                values.append(None if text is None else base64.b64decode(text, validate=True))
            except ValueError as error:  # binascii.Error, or letters that are not ASCII
                values.append(None)
                bad.append((row, f"column `{'.'.join(path)}` is not base64 ({error})"))
        batch = batch.set_column(index, batch.schema.field(index), pa.array(values, pa.binary()))
    return batch, bad
