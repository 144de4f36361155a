"""A compiled feature plan: record batches in, features out."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ingest import dtypes
from ingest.codegen import host_source
from ingest.features import Features
from kernels.compiler import compile_host
from kernels.errors import ConfigError, InternalError, KernelError

if TYPE_CHECKING:
    from ingest.plan import FeaturePlan

_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


class Extractor:
    """Computes a plan's features on the host. Safe to call from several threads: each call has its own
    memory, kept for the next one. The GIL is released while it computes.

    Raises ConfigError, with the compiler's text, when a user's operator does not compile.
    """

    def __init__(self, plan: FeaturePlan) -> None:
        self.plan = plan
        #: dense numbers that were not finite and became 0, so far
        self.replaced = 0
        self._library = _load(plan)
        self._contexts: list[_Context] = []
        # One tuple, replaced whole, so that other threads see the old or the new one.
        self._bound: tuple[Any, npt.NDArray[np.int32]] | None = None
        self._roots = tuple(node for node in plan.nodes if node.is_root)

    def __call__(self, batch: pa.RecordBatch) -> Features:
        """Features of a batch whose columns are named like the plan's roots (others are ignored).

        Columns of the declared types are read where they lie, slices too; others are cast first. A null is
        the column's fill, else 0, false, "" or an empty list. Raises ConfigError when a column is missing or
        cannot be cast, InternalError when a batch has more than 2³¹ - 1 keys or bytes of a string column.
        """
        columns, batch = self._bind(batch)
        rows, plan, library = batch.num_rows, self.plan, self._library
        if rows == 0:  # Arrow may leave out the buffers of empty columns
            return Features(
                0, np.zeros(1, np.int32), np.empty(0, np.int64), np.empty((0, len(plan.dense)), np.float32)
            )
        offsets = np.empty(len(plan.sparse) * rows + 1, np.int32)
        dense = np.empty((rows, len(plan.dense)), np.float32)
        context = self._contexts.pop() if self._contexts else _Context(library)
        # The capsule owns the exported batch: the plan points into it until emit() is done.
        capsule = batch.__arrow_c_array__()[1]
        address = _capsule_pointer(capsule, b"arrow_array")
        nnz = library.extract(context.handle, address, columns.ctypes.data)
        if nnz < 0:
            raise InternalError(_FAILURES[nnz].format(rows=rows))
        keys = np.empty(nnz, np.int64)
        self.replaced += library.emit(
            context.handle, offsets.ctypes.data, keys.ctypes.data, dense.ctypes.data
        )
        self._contexts.append(context)
        return Features(rows, offsets, keys, dense)

    def _bind(self, batch: pa.RecordBatch) -> tuple[npt.NDArray[np.int32], pa.RecordBatch]:
        """Positions of the roots in the batch, int32[roots], and the batch with exactly their types."""
        if self._bound is not None and batch.schema.equals(self._bound[0]):
            return self._bound[1], batch
        names = batch.schema.names
        missing = [root.name for root in self._roots if root.name not in names]
        if missing:
            raise ConfigError(
                f"the batch has no column {', '.join(missing)}; it has {', '.join(names) or 'none'}"
            )
        columns = np.array([names.index(root.name) for root in self._roots], np.int32)
        if all(
            dtypes.is_arrow(batch.schema.field(int(column)).type, root.dtype)
            for column, root in zip(columns, self._roots, strict=True)
        ):
            self._bound = (batch.schema, columns)
            return columns, batch
        arrays = []
        for column, root in zip(columns, self._roots, strict=True):
            array = batch.column(int(column))
            if not dtypes.is_arrow(array.type, root.dtype):
                try:
                    array = array.cast(dtypes.arrow_type(root.dtype))
                except pa.ArrowException as error:
                    raise ConfigError(
                        f"column {root.name} is {array.type}, not {root.dtype}: {error}"
                    ) from error
            arrays.append(array)
        names = [str(index) for index in range(len(arrays))]
        cast = pa.RecordBatch.from_arrays(arrays, names=names) if arrays else batch
        return np.arange(len(arrays), dtype=np.int32), cast


_FAILURES = {
    -1: "a feature of a batch of {rows} rows has more than 2147483647 values; use smaller batches",
    -2: "out of memory while features of a batch of {rows} rows were computed",
}


class _Context:
    """Memory of one call at a time."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self.handle = library.create()

    def __del__(self) -> None:
        self._library.destroy(self.handle)


def _load(plan: FeaturePlan) -> ctypes.CDLL:
    try:
        library = compile_host(host_source(plan), name="features")
    except KernelError as error:
        raise _explained(plan, error) from None
    pointer = ctypes.c_void_p
    library.create.restype = pointer
    library.destroy.argtypes, library.destroy.restype = [pointer], None
    library.extract.argtypes, library.extract.restype = [pointer, pointer, pointer], ctypes.c_int64
    library.emit.argtypes, library.emit.restype = [pointer, pointer, pointer, pointer], ctypes.c_int64
    return library


def _explained(plan: FeaturePlan, error: KernelError) -> ConfigError | KernelError:
    """A user's mistake where the compiler's text points at a user's operator (its #line says
    `operator NAME`), else ours."""
    for node in plan.nodes:
        if f"operator {node.op}:" in str(error):
            text = str(error).partition("\n")[2]
            return ConfigError(f"operator {node.op!r} does not compile; correct its expression:\n{text}")
    return error
