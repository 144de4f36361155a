"""Works that are drawn: workloads of the benchmarks of steps and of publishing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Work:
    """A kind of work.

    Args:
        title: of the picture.
        entry: begin of the name of its outermost function.
        world: ranks, of which rank 0 is drawn.
    """

    title: str
    entry: str
    world: int = 1


STEP = "DesStep."
WORKS = {
    "step": Work("A step of P, one rank of two threads", STEP),
    "ranks": Work("Steps of P on two ranks, with keys sent ahead: rank 0", STEP, world=2),
    "lists": Work("Steps of W on two ranks, with keys sent ahead: rank 0", STEP, world=2),
    "images": Work("A step with images, one rank of two threads", STEP),
    "publish": Work("Rows of a complete version on their way to a Redis server, one rank", "RowWriter.write"),
}
"""Name → work, of which bench.flames.rank has the code."""
