"""First ready examples of some partitions: those of a sort of all, however they were looked at before."""

import random
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from livectr.ingest.join import partition as module
from livectr.ingest.join.label_join import Ready
from livectr.ingest.join.partition import ReadyQueue, in_sequence
from tests.ingest.joined_logs import pipeline, random_logs, write_logs
from tests.ingest.test_examples import open_ranks

NO_ROWS = pa.RecordBatch.from_pylist([], pa.schema([]))


@settings(max_examples=200, deadline=None)
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
    """Whatever was popped and read since."""
    rng = random.Random(5)
    pipe = pipeline()
    (source, *others) = open_ranks(pipe, write_logs(tmp_path, random_logs(3)), world)
    seen = 0
    while not source.ended or len(source.orders(1)[0]):
        queues = {number: each.ready for number, each in source._partitions.items()}
        for limit in rng.sample(range(40), 5):
            order, partition = source.orders(limit)
            want_order, want_partition = in_sequence(queues, 1 << 20)
            assert order.tolist() == want_order[:limit].tolist()
            assert partition.tolist() == want_partition[:limit].tolist()
        seen += (k := min(rng.randint(0, 25), len(source.orders(25)[0])))
        source.pop(k)
        if rng.random() < 0.3:
            source.poll(0.01)
    assert seen > 50
    for each in (source, *others):
        each.close()
