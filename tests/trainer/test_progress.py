"""Progress: a block counts as its batches do."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bench.planted import pipeline
from livectr.ingest.plan.features import Features
from livectr.models import LR
from livectr.trainer.progress import Progress
from livectr.trainer.stream.feed import Batch

PIPELINE = pipeline(LR(), fields=2)


def block(sizes: list[int], rng: np.random.Generator) -> Batch:
    """Batches of so many examples, some late."""
    n = sum(sizes)
    times, keys, zeros = rng.integers(1, 50, n), rng.integers(0, 9, 2 * n), np.zeros(n, np.int64)
    features = Features(n, np.arange(2 * n + 1, dtype=np.int32), keys, np.empty((n, 0), np.float32))
    return Batch(
        features=features,
        label=np.zeros(n, np.float32),
        sequence=np.arange(n),
        instance=zeros,
        user=zeros,
        time_ms=times,
        item=zeros,
        order=times,
        late=rng.random(n) < 0.3,
        outcome=np.zeros(n, np.uint8),
        cut=np.array(sizes) + 1,
        bounds=np.cumsum([0, *sizes]),
    )


@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=6), max_size=3), st.integers(0, 99))
def test_a_block_counts_as_its_batches_do(blocks: list[list[int]], seed: int) -> None:
    whole, each = (Progress(PIPELINE, 0, None) for _ in range(2))
    rng = np.random.default_rng(seed)
    for sizes in blocks:
        batch = block(sizes, rng)
        whole.add(batch)
        for part in batch.parts():
            each.add(part)
    for name in ("steps", "examples", "seen", "event_ms", "first_ms"):
        assert getattr(whole, name) == getattr(each, name), name
    np.testing.assert_array_equal(whole.field_keys, each.field_keys)
