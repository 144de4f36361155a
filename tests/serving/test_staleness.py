"""A server is unready when it has long not known what is newest, and one slow poll does not make it so."""

from __future__ import annotations

from livectr.serving.version.staleness import BAD_POLLS, GOOD_POLLS, HANG_FACTOR, Staleness


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_one_slow_poll_does_not_make_it_stale() -> None:
    clock = Clock()
    staleness = Staleness(10.0, clock)
    for _ in range(5):
        clock.now_s += HANG_FACTOR * 10.0 - 1  # such as the load of a large version
        assert not staleness.stale
        staleness.record(True)
        assert not staleness.stale


def test_bad_looks_make_it_stale_after_the_bound() -> None:
    clock = Clock()
    staleness = Staleness(10.0, clock)
    for _ in range(BAD_POLLS + 5):
        clock.now_s += 1
        staleness.record(False)
        assert not staleness.stale
    clock.now_s += 5
    assert staleness.stale and staleness.age_s == BAD_POLLS + 10


def test_fewer_bad_looks_do_not() -> None:
    clock = Clock()
    staleness = Staleness(10.0, clock)
    for _ in range(BAD_POLLS - 1):
        clock.now_s += 14
        staleness.record(False)
        assert not staleness.stale


def test_a_poll_that_hangs_does_in_the_end() -> None:
    clock = Clock()
    staleness = Staleness(10.0, clock)
    clock.now_s += HANG_FACTOR * 10.0 + 1
    assert staleness.stale


def test_it_comes_back_after_good_looks_in_a_row() -> None:
    clock = Clock()
    staleness = Staleness(10.0, clock)
    clock.now_s += 1000
    assert staleness.stale
    for _ in range(5):
        for _ in range(GOOD_POLLS - 1):
            staleness.record(True)
            assert staleness.stale
        staleness.record(False)
        assert staleness.stale
    for _ in range(GOOD_POLLS):
        staleness.record(True)
    assert not staleness.stale


def test_without_a_bound_it_is_never_stale() -> None:
    clock = Clock()
    staleness = Staleness(0.0, clock)
    for _ in range(BAD_POLLS):
        clock.now_s += 1e6
        staleness.record(False)
    assert not staleness.stale
