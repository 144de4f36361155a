"""First ready examples of some partitions: those of a sort of all, however they were looked at before."""

import random
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from livectr.ingest.join import ready as module
from livectr.ingest.join.label_join import Ready
from livectr.ingest.join.ready import ReadyQueue, in_sequence
from tests.ingest.joined_logs import pipeline, random_logs, write_logs
from tests.ingest.ranks_reading import open_ranks
from tests.tiers import examples

NO_ROWS = pa.RecordBatch.from_pylist([], pa.schema([]))


@examples(200)
@given(
    st.dictionaries(st.integers(0, 9), st.lists(st.integers(-9, 30), max_size=40).map(sorted), max_size=5),
    st.integers(0, 90),
    st.sampled_from([1, 2, 5, 64]),
)
def test_few_orders_are_sorted(orders: dict[int, list[int]], limit: int, pieces: int) -> None:
    queues = {number: ReadyQueue() for number in sorted(orders)}
    for number, queue in queues.items():
        for part in np.array_split(np.array(orders[number], np.int64), 3):
            queue.append(Ready(NO_ROWS, np.zeros(len(part), np.float32), part, np.zeros(len(part), bool)))
    with patch.object(module, "PIECES", pieces):
        order, partition = in_sequence(queues, limit)
    want = sorted((at, number) for number, own in orders.items() for at in own)[:limit]
    assert [*zip(order.tolist(), partition.tolist(), strict=True)] == want


@pytest.mark.parametrize("world", [1, 2])
def test_what_was_looked_at_stays_first(tmp_path: Path, world: int) -> None:
    """Whatever was popped and became ready since."""
    rng = random.Random(5)
    (source, *others) = open_ranks(pipeline(), write_logs(tmp_path, random_logs(3)), world)
    while not source.ended:
        source.poll(0.01)
    queues = {number: each.ready for number, each in source._partitions.items()}
    for each in source._partitions.values():  # its examples become ready again, a few at a time
        parts = each.ready.pop(len(each.ready))
        later = [
            Ready(*(column[i : i + 4] for column in columns(part)))
            for part in parts
            for i in range(0, len(part), 4)
        ]
        each.advance = partial(become_ready, each.ready, later)  # type: ignore[method-assign]
    source._advance()  # what is ready has changed
    popped = 0
    while source.poll(0.0) or any(map(len, queues.values())):
        for limit in rng.sample(range(12), 5):
            order, partition = source.orders(limit)
            want_order, want_partition = in_sequence(queues, 1 << 20)
            assert order.tolist() == want_order[:limit].tolist()
            assert partition.tolist() == want_partition[:limit].tolist()
        k = min(rng.randint(0, 9), sum(map(len, queues.values())))
        source.pop(k)
        popped += k
    assert popped > 50
    for one in (source, *others):
        one.close()


def columns(part: Ready) -> tuple[Any, ...]:
    return part.rows, part.label, part.order, part.late


def become_ready(queue: ReadyQueue, later: list[Ready], *_: object, **__: object) -> bool:
    if not later:
        return False
    queue.append(later.pop(0))
    return True
