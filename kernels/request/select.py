"""A user in, a packed reply of the best items out, in one call: Python interface of `request/select.cpp`."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from livectr.kernels.keys.keys import MISSING
from livectr.kernels.network.retrieval import RetrievalWorths, Selection
from livectr.kernels.network.tower import Tower
from livectr.kernels.request.features import FeatureMemory
from livectr.kernels.request.look_up import CompiledSnapshot
from livectr.kernels.request.pooled import GivenLists, ItemMatrix, PooledReads
from livectr.kernels.request.swap_lock import SwapLock
from livectr.kernels.runtime.arrays import Checked, address, addresses, bytes_at, contiguous
from livectr.kernels.runtime.library import kernel_library
from livectr.kernels.table.field_tables import FieldTables

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
U32 = npt.NDArray[np.uint32]

_U32, _I64, _F32, _F64, _U8 = map(np.dtype, (np.uint32, np.int64, np.float32, np.float64, np.uint8))


class Selector(CompiledSnapshot):
    """State of a version that selects the best items of a user.

    Args:
        lock: over the rows of the tables.
        version: of the rows; when the lock has another one, the call says SUPERSEDED.
        tables: reads the shared fields, each in block 1, then the rows' own in block 0.
        shared: number of shared fields.
        first: value of a row at which a field's vector begins.
        dim: numbers of a vector.
        places: of the tower's fields, in its order: among the shared fields, or behind them the own ones.
        tower: of the user.
        bias: of every score.
        items: of the version.
        pooled: lists whose pooled vectors are the tower's last inputs; None: it reads none.

    Raises:
        ValueError: rows without the tower's values, or items of another width.
    """

    def __init__(
        self,
        lock: SwapLock,
        version: int,
        tables: FieldTables,
        shared: int,
        first: int,
        dim: int,
        places: Sequence[int],
        tower: Tower,
        bias: float,
        items: ItemMatrix,
        pooled: PooledReads | None = None,
    ) -> None:
        if places and (first + dim > tables.dim or max(places) >= len(tables.fields)):
            raise ValueError(
                f"{tables.fields} of {tables.dim} values have no {places} of {dim} from {first} on"
            )
        ids = contiguous(items.ids, np.int64, (None,))
        matrix = contiguous(items.vectors, np.float32, (len(ids), tower.outputs))
        if len(items.numbers) != len(ids):
            raise ValueError(f"{len(items.numbers)} keys have numbers, but there are {len(ids)} rows")
        self.width = tower.inputs - dim * len(places)
        worths = None if items.worths is None else contiguous(items.worths, np.float32, (len(ids),))
        self.items, self.outputs, self.valued = len(ids), tower.outputs, worths is not None
        own = len(tables.fields) - shared
        sizes = np.array((shared, own, tables.dim, first, dim, len(places), self.items), np.int64)
        of_fields = np.array(places, np.int32)
        handle = _library().selector_new(
            *(lock.handle, version, tables.handle, tower.handle, address(sizes), address(of_fields)),
            *(bias, items.numbers.handle, address(ids), address(matrix)),
            None if worths is None else address(worths),
        )
        calls = _library().selector_delete, _library().selector_select
        super().__init__(handle, *calls, lock, tables, tower, items.numbers, ids, matrix, worths)
        if pooled is not None:
            self.width -= sum(channel.width for channel in pooled.pooling.channels)
            words, parts = pooled.numbers()
            self._parts = self._parts, pooled, parts
            if not _library().selector_pool(handle, pooled.pooling.handle, address(words)):
                raise MemoryError("no memory for the lists of a snapshot")


class _Words(ctypes.Structure):
    """`Selection` of request/select.cpp."""

    _fields_ = [
        ("features", ctypes.c_void_p),
        ("lists", ctypes.c_void_p),
        ("width", ctypes.c_int64),
        ("worths", RetrievalWorths),
        ("deadline", ctypes.c_double),
        ("own_vectors", ctypes.c_void_p),
        ("shared_vectors", ctypes.c_void_p),
        ("candidates", ctypes.c_void_p),
        ("asked", ctypes.c_int64),
        ("cold", ctypes.c_void_p),
        ("excluded", ctypes.c_void_p),
        ("unwanted", ctypes.c_int64),
        ("k", ctypes.c_int64),
        ("reply_fields", ctypes.c_void_p),
        ("rows", ctypes.c_void_p),
        ("positions", ctypes.c_void_p),
        ("ids", ctypes.c_void_p),
        ("scores", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("found", ctypes.c_int64),
        ("unknown", ctypes.c_int64),
        ("bytes", ctypes.c_int64),
        ("looked_up_at", ctypes.c_double),
        ("scored_at", ctypes.c_double),
    ]


class SelectionFields:
    """Numbers of the fields of a reply that a call packs.

    Args:
        index: repeated uint32, places of the best in the candidates.
        ids: message of their ids; 0: none are packed.
        values: repeated int64 of this message.
        score: repeated float.
        value: repeated float, of those that are ordered by their values.
    """

    def __init__(self, index: int, ids: int, values: int, score: int, value: int) -> None:
        self._numbers = np.array((index, ids, values, score, value), np.int64)
        self.at = address(self._numbers)


@dataclass(frozen=True)
class Wanted:
    """Items that are wanted.

    Args:
        k: their number, at least 1; there are fewer of fewer items.
        candidates: i64[n], ids to choose from; None: all items.
        excluded: u32[m], ascending rows of all items that are not wanted.
        fields: of the reply that is packed; None: none is.
        bids: f64[n], worths of the candidates; None: those of the items, if they have some.
    """

    k: int
    candidates: I64 | None
    excluded: U32
    fields: SelectionFields | None = None
    bids: F64 | None = None


class SelectCall:
    """User whose best items are selected, and these. For one thread.

    Args:
        snapshot: that answers.
        memory: with the arguments of the call for features.
        deadline: instant of time.monotonic(); None: no deadline.
        wanted: items.

    Raises:
        ValueError: arrays that do not fit the snapshot.
    """

    def __init__(
        self,
        snapshot: Selector,
        memory: FeatureMemory,
        deadline: float | None,
        wanted: Wanted,
    ) -> None:
        if wanted.k < 1:
            raise ValueError(f"k is {wanted.k}, but must be at least 1")
        asked = wanted.candidates
        most = min(wanted.k, snapshot.items if asked is None else len(asked))
        self._rows: U32 = np.empty(0 if asked is None else len(asked), np.uint32)
        self._found = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.float32)
        valued = snapshot.valued or wanted.bids is not None
        self._values = np.empty(most, np.float32) if valued else None
        self._out = np.empty(_library().selector_room(most) if wanted.fields else 0, np.uint8)
        arrays: list[Checked] = [
            (wanted.excluded, _U32, None),
            (self._rows, _U32, None),
            (self._found[0], _I64, most),
            (self._found[1], _I64, most),
            (self._found[2], _F32, most),
            (self._out, _U8, None),
        ]
        if asked is not None:
            arrays.append((asked, _I64, None))
        at = addresses(arrays)
        self.words = words = _Words(memory.at, None, snapshot.width)
        words.deadline = np.inf if deadline is None else deadline
        words.excluded, words.unwanted, words.k = at[0], len(wanted.excluded), wanted.k
        words.rows, words.positions, words.ids, words.scores, words.out = at[1:6]
        if self._values is not None:
            words.values = address(self._values)
        if wanted.bids is not None:
            bids = contiguous(wanted.bids, np.float64, (0 if asked is None else len(asked),))
            words.worths.bids = address(bids)
            arrays.append((bids, _F64, None))
        self._outputs = snapshot.outputs
        if asked is not None:
            words.candidates, words.asked = at[6] or address(_NOTHING), len(asked)
        if wanted.fields is not None:
            words.reply_fields = wanted.fields.at
        self._arrays: object = arrays, wanted, memory

    @property
    def unknown(self) -> npt.NDArray[np.bool_]:
        """After MISSING_ITEMS bool[n]: candidates without a vector."""
        missing: npt.NDArray[np.bool_] = self._rows == MISSING
        return missing

    def give_vectors(self, own: F32, shared: F32) -> None:
        """Give vectors f32[1, own fields, D] and f32[1, shared fields, D], so that none are looked up."""
        self.words.own_vectors, self.words.shared_vectors = address(own), address(shared)
        self._arrays = self._arrays, own, shared

    def give_lists(self, vectors: Sequence[F32 | None]) -> None:
        """Give the vectors f32[n, width] of lists of the tower's pooling. Raises as `GivenLists`."""
        given = GivenLists(vectors)
        self.words.lists, self._arrays = given.at, (self._arrays, given)

    @property
    def by_rows(self) -> bool:
        """True if the worths of the items count: no bids were given."""
        return self._values is not None and not self.words.worths.bids

    def give_items(self, vectors: F32, worths: F32 | None = None) -> None:
        """Give the vectors f32[m, out] of the m unknown candidates; their worths f32[m] where `by_rows`.

        Raises:
            ValueError: an array of another shape.
        """
        given = contiguous(vectors, np.float32, (self.unknown_count, self._outputs))
        self.words.cold = address(given)
        self._arrays = self._arrays, given
        if worths is not None:
            worth = contiguous(worths, np.float32, (self.unknown_count,))
            self.words.worths.cold = address(worth)
            self._arrays = self._arrays, worth

    @property
    def best(self) -> tuple[Selection, I64]:
        """Best m items, and their ids i64[m]."""
        m, (positions, ids, scores) = self.words.found, self._found
        values = None if self._values is None else self._values[:m]
        return Selection(positions[:m], scores[:m], values), ids[:m]

    @property
    def unknown_count(self) -> int:
        """Number of candidates without a vector of the version."""
        count: int = self.words.unknown
        return count

    def reply(self) -> bytes:
        """Fields of the reply, on the wire."""
        return bytes_at(self.words.out, self.words.bytes)


_NOTHING = np.zeros(1, np.int64)


@functools.cache
def _library() -> ctypes.CDLL:
    library = kernel_library()
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    library.selector_new.restype = pointer
    library.selector_new.argtypes = [
        *(pointer, number, pointer, pointer, pointer, pointer),
        *(ctypes.c_float, pointer, pointer, pointer, pointer),
    ]
    library.selector_pool.restype = ctypes.c_bool
    library.selector_pool.argtypes = [pointer, pointer, pointer]
    library.selector_delete.restype, library.selector_delete.argtypes = None, [pointer]
    library.selector_room.restype, library.selector_room.argtypes = number, [number]
    library.selector_select.restype, library.selector_select.argtypes = number, [pointer, pointer]
    return library
