"""A thread reads ahead: every item in order, no more than its queue holds, errors and ends in place."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from livectr.ingest.join.prefetch import Prefetch
from tests.waiting import until

AHEAD = 3


class Counted:
    """Numbers from 0, and how many were taken."""

    def __init__(self, count: int | None = None) -> None:
        self.taken = 0
        self._count = count

    def items(self) -> Iterator[int]:
        for number in itertools.count() if self._count is None else range(self._count):
            self.taken += 1
            yield number


def test_the_queue_is_bounded() -> None:
    """Besides those that wait in the queue, the thread holds one item."""
    counted = Counted()
    read = Prefetch(counted.items(), AHEAD, name="read")
    for number in range(50):
        until(lambda number=number: counted.taken >= number + AHEAD)  # type: ignore[misc]
        assert counted.taken <= number + AHEAD + 1
        assert read.next() == number
    read.close()
    read.close()
    assert counted.taken <= 50 + AHEAD + 1


def test_the_end_is_told_again_and_again() -> None:
    read = Prefetch(Counted(7).items(), AHEAD, name="read")
    assert [read.next() for _ in range(9)] == [*range(7), None, None]
    read.close()


def test_an_error_follows_the_items_before_it() -> None:
    def failing() -> Iterator[int]:
        yield from range(5)
        raise ValueError("the sixth is damaged")

    read = Prefetch(failing(), AHEAD, name="read")
    assert [read.next() for _ in range(5)] == [*range(5)]
    for _ in range(2):
        with pytest.raises(ValueError, match="the sixth is damaged"):
            read.next()
    read.close()
