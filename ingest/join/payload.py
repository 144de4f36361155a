"""Columns of an impression that its example keeps."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from livectr.ingest.language import dtypes
from livectr.ingest.language.expr import RecentRef
from livectr.ingest.language.keys import key_of
from livectr.ingest.pipeline import Pipeline
from livectr.kernels.keys.keys import combine_keys
from livectr.system.errors import MismatchError

I64 = npt.NDArray[np.int64]

USER, INSTANCE, TIME, ITEM = "#user", "#instance", "#time", "#item"
"""Columns of an example besides the roots: keys of the user, of the label join and of the item, and event
time."""


def lookup_column(topic: str) -> str:
    """Name of the example column that holds the key into a look-up table."""
    return f"#key:{topic}"


def _width(kind: pa.DataType) -> int:
    """Bytes of a value; 0 for types of variable length."""
    return 0 if _is_list(kind) or kind.num_buffers > 2 else -(-kind.bit_width // 8)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind))


def _lengths(array: pa.Array) -> npt.NDArray[np.int32]:
    """Lengths of texts or lists, int32[n]; 0 for null."""
    if array.null_count:
        count = pc.list_value_length if _is_list(array.type) else pc.binary_length
        return np.asarray(count(array).fill_null(0).to_numpy())
    if not len(array):
        return np.empty(0, np.int32)
    offsets = np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1]
    return offsets[1:] - offsets[:-1]


class Payload:
    """Projects rows of impressions to rows of examples.

    Args:
        pipeline: its roots, look-ups and item column say which columns are kept.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self.roots = {root.name: root.params[0].column for root in pipeline.request_roots}
        fields = [(root.name, dtypes.arrow_type(root.dtype)) for root in pipeline.request_roots]
        self.histories = tuple(root.name for root in pipeline.plan.roots if isinstance(root.ref, RecentRef))
        fields += [(name, dtypes.arrow_type("list<int64>")) for name in self.histories]
        self.amounts = tuple(root.name for root in pipeline.amounts.values())
        fields += [(root.name, dtypes.arrow_type(root.dtype)) for root in pipeline.amounts.values()]
        self.lookups = pipeline.joined
        fields += [(lookup_column(lookup.table.topic), pa.int64()) for lookup in self.lookups]
        self.item = pipeline.item_column
        self.schema = pa.schema([*fields, *((name, pa.int64()) for name in (USER, INSTANCE, TIME, ITEM))])
        longest = sum(root.ref.n for root in pipeline.plan.roots if isinstance(root.ref, RecentRef))
        types = {self.roots[name]: kind for name, kind in fields if name in self.roots}
        self._texts = [column for column, kind in types.items() if not _width(kind) and not _is_list(kind)]
        self._lists = [
            (column, _width(kind.value_type) or 16) for column, kind in types.items() if _is_list(kind)
        ]
        # A text or list counts 4 bytes for its offset.
        self._fixed_bytes = 8 * longest + sum(_width(field.type) or 4 for field in self.schema)

    def sizes(self, batch: pa.RecordBatch) -> I64:
        """Bytes of each row of an impression batch, int64[n]; histories count with their greatest length."""
        sizes = np.full(batch.num_rows, self._fixed_bytes, np.int64)
        for column in self._texts:
            sizes += _lengths(batch.column(column))
        for column, width in self._lists:
            sizes += width * _lengths(batch.column(column)).astype(np.int64)
        return sizes

    def rows(
        self, batch: pa.RecordBatch, histories: Mapping[str, pa.Array], user: I64, instance: I64, time: I64
    ) -> pa.RecordBatch:
        """Rows of examples, in the columns of `schema`.

        Args:
            batch: n rows of impressions.
            histories: name of a recent() root → list<int64>[n].
            user: int64[n], user keys.
            instance: int64[n], join keys.
            time: int64[n], event times in ms.
        """
        keys = [
            reduce(combine_keys, (key_of(batch.column(name)) for name in lookup.keys))
            for lookup in self.lookups
        ]
        item = np.zeros(len(user), np.int64) if self.item is None else key_of(batch.column(self.item))
        arrays = [
            *(batch.column(column) for column in self.roots.values()),
            *(histories[name] for name in self.histories),
            *(pa.nulls(len(user), self.schema.field(name).type) for name in self.amounts),
            *(pa.array(values) for values in (*keys, user, instance, time, item)),
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def cast_saved(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Cast saved example rows to a schema; additional saved columns are dropped.

    Raises:
        MismatchError: a column is missing, because the rows were read for fewer features.
    """
    missing = [name for name in schema.names if name not in table.column_names]
    if missing and len(table):
        raise MismatchError(
            f"{len(table)} examples that wait in the checkpoint lack {', '.join(missing)}, which their "
            "features need; continue with the materialized features that the checkpoint was made with"
        )
    return table.select(schema.names).cast(schema) if not missing else schema.empty_table()
