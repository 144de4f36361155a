"""Counters of keys, of windows or of ages: Python interface of `stream/counters.cpp`."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from livectr.kernels.runtime.library import kernel_library
from livectr.kernels.stream.history import NEVER

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]

MOST_LAG = 6
"""Grains of the lag of an `AgeTable`: more entries of a key would find no place."""


class Rows(NamedTuple):
    """Rows of n keys: byte strings, empty for a key that was never counted.

    Args:
        offsets: int64[n + 1].
        data: uint8[offsets[n]].
    """

    offsets: I64
    data: U8

    def texts(self) -> list[bytes]:
        """Each row."""
        whole = self.data.tobytes()
        return [whole[a:b] for a, b in pairwise(self.offsets.tolist())]


class SavedCounters(NamedTuple):
    """State of n keys, the longest not counted first.

    Args:
        now: int64[1], time of the sequence in ms.
        keys: int64[n].
        heads: int64[n], newest grain of each key.
        wide: uint8[n], logarithm of the bytes of a cell, or of the entries of ages.
        cells: uint8[…], key after key.
    """

    now: I64
    keys: I64
    heads: I64
    wide: U8
    cells: U8


class KeyedRows:
    """Rows of keys that examples change; see the tables below.

    The result depends on the sequence of events alone, not on how it is cut into calls. Not thread-safe.
    """

    def __init__(self, handle: int | None) -> None:
        self._calls = _library()
        self._handle = handle

    def __del__(self) -> None:
        if handle := getattr(self, "_handle", None):
            self._calls.counters_free(handle)

    def __len__(self) -> int:
        """Number of keys."""
        return self._facts()[0]

    @property
    def bytes(self) -> int:
        """Bytes of the keys: a function of their counts."""
        return self._facts()[1]

    @property
    def expired(self) -> int:
        """Keys of this process that left because no window sees their counts."""
        return self._facts()[2]

    @property
    def evicted(self) -> int:
        """Keys of this process that were evicted because of `max_bytes`."""
        return self._facts()[3]

    @property
    def listed(self) -> int:
        """Entries of the list of keys that left."""
        return self._facts()[4]

    def _facts(self) -> list[int]:
        facts = np.empty(6, np.int64)
        self._calls.counters_facts(self._handle, facts)
        return facts.tolist()

    def push(
        self, key: I64, time_ms: I64, shown: U8, clicked: U8, wanted: U8, event_ms: I64 | None = None
    ) -> Rows:
        """Count m events in sequence.

        Args:
            key: int64[m].
            time_ms: int64[m], times from which the events are known; a time before an earlier event's counts
                as that.
            shown: uint8[m], 1 for an impression.
            clicked: uint8[m], 1 for a click.
            wanted: uint8[m], 1 where the key's row is asked for.
            event_ms: int64[m], times of the events, of which ages are; None: `time_ms`.

        Returns:
            Rows of the wanted, as of before their event.
        """
        m, event_ms = len(key), time_ms if event_ms is None else event_ms
        if not m == len(time_ms) == len(event_ms) == len(shown) == len(clicked) == len(wanted):
            raise ValueError("key, time_ms, event_ms, shown, clicked and wanted differ in length")
        size = self._calls.counters_push(self._handle, m, key, time_ms, event_ms, shown, clicked, wanted)
        return self._rows(int(np.count_nonzero(wanted)), size)

    def _rows(self, count: int, size: int) -> Rows:
        rows = Rows(np.empty(count + 1, np.int64), np.empty(size, np.uint8))
        self._calls.counters_rows(self._handle, *rows)
        return rows

    def changed(self, since: int = 0) -> tuple[I64, Rows]:
        """Keys int64[n] that were counted after mark `since`, and their rows; 0: of all keys.

        With `track`, keys that left after the mark and are not back are included, with empty rows.
        """
        keys, sizes = np.empty(len(self), np.int64), np.empty(2, np.int64)
        self._calls.counters_changed(self._handle, since, keys, sizes)
        count, size = sizes.tolist()
        rows, left = self._rows(count, size), self._left(since) if since else keys[:0]
        ends = np.concatenate([rows.offsets, np.full(len(left), size)])
        return np.concatenate([keys[:count], left]), Rows(ends, rows.data)

    def mark(self) -> int:
        """Close the current generation and return its number g; `changed(since=g)` has later changes."""
        return int(self._calls.counters_mark(self._handle))

    def track(self) -> None:
        """List the keys that leave from now on, for `changed`, until `forget_left`."""
        self._calls.counters_track(self._handle)

    def forget_left(self, until: int) -> None:
        """Drop the keys that left up to mark `until` from the list."""
        self._calls.counters_forget_left(self._handle, until)

    def _left(self, since: int) -> I64:
        keys = np.empty(self._calls.counters_left_size(self._handle, since), np.int64)
        self._calls.counters_left(self._handle, since, keys)
        return keys

    def export(self) -> SavedCounters:
        """Copy the state of all keys."""
        count, now = len(self), np.array([self._facts()[5]])
        size = self._calls.counters_export_bytes(self._handle)
        keys, heads = np.empty(count, np.int64), np.empty(count, np.int64)
        wide, cells = np.empty(count, np.uint8), np.empty(size, np.uint8)
        self._calls.counters_export(self._handle, keys, heads, wide, cells)
        return SavedCounters(now, keys, heads, wide, cells)

    def assign(self, saved: SavedCounters) -> None:
        """Load an export into an empty table with the same windows.

        Raises:
            ValueError: it is of other windows.
        """
        count, size = len(saved.keys), len(saved.cells)
        if not count == len(saved.heads) == len(saved.wide) or len(saved.now) != 1:
            raise ValueError("saved counters whose parts differ in length")
        arrays = [np.ascontiguousarray(part) for part in saved[1:]]
        if self._calls.counters_assign(self._handle, int(saved.now[0]), count, *arrays, size) != size:
            raise ValueError("saved counters of other windows")


class CounterTable(KeyedRows):
    """Impressions and clicks of each key by time, for windows of several lengths.

    Args:
        grain_ms: length of the finest cells; windows end at a multiple of it.
        fine: finest cells of a key: those of the shortest window and of the times before the newest event as
            of which rows are read.
        spans: lengths in grains of the cells of each longer window, which has 6 of them.
        max_bytes: limit of `bytes`. Beyond it the keys leave that were counted the longest ago; the last
            stays.
    """

    def __init__(self, grain_ms: int, fine: int, spans: Sequence[int], *, max_bytes: int = NEVER) -> None:
        lengths = np.array(spans, np.int64)
        super().__init__(_library().counters_new(grain_ms, fine, lengths, len(lengths), max_bytes))


class AgeTable(KeyedRows):
    """Times of the last impression and click of each key.

    Args:
        grain_ms: an event is seen from the next multiple of it after it is known.
        lag: grains before the newest event as of which rows are read, at most 6.
        within: grains after which an event is too old.
        max_bytes: as `CounterTable`.
    """

    def __init__(self, grain_ms: int, lag: int, within: int, *, max_bytes: int = NEVER) -> None:
        if lag > MOST_LAG:
            raise ValueError(f"ages as of {lag} grains before; at most {MOST_LAG}")
        super().__init__(_library().ages_new(grain_ms, lag, within, max_bytes))


@functools.cache
def _library() -> ctypes.CDLL:
    library = kernel_library()
    i64 = np.ctypeslib.ndpointer(np.int64, flags="C")
    u8 = np.ctypeslib.ndpointer(np.uint8, flags="C")
    handle, number = ctypes.c_void_p, ctypes.c_int64
    library.counters_new.restype = handle
    library.counters_new.argtypes = [number, number, i64, number, number]
    library.ages_new.restype, library.ages_new.argtypes = handle, [number] * 4
    library.counters_free.argtypes = [handle]
    library.counters_facts.argtypes = [handle, i64]
    library.counters_push.restype = number
    library.counters_push.argtypes = [handle, number, i64, i64, i64, u8, u8, u8]
    library.counters_rows.argtypes = [handle, i64, u8]
    library.counters_changed.argtypes = [handle, number, i64, i64]
    library.counters_mark.restype, library.counters_mark.argtypes = number, [handle]
    library.counters_track.argtypes = [handle]
    library.counters_forget_left.argtypes = [handle, number]
    library.counters_left_size.restype, library.counters_left_size.argtypes = number, [handle, number]
    library.counters_left.argtypes = [handle, number, i64]
    library.counters_export_bytes.restype, library.counters_export_bytes.argtypes = number, [handle]
    library.counters_export.argtypes = [handle, i64, i64, u8, u8]
    library.counters_assign.restype = number
    library.counters_assign.argtypes = [handle, number, number, i64, i64, u8, u8, number]
    return library
