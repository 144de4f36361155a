"""Embedding front of a rank: a batch's ragged fields, read from and trained in dynamic tables."""

import itertools
import weakref
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from livectr.kernels.runtime.arrays import address, contiguous
from livectr.kernels.runtime.recycled import Recycled
from livectr.kernels.table.native import checked
from livectr.kernels.table.table import DynamicTable, Floats, Keys, Missing, Rows


class FieldTables:
    """Embedding front of a rank: F fields, each reading a table; fields may share a table.

    A batch is ragged and field-major: cell i, of field f and row b, has the keys keys[offsets[i] : offsets[i
    + 1]], whose values are summed. A field with a row for each key gives every key's values separately.

    Args:
        tables: name → table, all of one layout (D values).
        fields: (field name, table name) in order.
        blocks: number (0, 1, ...) of the block of each field; None: all are in block 0. The F_k fields of
            block k
            have the same number of rows, rows[k], an argument of every call.

    Attributes:
        handle: address of the compiled front, which this object owns; None: there are no fields.
    """

    def __init__(
        self,
        tables: dict[str, DynamicTable],
        fields: Sequence[tuple[str, str]],
        blocks: Sequence[int] | None = None,
    ) -> None:
        used = list(dict.fromkeys(table for _, table in fields))
        layouts = {tables[name].layout.description for name in used}
        if len(layouts) > 1:
            raise ValueError(f"tables {used} must have one row layout")
        self.used = tuple(used)
        self.tables = dict(tables)  # a copy that keeps them alive: the C++ side points at them
        self.fields = tuple(fields)
        layout = next(iter(tables.values())).layout if tables else None
        self.dim = layout.dim if layout else 0
        self._places = layout.places if layout else {}
        self._blocks = np.array([0] * len(fields) if blocks is None else blocks, np.int32)
        if len(self._blocks) != len(fields) or (self._blocks < 0).any():
            raise ValueError(f"blocks must name a block for each of {len(fields)} fields, not {blocks}")
        self._count = int(self._blocks.max(initial=0)) + 1
        self._fields_of_block: list[int] = np.bincount(self._blocks, minlength=self._count).tolist()
        self._shapes: tuple[tuple[int, ...], ...] | None = None
        # Memory of forward's results: the kernel clears new pages, which takes a tenth of a forward's time.
        self._memory = Recycled(keep=1)
        self.handle: int | None = None
        if used:
            self._library = tables[used[0]].library
            handles = np.array([tables[name].handle for name in used], np.uintp)
            table_of = np.array([used.index(table) for _, table in fields], np.int32)
            self.handle = self._library.fields_new(
                address(handles), len(handles), address(table_of), len(table_of)
            )
            weakref.finalize(self, self._library.fields_delete, self.handle)

    def forward(self, offsets: npt.ArrayLike, keys: npt.ArrayLike, *rows: int) -> tuple[Floats, ...]:
        """Sums of values float32[rows[k], F_k, D] of each block k.

        Missing keys are inserted, if they are admitted.

        The call remembers the rows for `backward`.

        Args:
            offsets: int32[cells + 1] over the fields in order; field f has rows[blocks[f]] cells.
            keys: int64[nnz].
            rows: rows of each block.

        Raises:
            ValueError: offsets that do not fit.
        """
        offsets, keys, counts, cells = self._prepare(offsets, keys, rows)
        numbers = cells * self.dim
        out = self._memory.empty((numbers + 1) // 2).view(np.float32)[:numbers]
        self._shapes = None
        if self.fields:
            checked(
                self._library.fields_forward(
                    self.handle,
                    address(offsets),
                    address(keys),
                    len(keys),
                    address(self._blocks),
                    len(counts),
                    address(counts),
                    address(out),
                )
            )
        results = self._split(out, rows)
        self._shapes = tuple(result.shape for result in results)
        return results

    def backward(self, *grads: npt.ArrayLike) -> int:
        """Runs an optimiser step on the rows of the last forward.

        The gradients of a row are summed in field-major order of its occurrences, then its optimisers
        run once. No key may be erased between forward and backward.

        Args:
            grads: float32 gradients of the results of forward.

        Returns:
            Number of unique rows.
        """
        if self._shapes is None:
            raise RuntimeError("backward needs a forward before it")
        parts = [contiguous(grad, np.float32, shape) for grad, shape in zip(grads, self._shapes, strict=True)]
        some = [part.ravel() for part in parts if part.size]
        whole = some[0] if len(some) == 1 else np.concatenate([*some, np.empty(0, np.float32)])
        self._shapes = None
        return checked(self._library.fields_backward(self.handle, address(whole))) if self.fields else 0

    def find(self, ends: Sequence[int], keys: npt.ArrayLike) -> Rows:
        """Row numbers uint32[n] of keys in their fields' tables; MISSING_ROW for a missing key.

        Args:
            ends: field f has keys[ends[f] : ends[f + 1]]; rising from 0 to n; fields at the end may be left
                out.
            keys: int64[n].
        """
        keys = self._fitting(ends, keys)
        out = np.empty(len(keys), np.uint32)
        read, write = address(keys), address(out)
        for (_, table), (start, end) in zip(self.fields, itertools.pairwise(ends), strict=False):
            handle, count = self.tables[table].handle, end - start
            checked(self._library.table_find(handle, read + 8 * start, count, write + 4 * start))
        return out

    def census(self, ends: Sequence[int], keys: npt.ArrayLike) -> tuple[int, npt.NDArray[np.int64]]:
        """Count a batch's unique keys, and by field those that have not changed since `restore`.

        Args:
            ends: as in `find`.
            keys: as in `find`.

        Returns:
            Number of unique keys that are in the tables; int64[F], keys of each field whose row is missing,
            or was restored and has not changed since. Repeated keys of a field count each time.
        """
        keys = self._fitting(ends, keys)
        bounds, fresh = np.array(ends, np.int64), np.zeros(len(ends) - 1, np.int64)
        if not len(fresh):
            return 0, fresh
        unique = self._library.fields_census(
            self.handle, address(bounds), len(fresh), address(keys), address(fresh)
        )
        return checked(unique), fresh

    def read_segment(self, name: str, bounds: npt.ArrayLike, keys: npt.ArrayLike) -> tuple[Rows, Floats]:
        """Reads a segment of one value, and its state.

        Args:
            name: name of the segment.
            bounds: int64[T + 1]; table `used[t]` has keys[bounds[t] : bounds[t + 1]].
            keys: int64[n].

        Returns:
            Row numbers uint32[n], and float32[n, 1 + S]: the value and its S state floats, NaN for a missing
            key.
        """
        at, dim, first, floats = self._places[name]
        keys = contiguous(keys, np.int64, (None,))
        bounds = contiguous(bounds, np.int64, (len(self.used) + 1,))
        rows, out = np.empty(len(keys), np.uint32), np.empty((len(keys), dim + floats), np.float32)
        self._library.fields_read_segment(
            self.handle, address(bounds), address(keys), at, dim, first, floats, address(rows), address(out)
        )
        return rows, out

    def place(self, name: str | None) -> tuple[int, int, int, int]:
        """Place of a segment in a row: its first value, values, first state float, state floats; None: 0s."""
        return (0, 0, 0, 0) if name is None else self._places[name]

    def write_segment(self, name: str, bounds: npt.ArrayLike, rows: npt.ArrayLike, given: Floats) -> None:
        """Writes the state of a segment that `read_segment` read; a `backward` that covers its rows follows.

        Args:
            name: name of the segment.
            bounds: of `read_segment`.
            rows: row numbers that it returned.
            given: float32[n, 1 + S]; the values are not written, since their optimiser computes them again.
        """
        at, dim, first, floats = self._places[name]
        rows = contiguous(rows, np.uint32, (None,))
        bounds = contiguous(bounds, np.int64, (len(self.used) + 1,))
        given = contiguous(given, np.float32, (len(rows), dim + floats))
        self._library.fields_write_segment(
            self.handle, address(bounds), address(rows), at, dim, first, floats, address(given)
        )

    def infer(
        self, offsets: npt.ArrayLike, keys: npt.ArrayLike, *rows: int, missing: Missing = "initial"
    ) -> tuple[Floats, ...]:
        """Sums of values as forward computes them, without storing anything; thread-safe."""
        return self.infer_counted(offsets, keys, *rows, missing=missing)[0]

    def infer_counted(
        self, offsets: npt.ArrayLike, keys: npt.ArrayLike, *rows: int, missing: Missing = "initial"
    ) -> tuple[tuple[Floats, ...], int]:
        """Results of `infer`, and the number of keys that are missing."""
        offsets, keys, counts, cells = self._prepare(offsets, keys, rows)
        out, absent = np.empty(cells * self.dim, np.float32), 0
        if self.fields:
            absent = checked(
                self._library.fields_infer(
                    self.handle,
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
        return self._split(out, rows), absent

    def _fitting(self, ends: Sequence[int], keys: npt.ArrayLike) -> Keys:
        """Keys int64[n] of the first fields; raises ValueError if the ends do not fit them."""
        keys = contiguous(keys, np.int64, (None,))
        fit = ends[0] == 0 and ends[-1] == len(keys) and len(ends) <= len(self.fields) + 1
        if not fit or list(ends) != sorted(ends):
            raise ValueError(f"{len(ends)} ends up to {ends[-1]} do not fit {len(keys)} keys")
        return keys

    def _prepare(
        self, offsets: npt.ArrayLike, keys: npt.ArrayLike, rows: tuple[int, ...]
    ) -> tuple[npt.NDArray[np.int32], Keys, npt.NDArray[np.int64], int]:
        counts = np.array(rows, np.int64)
        if len(counts) < self._count:
            raise ValueError(f"fields are in {self._count} blocks, but rows are given for {len(counts)}")
        cells = sum(n * width for n, width in zip(rows, self._widths(len(rows)), strict=True))
        return (
            contiguous(offsets, np.int32, (cells + 1,)),
            contiguous(keys, np.int64, (None,)),
            counts,
            cells,
        )

    def _widths(self, blocks: int) -> list[int]:
        """Number of fields F_k of each block; the last blocks may have no field."""
        return self._fields_of_block + [0] * (blocks - self._count)

    def _split(self, out: Floats, rows: tuple[int, ...]) -> tuple[Floats, ...]:
        parts, start = [], 0
        for n, width in zip(rows, self._widths(len(rows)), strict=True):
            end = start + n * width * self.dim
            parts.append(out[start:end].reshape(n, width, self.dim))
            start = end
        return tuple(parts)
