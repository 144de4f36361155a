"""Event-time clock by the agreement of users: Python interface of `stream/clock.hpp`."""

from __future__ import annotations

import ctypes
import functools
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from livectr.kernels.runtime.library import kernel_library

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]

FIRST = int(np.iinfo(np.int64).min)
"""Mark before the first record."""
LAST = int(np.iinfo(np.int64).max)
"""Bound that holds nothing back."""
BELIEVED, LATE, DOUBTED, AHEAD, NO_TIME = 0, 1, 2, 3, 4
VOICES = 256
"""Maximum of records after a doubtful record that decide about it, so that no more of them ever wait."""


class Horizon(NamedTuple):
    """Knowledge of the other logs and of this log's end.

    Args:
        floor: a time in ms that other logs have reached.
        ended: nothing follows for now: decide by the records at hand.
        limit: with `ended`, no later time in ms is believed.
    """

    floor: int = FIRST
    ended: bool = False
    limit: int = LAST


UNKNOWN = Horizon()
"""Horizon without other logs, in the middle of a log."""


class Judged(NamedTuple):
    """Verdicts on the first m of n records.

        BELIEVED  its time is believed
        LATE      its time is believed, but it lies more than max_ahead behind the allowed disorder
        DOUBTED   part of the log continued without its time, too little to refuse it: its mark precedes that
            part
        AHEAD     the log continued without its time: it is wrong and moved nothing
        NO_TIME   its time is outside the years 1 to 9999

    Args:
        mark: int64[m], place of each record in event time.
        verdict: uint8[m], as above.
        state: the clock after them.
    """

    mark: I64
    verdict: U8
    state: I64


def new_clock() -> I64:
    """Clock before the first record; [0] is the greatest believed time, which never falls."""
    state = np.zeros(_library().clock_size(), np.int64)
    state[:2] = FIRST
    return state


def judge(
    state: I64,
    ts: I64,
    user: I64,
    *,
    max_ahead_ms: int,
    max_disorder_ms: int = 0,
    horizon: Horizon = UNKNOWN,
) -> Judged:
    """Judges the next records by themselves and by the records that follow them.

    Records behind the first m are doubtful or wait behind a doubtful record: give them again, with more of
    the log behind them. At most VOICES of them wait.

    Args:
        state: the clock.
        ts: int64[n], event times in ms.
        user: int64[n], keys of users.
        max_ahead_ms: largest step ahead of the log that is believed at once.
        max_disorder_ms: lag of marks behind the greatest time.
        horizon: knowledge of the other logs and of this log's end.
    """
    n = len(ts)
    after = state.copy()
    mark, verdict = np.empty(n, np.int64), np.empty(n, np.uint8)
    horizon_args = horizon.floor, horizon.limit, horizon.ended
    m = _library().clock_judge(
        after, n, ts, user, max_ahead_ms, max_disorder_ms, *horizon_args, mark, verdict
    )
    return Judged(mark[:m], verdict[:m], after)


def follow(state: I64, ts: I64, user: I64, mark: I64, verdict: U8, *, max_ahead_ms: int) -> I64:
    """Advances the clock by n records that `judge` has judged; refused records may be left out.

    Args:
        state: the clock.
        ts: int64[n], event times in ms.
        user: int64[n], keys of users.
        mark: int64[n], as judged.
        verdict: uint8[n], as judged.
        max_ahead_ms: as of `judge`.
    """
    after = state.copy()
    _library().clock_follow(after, len(ts), ts, user, max_ahead_ms, mark, verdict)
    return after


@functools.cache
def _library() -> ctypes.CDLL:
    library = kernel_library()
    i64 = np.ctypeslib.ndpointer(np.int64, flags="C")
    u8 = np.ctypeslib.ndpointer(np.uint8, flags="C")
    number, flag = ctypes.c_int64, ctypes.c_uint8
    library.clock_size.restype, library.clock_size.argtypes = number, []
    library.clock_judge.restype = number
    settings = [number, number, number, number, flag]
    library.clock_judge.argtypes = [i64, number, i64, i64, *settings, i64, u8]
    library.clock_follow.restype, library.clock_follow.argtypes = (
        None,
        [i64, number, i64, i64, number, i64, u8],
    )
    return library
