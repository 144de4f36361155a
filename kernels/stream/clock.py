"""Event time by the agreement of users: a Python face of `stream/clock.hpp`."""

from __future__ import annotations

import ctypes
import functools
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from livectr.kernels.runtime.compiler import compile_host

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]

FIRST = int(np.iinfo(np.int64).min)
"""The mark before anything was read."""
LAST = int(np.iinfo(np.int64).max)
"""A bound that nothing holds back."""
BELIEVED, LATE, DOUBTED, AHEAD, NO_TIME = 0, 1, 2, 3, 4
VOICES = 256
"""Records after a doubtful one that are asked at most, so that no more of them ever wait."""


class Judged(NamedTuple):
    """What became of the first m of n records.

    mark: int64[m], the place of each in event time
    verdict: uint8[m]
        BELIEVED  its time is believed
        LATE      so, too, but it lies more than max_ahead behind what a record may
        DOUBTED   some of the log went on without it, too little to refuse it: it is before all of that
        AHEAD     the log went on without it: its time is wrong and moved nothing
        NO_TIME   it lies outside the years 1 to 9999: no time in milliseconds
    state: the clock after them
    """

    mark: I64
    verdict: U8
    state: I64


def new_clock() -> I64:
    """The clock before the first record. [0] is the greatest time taken so far, which never falls."""
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
    floor: int = FIRST,
    ended: bool = False,
    limit: int = LAST,
) -> Judged:
    """Judge the next records by themselves and those that follow them: ts, user int64[n].

    Those behind the m judged ones are doubtful or wait behind one that is: give them again, with more of the
    log behind them. There are never more than VOICES of them before one is judged.

    max_disorder_ms: marks lag by so much.
    floor: a time that other logs are known to have reached.
    ended: nothing follows for now: decide by what there is; then no time beyond `limit` is believed.
    """
    n = len(ts)
    after = state.copy()
    mark, verdict = np.empty(n, np.int64), np.empty(n, np.uint8)
    m = _library().clock_judge(
        after, n, ts, user, max_ahead_ms, max_disorder_ms, floor, limit, ended, mark, verdict
    )
    return Judged(mark[:m], verdict[:m], after)


def follow(state: I64, ts: I64, user: I64, mark: I64, verdict: U8, *, max_ahead_ms: int) -> I64:
    """The clock after n records with the marks and verdicts that `judge` gave them; those that it refused
    may be left out."""
    after = state.copy()
    _library().clock_follow(after, len(ts), ts, user, max_ahead_ms, mark, verdict)
    return after


@functools.cache
def _library() -> ctypes.CDLL:
    library = compile_host('#include "stream/clock.hpp"\n', name="event time")
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
