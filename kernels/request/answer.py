"""Plain requests, answered without the interpreter: Python interface of `request/answer.cpp`."""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from livectr.kernels.request.features import FeatureCall
from livectr.kernels.request.parse import RequestParser
from livectr.kernels.request.partials import Partials
from livectr.kernels.request.score import Snapshot
from livectr.kernels.request.select import Selector
from livectr.kernels.runtime.arrays import address, bytes_at
from livectr.kernels.runtime.library import kernel_library

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

STAGES = ("wait", "parse", "enrich", "extract", "look_up", "score", "respond")
"""Stages of a request whose times are observed; the first `Observed` of `answer.cpp`."""
HISTOGRAMS = (*STAGES, "request", "live_age", "live_skew", "pctr")
"""Histograms of requests; `Observed` of `answer.cpp`."""
_COUNTS = 4
_MOST_GONE = 256


class AnswerSlots:
    """Native memory of the calls of an engine.

    Args:
        create, destroy: addresses of the engine's functions.
        words: address of their argument.
        owner: keeps it alive.
    """

    def __init__(self, create: int, destroy: int, words: int, owner: object) -> None:
        self._owner = owner
        self.handle = _library().answers_slots_new(create, destroy, words)
        if not self.handle:
            raise MemoryError("no memory for the calls of an engine")
        weakref.finalize(self, _library().answers_slots_delete, self.handle)


@dataclass(frozen=True)
class Shape:
    """Shape of requests that have the same shared columns.

    Args:
        parts: uint8[columns], the Part that each column of the parser is in.
        single: there is a single candidate.
    """

    parts: bytes
    single: bool


@dataclass(frozen=True)
class Selecting:
    """Bounds of requests that select items.

    Args:
        items: most that a request may name.
        k: most that it may want.
    """

    items: int
    k: int


@dataclass(frozen=True)
class Prepared:
    """State of a version for requests of a shape.

    Args:
        version: its number.
        created_ms: time at which it was created, ms since 1970.
        snapshot: that scores candidates, or selects items.
        partials: of the items; None: none are kept.
        slots: of the engine that extracts.
        features: arguments of the call for features, besides those of a request.
        live: the features have look-up rows.
        ttl_s: seconds after which look-up rows are too old.
        ends_at: instant of time.monotonic() from which the partial results are too old.
        most_pairs: as of `ScoreCall`.
        reply_fields: address of the numbers of the reply's fields.
        head: fields of every reply besides the request's id, on the wire.
        fields: that are looked up, as numbers among those that are counted.
        owners: what the state refers to.
        needs_bids: requests without bids are not answered.
        selecting: bounds of requests to a `Selector`.
        every: one request of so many is not answered, by its `sample`; 0: none.
    """

    version: int
    created_ms: int
    snapshot: Snapshot | Selector
    partials: Partials | None
    slots: AnswerSlots
    features: FeatureCall
    live: bool
    ttl_s: float
    ends_at: float
    most_pairs: int
    reply_fields: int
    head: bytes
    fields: Sequence[int]
    owners: object
    needs_bids: bool = False
    selecting: Selecting = Selecting(0, 0)
    every: int = 0


class _Prepared(ctypes.Structure):
    """`PreparedWords` of `answer.cpp`."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("number", "version", "created_ms")),
        *((name, ctypes.c_void_p) for name in ("snapshot", "selector", "partials", "slots", "features")),
        ("live", ctypes.c_int64),
        *((name, ctypes.c_double) for name in ("ttl_s", "ends_at")),
        ("most_pairs", ctypes.c_int64),
        ("reply_fields", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("needs_bids", "width", "most_items", "most_k", "every")),
    )


class _Answered(ctypes.Structure):
    """`Answered` of `answer.hpp`."""

    _fields_ = (("data", ctypes.c_void_p), ("bytes", ctypes.c_int64), ("held", ctypes.c_void_p))


@dataclass(frozen=True)
class Totals:
    """Counts of the requests that were answered since the last look.

    Args:
        requests: their number.
        rows: candidates.
        kept: candidates whose partial results were kept.
        unique: unique keys of the look-ups that were counted.
        keys, fresh: i64[fields], keys of these look-ups, and those without a published row.
        histograms: name of `HISTOGRAMS` → counts i64[n + 1] by its bounds, and sum; "pctr" of scores alone.
    """

    requests: int
    rows: int
    kept: int
    unique: int
    keys: I64
    fresh: I64
    histograms: dict[str, tuple[I64, float]]


class Answers:
    """Answers the plain requests of a method, as far as their shape is prepared. Thread-safe.

    Args:
        parser: of the requests.
        fields: number of fields whose keys are counted.
        bounds: name of `HISTOGRAMS` → rising upper bounds.

    Attributes:
        handle: for native callers of `answers_answer`.
    """

    def __init__(self, parser: RequestParser, fields: int, bounds: dict[str, F64]) -> None:
        self._parser, self._fields = parser, fields
        self._sizes = [len(bounds[name]) for name in HISTOGRAMS]
        sizes = np.array([len(parser.places), fields, *self._sizes], np.int64)
        flat = np.concatenate([np.asarray(bounds[name], np.float64) for name in HISTOGRAMS])
        self.handle = _library().answers_new(parser.handle, address(sizes), address(flat))
        if not self.handle:
            raise MemoryError("no memory for answers")
        weakref.finalize(self, _library().answers_delete, self.handle)
        self._number = 0
        self._held: dict[int, Prepared] = {}

    def prepare(self, shape: Shape, prepared: Prepared) -> None:
        """Answer requests of a shape from here on; for one thread at a time."""
        self._number += 1
        self._held[self._number] = prepared
        scores, bounds = prepared.snapshot, prepared.selecting
        selector = scores if isinstance(scores, Selector) else None
        words = _Prepared(
            *(self._number, prepared.version, prepared.created_ms),
            *(None, selector.handle) if selector is not None else (scores.handle, None),
            prepared.partials and prepared.partials.handle,
            *(prepared.slots.handle, ctypes.addressof(prepared.features), prepared.live),
            *(prepared.ttl_s, prepared.ends_at, prepared.most_pairs, prepared.reply_fields),
            *(prepared.needs_bids, 0 if selector is None else selector.width, bounds.items, bounds.k),
            prepared.every,
        )
        fields = np.array(prepared.fields, np.int32)
        done = _library().answers_prepare(
            *(self.handle, shape.parts, shape.single, ctypes.byref(words)),
            *(prepared.head, len(prepared.head), address(fields), len(fields)),
        )
        if not done:
            del self._held[self._number]
        self.collect()

    def clear(self) -> None:
        """Answer nothing until shapes are prepared again; for one thread at a time."""
        _library().answers_clear(self.handle)
        self.collect()

    def collect(self) -> None:
        """Let go of states that no request uses any more; for one thread at a time."""
        numbers = (ctypes.c_int64 * _MOST_GONE)()
        while count := _library().answers_gone(self.handle, numbers, _MOST_GONE):
            for number in numbers[:count]:
                self._held.pop(number, None)

    def answer(self, raw: bytes, deadline: float | None, began: float, placed: float) -> bytes | None:
        """Answer a request; None: it is not plain, or needs what is not in memory.

        Args:
            raw: its bytes.
            deadline: instant of time.monotonic(); None: no deadline.
            began: instant of time.perf_counter() at which it was there.
            placed: at which it got a place to be computed.
        """
        out = _Answered()
        call = ctypes.byref(out)
        if not _library().answers_answer(
            self.handle, raw, len(raw), _NEVER if deadline is None else deadline, began, placed, call
        ):
            return None
        reply = bytes_at(out.data, out.bytes)
        _library().answers_release(call)
        return reply

    def take(self) -> Totals:
        """Take what was counted since the last call."""
        sizes = (_COUNTS, self._fields, self._fields, *(size + 1 for size in self._sizes))
        words, sums = np.zeros(sum(sizes), np.int64), np.zeros(len(HISTOGRAMS), np.float64)
        _library().answers_take(self.handle, address(words), address(sums))
        counts, keys, fresh, *histograms = np.split(words, np.cumsum(sizes)[:-1])
        named = zip(HISTOGRAMS, zip(histograms, sums.tolist(), strict=True), strict=True)
        requests, rows, kept, unique = counts.tolist()
        return Totals(requests, rows, kept, unique, keys, fresh, dict(named))


_NEVER = float("inf")


def address_of_answer() -> tuple[int, int]:
    """Addresses of `answers_answer` and `answers_release`, for native callers."""
    library = _library()
    calls = library.answers_answer, library.answers_release
    answer, release = (ctypes.cast(call, ctypes.c_void_p).value for call in calls)
    assert answer is not None and release is not None
    return answer, release


@functools.cache
def _library() -> ctypes.CDLL:
    library = kernel_library()
    pointer, number, flag = ctypes.c_void_p, ctypes.c_int64, ctypes.c_bool
    library.answers_slots_new.restype, library.answers_slots_new.argtypes = pointer, [pointer] * 3
    library.answers_slots_delete.restype, library.answers_slots_delete.argtypes = None, [pointer]
    library.answers_new.restype, library.answers_new.argtypes = pointer, [pointer] * 3
    library.answers_delete.restype, library.answers_delete.argtypes = None, [pointer]
    library.answers_prepare.restype = flag
    library.answers_prepare.argtypes = [
        *(pointer, ctypes.c_char_p, flag, pointer),
        *(ctypes.c_char_p, number, pointer, number),
    ]
    library.answers_clear.restype, library.answers_clear.argtypes = None, [pointer]
    library.answers_gone.restype, library.answers_gone.argtypes = number, [pointer, pointer, number]
    library.answers_take.restype, library.answers_take.argtypes = None, [pointer] * 3
    library.answers_answer.restype = flag
    library.answers_answer.argtypes = [
        *(pointer, ctypes.c_char_p, number),
        *[ctypes.c_double] * 3,
        pointer,
    ]
    library.answers_release.restype, library.answers_release.argtypes = None, [pointer]
    return library
