"""Random logs of partitions, and the batches that the cut makes of them."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from livectr.trainer.stream.cut import cut
from tests.trainer.scripted_source import Batch, Log, ScriptedSource, is_final


def logs() -> st.SearchStrategy[Log]:
    orders = st.lists(st.integers(-30, 60), max_size=25).map(sorted)
    return st.dictionaries(st.integers(0, 5), orders, min_size=1, max_size=6)


def batches_of(
    log: Log, *, world: int, seed: int, batch_size: int, interval_ms: int | None, finals: bool = False
) -> list[Batch]:
    """Run N ranks in one thread, rank by rank, through the pure policy."""
    ranks = [ScriptedSource({p: o for p, o in log.items() if p % world == r}, seed + r) for r in range(world)]
    found: list[Batch] = []
    for _ in range(10_000):
        for rank in ranks:
            rank.poll(0)
        limit = 2 * batch_size if finals else batch_size
        offers = [rank.orders(limit) for rank in ranks]
        ended = all(rank.ended for rank in ranks)
        result = cut(
            [o for o, _ in offers],
            [p.astype(np.int64) for _, p in offers],
            [rank.finals(limit).astype(np.int64) for rank in ranks] if finals else None,
            frontier=min(rank.frontier for rank in ranks),
            ended=ended,
            batch_size=batch_size,
            interval_ms=interval_ms,
        )
        if result is None:
            if ended:
                return found
            continue
        rows = [row for rank, k in zip(ranks, result.counts, strict=True) for row in rank.pop(int(k))]
        assert result.examples == sum(not (finals and is_final(*row)) for row in rows)
        found.append([rows[i] for i in result.sequence])
    raise AssertionError("the batches never end")
