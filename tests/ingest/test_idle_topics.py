"""Records of a topic that was idle, whose place has passed meanwhile, are counted; others never are."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.ingest.merge_reader import STEPS, TIMES, Reader, run
from tests.tiers import examples


@examples(200)
@given(st.tuples(TIMES, TIMES), STEPS)
def test_without_idleness_no_place_passes(
    times: tuple[list[int], list[int]], steps: list[tuple[int, int, bool]]
) -> None:
    assert run(Reader(times), steps).merge.overtaken == [0, 0]


@examples(200)
@given(TIMES.filter(bool), TIMES.filter(bool), st.integers(1, 8))
def test_places_that_passed_while_a_topic_was_idle(first: list[int], second: list[int], count: int) -> None:
    reader = Reader((sorted(first), sorted(second)))
    reader.step(0, 1000)
    reader.merge.resolve([True, True])
    reader.merge.release(reader.merge.bound([False, True]))  # the second topic is thought idle
    reached = reader.merge.mark
    for _ in range(0, len(second), count):
        reader.step(1, count)
    kept = [ts for row, ts in enumerate(sorted(second)) if row % 5 != 4]
    assert reader.merge.overtaken == [0, int(np.count_nonzero(np.array(kept) < reached))]
    assert reader.merge.waiting() == [0, 0]
