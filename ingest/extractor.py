"""A compiled feature plan: record batches in, features out."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ingest import dtypes
from ingest.codegen import host_source
from ingest.expr import Expr
from ingest.features import Features
from ingest.operators.user import located
from ingest.resources import initial_states, resource_words, resources
from kernels.compiler import compile_host
from kernels.errors import ConfigError, InternalError, KernelError
from kernels.recycled import Recycled

if TYPE_CHECKING:
    from ingest.plan import FeaturePlan
    from ingest.statistics import Statistics

_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


class Extract(Protocol):
    """What computes a plan's features: an `Extractor`, or a `DeviceExtractor`."""

    plan: FeaturePlan
    replaced: int
    reruns: int

    def __call__(self, batch: pa.RecordBatch, statistics: Statistics | None = None) -> Features: ...


class Extractor:
    """Computes a plan's features on the host. Safe to call from several threads: each call has its own
    memory, kept for the next one. The GIL is released while it computes.

    Raises ConfigError, with the compiler's text, when a user's operator does not compile.
    """

    def __init__(self, plan: FeaturePlan) -> None:
        self.plan = plan
        #: dense numbers that were not finite and became 0, so far
        self.replaced = 0
        #: rows that ran again because a memory pool was full, so far
        self.reruns = 0
        self._library = _load(plan)
        self._words = resource_words(
            plan, [[array.ctypes.data for array in one.arrays] for one in resources(plan)]
        )
        self._initial = initial_states(plan)
        self._contexts: list[_Context] = []
        self._recycled = Recycled(keep=8)
        # One tuple, replaced whole, so that other threads see the old or the new one.
        self._bound: tuple[Any, npt.NDArray[np.int32]] | None = None
        self._roots = tuple(node for node in plan.nodes if node.is_root)

    def __call__(self, batch: pa.RecordBatch, statistics: Statistics | None = None) -> Features:
        """Features of a batch whose columns are named like the plan's roots (others are ignored).

        statistics: what is known of earlier batches; None: nothing.

        Columns of the declared types are read where they lie, slices too; others are cast first. A null is
        the column's fill, else 0, false, "" or an empty list. Raises ConfigError when a column is missing or
        cannot be cast, InternalError when a batch has more than 2³¹ - 1 keys.
        """
        columns, batch = self._bind(batch)
        rows, plan, library = batch.num_rows, self.plan, self._library
        width = len(plan.dense_names)
        numbers = self._recycled.empty((rows * width + 1) // 2).view(np.float32)
        dense = numbers[: rows * width].reshape(rows, width)
        observed = np.empty((len(plan.statistics), rows), np.int64)
        failed = np.zeros(rows, bool)
        if rows == 0:  # Arrow may leave out the buffers of empty columns
            return Features(0, np.zeros(1, np.int32), np.empty(0, np.int64), dense, observed, failed)
        cells = len(plan.sparse) * rows + 1
        offsets = self._recycled.empty((cells + 1) // 2).view(np.int32)[:cells]
        arrays = self._initial if statistics is None else statistics.arrays
        states = np.array([array.ctypes.data for array in arrays], np.int64)
        context = self._contexts.pop() if self._contexts else _Context(library, self._words)
        # The capsule owns the exported batch: the plan points into it until the call is done.
        capsule = batch.__arrow_c_array__()[1]
        nnz = library.extract(
            context.handle,
            _capsule_pointer(capsule, b"arrow_array"),
            columns.ctypes.data,
            states.ctypes.data,
            dense.ctypes.data,
            observed.ctypes.data,
            failed.ctypes.data,
        )
        if nnz < 0:
            raise InternalError(_FAILURES[nnz].format(rows=rows))
        keys = self._recycled.empty(nnz)
        counters = np.empty(2, np.int64)
        library.gather(context.handle, offsets.ctypes.data, keys.ctypes.data, counters.ctypes.data)
        self._contexts.append(context)
        self.replaced += int(counters[0])
        self.reruns += int(counters[1])
        return Features(rows, offsets, keys, dense, observed, failed)

    def _bind(self, batch: pa.RecordBatch) -> tuple[npt.NDArray[np.int32], pa.RecordBatch]:
        """Positions of the roots in the batch, int32[roots], and the batch with exactly their types."""
        if self._bound is not None and batch.schema.equals(self._bound[0]):
            return self._bound[1], batch
        names = batch.schema.names
        arrays = bind_columns(batch, self._roots, encoded=True)
        if all(
            array.type == batch.schema.field(root.name).type
            for root, array in zip(self._roots, arrays, strict=True)
        ):
            columns = np.array([names.index(root.name) for root in self._roots], np.int32)
            self._bound = (batch.schema, columns)
            return columns, batch
        names = [str(index) for index in range(len(arrays))]
        cast = pa.RecordBatch.from_arrays(arrays, names=names) if arrays else batch
        return np.arange(len(arrays), dtype=np.int32), cast


def bind_columns(batch: pa.RecordBatch, roots: Sequence[Expr], *, encoded: bool = False) -> list[pa.Array]:
    """The columns of roots, in exactly their types; dictionary-encoded ones stay so if `encoded`. Raises
    ConfigError when one is missing or cannot be cast."""
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
}


class _Context:
    """Memory of one call at a time."""

    def __init__(self, library: ctypes.CDLL, words: npt.NDArray[np.int64]) -> None:
        self._library = library
        self.handle = library.create(words.ctypes.data)

    def __del__(self) -> None:
        self._library.destroy(self.handle)


def _load(plan: FeaturePlan) -> ctypes.CDLL:
    try:
        library = compile_host(host_source(plan), name="features")
    except KernelError as error:
        raise explained(error) from None
    pointer = ctypes.c_void_p
    library.create.argtypes, library.create.restype = [pointer], pointer
    library.destroy.argtypes, library.destroy.restype = [pointer], None
    library.extract.argtypes, library.extract.restype = [pointer] * 7, ctypes.c_int64
    library.gather.argtypes, library.gather.restype = [pointer] * 4, None
    return library


def explained(error: KernelError) -> ConfigError | KernelError:
    """A user's mistake, with the places in the user's file, where the compiler's text points at a user's
    operator, else ours."""
    name, text = located(str(error).partition("\n")[2])
    if not name:
        return error
    return ConfigError(f"operator {name!r} does not compile; correct its expression:\n{text}")
