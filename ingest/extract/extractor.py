"""Extractor: a feature plan that runs; record batches in, features out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.ingest.extract.engines import Call, Engines, Wanted
from livectr.ingest.extract.sharing import TooLargeError
from livectr.ingest.language import dtypes
from livectr.ingest.language.expr import Expr
from livectr.ingest.plan.features import Features
from livectr.kernels.runtime.arrays import address
from livectr.kernels.runtime.arrow import exported
from livectr.kernels.runtime.recycled import Recycled
from livectr.system.errors import ConfigError, InternalError

if TYPE_CHECKING:
    from livectr.ingest.extract.device_features import DeviceFeatures
    from livectr.ingest.extract.statistics import Statistics
    from livectr.ingest.plan.dag import FeaturePlan


class Extract(Protocol):
    """Interface of extractors: `Extractor`, `DeviceExtractor` and `MeasuredExtractor`."""

    @property
    def plan(self) -> FeaturePlan:
        """Plan whose features are computed."""

    @property
    def replaced(self) -> int:
        """Count of dense numbers that were not finite and became 0."""

    @property
    def reruns(self) -> int:
        """Count of reruns for want of memory."""

    def __call__(self, batch: pa.RecordBatch, statistics: Statistics | None = None) -> Features:
        """Features of a batch's B rows. Thread-safe.

        Args:
            batch: at least the plan's root columns.
            statistics: running statistics of earlier batches; None: none yet.
        """

    def resident(
        self, batch: pa.RecordBatch, statistics: Statistics | None = None
    ) -> Features | DeviceFeatures:
        """Features of a batch where they were computed, as `__call__`."""


class Extractor:
    """Computes a plan's features on the host.

    It computes from the start: as calls into the library of operators, until the fused plan is compiled in
    the background (`ingest.extract.engines`). Both give the same bits.

    It is thread-safe: each call has its own memory, kept for the next call. The GIL is released while it
    computes.

    Args:
        plan: whose features are computed.
        engine: "calls" or "fused" for one engine alone; the constructor compiles the fused plan, as it does
            for a plan with a user's operator. "soonest" or None: as above.

    Raises:
        ConfigError: a user's operator does not compile, with the compiler's message, or there is no compiler
            for it.
    """

    def __init__(self, plan: FeaturePlan, *, engine: Wanted | None = None) -> None:
        self.plan = plan
        #: count of dense numbers that were not finite and became 0
        self.replaced = 0
        #: count of rows that ran again because a memory pool was full
        self.reruns = 0
        self._engines = Engines(plan, engine)
        self._width = len(plan.dense_names)
        self._initial = plan.initial_states()
        self._initial_states = _addresses(self._initial)
        self._recycled = Recycled(keep=8)
        self._roots = RootColumns([node for node in plan.nodes if node.is_root])

    @property
    def engine(self) -> str:
        """Engine of the next batch: "calls" or "fused"."""
        return self._engines.name

    def wait(self) -> None:
        """Wait until the fused plan is compiled, if it is on its way: for measurements."""
        self._engines.wait()

    def __call__(self, batch: pa.RecordBatch, statistics: Statistics | None = None) -> Features:
        """Compute the features of a batch.

        Columns of the declared types are read in place, slices too; others are cast first. A null is read as
        the column's fill, else as 0, false, "" or an empty list.

        Args:
            batch: columns named like the plan's roots; others are ignored.
            statistics: running statistics of earlier batches; None: before the first batch.

        Raises:
            ConfigError: a column is missing or cannot be cast.
            InternalError: the batch has more than 2³¹ - 1 keys.
        """
        columns, batch = self._roots.bind(batch)
        rows = batch.num_rows
        observed = np.empty((len(self.plan.statistics), rows), np.int64)
        if rows == 0:  # Arrow may leave out the buffers of empty columns
            dense = np.empty((0, self._width), np.float32)
            return Features(
                0, np.zeros(1, np.int32), np.empty(0, np.int64), dense, observed, np.zeros(0, bool)
            )
        width, cells = self._width, len(self.plan.sparse) * rows + 1
        dense = self._room((rows * width + 1) // 2).view(np.float32)[: rows * width].reshape(rows, width)
        failed, counters = np.zeros(rows, bool), np.zeros(2, np.int64)
        states = self._initial_states if statistics is None else _addresses(statistics.arrays)
        _owner, batch_at = exported(batch)  # the plan points into the batch until the call is done
        call = Call(self._engines.now())
        engine, handle = call.engine, call.context.handle
        results = address(dense), address(observed), address(failed)
        nnz = engine.extract(handle, batch_at, address(columns), address(states), *results, None)
        if nnz < 0:
            raise plan_failure(nnz, rows)
        offsets, keys = self._room((cells + 1) // 2).view(np.int32)[:cells], self._room(nnz)
        engine.gather(handle, address(offsets), address(keys), address(counters), None)
        call.done()
        self.replaced += int(counters[0])
        self.reruns += int(counters[1])
        return Features(rows, offsets, keys, dense, observed, failed)

    def resident(self, batch: pa.RecordBatch, statistics: Statistics | None = None) -> Features:
        """Compute the features of a batch, which are on the host."""
        return self(batch, statistics)

    def _room(self, count: int) -> npt.NDArray[np.int64]:
        """Array int64[count], not cleared: memory of an earlier batch, or new memory for a request."""
        return np.empty(count, np.int64) if count <= _SMALL else self._recycled.empty(count)


class RootColumns:
    """Positions of roots in batches, found once for batches of the same schema. Thread-safe.

    Args:
        roots: nodes; several may be of the same column.
    """

    def __init__(self, roots: Sequence[Expr]) -> None:
        self.roots = tuple(roots)
        # One tuple, replaced atomically: other threads see the old or the new tuple.
        self._bound: tuple[pa.Schema, npt.NDArray[np.int32]] | None = None

    def bind(self, batch: pa.RecordBatch) -> tuple[npt.NDArray[np.int32], pa.RecordBatch]:
        """Positions of the roots in the batch, int32[roots], and the batch with exactly their types.

        Dictionary-encoded columns stay encoded.

        Raises:
            ConfigError: a column is missing or cannot be cast.
        """
        if self._bound is not None and batch.schema.equals(self._bound[0]):
            return self._bound[1], batch
        names = batch.schema.names
        arrays = bind_columns(batch, self.roots, encoded=True)
        if all(
            array.type == batch.schema.field(root.name).type
            for root, array in zip(self.roots, arrays, strict=True)
        ):
            columns = np.array([names.index(root.name) for root in self.roots], np.int32)
            self._bound = (batch.schema, columns)
            return columns, batch
        names = [str(index) for index in range(len(arrays))]
        cast = pa.RecordBatch.from_arrays(arrays, names=names) if arrays else batch
        return np.arange(len(arrays), dtype=np.int32), cast


def bind_columns(batch: pa.RecordBatch, roots: Sequence[Expr], *, encoded: bool = False) -> list[pa.Array]:
    """Columns of roots, cast to exactly their types; dictionary-encoded columns stay encoded if `encoded`.

    Raises:
        ConfigError: a column is missing or cannot be cast.
    """
    names = batch.schema.names
    missing = [root.name for root in roots if root.name not in names]
    if missing:
        raise ConfigError(
            f"the batch has no column {', '.join(missing)}; it has {', '.join(names) or 'none'}"
        )
    arrays = []
    for root in roots:
        array = batch.column(names.index(root.name))
        fits = dtypes.is_arrow(array.type, root.dtype) or (
            encoded and dtypes.is_encoded(array.type, root.dtype)
        )
        if not fits:
            try:
                array = array.cast(dtypes.arrow_type(root.dtype))
            except pa.ArrowException as error:
                raise ConfigError(f"column {root.name} is {array.type}, not {root.dtype}: {error}") from error
        arrays.append(array)
    return arrays


_FAILURES = {
    -1: "a batch of {rows} rows has more than 2147483647 keys; use smaller batches",
    -2: "out of memory while features of a batch of {rows} rows were computed",
    -3: "a column of a batch of {rows} rows has offsets that fall, or indices beyond its dictionary",
}
_TOO_LARGE = {
    -4: "features of {rows} candidates have too many values in lists, or strings too long",
    -5: "strings and lists that all {rows} candidates share, times candidates, are too large",
}
_SMALL = 1 << 13
"""Numbers of an array that is not worth a search for memory to use again."""


def plan_failure(failure: int, rows: int) -> TooLargeError | InternalError:
    """Error of a plan that failed on some rows."""
    if failure in _TOO_LARGE:
        return TooLargeError(_TOO_LARGE[failure].format(rows=rows))
    return InternalError(_FAILURES[failure].format(rows=rows))


def _addresses(arrays: Sequence[npt.NDArray[np.generic]]) -> npt.NDArray[np.int64]:
    return np.array([address(array) for array in arrays], np.int64)
