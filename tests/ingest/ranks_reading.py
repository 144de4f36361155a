"""Examples as several ranks read them, in the order of a trainer."""

from __future__ import annotations

import itertools

import numpy as np

from livectr.ingest.dead_letters.letters import DeadLetters
from livectr.ingest.join.examples import ExampleSource, ReadOptions
from livectr.ingest.join.state import SourceState
from livectr.ingest.pipeline import Pipeline
from livectr.kernels.stream.clock import LAST
from tests.ingest.joined_logs import Expected, rows_of
from tests.waiting import until


def open_ranks(pipe: Pipeline, url: str, world: int, state: SourceState | None = None) -> list[ExampleSource]:
    return [
        ExampleSource(
            pipe,
            url,
            ReadOptions(until_end=True),
            rank=rank,
            world=world,
            dead_letters=DeadLetters(None),
            state=state,
        )
        for rank in range(world)
    ]


def take_settled(sources: list[ExampleSource], limit: int = LAST) -> list[Expected]:
    """Pop the examples that a trainer may take: before the frontier of every rank, at most `limit`."""
    frontier = min(source.frontier for source in sources)
    offers = []
    for rank, source in enumerate(sources):
        order, partition = source.orders(min(limit, 1 << 20))
        settled = order < frontier if frontier != LAST else np.ones(len(order), bool)
        offers += [(*place, rank) for place in zip(order[settled].tolist(), partition.tolist(), strict=False)]
    ranks = [rank for *_, rank in sorted(offers)[:limit]]
    taken = [rows_of(source.pop(ranks.count(rank))) for rank, source in enumerate(sources)]
    return sorted(itertools.chain(*taken), key=lambda row: (row.order, row.partition))


def take_some(sources: list[ExampleSource], limit: int) -> list[Expected]:
    """Poll until a trainer may take examples; take at most `limit`."""

    def poll() -> None:
        for source in sources:
            source.poll(0.01)

    return until(lambda: take_settled(sources, limit), turn=poll)


def drain(sources: list[ExampleSource]) -> list[Expected]:
    rows = []
    while not all(source.ended for source in sources):
        for source in sources:
            source.poll(0.01)
        rows += take_settled(sources)
    return rows + take_settled(sources)


def close(sources: list[ExampleSource]) -> None:
    for source in sources:
        source.close()
