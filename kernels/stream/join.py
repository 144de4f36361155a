"""Windowed label join of a partition: Python interface of `stream/join.hpp`."""

from __future__ import annotations

import ctypes
import functools
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from livectr.kernels.runtime.library import kernel_library
from livectr.kernels.stream.known import COLUMNS, Columns, Places, with_known

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]
F64 = npt.NDArray[np.float64]

IMPRESSION, CLICK = 0, 1
ACCEPTED, DUPLICATE, LATE, UNMATCHED, OUTSIDE, FULL, DELAYED = 0, 1, 2, 3, 4, 5, 6
WAITING, PENDING, RELEASED, PROVISIONAL = 0, 1, 2, 3
IN_WINDOW, AFTER_WAIT = 1, 3
"""Values of `clicked` of a key that has a click inside its window: before it left, or after it."""

NEGATIVE, POSITIVE, LATE_POSITIVE = 0, 1, 2
FINAL_NEGATIVE, FINAL_POSITIVE, FINAL_LATE = 3, 4, 5
ENTRY_BYTES, CLICK_BYTES = 192, 32
"""Bytes of a known key, without its impression's columns, and of a click that waits for an impression."""
MAX_BYTES = 1 << 30
KEPT_AHEAD = 4096
COUNTERS = 11

AMOUNT, WAITING_AMOUNT = "amount", "waiting_amount"
_FIELDS = ("key", "ts", "deadline", "slot", "click_ts", "serial", "bytes")
_FLAGS = ("state", "clicked")


class Pushed(NamedTuple):
    """Results of n events.

        ACCEPTED   an impression that now waits, or a click that labels a waiting impression
        DUPLICATE  an impression whose key is known; a second click of a key
        LATE       a click that comes after its impression's window, by its time or by the watermark
        UNMATCHED  a click of an unknown key; it is kept and may label a later impression
        OUTSIDE    a click with a time more than the slack before its impression's; it is ignored
        FULL       an impression, or a click of an unknown key, for which there is no room; it is ignored
        DELAYED    a click inside the window of an impression that has left as a provisional negative

    Args:
        status: uint8[n], as above.
        slot: int64[n], the running number 0, 1, 2… of an accepted impression; else -1.
        seen: int64[n], the time of the event; of an impression that a click before it labels, the time
            before that click: what an impression sees must not have its own click in it.
    """

    status: U8
    slot: I64
    seen: I64


class Released(NamedTuple):
    """Released rows by (deadline, slot).

    Each is an impression, NEGATIVE or POSITIVE. With a wait, an impression that was released NEGATIVE is
    released once more as a LATE_POSITIVE by a click inside its window. Its place is the click's watermark,
    before other rows of an equal deadline.

    With `finals`, each impression is released a last time when its window ends: FINAL_NEGATIVE without a
    click, FINAL_POSITIVE if its first label was POSITIVE, FINAL_LATE if it was a LATE_POSITIVE.

    Args:
        slot: int64[m].
        label: uint8[m].
        click_ts: int64[m], -1 without a click.
        deadline: int64[m]; of a LATE_POSITIVE the watermark of its click.
    """

    slot: I64
    label: U8
    click_ts: I64
    deadline: I64


class Counts(NamedTuple):
    """Counts of a join; without repeats of a click.

    Args:
        pending: impressions whose window has not passed.
        waiting: clicks that have met no impression yet.
        unmatched: clicks so far that can label no impression any more: none came in their window.
        matched: clicks so far that label an impression.
        behind: clicks among them with a time before that of their impression.
        forgotten: keys so far that were forgotten before their time, to make room.
        bytes: of all state.
    """

    pending: int
    waiting: int
    unmatched: int
    matched: int
    behind: int
    forgotten: int
    bytes: int


class JoinIndex:
    """Windowed join of clicks to impressions by key, in event time. Not thread-safe.

    An impression of time `ts`, seen at watermark `wm`, waits until the watermark passes its deadline
    max(ts + label_window_ms, wm). Its label is 1 if a click with a time in
    [ts - slack_ms, ts + label_window_ms] was seen by then, before or after the impression itself. A key
    is known for `dedup_window_ms` after its deadline: until then a second impression or click of it is a
    duplicate, and a late click differs from a click of an unknown key. A click
    without impression waits until the same time after its own window; its duplicates do not prolong this.

    With a wait shorter than the window, the impression leaves when the watermark passes max(ts + wait_ms,
    wm), with the label that is known by then. It counts as waiting until max(ts + label_window_ms, wm).

    The result depends on the event sequence and its watermarks alone, not on how it is cut into calls.

    Args:
        label_window_ms: window of a label.
        dedup_window_ms: time for which a key stays known.
        wait_ms: time after which an impression leaves; None: the window.
        finals: release impressions once more when their windows end; only with a shorter wait.
        slack_ms: time by which the clock of a click may be behind that of its impression.
        amounts: clicks carry numbers, such as the amount of an order.
        max_bytes: maximum of all state: a half for waiting impressions, a quarter for waiting clicks, a
            quarter for keys that are still known.
    """

    def __init__(
        self,
        label_window_ms: int,
        dedup_window_ms: int,
        *,
        wait_ms: int | None = None,
        finals: bool = False,
        slack_ms: int = 0,
        amounts: bool = False,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        wait_ms = label_window_ms if wait_ms is None else wait_ms
        if dedup_window_ms < 0 or slack_ms < 0 or not 0 <= wait_ms <= label_window_ms:
            raise ValueError("windows must not be negative, and the wait not longer than the label's")
        if finals and wait_ms == label_window_ms:
            raise ValueError("without a shorter wait every label is final")
        self._calls = _library()
        self._amounts = amounts
        self._handle = self._calls.join_new(
            label_window_ms, wait_ms, dedup_window_ms, slack_ms, max_bytes, finals, amounts
        )

    def __del__(self) -> None:
        if handle := getattr(self, "_handle", None):
            self._calls.join_free(handle)

    def push(
        self, kind: U8, key: I64, ts: I64, wm: I64, size: I64 | None = None, amount: F64 | None = None
    ) -> Pushed:
        """Feeds n events in sequence. The watermark must not fall, within a call or between calls.

        Args:
            kind: uint8[n], IMPRESSION or CLICK.
            key: int64[n].
            ts: int64[n], event times in ms.
            wm: int64[n], watermarks in ms.
            size: int64[m], bytes of the columns of each of the m impressions; None: 0.
            amount: float64[n - m], numbers of the clicks, NaN for none; None: an index without `amounts`.
        """
        n = len(kind)
        impressions = n - int(np.count_nonzero(kind))
        size = np.zeros(impressions, np.int64) if size is None else size
        if not n == len(key) == len(ts) == len(wm) or len(size) != impressions:
            raise ValueError("kind, key, ts and wm differ in length, or size and the impressions")
        if (amount is not None) != self._amounts or (amount is not None and len(amount) != n - impressions):
            raise ValueError("an index with amounts takes the amount of each click, and no other does")
        status, slot, seen = np.empty(n, np.uint8), np.empty(n, np.int64), np.empty(n, np.int64)
        self._calls.join_push(self._handle, n, kind, key, ts, wm, size, _at(amount), status, slot, seen)
        return Pushed(status, slot, seen)

    def release(self, wm: int) -> Released:
        """Advances to watermark `wm` and releases the impressions with a deadline before it.

        Successive calls give one sequence by (deadline, slot).
        """
        return self.release_with_amounts(wm)[0]

    def release_with_amounts(self, wm: int) -> tuple[Released, F64]:
        """Rows of `release`, and amounts float64[m] of their clicks; NaN without a click, or without amounts.

        The amount is that of the click that labels the impression: of those before the impression the first
        in event time, else the first that comes.
        """
        m = self._calls.join_advance(self._handle, wm)
        out = Released(*(np.empty(m, dtype) for dtype in (np.int64, np.uint8, np.int64, np.int64)))
        amount = np.full(m, np.nan)
        self._calls.join_drain(self._handle, *out, _at(amount if self._amounts else None))
        return out, amount

    @property
    def counts(self) -> Counts:
        """Counts of events and keys, and bytes."""
        counters = self._counters().tolist()
        return Counts(*(counters[place] for place in (3, 9, 2, 10, 8, 4, 5)))

    @property
    def ahead_ms(self) -> I64:
        """Times int64[n] by which clicks of this process were before their impressions, more than the slack.

        The last of them, at most 4,096.
        """
        found = np.empty(KEPT_AHEAD, np.int64)
        return found[: self._calls.join_ahead(self._handle, found)]

    def export(self) -> dict[str, npt.NDArray[Any]]:
        """Exports the state of keys that are not RELEASED, equal for equal states.

        Rows that `push` released must have been fetched by `release`.

        Returns:
            Of n keys: key, ts, deadline, slot, click_ts, serial (order of the last change), bytes int64[n];
            state (WAITING, PENDING or PROVISIONAL) and clicked uint8[n]; clicks int32[n]: the number of each
            key's entries in `waiting` int64[…], the times of clicks that wait for an impression. And counters
            int64[COUNTERS]. With amounts: `amount` float64[n], and `waiting_amount` float64[…].
        """
        return {**self._selected(True, Places()), "counters": self._counters()}

    def known(self, since: Places | None = None) -> Columns:
        """Exports keys that are RELEASED: `kernels.stream.known.COLUMNS`.

        Args:
            since: `places` of an earlier moment: keys that were released or changed after it; None: all.
        """
        selected = self._selected(False, since or Places())
        return {name: selected[name] for name in COLUMNS}

    @property
    def places(self) -> Places:
        """Present places in the queue of RELEASED keys."""
        found = np.empty(3, np.int64)
        self._calls.join_places(self._handle, found)
        return Places(*found.tolist())

    def _selected(self, open: bool, since: Places) -> dict[str, npt.NDArray[Any]]:
        sizes = np.empty(2, np.int64)
        self._calls.join_select(self._handle, open, since.end, since.touch, sizes)
        n, clicks = (int(size) for size in sizes)
        fields, flags = np.empty((len(_FIELDS), n), np.int64), np.empty((len(_FLAGS), n), np.uint8)
        counts, waiting = np.empty(n, np.int32), np.empty(clicks, np.int64)
        amounts: dict[str, npt.NDArray[Any]] = {}
        if self._amounts and open:
            amounts = {AMOUNT: np.empty(n), WAITING_AMOUNT: np.empty(clicks)}
            self._calls.join_amounts(self._handle, *map(_at, amounts.values()))
        self._calls.join_export(self._handle, n, fields, flags, counts, waiting)
        named: dict[str, npt.NDArray[Any]] = dict(zip(_FIELDS, fields, strict=True))
        named |= zip(_FLAGS, flags, strict=True)
        return {**named, "clicks": counts, "waiting": waiting, **amounts}

    def restore(self, state: Columns, known: Columns) -> None:
        """Restores the state that another index exported; this index must be new.

        Args:
            state: from `export`.
            known: from `known`, of the same moment, or parts of several moments (`kernels.stream.known`).
        """
        amounts = {name: state[name] for name in (AMOUNT, WAITING_AMOUNT) if name in state}
        open_key, open_clicks = state["key"], state["clicks"]
        state = {name: values for name, values in state.items() if name not in amounts}
        state = with_known(state, known)
        fields = np.stack([state[name] for name in _FIELDS]).astype(np.int64)
        flags = np.stack([state[name] for name in _FLAGS]).astype(np.uint8)
        counters = np.zeros(COUNTERS, np.int64)  # an older state has fewer
        counters[: len(state["counters"])] = state["counters"]
        self._calls.join_restore(
            self._handle, len(state["clicks"]), fields, flags, state["clicks"], state["waiting"], counters
        )
        if amounts and self._amounts:
            self._calls.join_restore_amounts(
                self._handle, len(open_key), open_key, open_clicks, *map(_at, amounts.values())
            )

    def _counters(self) -> I64:
        counters = np.empty(COUNTERS, np.int64)
        self._calls.join_counters(self._handle, counters)
        return counters


def _at(amounts: F64 | None) -> int | None:
    """Address of contiguous amounts."""
    if amounts is None:
        return None
    return int(amounts.ctypes.data)


@functools.cache
def _library() -> ctypes.CDLL:
    library = kernel_library()
    i64 = np.ctypeslib.ndpointer(np.int64, flags="C")
    i32 = np.ctypeslib.ndpointer(np.int32, flags="C")
    u8 = np.ctypeslib.ndpointer(np.uint8, flags="C")
    handle, number, amounts = ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p
    library.join_new.restype, library.join_new.argtypes = handle, [number] * 7
    library.join_free.argtypes = [handle]
    library.join_push.argtypes = [handle, number, u8, i64, i64, i64, i64, amounts, u8, i64, i64]
    library.join_advance.restype, library.join_advance.argtypes = number, [handle, number]
    library.join_drain.argtypes = [handle, i64, u8, i64, i64, amounts]
    library.join_amounts.argtypes = [handle, amounts, amounts]
    library.join_restore_amounts.argtypes = [handle, number, i64, i32, amounts, amounts]
    library.join_counters.argtypes = [handle, i64]
    library.join_ahead.restype, library.join_ahead.argtypes = number, [handle, i64]
    library.join_places.argtypes = [handle, i64]
    library.join_select.argtypes = [handle, number, number, number, i64]
    library.join_export.argtypes = [handle, number, i64, u8, i32, i64]
    library.join_restore.argtypes = [handle, number, i64, u8, i32, i64, i64]
    return library
