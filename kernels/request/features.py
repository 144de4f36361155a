"""Enrich → extract in compiled calls: Python interface of `request/features.cpp`."""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from livectr.kernels.request.parse import RequestColumn, options_of
from livectr.kernels.runtime.arrays import address
from livectr.kernels.runtime.library import kernel_library, quick_library

EXTRACTED: Final = 0
MISSING_INPUTS: Final = 1
"""A look-up row is too old, or histories were not given."""
FAILED_ROWS: Final = 2
"""A feature of a row, or of the row that all rows share, has too many values."""
NO_MEMORY: Final = 3
BAD_HISTORY: Final = 4
"""A history has a piece of a pair."""
BAD_COLUMN: Final = 5
COLUMN, LOOKUP, HISTORY = range(3)
"""Kinds of a root; `Source` of `features.cpp`."""


@dataclass(frozen=True)
class RootSource:
    """Source of a plan's root.

    Args:
        kind: COLUMN, LOOKUP or HISTORY.
        number: of the column of the stream, of the look-up or of the history.
        column: number of the column of the look-up's table.
    """

    kind: int
    number: int
    column: int = 0


@dataclass(frozen=True)
class InputLayout:
    """Inputs of a feature plan.

    Args:
        columns: of the stream.
        roots: in the order of the compiled plan.
        lookups: columns whose values make the keys, for each look-up.
        histories: most items and longest age in ms, for each history.
        user: column of the user; -1: none is read.
        item: column of the items; -1: their keys are not wanted.
    """

    columns: Sequence[RequestColumn]
    roots: Sequence[RootSource]
    lookups: Sequence[Sequence[int]]
    histories: Sequence[tuple[int, int]]
    user: int = -1
    item: int = -1


class FeatureCall(ctypes.Structure):
    """`FeatureCall` of `features.hpp`: arguments and results of a call."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("plan", "memory", "context", "candidates", "places")),
        *((name, ctypes.c_void_p) for name in ("shares", "fields")),
        *((name, ctypes.c_int64) for name in ("own", "shared", "rows", "now_ms")),
        ("tables", ctypes.c_void_p),
        ("since", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in ("slots", "values", "value_bytes")),
        *((name, ctypes.c_void_p) for name in ("extract", "gather", "gather_shared", "context_of_plan")),
        *((name, ctypes.c_int64) for name in ("width", "most_values", "most_bytes", "most_read")),
        ("states", ctypes.c_void_p),
        *((name, ctypes.c_void_p) for name in ("keys", "key_counts", "items")),
        *((name, ctypes.c_int64) for name in ("user", "has_user")),
        ("oldest", ctypes.c_double),
        *((name, ctypes.c_int64) for name in ("outcome", "extracted")),
        *((name, ctypes.c_void_p) for name in ("own_offsets", "own_keys", "shared_offsets", "shared_keys")),
        *((name, ctypes.c_int64) for name in ("own_count", "shared_count")),
        *((name, ctypes.c_void_p) for name in ("dense", "failed")),
        ("shared_failed", ctypes.c_int64),
        *((name, ctypes.c_double) for name in ("enriched_at", "extracted_at")),
    )


class FeatureMemory:
    """Memory of a request's compiled calls, for one request at a time.

    Attributes:
        call: arguments and results of the call for its features.
        at: address of the call.
        clear: takes back the memory of all results.
    """

    def __init__(self) -> None:
        self._delete, self._clear = (
            _quick_calls().features_memory_delete,
            _quick_calls().features_memory_clear,
        )
        self.handle = _quick_calls().features_memory_new()
        if not self.handle:
            raise MemoryError("no memory for the features of a request")
        self.clear = functools.partial(_quick_calls().features_memory_clear, self.handle)
        self.call = FeatureCall()
        self.call.memory, self.at = self.handle, ctypes.addressof(self.call)

    def __del__(self) -> None:
        if handle := getattr(self, "handle", None):
            self._delete(handle)


class CompiledInputs:
    """Compiled enrichment and extraction of a feature plan's requests. Thread-safe.

    Args:
        layout: of the inputs.

    Attributes:
        handle: `plan` of its calls.
    """

    def __init__(self, layout: InputLayout) -> None:
        self.layout = layout
        numbers = [layout.user, layout.item]
        for root in layout.roots:
            numbers += [root.kind, root.number, root.column]
        for columns in layout.lookups:
            numbers += [len(columns), *columns]
        for history in layout.histories:
            numbers += history
        sizes = np.array([len(layout.roots), len(layout.lookups), len(layout.histories)], np.int64)
        words = np.array(numbers, np.int64)
        self.handle = _library().features_new(address(sizes), address(words))
        if not self.handle:
            raise MemoryError("no memory for a feature plan")
        weakref.finalize(self, _library().features_delete, self.handle)
        for column in layout.columns:
            options, fill = options_of(column)
            _library().features_column(self.handle, ctypes.byref(options), fill)


def answer(memory: FeatureMemory) -> int:
    """Compute the features of a call: an outcome, or a negative failure of the plan."""
    outcome: int = _library().features_answer(memory.at)
    return outcome


@functools.cache
def _library() -> ctypes.CDLL:
    library = kernel_library()
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    library.features_new.restype, library.features_new.argtypes = pointer, [pointer, pointer]
    library.features_delete.restype, library.features_delete.argtypes = None, [pointer]
    library.features_column.restype = None
    library.features_column.argtypes = [pointer, pointer, ctypes.c_char_p]
    library.features_answer.restype, library.features_answer.argtypes = number, [pointer]
    return library


@functools.cache
def _quick_calls() -> ctypes.PyDLL:
    quick = quick_library()
    quick.features_memory_new.restype, quick.features_memory_new.argtypes = ctypes.c_void_p, []
    quick.features_memory_delete.restype = None
    quick.features_memory_delete.argtypes = [ctypes.c_void_p]
    quick.features_memory_clear.restype = None
    quick.features_memory_clear.argtypes = [ctypes.c_void_p]
    return quick
