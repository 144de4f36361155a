"""Dynamic hash table on the host.

Reading calls (find, lookup, export, infer, len) may run in any number of threads at once. A
call that changes a table must run alone: the caller holds the lock. Calls release the GIL and use
LIVECTR_THREADS threads; equal calls give equal bits with any number of them.
"""

import hashlib
import math
import weakref
from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np
import numpy.typing as npt

from livectr.kernels.runtime.arrays import address, contiguous
from livectr.kernels.table.admission import Admission
from livectr.kernels.table.layout import RowLayout
from livectr.kernels.table.native import checked, table_library
from livectr.kernels.table.usage import Tracked

Keys = npt.NDArray[np.int64]
Rows = npt.NDArray[np.uint32]
Floats = npt.NDArray[np.float32]
Missing = Literal["initial", "zeros"]

MISSING_ROW = 0xFFFFFFFF
CHUNK = 65_536
"""Rows per chunk of an export of a whole table."""


def table_seed(name: str, seed: int) -> int:
    """Seed of a table's initial values, 64 bits."""
    return int.from_bytes(hashlib.blake2b(f"{seed}\0{name}".encode(), digest_size=8).digest(), "little")


class DynamicTable(Tracked, Admission):
    """Hash table key (any int64) → row float32[stride]; it grows incrementally, up to the memory.

    D = layout.dim values come first in a row, then the optimiser state. runtime/index.cuh and table/table.hpp
    describe the structure, its costs and bytes.

    Args:
        layout: segments of a row.
        name: decides, with `seed`, the initial values.
        seed: seed of the initial values.
        track: keep the last use of each row, which eviction reads: see `Tracked`.
        half_life: stamps after which a count of uses halves; 0: no counts.

    Attributes:
        sweeps: a row in use keeps its number until it is erased, so that `in_use` finds all rows bit by bit.
    """

    sweeps = True

    def __init__(
        self, layout: RowLayout, *, name: str, seed: int, track: bool = False, half_life: int = 0
    ) -> None:
        self.layout = layout
        self.name = name
        self.seed = seed
        self.library = table_library()
        #: number of times that `hyper` changed
        self.hyper_changes = 0
        self._factors = dict.fromkeys((segment.name for segment in layout.segments), 1.0)
        self._from_zero: set[str] = set()
        hyper = self.hyper()
        described = np.array(layout.description, np.int64)
        self.handle: int = self.library.table_new(
            address(described), len(layout.segments), table_seed(name, seed), address(hyper)
        )
        if not self.handle:
            raise MemoryError(f"no memory for table {name!r}")
        weakref.finalize(self, self.library.table_delete, self.handle)
        if track:
            self.track(half_life)
        elif half_life:
            raise ValueError(f"table {name!r}: half_life= needs track=True")

    def __len__(self) -> int:
        return int(self.library.table_size(self.handle))

    @property
    def nbytes(self) -> int:
        """Bytes in use: rows ever used at once, index and lists of changes."""
        return int(self.library.table_bytes(self.handle))

    @property
    def listed(self) -> int:
        """Entries in the lists of changes: one per row and generation of a change, and one per erase."""
        return int(self.library.table_listed(self.handle))

    @property
    def row_bytes(self) -> int:
        """Maximum of bytes that a row takes, with its part of the index but without lists of changes."""
        return int(self.library.table_row_bytes(self.handle))

    def set_rate(self, factor: float, prefix: str = "") -> None:
        """Sets the learning rate of segments to a factor of their optimiser's rate (`lr`; FTRL's `alpha`).

        The factor replaces the earlier factor; a checkpoint does not hold it.

        Args:
            factor: above 0 and finite.
            prefix: prefix of the segments' names.

        Raises:
            ValueError: a factor out of range.
        """
        if not 0 < factor < math.inf:
            raise ValueError(f"the factor of a learning rate must be above 0 and finite, not {factor}")
        chosen = {name: factor for name in self._factors if name.startswith(prefix)}
        if any(self._factors[name] != factor for name in chosen):
            self._factors |= chosen
            self._send_hyper()

    def start_at_zero(self, prefix: str) -> None:
        """Lets the values of new rows be 0 in segments; a checkpoint does not hold it.

        Args:
            prefix: prefix of the segments' names.
        """
        self._from_zero |= {name for name in self._factors if name.startswith(prefix)}
        self._send_hyper()

    def hyper(self) -> Floats:
        """Hyper-parameters as RowLayout.hyper has them, after `set_rate` and `start_at_zero`."""
        return np.array(self.layout.hyper(self._factors, self._from_zero), np.float32)

    def _send_hyper(self) -> None:
        self.hyper_changes += 1
        hyper = self.hyper()  # alive until the table has copied it
        self.library.table_hyper(self.handle, address(hyper))

    def find(self, keys: npt.ArrayLike) -> Rows:
        """Row numbers uint32[n] of keys int64[n]; MISSING_ROW for a missing key."""
        return self._rows(keys, self.library.table_find)

    def find_or_insert(self, keys: npt.ArrayLike) -> Rows:
        """Row numbers uint32[n]; a missing key gets its initial row. Row numbers are valid until erase."""
        return self._rows(keys, self.library.table_insert)

    def lookup(self, keys: npt.ArrayLike, *, missing: Missing = "initial") -> Floats:
        """Values float32[n, D]; nothing is stored for a missing key.

        Args:
            keys: int64[n].
            missing: values of a missing key, "initial" or "zeros".
        """
        keys = contiguous(keys, np.int64, (None,))
        out = np.empty((len(keys), self.layout.dim), np.float32)
        zeros = missing == "zeros"
        checked(self.library.table_lookup(self.handle, address(keys), len(keys), zeros, address(out)))
        return out

    def update(self, keys: npt.ArrayLike, grads: npt.ArrayLike) -> int:
        """Runs an optimiser step; gradients of equal keys are summed, in order.

        Missing keys are inserted first.

        Args:
            keys: int64[n].
            grads: float32[n, D].

        Returns:
            Number of unique keys.
        """
        keys = contiguous(keys, np.int64, (None,))
        grads = contiguous(grads, np.float32, (len(keys), self.layout.dim))
        return checked(self.library.table_update(self.handle, address(keys), len(keys), address(grads)))

    def assign(self, keys: npt.ArrayLike, rows: npt.ArrayLike) -> int:
        """Stores raw rows float32[n, stride]; of equal keys the last counts.

        Returns:
            Number of unique keys.
        """
        keys = contiguous(keys, np.int64, (None,))
        rows = contiguous(rows, np.float32, (len(keys), self.layout.stride))
        return checked(self.library.table_assign(self.handle, address(keys), len(keys), address(rows)))

    def restore(self, keys: npt.ArrayLike, rows: npt.ArrayLike) -> None:
        """Restores exported rows float32[n, stride], not as changes.

        `export(since=...)` omits them until they change.

        A key that exists keeps its row.
        """
        keys = contiguous(keys, np.int64, (None,))
        rows = contiguous(rows, np.float32, (len(keys), self.layout.stride))
        checked(self.library.table_restore(self.handle, address(keys), len(keys), address(rows)))

    def erase(self, keys: npt.ArrayLike, *, announce: bool = True) -> int:
        """Erases keys; later keys reuse their memory.

        Args:
            keys: int64[n].
            announce: `erased` lists the keys; False for rows that live on elsewhere.

        Returns:
            Number of keys that existed.
        """
        keys = contiguous(keys, np.int64, (None,))
        return checked(self.library.table_erase(self.handle, address(keys), len(keys), announce))

    def touch(self, keys: npt.ArrayLike) -> None:
        """Lists unique keys int64[n] as changes: those with a row as updated, the others as erased."""
        given = contiguous(keys, np.int64, (None,))
        for start in range(0, len(given), CHUNK):
            self._touch(given[start : start + CHUNK])

    def _touch(self, keys: Keys) -> None:
        numbers = self.find(keys)
        absent = keys[numbers == MISSING_ROW]
        there, rows = self.read(numbers[numbers != MISSING_ROW])
        usage = self.usage(there) if self.tracks else None
        self.assign(there, rows)
        if usage is not None:
            self.set_usage(there, *usage)
        if len(absent):
            self.find_or_insert(absent)
            self.erase(absent)

    def clear(self) -> None:
        """Erases all keys and frees the memory. Marks continue counting; older marks are forgotten."""
        checked(self.library.table_clear(self.handle))

    def mark(self) -> int:
        """Closes the current generation of changes; `export(since=...)` takes the number returned."""
        return checked(self.library.table_mark(self.handle))

    def forget(self, mark: int) -> None:
        """Frees the lists of changes up to `mark`; `export` and `erased` need a later mark."""
        self.library.table_forget(self.handle, mark)

    def compact(self) -> None:
        """Frees entries in the lists of changes of rows that have changed again, or were erased, since."""
        checked(self.library.table_compact(self.handle))

    def export(self, since: int = 0, *, state: bool = True) -> tuple[Keys, Floats]:
        """Exports keys int64[m] and rows float32[m, stride] ([m, D] without state), each once.

        Args:
            since: 0: every row, by row number. Else a mark: the rows inserted, updated or assigned after it,
                by
                generation and first change in it. Erased keys are absent: `erased` lists them.
            state: include the optimiser state.

        Raises:
            ValueError: the changes since that mark are forgotten.
        """
        return self.read(self.changed(since), state=state)

    def chunks(self, since: int = 0, *, state: bool = True) -> Iterator[tuple[Keys, Floats]]:
        """Exports as `export` does, at most CHUNK rows at a time; the table must not change meanwhile."""
        yield from self.read_chunks(self.changed(since), state=state)

    def read_chunks(self, rows: Rows, *, state: bool = True) -> Iterator[tuple[Keys, Floats]]:
        """Reads as `read` does, at most CHUNK rows at a time; the table must not change meanwhile."""
        for start in range(0, len(rows), CHUNK):
            yield self.read(rows[start : start + CHUNK], state=state)

    def read(self, rows: Rows, *, state: bool = True) -> tuple[Keys, Floats]:
        """Reads keys int64[n] and rows float32[n, stride] ([n, D] without state) of row numbers in use."""
        rows = contiguous(rows, np.uint32, (None,))
        keys = np.empty(len(rows), np.int64)
        width = self.layout.stride if state else self.layout.dim
        out = np.empty((len(rows), width), np.float32)
        checked(
            self.library.table_read(self.handle, address(rows), len(rows), width, address(keys), address(out))
        )
        return keys, out

    def generations(self, rows: Rows) -> npt.NDArray[np.uint32]:
        """Generation uint32[n] of the last change of each row number in use, as the mark that closes it.

        0: unchanged since `restore`.
        """
        rows = contiguous(rows, np.uint32, (None,))
        out = np.empty(len(rows), np.uint32)
        checked(self.library.table_generations(self.handle, address(rows), len(rows), address(out)))
        return out

    def changed(self, since: int = 0) -> Rows:
        """Row numbers uint32[m] that `export` gives."""
        rows = np.empty(self._most_changed(since), np.uint32)
        return rows[: checked(self.library.table_changed(self.handle, since, address(rows)))]

    def changed_keys(self, since: int = 0) -> Keys:
        """Keys int64[m] of the rows that `export` gives."""
        keys = np.empty(self._most_changed(since), np.int64)
        return keys[: checked(self.library.table_changed_keys(self.handle, since, address(keys)))]

    def _most_changed(self, since: int) -> int:
        if since < 0:
            raise ValueError(f"since must be 0 or a mark, not {since}")
        return checked(self.library.table_most_changed(self.handle, since))

    @property
    def end(self) -> int:
        """Bound of the row numbers in use: they are below."""
        return int(self.library.table_end(self.handle))

    def in_use(self, begin: int, end: int) -> Rows:
        """Row numbers uint32[m] in use that are in [begin, end), rising."""
        rows = np.empty(max(0, min(end, self.end) - begin), np.uint32)
        return rows[: self.library.table_in_use(self.handle, begin, end, address(rows))]

    def erased(self, since: int) -> Keys:
        """Keys int64[m], rising, that were erased after mark `since` and do not exist now; since 0: none.

        An export of all rows needs no erased keys. Lists are kept from the first mark on, 8 bytes for each
        erase.

        Raises:
            ValueError: the lists are forgotten.
        """
        if since < 0:
            raise ValueError(f"since must be 0 or a mark, not {since}")
        keys = np.empty(checked(self.library.table_erased(self.handle, since, None)), np.int64)
        return keys[: checked(self.library.table_erased(self.handle, since, address(keys)))]

    def _rows(self, keys: npt.ArrayLike, call: Callable[[int, int, int, int], int]) -> Rows:
        keys = contiguous(keys, np.int64, (None,))
        rows = np.empty(len(keys), np.uint32)
        checked(call(self.handle, address(keys), len(keys), address(rows)))
        return rows
