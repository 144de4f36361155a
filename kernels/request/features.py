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

DONE: Final = 0
MISSING_INPUTS: Final = 1
"""A look-up row is too old, or histories were not given."""
MORE_KEYS: Final = 2
"""There is no room for the keys."""
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
        lookups: column whose values are the keys, for each look-up.
        histories: most items and longest age in ms, for each history.
        user: column of the user; -1: none is read.
        item: column of the items; -1: their keys are not wanted.
    """

    columns: Sequence[RequestColumn]
    roots: Sequence[RootSource]
    lookups: Sequence[int]
    histories: Sequence[tuple[int, int]]
    user: int = -1
    item: int = -1


class FeatureCall(ctypes.Structure):
    """`Call` of `features.cpp`: its arguments, and results."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("context", "candidates", "places")),
        *((name, ctypes.c_int64) for name in ("rows", "now_ms")),
        ("tables", ctypes.c_void_p),
        ("since", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in ("slots", "values", "value_bytes")),
        *((name, ctypes.c_void_p) for name in ("keys", "key_counts", "items")),
        *((name, ctypes.c_int64) for name in ("user", "has_user")),
        ("oldest", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in ("extract", "gather", "gather_shared", "context_of_plan")),
        *((name, ctypes.c_void_p) for name in ("shares", "fields")),
        *((name, ctypes.c_int64) for name in ("plan_rows", "most_values", "most_bytes", "most_read")),
        *((name, ctypes.c_void_p) for name in ("states", "dense", "failed")),
        *((name, ctypes.c_void_p) for name in ("own_offsets", "shared_offsets", "own_keys", "shared_keys")),
        *((name, ctypes.c_int64) for name in ("own_room", "shared_room")),
        *((name, ctypes.c_int64) for name in ("own_count", "shared_count", "failed_rows", "shared_failed")),
    )


class FeatureMemory:
    """Memory of a call at a time.

    Args:
        plan: whose calls it is for.
    """

    def __init__(self, plan: CompiledInputs) -> None:
        self._delete = _quick_calls().features_memory_delete
        self.handle = _quick_calls().features_memory_new()
        if not self.handle:
            raise MemoryError("no memory for the features of a request")
        self.call = FeatureCall()
        self.at = ctypes.addressof(self.call)
        self.tables = (ctypes.c_void_p * max(len(plan.layout.lookups), 1))()
        self.call.tables = ctypes.addressof(self.tables)

    def __del__(self) -> None:
        if handle := getattr(self, "handle", None):
            self._delete(handle)


class CompiledInputs:
    """Compiled enrichment and extraction of a feature plan's requests. Thread-safe.

    Args:
        layout: of the inputs.
    """

    def __init__(self, layout: InputLayout) -> None:
        self.layout = layout
        numbers = [layout.user, layout.item]
        for root in layout.roots:
            numbers += [root.kind, root.number, root.column]
        numbers += layout.lookups
        for history in layout.histories:
            numbers += history
        sizes = np.array([len(layout.roots), len(layout.lookups), len(layout.histories)], np.int64)
        words = np.array(numbers, np.int64)
        self._handle = _library().features_new(address(sizes), address(words))
        if not self._handle:
            raise MemoryError("no memory for a feature plan")
        weakref.finalize(self, _library().features_delete, self._handle)
        for column in layout.columns:
            options, fill = options_of(column)
            _library().features_column(self._handle, ctypes.byref(options), fill)
        self._enrich, self._extract = _library().features_enrich, _library().features_extract
        self._idle: list[FeatureMemory] = []

    def lend(self) -> FeatureMemory:
        """Memory that no other call has."""
        try:
            return self._idle.pop()  # of several threads one gets the last
        except IndexError:
            return FeatureMemory(self)

    def take_back(self, memory: FeatureMemory) -> None:
        """Keep memory for the next call. That of a call that raises goes away."""
        self._idle.append(memory)

    def enrich(self, memory: FeatureMemory) -> int:
        """Join the inputs of a call: an outcome."""
        outcome: int = self._enrich(self._handle, memory.handle, memory.at)
        return outcome

    def extract(self, memory: FeatureMemory) -> int:
        """Extract the features of a call that was enriched: an outcome, or a negative failure of the plan."""
        outcome: int = self._extract(self._handle, memory.handle, memory.at)
        return outcome

    def gather(self, memory: FeatureMemory) -> None:
        """Copy the keys out, after MORE_KEYS, when there is room for them."""
        _library().features_gather(memory.handle, memory.at)


@functools.cache
def _library() -> ctypes.CDLL:
    library = kernel_library()
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    library.features_new.restype, library.features_new.argtypes = pointer, [pointer, pointer]
    library.features_delete.restype, library.features_delete.argtypes = None, [pointer]
    library.features_column.restype = None
    library.features_column.argtypes = [pointer, pointer, ctypes.c_char_p]
    library.features_enrich.restype, library.features_enrich.argtypes = number, [pointer] * 3
    library.features_extract.restype, library.features_extract.argtypes = number, [pointer] * 3
    library.features_gather.restype, library.features_gather.argtypes = number, [pointer] * 2
    return library


@functools.cache
def _quick_calls() -> ctypes.PyDLL:
    quick = quick_library()
    quick.features_memory_new.restype, quick.features_memory_new.argtypes = ctypes.c_void_p, []
    quick.features_memory_delete.restype = None
    quick.features_memory_delete.argtypes = [ctypes.c_void_p]
    return quick
