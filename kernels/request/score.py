"""Look up → score → reply in one call: Python interface of `request/score.cpp`."""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from livectr.kernels.network.forward import ForwardNetwork, Kept
from livectr.kernels.network.reply import ReplyPacker, most_bytes
from livectr.kernels.request.look_up import LATE, Keys, Ragged, refused
from livectr.kernels.request.partials import Partials
from livectr.kernels.request.swap_lock import SwapLock
from livectr.kernels.runtime.arrays import Checked, address, addresses
from livectr.kernels.runtime.library import kernel_library
from livectr.kernels.table.field_tables import FieldTables

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
Pairs = Sequence[tuple[int, int]]

_I32, _I64, _F32, _F64, _U8 = (
    np.dtype(kind) for kind in (np.int32, np.int64, np.float32, np.float64, np.uint8)
)


@dataclass(frozen=True)
class Reads:
    """Inputs that a network reads of a batch: its fields, as pairs (place in the batch's part, number).

    Args:
        shared: of the fields that all rows share.
        own: of the rows' own fields, without the items'.
        items: the items' among the rows' own.
        dense: columns of the dense numbers, without the items'.
        dense_of_items: the items'.
        first: value of a row at which a field's vector begins.
        has_items: the network has features of items. Their partial results are given or kept, or computed.
    """

    shared: Pairs
    own: Pairs
    items: Pairs
    dense: Sequence[int]
    dense_of_items: Sequence[int]
    first: int
    has_items: bool

    @property
    def numbers(self) -> I32:
        """All numbers in the order of `snapshot_new`."""
        pairs = [number for pair in (*self.shared, *self.own, *self.items) for number in pair]
        return np.array([*pairs, *self.dense, *self.dense_of_items], np.int32)


class Snapshot:
    """State of a version as requests with the same shared fields read it; immutable, thread-safe.

    It keeps its parts alive. A request holds it while it is answered, so that a swap waits for nobody.

    Args:
        lock: over the rows of the tables.
        version: of the rows; when the lock has another one, the call says SUPERSEDED.
        tables: reads the shared fields, each in block 1, then the rows' own in block 0.
        shared: number of shared fields.
        network: of the version.
        reads: inputs of the network.

    Raises:
        ValueError: rows without the network's values.
    """

    def __init__(
        self,
        lock: SwapLock,
        version: int,
        tables: FieldTables,
        shared: int,
        network: ForwardNetwork,
        reads: Reads,
    ) -> None:
        shape, own = network.shape, len(tables.fields) - shared
        if tables.fields and not shape.wide <= reads.first <= tables.dim - shape.dim:
            raise ValueError(f"rows of {tables.dim} values have no {shape.dim} from {reads.first} on")
        self.shared, self.own, self.dense = shared, own, len(reads.dense) + len(reads.dense_of_items)
        self._parts = lock, tables, network
        self._score = _library().snapshot_score
        lists = reads.shared, reads.own, reads.items, reads.dense, reads.dense_of_items
        sizes = (shared, own, tables.dim, reads.first, shape.fields, *map(len, lists), reads.has_items)
        words, numbers = np.array(sizes, np.int64), reads.numbers
        handle = _library().snapshot_new(
            lock.handle, version, tables.handle, network.handle, address(words), address(numbers)
        )
        if not handle:
            raise MemoryError("no memory for a snapshot")
        self._handle: int = handle
        weakref.finalize(self, _library().snapshot_delete, handle)

    def score(self, call: ScoreCall) -> int:
        """Answer a call, as far as memory has what it needs.

        Returns:
            DONE, MISSING_ROWS, MISSING_ITEMS, SUPERSEDED or LATE.

        Raises:
            MemoryError: no memory.
            ValueError: offsets that do not fit.
        """
        outcome: int = self._score(self._handle, ctypes.byref(call.words))
        return outcome if outcome <= LATE else refused(outcome)


class _Words(ctypes.Structure):
    """`Call` of request/score.cpp."""

    _fields_ = [
        ("keys", Keys),
        ("dense", ctypes.c_void_p),
        ("width", ctypes.c_int64),
        ("deadline", ctypes.c_double),
        ("own_vectors", ctypes.c_void_p),
        ("shared_vectors", ctypes.c_void_p),
        ("partials", ctypes.c_void_p),
        ("item_keys", ctypes.c_void_p),
        ("kept", ctypes.c_void_p),
        ("kept_is_given", ctypes.c_bool),
        ("bids", ctypes.c_void_p),
        ("reply_fields", ctypes.c_void_p),
        ("logits", ctypes.c_void_p),
        ("pctr", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("bounds", ctypes.c_void_p),
        ("bounds_count", ctypes.c_int64),
        ("counts", ctypes.c_void_p),
        ("total", ctypes.c_double),
        ("bytes", ctypes.c_int64),
        ("looked_up_at", ctypes.c_double),
        ("scored_at", ctypes.c_double),
    ]


@dataclass(frozen=True)
class Items:
    """Items of a request's rows.

    Args:
        partials: kept partial results.
        keys: i64[rows].
    """

    partials: Partials
    keys: I64


@dataclass(frozen=True)
class Revenues:
    """Reply that a call packs.

    Args:
        packer: knows the numbers of its fields.
        bids: f64[rows].
        bounds: f64[m], rising, of a histogram of the click probabilities.
    """

    packer: ReplyPacker
    bids: F64
    bounds: F64


@dataclass(frozen=True)
class Packed:
    """Packed reply.

    Args:
        pctr: f64[rows], click probabilities.
        fields: of the reply, on the wire.
        counts: i64[m + 1], probabilities up to each bound of the histogram and above the one before.
        total: sum of the probabilities.
    """

    pctr: F64
    fields: bytes
    counts: I64
    total: float


class ScoreCall:
    """Candidates to be scored, and their scores. For one thread.

    Args:
        snapshot: that answers.
        shared: keys of its shared fields, of one row.
        own: keys of the rows' own fields.
        dense: f32[rows, dense numbers].
        deadline: instant of time.monotonic(); None: no deadline.
        items: of the rows; None: the network has no features of items, or they are computed with the others.
        revenues: what to pack; None: nothing.

    Attributes:
        logits: f32[rows], a result.

    Raises:
        ValueError: arrays that do not fit the snapshot.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        shared: Ragged,
        own: Ragged,
        dense: F32,
        deadline: float | None,
        items: Items | None = None,
        revenues: Revenues | None = None,
    ) -> None:
        rows = len(dense)
        if dense.shape[1] != snapshot.dense:
            raise ValueError(f"{dense.shape[1]} dense numbers, but the network reads {snapshot.dense}")
        self.logits: F32 = np.empty(rows, np.float32)
        self._kept: I64 = np.empty(rows, np.int64)
        arrays: list[Checked] = [
            (shared.offsets, _I32, snapshot.shared + 1),
            (shared.keys, _I64, None),
            (own.offsets, _I32, snapshot.own * rows + 1),
            (own.keys, _I64, None),
            (dense, _F32, rows),
            (self.logits, _F32, rows),
            (self._kept, _I64, rows),
        ]
        if items is not None:
            arrays.append((items.keys, _I64, rows))
        if revenues is not None:
            self._reply = _Reply(rows, revenues.bounds)
            arrays += [(revenues.bids, _F64, rows), *self._reply.arrays]
        at = addresses(arrays)
        keys = Keys(*at[:4], len(shared.keys), len(own.keys), rows)
        self.words = words = _Words(keys, at[4], snapshot.dense)
        words.logits, words.kept = at[5:7]
        words.deadline = np.inf if deadline is None else deadline
        if items is not None:
            words.partials, words.item_keys = items.partials.handle, at[7]
        if revenues is not None:
            words.bids, words.pctr, words.out, words.counts, words.bounds = at[-5:]
            words.reply_fields, words.bounds_count = revenues.packer.fields_at, len(revenues.bounds)
        self._arrays: object = arrays, items, revenues

    @property
    def kept(self) -> I64:
        """After MISSING_ITEMS, the addresses i64[rows] of the items' partial results; 0: there is none."""
        return self._kept

    def give_vectors(self, own: F32, shared: F32) -> None:
        """Give vectors f32[rows, own fields, D] and f32[1, shared fields, D], so that none are looked up."""
        self.words.own_vectors, self.words.shared_vectors = address(own), address(shared)
        self._arrays = self._arrays, own, shared

    def give_kept(self, kept: Kept) -> None:
        """Give the partial results of the rows' items, so that none are looked up."""
        self.words.kept, self.words.kept_is_given = address(kept.addresses), True
        self._arrays = self._arrays, kept

    @property
    def ends(self) -> tuple[float, float]:
        """Instants of time.perf_counter(), as kernels read it, at which all was looked up and scored."""
        return self.words.looked_up_at, self.words.scored_at

    def reply(self) -> Packed:
        """Reply of a call with `revenues`."""
        of, words = self._reply, self.words
        return Packed(of.pctr, of.out[: words.bytes].tobytes(), of.counts, words.total)


class _Reply:
    """Memory of a packed reply of some rows."""

    def __init__(self, rows: int, bounds: F64) -> None:
        self.pctr: F64 = np.empty(rows)
        self.out = np.empty(most_bytes(rows), np.uint8)
        self.counts: I64 = np.empty(len(bounds) + 1, np.int64)
        self.arrays = (
            (self.pctr, _F64, rows),
            (self.out, _U8, None),
            (self.counts, _I64, None),
            (bounds, _F64, None),
        )


@functools.cache
def _library() -> ctypes.CDLL:
    library = kernel_library()
    pointer = ctypes.c_void_p
    library.snapshot_new.restype = pointer
    library.snapshot_new.argtypes = [pointer, ctypes.c_int64, *[pointer] * 4]
    library.snapshot_delete.restype, library.snapshot_delete.argtypes = None, [pointer]
    library.snapshot_score.restype, library.snapshot_score.argtypes = ctypes.c_int64, [pointer, pointer]
    return library
