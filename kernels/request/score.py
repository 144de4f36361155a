"""Enrich → extract → look up → score → reply in one call: Python interface of `request/score.cpp`."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from livectr.kernels.network.forward import ForwardNetwork, Kept
from livectr.kernels.network.reply import ReplyPacker
from livectr.kernels.request.features import FeatureMemory
from livectr.kernels.request.look_up import CompiledSnapshot
from livectr.kernels.request.partials import Partials
from livectr.kernels.request.pooled import GivenLists, PooledReads
from livectr.kernels.request.swap_lock import SwapLock
from livectr.kernels.runtime.arrays import address, addresses, bytes_at, contiguous, copied
from livectr.kernels.runtime.library import kernel_library
from livectr.kernels.table.field_tables import FieldTables

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
Pairs = Sequence[tuple[int, int]]

_I64, _F32 = np.dtype(np.int64), np.dtype(np.float32)


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


@dataclass(frozen=True)
class Lines:
    """Calibration of a version: logit → scale · logit + shift, by segment.

    Args:
        place: of the segments' field among the shared fields, or among the rows' own; None: no segments.
        shared: the field is one of the shared ones.
        keys: i64[S], rising: keys of the segments.
        scale: f32[S + 1], of each segment, and last of other rows.
        shift: f32[S + 1], likewise.
    """

    place: int | None
    shared: bool
    keys: I64
    scale: F32
    shift: F32


@dataclass(frozen=True)
class Heads:
    """Networks beside that of a snapshot.

    Args:
        others: networks without features of items or lists, and their inputs.
        weights: f64[1 + len(others)] of a mixture of probabilities, that of the snapshot's own network first;
            None: each has logits of its own.
    """

    others: Sequence[tuple[ForwardNetwork, Reads]]
    weights: F64 | None = None


class Snapshot(CompiledSnapshot):
    """State of a version that scores candidates.

    Args:
        lock: over the rows of the tables.
        version: of the rows; when the lock has another one, the call says SUPERSEDED.
        tables: reads the shared fields, each in block 1, then the rows' own in block 0, then the sequences of
            `pooled` in blocks of their own.
        shared: number of shared fields.
        network: of the version.
        reads: inputs of the network.
        lines: its calibration; None: it is not calibrated.
        pooled: lists that the network pools; None: it has no such inputs.
        heads: beside the network; None: there are none.

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
        lines: Lines | None = None,
        pooled: PooledReads | None = None,
        heads: Heads | None = None,
    ) -> None:
        lists = () if pooled is None else pooled.lists
        sequences = sum(read.content is None for read in lists)
        own = len(tables.fields) - shared - sequences
        segments, arrays = _segments(lines, shared, own)
        sizes = shared, own, tables.dim, reads.has_items, *segments, *_head_sizes(tables, network, reads)
        words, numbers = np.array(sizes, np.int64), reads.numbers
        handle = _library().snapshot_new(
            lock.handle, version, tables.handle, network.handle, address(words), address(numbers), *arrays
        )
        calls = _library().snapshot_delete, _library().snapshot_score
        super().__init__(handle, *calls, lock, tables, network, pooled, heads)
        if heads is not None:
            self._add(heads, tables)
        if pooled is not None:
            if tables.fields and reads.first + pooled.pooling.depth > tables.dim:
                raise ValueError(f"rows of {tables.dim} values have no query from {reads.first} on")
            words, parts = pooled.numbers()
            self._parts = self._parts, parts
            if not _library().snapshot_pool(handle, pooled.pooling.handle, address(words)):
                raise MemoryError("no memory for the lists of a snapshot")

    def _add(self, heads: Heads, tables: FieldTables) -> None:
        """Add networks beside the own one."""
        done = True
        for network, reads in heads.others:
            sizes, numbers = np.array(_head_sizes(tables, network, reads), np.int64), reads.numbers
            done &= _library().snapshot_head(self.handle, network.handle, address(sizes), address(numbers))
        if heads.weights is not None:
            weights = contiguous(heads.weights, np.float64, (1 + len(heads.others),))
            done &= _library().snapshot_mix(self.handle, address(weights), len(weights))
        if not done:
            raise MemoryError("no memory for the heads of a snapshot")


def _head_sizes(tables: FieldTables, network: ForwardNetwork, reads: Reads) -> tuple[int, ...]:
    """Sizes of a `Head` of score.cpp. Raises ValueError for rows without the network's values."""
    shape = network.shape
    if tables.fields and not shape.wide <= reads.first <= tables.dim - shape.dim:
        raise ValueError(f"rows of {tables.dim} values have no {shape.dim} from {reads.first} on")
    lists = reads.shared, reads.own, reads.items, reads.dense, reads.dense_of_items
    return (reads.first, shape.fields, *map(len, lists))


def _segments(lines: Lines | None, shared: int, own: int) -> tuple[tuple[int, int, int], list[int | None]]:
    """Place of the segments' field, shared or not, and segments; addresses of keys, scale and shift.

    Args:
        lines: calibration.
        shared: number of shared fields.
        own: number of the rows' own fields.
    """
    if lines is None:
        return (-1, 0, -1), [None] * 3
    count, place = len(lines.keys), -1 if lines.place is None else lines.place
    if place >= (shared if lines.shared else own):
        raise ValueError(f"the calibration reads field {place} of those of a batch")
    wanted = ((lines.keys, _I64, count), (lines.scale, _F32, count + 1), (lines.shift, _F32, count + 1))
    return (place, int(lines.shared), count), [*addresses(wanted)]


class _Words(ctypes.Structure):
    """`Call` of request/score.cpp."""

    _fields_ = (
        ("features", ctypes.c_void_p),
        ("deadline", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in ("own_vectors", "shared_vectors", "partials", "kept")),
        ("kept_is_given", ctypes.c_int64),
        ("lists", ctypes.c_void_p),
        ("most_pairs", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("bids", "reply_fields", "bounds")),
        ("bounds_count", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("counts", "logits", "lines", "out")),
        ("bytes", ctypes.c_int64),
        *((name, ctypes.c_int64) for name in ("list", "listed")),
        *((name, ctypes.c_double) for name in ("total", "looked_up_at", "scored_at")),
        ("others", ctypes.c_void_p),
    )


class Revenues:
    """Form of the replies that calls pack.

    Args:
        packer: knows the numbers of their fields.
        bounds: f64[m], rising, of a histogram of the click probabilities.
    """

    def __init__(self, packer: ReplyPacker, bounds: F64) -> None:
        self._parts = packer, bounds
        self.words = packer.fields_at, address(bounds), len(bounds)


class ScoreCall:
    """Candidates to be scored, and their scores. For one thread.

    Results lie in the memory, up to its next call.

    Args:
        memory: with the arguments of the call for features.
        deadline: instant of time.monotonic(); None: no deadline.
        partials: of the candidates' items; None: the network has no features of items, or they are computed
            with the others.
        revenues: form of the reply; None: none is packed.
        bids: address of f64[rows], for the reply.
        most_pairs: largest number of vectors of a list that all rows share, times rows.

    Attributes:
        words: arguments and results.
        counts: i64[m + 1], probabilities up to each bound of the histogram and above the one before; None:
            no reply is packed.
    """

    def __init__(
        self,
        memory: FeatureMemory,
        deadline: float | None,
        partials: Partials | None = None,
        revenues: Revenues | None = None,
        bids: int = 0,
        most_pairs: int = 0,
    ) -> None:
        self.words = words = _Words(memory.at, _NEVER if deadline is None else deadline)
        self._parts: object = memory, partials, revenues
        self._features = memory.call
        self.counts: I64 | None = None
        self._lists: GivenLists | None = None
        words.most_pairs = most_pairs
        if partials is not None:
            words.partials = partials.handle
        if revenues is not None:
            words.bids = bids
            words.reply_fields, words.bounds, words.bounds_count = revenues.words
            counts = (ctypes.c_int64 * (words.bounds_count + 1))()
            words.counts = ctypes.addressof(counts)
            self.counts = np.frombuffer(counts, np.int64)

    @property
    def logits(self) -> F32:
        """Logits f32[rows]."""
        return copied(self.words.logits, np.float32, self._features.rows)

    def others(self, heads: int) -> F32:
        """Logits f32[heads, rows] of the networks beside the snapshot's own."""
        rows = self._features.rows
        return copied(self.words.others, np.float32, heads * rows).reshape(heads, rows)

    @property
    def lines(self) -> tuple[F32, F32] | None:
        """Scale and shift f32[rows] of the logits' calibration; None: they are not calibrated."""
        if not self.words.lines:
            return None
        scale, shift = np.split(copied(self.words.lines, np.float32, 2 * self._features.rows), 2)
        return scale, shift

    @property
    def item_keys(self) -> I64:
        """Keys i64[rows] of the candidates' items."""
        return copied(self._features.items, np.int64, self._features.rows)

    @property
    def kept(self) -> I64:
        """After MISSING_ITEMS, the addresses i64[rows] of the items' partial results; 0: there is none."""
        return copied(self.words.kept, np.int64, self._features.rows)

    def give_vectors(self, own: F32, shared: F32) -> None:
        """Give vectors f32[rows, own fields, D] and f32[1, shared fields, D], so that none are looked up."""
        self.words.own_vectors, self.words.shared_vectors = address(own), address(shared)
        self._parts = self._parts, own, shared

    def give_lists(self, vectors: Sequence[F32 | None]) -> None:
        """Give the vectors f32[n, width] of lists of the network's pooling. Raises as `GivenLists`.

        Those that are None are as they were given before.
        """
        given = self._lists = GivenLists(vectors, self._lists)
        self.words.lists, self._parts = given.at, (self._parts, given)

    def give_kept(self, kept: Kept) -> None:
        """Give the partial results of the rows' items, so that none are looked up."""
        self.words.kept, self.words.kept_is_given = address(kept.addresses), True
        self._parts = self._parts, kept

    def reply(self) -> bytes:
        """Fields of the reply of a call with `revenues`, on the wire."""
        return bytes_at(self.words.out, self.words.bytes)


_NEVER = float("inf")


@functools.cache
def _library() -> ctypes.CDLL:
    library = kernel_library()
    pointer = ctypes.c_void_p
    library.snapshot_new.restype = pointer
    library.snapshot_new.argtypes = [pointer, ctypes.c_int64, *[pointer] * 7]
    library.snapshot_head.restype = library.snapshot_mix.restype = ctypes.c_bool
    library.snapshot_head.argtypes = [pointer, pointer, pointer, pointer]
    library.snapshot_mix.argtypes = [pointer, pointer, ctypes.c_int64]
    library.snapshot_pool.restype = ctypes.c_bool
    library.snapshot_pool.argtypes = [pointer, pointer, pointer]
    library.snapshot_delete.restype, library.snapshot_delete.argtypes = None, [pointer]
    library.snapshot_score.restype, library.snapshot_score.argtypes = ctypes.c_int64, [pointer, pointer]
    return library
