"""The cut from few rows of each rank: the batch of all their rows."""

import itertools
import json
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from livectr.trainer.stream import cut as policy
from livectr.trainer.stream.batcher import _settled
from livectr.trainer.stream.cut import NEVER, SAMPLES, Cut, cut, needed, sample
from tests.ranks import run_ranks
from tests.tiers import examples
from tests.trainer.cut_worker import CASES
from tests.trainer.scripted_batches import batches_of

Offers = list[np.ndarray]
"""int64[n, 2] of each rank: order, 2 · partition + final"""


def cut_of(offers: Offers, *, finals: bool, **options: Any) -> Cut | None:
    order, partition = [o[:, 0] for o in offers], [o[:, 1] >> 1 for o in offers]
    return cut(order, partition, [o[:, 1] & 1 for o in offers] if finals else None, **options)


@st.composite
def ready(draw: st.DrawFn) -> Offers:
    """Ready rows of up to five ranks: each rank's few partitions, of which some have most, sorted."""
    world = draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    orders, offers = draw(st.sampled_from([3, 40, 1000])), []
    far = draw(st.sampled_from([1, 1, 1 << 52]))  # order and partition together do not fit a number
    for rank in range(world):
        rows = draw(st.sampled_from([0, 1, 5, 30, 120]))
        order = rng.integers(-5, orders, rows) * far
        word = 2 * (rank + world * rng.integers(0, 3, rows)) + rng.integers(0, 2, rows)
        offers.append(np.stack([order, word], axis=1)[np.lexsort((word >> 1, order))])
    return offers


@examples(300)
@given(
    ready(),
    st.integers(1, 50),
    st.booleans(),
    st.sampled_from([None, 3, 20]),
    st.sampled_from([-9, 0, 2, 20, 500, NEVER]),
    st.sampled_from(["", "ended", "overdue"]),
    st.sampled_from([2, 3, 7, SAMPLES]),
)
def test_few_rows_make_the_batch_of_all(
    rows: Offers, size: int, finals: bool, interval_ms: int | None, frontier: int, state: str, samples: int
) -> None:
    limit = 2 * size if finals else size
    rows = [own[:limit] & [-1, -1 if finals else -2] for own in rows]
    below = NEVER if state == "ended" else frontier
    if interval_ms is not None and state != "overdue" and any(map(len, rows)):
        below = min(below, (min(int(own[0, 0]) for own in rows if len(own)) // interval_ms + 1) * interval_ms)
    with patch.object(policy, "SAMPLES", samples):
        taken = np.stack([sample(own.T, limit) for own in rows])
        count = np.array([len(own) for own in rows])
        offered = needed(taken[:, 0], taken[:, 1] >> 1, count, limit=limit, below=below)
    assert (offered <= count).all()
    distance = -(-(limit - 1) // (samples - 1))
    assert offered.sum() <= limit + distance * (len(rows) + 1)
    few = [own[:n] for own, n in zip(rows, offered, strict=True)]
    options: dict[str, Any] = dict(
        finals=finals, frontier=frontier, ended=state == "ended", interval_ms=interval_ms
    )
    sizes = [size, size]
    if state == "overdue":
        sizes = [min(size, _settled(some, frontier)) for some in (rows, few)]
    want, got = (cut_of(some, batch_size=b, **options) for some, b in zip((rows, few), sizes, strict=True))
    assert (want is None) == (got is None)
    if want is not None and got is not None:
        assert want.counts.tolist() == got.counts.tolist() and want.examples == got.examples
        assert want.sequence.tolist() == got.sequence.tolist() and want.order.tolist() == got.order.tolist()


@pytest.fixture(scope="module", params=[1, 2, 4])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Notes of each rank on its cases."""
    folder = tmp_path_factory.mktemp("cut")
    run_ranks(request.param, "tests.trainer.cut_worker", str(folder))
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(request.param)]


@pytest.mark.parametrize("name", CASES)
def test_any_number_of_ranks_cuts_the_same_batches(found: list[dict[str, Any]], name: str) -> None:
    case, batches = CASES[name], []
    for parts in zip(*(rank[name]["batches"] for rank in found), strict=True):
        rows = [tuple(row) for own, _ in parts for row in own]
        assert all(sequence == parts[0][1] for _, sequence in parts)
        batches.append([rows[i] for i in parts[0][1]])
    shape = dict(batch_size=case.batch_size, interval_ms=case.interval_ms, finals=case.finals)
    want = batches_of(case.log, world=1, seed=0, **shape)  # type: ignore[arg-type]
    if case.longest_s is None:
        assert batches == want
    else:  # the clock says how much of the sequence is a batch
        assert [*itertools.chain(*batches)] == [*itertools.chain(*want)] and len(batches) > len(want)
        assert case.interval_ms is None or all(
            len({order // case.interval_ms for order, _, _ in batch}) == 1 for batch in batches
        )


def test_ranks_offer_little_more_than_a_batch(found: list[dict[str, Any]]) -> None:
    for name, case in CASES.items():
        limit = case.batch_size * (1 + case.finals)
        rows = found[0][name]["rows"]
        assert all(rank[name]["rows"] == rows for rank in found)
        if limit <= SAMPLES:
            assert rows == [], "the samples are all rows"
        else:
            assert max(rows, default=0) <= limit + (len(found) + 1) * -(-limit // (SAMPLES - 1))
            assert case.finals or len(rows) <= 2 * len(found[0][name]["batches"])
