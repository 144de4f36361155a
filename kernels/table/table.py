"""The dynamic hash table on the host, and the embedding front that reads and trains many of them.

Reading calls (find, lookup, export, infer, len) may run beside each other in any number of threads; a
call that changes a table must run alone: the caller holds the lock. Calls release the GIL and use
LIVECTR_THREADS threads; equal calls give equal bits with any number of them.
"""

import hashlib
import itertools
import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from livectr.kernels.runtime.arrays import address, contiguous
from livectr.kernels.runtime.recycled import Recycled
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
"""Rows at a time where a whole table passes."""


def table_seed(name: str, seed: int) -> int:
    """The 64 bits that a table's initial values begin with."""
    return int.from_bytes(hashlib.blake2b(f"{seed}\0{name}".encode(), digest_size=8).digest(), "little")


class DynamicTable(Tracked, Admission):
    """key (any int64) -> row float32[stride]; grows without a limit but memory and never rehashes as a whole.

    D = layout.dim values come first in a row, then the optimiser state. `name` and `seed` decide the
    initial values. The structure, its costs and bytes are described in runtime/index.cuh and
    table/table.cuh. `track` and
    `half_life` keep what eviction reads: see `Tracked`. `admit_after` keeps rare keys out: see `Admission`.
    """

    def __init__(
        self, layout: RowLayout, *, name: str, seed: int, track: bool = False, half_life: int = 0
    ) -> None:
        self.layout = layout
        self.name = name
        self.seed = seed
        self.library = table_library(layout)
        #: how often `set_rate` changed `hyper`
        self.rate_changes = 0
        self._factors = dict.fromkeys((segment.name for segment in layout.segments), 1.0)
        hyper = self.hyper()
        self.handle: int = self.library.table_new(table_seed(name, seed), address(hyper), len(hyper))
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
        """Entries in the lists of changes that are not forgotten: of each row one for every generation in
        which it changed, and every erase."""
        return int(self.library.table_listed(self.handle))

    @property
    def row_bytes(self) -> int:
        """Bytes that a row takes at most, with its part of the index but without lists of changes."""
        return int(self.library.table_row_bytes(self.handle))

    def set_rate(self, factor: float, prefix: str = "") -> None:
        """From here on, segments whose names start with `prefix` learn at `factor` times their optimiser's
        rate (`lr`; FTRL's `alpha`). The factor replaces the one before; a checkpoint does not hold it.

        Raises ValueError for a factor that is not above 0 and finite.
        """
        if not 0 < factor < math.inf:
            raise ValueError(f"the factor of a learning rate must be above 0 and finite, not {factor}")
        chosen = {name: factor for name in self._factors if name.startswith(prefix)}
        if any(self._factors[name] != factor for name in chosen):
            self._factors |= chosen
            self.rate_changes += 1
            self.library.table_hyper(self.handle, address(self.hyper()))

    def hyper(self) -> Floats:
        """The optimisers' parameters, as RowLayout.hyper has them, with the factors of `set_rate`."""
        return np.array(self.layout.hyper(self._factors), np.float32)

    def find(self, keys: npt.ArrayLike) -> Rows:
        """uint32[n] row numbers of int64[n] keys; MISSING_ROW where there is none."""
        return self._rows(keys, self.library.table_find)

    def find_or_insert(self, keys: npt.ArrayLike) -> Rows:
        """uint32[n] row numbers; a missing key gets its initial row. A row number holds until its erase."""
        return self._rows(keys, self.library.table_insert)

    def lookup(self, keys: npt.ArrayLike, *, missing: Missing = "initial") -> Floats:
        """float32[n, D] values; nothing is stored for a missing key."""
        keys = contiguous(keys, np.int64, (None,))
        out = np.empty((len(keys), self.layout.dim), np.float32)
        zeros = missing == "zeros"
        checked(self.library.table_lookup(self.handle, address(keys), len(keys), zeros, address(out)))
        return out

    def update(self, keys: npt.ArrayLike, grads: npt.ArrayLike) -> int:
        """One optimiser step with float32[n, D] gradients; those of equal keys are summed, in order.

        Missing keys are inserted first. Returns the number of unique keys.
        """
        keys = contiguous(keys, np.int64, (None,))
        grads = contiguous(grads, np.float32, (len(keys), self.layout.dim))
        return checked(self.library.table_update(self.handle, address(keys), len(keys), address(grads)))

    def assign(self, keys: npt.ArrayLike, rows: npt.ArrayLike) -> int:
        """Store float32[n, stride] raw rows; of equal keys the last counts. Returns the unique keys."""
        keys = contiguous(keys, np.int64, (None,))
        rows = contiguous(rows, np.float32, (len(keys), self.layout.stride))
        return checked(self.library.table_assign(self.handle, address(keys), len(keys), address(rows)))

    def restore(self, keys: npt.ArrayLike, rows: npt.ArrayLike) -> None:
        """Put back exported float32[n, stride] rows, as no change: `export(since=...)` leaves them out until
        they change again. A key that is there keeps its row."""
        keys = contiguous(keys, np.int64, (None,))
        rows = contiguous(rows, np.float32, (len(keys), self.layout.stride))
        checked(self.library.table_restore(self.handle, address(keys), len(keys), address(rows)))

    def erase(self, keys: npt.ArrayLike, *, announce: bool = True) -> int:
        """Forget keys; returns how many were there. Their memory is used again by later keys.

        announce: `erased` lists the keys; False for rows that live on elsewhere.
        """
        keys = contiguous(keys, np.int64, (None,))
        return checked(self.library.table_erase(self.handle, address(keys), len(keys), announce))

    def clear(self) -> None:
        """Forget all keys and give the memory back. Marks go on counting; older ones are forgotten."""
        checked(self.library.table_clear(self.handle))

    def mark(self) -> int:
        """Close the current generation of changes; `export(since=...)` takes the number returned."""
        return checked(self.library.table_mark(self.handle))

    def forget(self, mark: int) -> None:
        """Free the lists of changes up to `mark`: `export` and `erased` cannot start from an earlier one."""
        self.library.table_forget(self.handle, mark)

    def export(self, since: int = 0, *, state: bool = True) -> tuple[Keys, Floats]:
        """int64[m] keys and float32[m, stride] rows ([m, D] without state), each once.

        since 0: every row, by row number. Otherwise the rows inserted, updated or assigned after that
        mark, by generation and first change in it. Erased keys are absent: `erased` tells them.
        Raises ValueError when the changes are forgotten.
        """
        return self.read(self.changed(since), state=state)

    def chunks(self, since: int = 0, *, state: bool = True) -> Iterator[tuple[Keys, Floats]]:
        """What `export` gives, at most CHUNK rows at a time; the table must not change meanwhile."""
        numbers = self.changed(since)
        for start in range(0, len(numbers), CHUNK):
            yield self.read(numbers[start : start + CHUNK], state=state)

    def read(self, rows: Rows, *, state: bool = True) -> tuple[Keys, Floats]:
        """int64[n] keys and float32[n, stride] rows ([n, D] without state) of row numbers in use."""
        rows = contiguous(rows, np.uint32, (None,))
        keys = np.empty(len(rows), np.int64)
        width = self.layout.stride if state else self.layout.dim
        out = np.empty((len(rows), width), np.float32)
        checked(
            self.library.table_read(self.handle, address(rows), len(rows), width, address(keys), address(out))
        )
        return keys, out

    def generations(self, rows: Rows) -> npt.NDArray[np.uint32]:
        """uint32[n]: of each row number in use, the mark that closes (or will) the generation of its last
        change; 0 for one not changed since it was restored."""
        rows = contiguous(rows, np.uint32, (None,))
        out = np.empty(len(rows), np.uint32)
        checked(self.library.table_generations(self.handle, address(rows), len(rows), address(out)))
        return out

    def changed(self, since: int = 0) -> Rows:
        """uint32[m] numbers of the rows that `export` gives."""
        if since < 0:
            raise ValueError(f"since must be 0 or a mark, not {since}")
        rows = np.empty(checked(self.library.table_changed(self.handle, since, None)), np.uint32)
        self.library.table_changed(self.handle, since, address(rows))
        return rows

    def erased(self, since: int) -> Keys:
        """int64[m], rising: keys erased after mark `since` that are not there now; since 0: none.

        (Who takes every row needs none.) Lists are kept from the first mark on, 8 bytes for each erase.

        Raises ValueError when they are forgotten.
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


class FieldTables:
    """The embedding front of one rank: F fields, each reading a table; fields may share one.

    tables: name -> table, all of one layout (D values). fields: (field name, table name) in order.
    blocks: number (0, 1, ...) of the block that each field is in; None: all are in one. The F_k fields of
    block k have equally many rows, rows[k], told with every batch.

    A batch is ragged and field-major: cell i, of field f and row b, has the keys
    keys[offsets[i] : offsets[i + 1]]; their values are summed. A field whose every key is wanted by itself
    is one with a row for each key.
    """

    def __init__(
        self,
        tables: dict[str, DynamicTable],
        fields: Sequence[tuple[str, str]],
        blocks: Sequence[int] | None = None,
    ) -> None:
        used = list(dict.fromkeys(table for _, table in fields))
        layouts = {tables[name].layout.source() for name in used}
        if len(layouts) > 1:
            raise ValueError(f"tables {used} must have one row layout")
        self.tables = dict(tables)  # of our own: the C++ side points at them
        self.fields = tuple(fields)
        self.dim = next(iter(tables.values())).layout.dim if tables else 0
        self._blocks = np.array([0] * len(fields) if blocks is None else blocks, np.int32)
        if len(self._blocks) != len(fields) or (self._blocks < 0).any():
            raise ValueError(f"blocks must name a block for each of {len(fields)} fields, not {blocks}")
        self._count = int(self._blocks.max(initial=0)) + 1
        self._shapes: tuple[tuple[int, ...], ...] | None = None
        # Of forward's results: new pages are cleared by the kernel, which takes a tenth of a forward's time.
        self._memory = Recycled(keep=1)
        if used:
            self._library = tables[used[0]].library
            handles = np.array([tables[name].handle for name in used], np.uintp)
            table_of = np.array([used.index(table) for _, table in fields], np.int32)
            self._handle: int = self._library.fields_new(
                address(handles), len(handles), address(table_of), len(table_of)
            )
            weakref.finalize(self, self._library.fields_delete, self._handle)

    def forward(self, offsets: npt.ArrayLike, keys: npt.ArrayLike, *rows: int) -> tuple[Floats, ...]:
        """float32[rows[k], F_k, D] of each block k; missing keys are inserted, if they are admitted.

        offsets: int32[cells + 1] over the fields in order, field f with rows[blocks[f]] cells.
        keys: int64[nnz]. Remembers the rows for `backward`. Raises ValueError for offsets that do not fit.
        """
        offsets, keys, counts, cells = self._prepare(offsets, keys, rows)
        numbers = cells * self.dim
        out = self._memory.empty((numbers + 1) // 2).view(np.float32)[:numbers]
        self._shapes = None
        if self.fields:
            checked(
                self._library.fields_forward(
                    self._handle,
                    address(offsets),
                    address(keys),
                    len(keys),
                    address(self._blocks),
                    len(counts),
                    address(counts),
                    address(out),
                )
            )
        results = self._split(out, counts)
        self._shapes = tuple(result.shape for result in results)
        return results

    def backward(self, *grads: npt.ArrayLike) -> int:
        """One optimiser step on the rows of the last forward, with gradients of what it returned.

        The gradients of a row are summed in field-major order of its occurrences, then its optimisers
        run once. Returns the number of unique rows. No key may be erased between forward and backward.
        """
        if self._shapes is None:
            raise RuntimeError("backward needs a forward before it")
        parts = [contiguous(grad, np.float32, shape) for grad, shape in zip(grads, self._shapes, strict=True)]
        some = [part.ravel() for part in parts if part.size]
        whole = some[0] if len(some) == 1 else np.concatenate([*some, np.empty(0, np.float32)])
        self._shapes = None
        return checked(self._library.fields_backward(self._handle, address(whole))) if self.fields else 0

    def find(self, ends: Sequence[int], keys: npt.ArrayLike) -> Rows:
        """uint32[n] row numbers of int64[n] keys in their fields' tables; MISSING_ROW where there is none.

        ends: those of field f are keys[ends[f] : ends[f + 1]]; they rise from 0 to n, and may end before F.
        """
        keys = contiguous(keys, np.int64, (None,))
        fit = ends[0] == 0 and ends[-1] == len(keys) and len(ends) <= len(self.fields) + 1
        if not fit or list(ends) != sorted(ends):
            raise ValueError(f"{len(ends)} ends up to {ends[-1]} do not fit {len(keys)} keys")
        out = np.empty(len(keys), np.uint32)
        read, write = address(keys), address(out)
        for (_, table), (start, end) in zip(self.fields, itertools.pairwise(ends), strict=False):
            handle, count = self.tables[table].handle, end - start
            checked(self._library.table_find(handle, read + 8 * start, count, write + 4 * start))
        return out

    def infer(
        self, offsets: npt.ArrayLike, keys: npt.ArrayLike, *rows: int, missing: Missing = "initial"
    ) -> tuple[Floats, ...]:
        """As forward, but stores nothing and may run in several threads at once."""
        offsets, keys, counts, cells = self._prepare(offsets, keys, rows)
        out = np.empty(cells * self.dim, np.float32)
        if self.fields:
            checked(
                self._library.fields_infer(
                    self._handle,
                    address(offsets),
                    address(keys),
                    len(keys),
                    address(self._blocks),
                    len(counts),
                    address(counts),
                    missing == "zeros",
                    address(out),
                )
            )
        return self._split(out, counts)

    def _prepare(
        self, offsets: npt.ArrayLike, keys: npt.ArrayLike, rows: tuple[int, ...]
    ) -> tuple[npt.NDArray[np.int32], Keys, npt.NDArray[np.int64], int]:
        counts = np.array(rows, np.int64)
        if len(counts) < self._count:
            raise ValueError(f"fields are in {self._count} blocks, but rows are told of {len(counts)}")
        cells = int(counts @ self._widths(len(counts)))
        return (
            contiguous(offsets, np.int32, (cells + 1,)),
            contiguous(keys, np.int64, (None,)),
            counts,
            cells,
        )

    def _widths(self, blocks: int) -> npt.NDArray[np.int64]:
        """F_k of that many blocks; the last ones may have no field."""
        return np.bincount(self._blocks, minlength=blocks)

    def _split(self, out: Floats, rows: npt.NDArray[np.int64]) -> tuple[Floats, ...]:
        widths = self._widths(len(rows))
        ends = np.cumsum(rows * widths * self.dim).tolist()
        shapes = zip([0, *ends], ends, rows.tolist(), widths.tolist(), strict=False)
        return tuple(out[a:b].reshape(n, width, self.dim) for a, b, n, width in shapes)
