"""Behavior histories of users: Python interface of `stream/history.hpp`."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from livectr.kernels.runtime.library import kernel_library
from livectr.kernels.runtime.offsets import check_offsets

I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]
U8 = npt.NDArray[np.uint8]

QUERY, APPEND = 0, 1
NEVER = int(np.iinfo(np.int64).max)
"""Horizon, or bytes, without a limit."""


class Cut(NamedTuple):
    """Limits of a query.

    Args:
        limit: number of last items.
        within_ms: largest age of an item.
    """

    limit: int
    within_ms: int


class Histories(NamedTuple):
    """Histories of m users.

    Args:
        users: int64[m], rising.
        lengths: int32[m].
        items: int64[sum of lengths], user after user, oldest first.
        ts: int64[sum of lengths], event times of the items.
    """

    users: I64
    lengths: I32
    items: I64
    ts: I64


def last_of(parts: Sequence[Histories]) -> Histories:
    """The last history of each user in parts, without users of length 0."""
    users, lengths, items, ts = (np.concatenate(column) for column in zip(*parts, strict=True))
    newest = len(users) - 1 - np.unique(users[::-1], return_index=True)[1]
    newest = newest[lengths[newest] > 0]
    size = lengths[newest].astype(np.int64)
    begin = (np.cumsum(lengths, dtype=np.int64) - lengths)[newest]
    rows = np.repeat(begin - (np.cumsum(size) - size), size) + np.arange(size.sum())
    return Histories(users[newest], lengths[newest], items[rows], ts[rows])


class HistoryTable:
    """Last `n` (item, time) of each user by event time; of equal times the earlier arrival comes first.

    A query of time t sees the items that were appended before it in the sequence and have a time ≤ t. The
    result depends on the sequence alone, not on how it is cut into calls. Not thread-safe.

    Args:
        n: maximum of items per user.
        horizon_ms: largest age of an item that a query sees, in event time of the sequence. A user whose
            newest item is older leaves.
        max_bytes: limit of `bytes`. Beyond it the users leave whose newest item is the oldest; of equal times
            those of the least key. The last user stays.
    """

    def __init__(self, n: int, *, horizon_ms: int = NEVER, max_bytes: int = NEVER) -> None:
        if n < 1:
            raise ValueError("a history holds at least one item")
        self._calls = _library()
        self._handle = self._calls.history_new(n, horizon_ms, max_bytes)

    def __del__(self) -> None:
        if handle := getattr(self, "_handle", None):
            self._calls.history_free(handle)

    def __len__(self) -> int:
        """Number of known users."""
        return int(self._calls.history_size(self._handle))

    @property
    def bytes(self) -> int:
        """Bytes of the histories: a function of their users and lengths."""
        return self._counts()[0]

    @property
    def expired(self) -> int:
        """Users of this process that expired because of the horizon."""
        return self._counts()[1]

    @property
    def evicted(self) -> int:
        """Users of this process that were evicted because of `max_bytes`."""
        return self._counts()[2]

    def _counts(self) -> list[int]:
        counts = np.empty(3, np.int64)
        self._calls.history_counts(self._handle, counts)
        return counts.tolist()

    def push(
        self,
        kind: U8,
        user: I64,
        item: I64,
        ts: I64,
        cuts: Sequence[Cut],
        *,
        mark: I64 | None = None,
    ) -> list[tuple[I32, I64]]:
        """Feeds m events in sequence.

        Args:
            kind: uint8[m], QUERY or APPEND.
            user: int64[m].
            item: int64[m]; not read for a query.
            ts: int64[m], event times in ms.
            cuts: limits of the answers.
            mark: int64[m], event time of the sequence in ms, which never falls, also from one call to the
                next; None: no time passes, and nothing expires.

        Returns:
            For each cut the answers to the q queries as (offsets int32[q + 1], items int64[…]), newest item
                last.
        """
        m = len(kind)
        if not m == len(user) == len(item) == len(ts):
            raise ValueError("kind, user, item and ts differ in length")
        mark = np.full(m, np.iinfo(np.int64).min) if mark is None else np.ascontiguousarray(mark)
        if len(mark) != m:
            raise ValueError("mark and ts differ in length")
        limits = np.array([cut.limit for cut in cuts], np.int64)
        withins = np.array([cut.within_ms for cut in cuts], np.int64)
        sizes = np.empty(len(cuts), np.int64)
        args = (kind, user, item, ts, mark, len(cuts), limits, withins, sizes)
        self._calls.history_push(self._handle, m, *args)
        queries = m - int(np.count_nonzero(kind))
        answers = []
        for cut, size in enumerate(sizes):
            check_offsets(int(size), "behaviors that a batch asks for")
            offsets, items = np.empty(queries + 1, np.int32), np.empty(size, np.int64)
            self._calls.history_answers(self._handle, cut, offsets, items)
            answers.append((offsets, items))
        return answers

    def mark(self) -> int:
        """Closes the current generation and returns its number g; `export(since=g)` has later changes."""
        return int(self._calls.history_mark(self._handle))

    def export(self, since: int = 0) -> Histories:
        """Histories with an append after mark `since`; all histories for 0.

        With `track`, users that expired after the mark and are not back are included, with length 0.
        """
        sizes = np.empty(2, np.int64)
        self._calls.history_export_sizes(self._handle, since, sizes)
        users, behaviors = (int(size) for size in sizes)
        out = Histories(
            np.empty(users, np.int64),
            np.empty(users, np.int32),
            np.empty(behaviors, np.int64),
            np.empty(behaviors, np.int64),
        )
        self._calls.history_export(self._handle, since, *out)
        left = self._left(since) if since else np.empty(0, np.int64)
        if not len(left):
            return out
        known = np.concatenate([out.users, left])
        order = np.argsort(known)
        lengths = np.concatenate([out.lengths, np.zeros(len(left), np.int32)])
        return out._replace(users=known[order], lengths=lengths[order])

    def track(self) -> None:
        """Lists the users that leave from now on, for `export`, until `forget_left`."""
        self._calls.history_track(self._handle)

    def forget_left(self, until: int) -> None:
        """Drops the users that expired up to mark `until` from the list."""
        self._calls.history_forget_left(self._handle, until)

    @property
    def listed(self) -> int:
        """Entries of the list of expired users."""
        return int(self._calls.history_listed(self._handle))

    def _left(self, since: int) -> I64:
        users = np.empty(self._calls.history_left_size(self._handle, since), np.int64)
        self._calls.history_left(self._handle, since, users)
        return users

    def touch(self, users: I64) -> None:
        """Count the histories of those of users int64[n] that are known as changed."""
        known, lengths, items, ts = self.export()
        chosen = np.isin(known, users)
        behaviors = np.repeat(chosen, lengths)
        self.assign(Histories(known[chosen], lengths[chosen], items[behaviors], ts[behaviors]))

    def assign(self, histories: Histories) -> None:
        """Replaces the histories of users; it counts as a change."""
        self._calls.history_assign(self._handle, len(histories.users), *histories)


@functools.cache
def _library() -> ctypes.CDLL:
    library = kernel_library()
    i64 = np.ctypeslib.ndpointer(np.int64, flags="C")
    i32 = np.ctypeslib.ndpointer(np.int32, flags="C")
    u8 = np.ctypeslib.ndpointer(np.uint8, flags="C")
    handle, number = ctypes.c_void_p, ctypes.c_int64
    library.history_new.restype, library.history_new.argtypes = handle, [number, number, number]
    library.history_free.argtypes = [handle]
    library.history_size.restype, library.history_size.argtypes = number, [handle]
    library.history_counts.argtypes = [handle, i64]
    library.history_mark.restype, library.history_mark.argtypes = number, [handle]
    library.history_push.argtypes = [handle, number, u8, i64, i64, i64, i64, number, i64, i64, i64]
    library.history_answers.argtypes = [handle, number, i32, i64]
    library.history_track.argtypes = [handle]
    library.history_left_size.restype, library.history_left_size.argtypes = number, [handle, number]
    library.history_left.argtypes = [handle, number, i64]
    library.history_forget_left.argtypes = [handle, number]
    library.history_listed.restype, library.history_listed.argtypes = number, [handle]
    library.history_export_sizes.argtypes = [handle, number, i64]
    library.history_export.argtypes = [handle, number, i64, i32, i64, i64]
    library.history_assign.argtypes = [handle, number, i64, i32, i64, i64]
    return library
