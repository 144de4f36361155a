"""Clicks in another partition than their impression: a join by partition never sees the two together.

Topics that are keyed otherwise than declared, or have different numbers of partitions, lose most of their
clicks this way. Each partition samples its events by the hash of their join key, so that a key that is in the
sample of one partition is in that of all. The samples of all partitions say which clicks are apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]

ROOM = 16_384
"""Events of one partition that its sample keeps, and the rows of a rank that are gathered."""
SHOWN, CLICKED = 0, 1
"""Topics, by their index in a label join's streams."""
_ODD = np.uint64(0x9E3779B97F4A7C15)
"""2⁶⁴ / golden ratio: spreads whole numbers over the upper bits (Knuth, TAOCP 3, 6.4)."""


@dataclass(frozen=True)
class Sampled:
    """Sample of n different events.

    Args:
        depth: the sample has the keys of whose hash the first `depth` bits are 0: 1 of 2^depth.
        topic: uint8[n], SHOWN or CLICKED.
        partition: int64[n].
        key: int64[n], join keys.
        user: int64[n], keys of the column by which the topics are declared to be keyed.
    """

    depth: int
    topic: U8
    partition: I64
    key: I64
    user: I64

    def __len__(self) -> int:
        return len(self.key)

    def within(self, depth: int) -> Sampled:
        """Sample of at least this depth."""
        return self if depth <= self.depth else self._some(sampled(self.key, depth), depth)

    def different(self, room: int) -> Sampled:
        """Sample without repeats, so deep that it has room."""
        order = np.lexsort((self.partition, self.topic, self.user, self.key))
        same = np.zeros(len(order), np.bool_)
        same[1:] = True
        for column in (self.partition, self.topic, self.user, self.key):
            same[1:] &= column[order[1:]] == column[order[:-1]]
        found = self._some(order[~same], self.depth)
        while len(found) > room:
            found = found.within(found.depth + 1)
        return found

    def _some(self, rows: Bools | I64, depth: int) -> Sampled:
        return Sampled(depth, self.topic[rows], self.partition[rows], self.key[rows], self.user[rows])

    def as_json(self) -> dict[str, Any]:
        """Sample for other ranks, of at most ROOM rows."""
        some = self.different(ROOM)
        return {
            "depth": some.depth,
            "topic": some.topic.tolist(),
            "partition": some.partition.tolist(),
            "key": some.key.tolist(),
            "user": some.user.tolist(),
        }

    @staticmethod
    def from_json(given: Mapping[str, Any]) -> Sampled:
        """Sample of another rank."""
        partition, key, user = (np.array(given[name], np.int64) for name in ("partition", "key", "user"))
        return Sampled(given["depth"], np.array(given["topic"], np.uint8), partition, key, user)


_NONE = np.empty(0, np.int64)
NOTHING = Sampled(0, np.empty(0, np.uint8), _NONE, _NONE, _NONE)


def sampled(keys: I64, depth: int) -> Bools:
    """Keys bool[n] that a sample of this depth has."""
    return np.asarray((keys.view(np.uint64) * _ODD) >> np.uint64(64 - depth) == 0)


def together(samples: Iterable[Sampled]) -> Sampled:
    """Sample of several partitions or ranks."""
    every = list(samples)
    depth = max((each.depth for each in every), default=0)
    some = [NOTHING, *(each.within(depth) for each in every)]
    return Sampled(
        depth,
        np.concatenate([each.topic for each in some]),
        np.concatenate([each.partition for each in some]),
        np.concatenate([each.key for each in some]),
        np.concatenate([each.user for each in some]),
    )


class KeySample:
    """Sample of one partition's events, of both topics alike.

    Args:
        partition: number of the partition.
    """

    def __init__(self, partition: int) -> None:
        self._partition = partition
        self._parts: list[Sampled] = []
        self._rows = self._depth = 0

    def add(self, topic: U8, key: I64, user: I64) -> None:
        """Add the next n events: their topics, join keys and users."""
        if self._depth:
            rows = np.flatnonzero(sampled(key, self._depth))
            if not len(rows):
                return
            topic, key, user = topic[rows], key[rows], user[rows]
        self._parts.append(Sampled(self._depth, topic, np.full(len(key), self._partition), key, user))
        self._rows += len(key)
        if self._rows > ROOM:
            self._shrink()

    @property
    def found(self) -> Sampled:
        """Sample so far."""
        self._shrink()
        return self._parts[0]

    def _shrink(self) -> None:
        """Leave room for as many events as are kept."""
        one = together(self._parts).different(ROOM // 2)
        self._parts, self._rows, self._depth = [one], len(one), one.depth


@dataclass(frozen=True)
class Apart:
    """Clicks of a sample that are in another partition than their impression.

    Args:
        clicks: different join keys that were clicked.
        apart: those among them whose impression is in other partitions alone.
        other_user: those among the latter whose click has another user than the impression.
        spread: topic → how many users are in several partitions of it, and how many have several events in
            it: of the users whose clicks are apart, if there are some.
        partitions: topic → partitions with events of it.
        whole: the sample has every event.
    """

    clicks: int = 0
    apart: int = 0
    other_user: int = 0
    spread: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))
    partitions: tuple[int, int] = (0, 0)
    whole: bool = True

    @property
    def share(self) -> float:
        """Share of the clicks that are apart."""
        return self.apart / max(1, self.clicks)


def apart_of(sample: Sampled) -> Apart:
    """Find the clicks that are apart from their impression."""
    keys, key = np.unique(sample.key, return_inverse=True)
    users, user = np.unique(sample.user, return_inverse=True)
    clicked = sample.topic == CLICKED
    partitions = 1 + int(sample.partition.max(initial=0))

    def meets(place: I64, places: int) -> Bools:
        """Keys bool[k] of which a click and an impression are at the same place."""
        code = key * places + place
        found = np.zeros(len(keys), np.bool_)
        found[np.intersect1d(code[clicked], code[~clicked]) // places] = True
        return found

    click, shown = (np.bincount(key[of], minlength=len(keys)) > 0 for of in (clicked, ~clicked))
    apart = click & shown & ~meets(sample.partition, partitions)
    other = apart & ~meets(user, len(users))
    concerned = np.full(len(users), not apart.any())
    concerned[user[apart[key]]] = True
    spread = []
    for of in (~clicked, clicked):
        events = np.bincount(user[of], minlength=len(users))
        places = np.bincount(
            np.unique(user[of] * partitions + sample.partition[of]) // partitions, minlength=len(users)
        )
        several = concerned & (events > 1)
        spread.append((int(np.count_nonzero(several & (places > 1))), int(np.count_nonzero(several))))
    used = [len(np.unique(sample.partition[of])) for of in (~clicked, clicked)]
    return Apart(
        int(np.count_nonzero(click)),
        int(np.count_nonzero(apart)),
        int(np.count_nonzero(other)),
        (spread[0], spread[1]),
        (used[0], used[1]),
        sample.depth == 0,
    )
