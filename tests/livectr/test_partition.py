"""Our partitions equal those of Kafka's default partitioner."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner import murmur2 as reference

from livectr.simulator.partition import integer_keys, murmur2, partitions_of


@given(st.lists(st.binary(max_size=40)))
def test_murmur2_is_kafkas(keys: list[bytes]) -> None:
    assert murmur2(keys).tolist() == [reference(key) for key in keys]


def test_partition_of_integers_is_that_of_their_text() -> None:
    ids = np.array([0, 7, -3, 12345678901], np.int64)
    wanted = [(reference(str(i).encode()) & 0x7FFFFFFF) % 5 for i in ids.tolist()]
    assert partitions_of(integer_keys(ids), 5).tolist() == wanted
