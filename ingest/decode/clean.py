"""Cleaning (FeatureBox §3): extract JSON fields, fill nulls, reject unusable values, filter rows.

The result has the columns in use. Nulls and NaN, which many tools write for a missing number, become the
declared fill. Without a fill they stay null: features read them as `fill_null()` says, else as 0, "", false
or an empty list. A null image has no bytes. Infinity, an undecodable image and a label other than 0 and 1 are
rejected. Event times become milliseconds; a time that is probably in another unit is rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from livectr.ingest.dead_letters import complaints
from livectr.ingest.dead_letters.letters import Reason
from livectr.ingest.decode import images
from livectr.ingest.decode.arrow_rows import WireColumns
from livectr.ingest.decode.json_rows import Bad, JsonRows
from livectr.ingest.decode.texts import Texts
from livectr.ingest.extract.extractor import Extractor
from livectr.ingest.language import dtypes, event_times
from livectr.ingest.language.roots import roots_of
from livectr.ingest.language.streams import Stream
from livectr.ingest.language.tables import Table
from livectr.ingest.limits import LIMITS
from livectr.ingest.plan.dag import FeaturePlan

Mask: TypeAlias = Callable[[pa.RecordBatch], npt.NDArray[np.bool_]]


class Cleaner:
    """Cleans batches of one stream or table.

    Args:
        stream: declaration.
        columns: columns in use; key, time and columns of `where` are added. None: every declared column.
        required: columns that may not be null, besides key and time.
        label: column that holds labels.
        mask: filter in place of the declaration's compiled `where`.
        depth: deepest nesting of objects and lists in a column of JSON text.

    Attributes:
        columns: name → type of the columns in use.
        schema: of clean batches.
        fill: column → value for nulls.
        declared_fill: columns whose fill the stream declares: they may be absent.
        json_fields: column in use → path, whose first part is its origin.
        wire: columns that are read: a JSON field through its origin.
    """

    def __init__(
        self,
        stream: Stream | Table,
        columns: Sequence[str] | None = None,
        *,
        required: Collection[str] = (),
        label: str | None = None,
        mask: Mask | None = None,
        depth: int = LIMITS.depth,
    ) -> None:
        self.columns = _columns_in_use(stream, columns, required)
        self.schema = pa.schema([(name, dtypes.arrow_type(dtype)) for name, dtype in self.columns.items()])
        self.fill: dict[str, Any] = {name: b"" for name, dtype in self.columns.items() if dtype == "image"}
        self.declared_fill: set[str] = set()
        self.json_fields: dict[str, tuple[str, ...]] = {}  # column in use → path
        if isinstance(stream, Stream):
            self.fill.update({name: value for name, value in stream.fill.items() if name in self.columns})
            self.declared_fill = set(stream.fill)
            self.json_fields = {
                name: tuple(path.split("."))
                for name, path in stream.json_fields.items()
                if name in self.columns
            }
        plain = {name: dtype for name, dtype in self.columns.items() if name not in self.json_fields}
        origins = {path[0]: stream.columns[path[0]] for path in self.json_fields.values()}
        units = {stream.time: stream.time_unit or "ms"} if stream.time else {}
        self.wire = WireColumns({**plain, **origins}, self.declared_fill, units)
        self._lists = {name for name, dtype in self.columns.items() if dtypes.is_list(dtype)}
        self._fractions = {
            name for name, dtype in self.columns.items() if dtypes.element(dtype) in ("float32", "float64")
        }
        self._label = label
        self._time, self._unit = stream.time, stream.time_unit
        self._never_null = {stream.key, stream.time, *required} - {None} - self.declared_fill
        self._mask = compile_filter(stream) if mask is None and isinstance(stream, Stream) else mask
        self._inner = {
            origin: (
                names,
                JsonRows({path[1:]: self.columns[name] for name, path in names.items()}, depth=depth),
            )
            for origin in dict.fromkeys(path[0] for path in self.json_fields.values())
            for names in [{name: path for name, path in self.json_fields.items() if path[0] == origin}]
        }

    def clean(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, npt.NDArray[np.int64], list[Bad]]:
        """Clean a batch.

        Args:
            batch: the columns in use, with either a JSON field's column or its origin.

        Returns:
            Clean batch of n rows, their row numbers in `batch` int64[n], and the rejected rows.
        """
        good = np.ones(batch.num_rows, bool)
        bad: dict[int, Bad] = {}

        def reject(rows: npt.NDArray[np.bool_], reason: Reason, detail: str) -> None:
            for row in np.flatnonzero(rows & good).tolist():
                bad[row] = Bad(row, reason, detail)
            good[rows] = False

        arrays = {name: batch.column(name) for name in batch.schema.names}
        for origin, (names, parser) in self._inner.items():
            if origin in arrays and not all(name in arrays for name in names):
                parsed, wrong = _take_fields(arrays[origin], parser)
                for item in wrong:
                    bad.setdefault(item.row, Bad(item.row, item.reason, f"column {origin}: {item.detail}"))
                    good[item.row] = False
                for name, path in names.items():
                    arrays[name] = parsed.column(".".join(path[1:]))
        columns = []
        for name, dtype in self.columns.items():
            array = arrays[name]
            if name in self._fractions:
                array, infinite = nan_as_null(array, dtype)
                reject(infinite, Reason.WRONG_TYPE, complaints.not_finite(name))
            if name == self._label and dtype != "bool":
                for row in np.flatnonzero(_not_binary(array) & good).tolist():
                    message = complaints.wrong_label(name, array[row].as_py())
                    bad[row] = Bad(row, Reason.BAD_LABEL, message)
                    good[row] = False
            if name == self._time:
                array, likely = event_times.milliseconds(array, self._unit)
                for unit, other in likely.items():
                    reject(other, Reason.BAD_TIME, complaints.wrong_unit(name, unit))
            if array.null_count and name in self._never_null:
                fills = name not in (self._time, self._label)
                reject(_bools(array.is_null()), Reason.WRONG_TYPE, complaints.empty(name, fills=fills))
            if dtype == "image":
                for row in np.flatnonzero(good).tolist():
                    if array[row].is_valid and (wrong_image := images.complaint(array[row].as_py())):
                        bad[row] = Bad(row, Reason.BAD_IMAGE, f"column {name}: {wrong_image}")
                        good[row] = False
            if name in self._lists:
                reject(holey(array), Reason.WRONG_TYPE, complaints.null_inside(name))
            columns.append(self._filled(array, name))
        clean = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        if not good.all():
            clean = clean.filter(pa.array(good))
        rows = np.flatnonzero(good)
        if self._mask is not None and clean.num_rows:
            keep = self._mask(clean)
            if not keep.all():
                clean, rows = clean.filter(pa.array(keep)), rows[keep]
        return clean, rows, [bad[row] for row in sorted(bad)]

    def _filled(self, array: pa.Array, name: str) -> pa.Array:
        if array.null_count == 0 or name not in self.fill:
            return array
        kind = self.schema.field(name).type
        return pc.coalesce(array, pa.scalar(self.fill[name], kind))


def _columns_in_use(
    stream: Stream | Table, columns: Sequence[str] | None, required: Collection[str]
) -> dict[str, str]:
    """Name → type of the columns to decode, in declared order: also key, time and columns of `where`."""
    condition = stream.filter if isinstance(stream, Stream) else None
    wanted = set(stream.columns if columns is None else columns) | {stream.key, *required}
    wanted |= {stream.time} if stream.time is not None else set()
    wanted |= {root.params[0].column for root in roots_of(condition)} if condition is not None else set()
    for name in wanted - set(stream.columns):
        stream[name]  # raises: not declared
    return {name: dtype for name, dtype in stream.columns.items() if name in wanted}


def compile_filter(stream: Stream) -> Mask | None:
    """Compile the stream's `where`: a function from a clean batch, columns by their own names, to bool[n]."""
    condition = stream.filter
    if condition is None:
        return None
    plan = FeaturePlan({}, {"where": condition})
    extract = Extractor(plan)
    roots = {root.name: root.params[0].column for root in plan.roots}

    def mask(batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        named = pa.RecordBatch.from_arrays([batch.column(column) for column in roots.values()], list(roots))
        keep: npt.NDArray[np.bool_] = extract(named).dense[:, 0] != 0
        return keep

    return mask


def _take_fields(texts: pa.Array, parser: JsonRows) -> tuple[pa.RecordBatch, list[Bad]]:
    """Extract fields from a column of JSON objects; null where the text is null, empty or bad."""
    values = [(text or b"").strip() or b"{}" for text in texts.cast(pa.binary()).to_pylist()]
    parsed, rows, bad = parser.parse(Texts.of(values))
    if len(rows) == len(values):
        return parsed, bad
    places = np.full(len(values), -1, np.int64)
    places[rows] = np.arange(len(rows))
    return parsed.take(pa.array(places, mask=places < 0)), bad


def nan_as_null(array: pa.Array, dtype: str) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
    """(array with null for NaN, bool[n]: rows with an infinite number, or with any such item of a list)."""
    if dtypes.is_list(dtype):
        items = array.flatten()
        finite = np.isfinite(items.to_numpy(zero_copy_only=False))
        if finite.all():
            return array, np.zeros(len(array), bool)
        sick = np.zeros(len(array), bool)
        sick[_parents(array)[~finite]] = True
        return array, sick
    if array.null_count == 0 and np.isfinite(array.to_numpy(zero_copy_only=False)).all():
        return array, np.zeros(len(array), bool)
    infinite = _bools(pc.fill_null(pc.is_inf(array), False))
    nan = pc.fill_null(pc.is_nan(array), False)
    return pc.if_else(nan, pa.scalar(None, array.type), array), infinite


def _not_binary(array: pa.Array) -> npt.NDArray[np.bool_]:
    """Mask of the numbers that are neither 0 nor 1; null is ignored: bool[n]."""
    numbers = (array.fill_null(0) if array.null_count else array).to_numpy(zero_copy_only=False)
    wrong: npt.NDArray[np.bool_] = (numbers != 0) & (numbers != 1)
    return wrong


def holey(array: pa.Array) -> npt.NDArray[np.bool_]:
    """Mask of the lists with a null inside: bool[n]."""
    holes = np.zeros(len(array), bool)
    items = array.flatten()
    if items.null_count:
        holes[_parents(array)[_bools(items.is_null())]] = True
    return holes


def _parents(array: pa.Array) -> npt.NDArray[np.int64]:
    """Row of every list item, int64[m]."""
    return np.asarray(pc.list_parent_indices(array), np.int64)


def _bools(array: Any) -> npt.NDArray[np.bool_]:
    return np.asarray(array.to_numpy(zero_copy_only=False), bool)
