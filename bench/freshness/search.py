"""Largest rate that holds: doubled or halved until one holds and the next does not, then bisected."""

from __future__ import annotations

from collections.abc import Callable

from bench.freshness.play import play

NEAR = 1.15
"""Ratio of a rate that does not hold to one that does, at which the search ends."""
LEAST = 250.0


def largest(
    rate: float,
    holds: bool,
    *,
    seconds: float,
    steps: int,
    attempt: Callable[[float, float], bool] = lambda rate, seconds: play(rate, seconds).holds,
) -> float:
    """Events a second that hold; 0: none did.

    Args:
        rate: first rate, which has been tried.
        holds: whether it held.
        seconds: of each run.
        steps: most runs.
        attempt: says whether a rate holds in a run of some seconds.
    """
    good, bad = (rate, 0.0) if holds else (0.0, rate)
    for _ in range(steps):
        if good and bad and bad / good <= NEAR:
            break
        tried = (good * bad) ** 0.5 if good and bad else 2 * good or bad / 2
        if tried < LEAST:
            break
        if attempt(tried, seconds):
            good = tried
        else:
            bad = tried
    return good
