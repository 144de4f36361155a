"""The freshness histogram equals an observation for each example."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from livectr.serving.metrics import Freshness

DELAYS = st.lists(st.tuples(st.floats(0, 1000, allow_nan=False), st.integers(1, 5)), min_size=1, max_size=30)


@given(DELAYS)
def test_it_counts_like_prometheus_own(delays: list[tuple[float, int]]) -> None:
    ours, registry = Freshness(), CollectorRegistry()
    theirs = Histogram("h", "h", buckets=ours.bounds_s.tolist(), registry=registry)
    ours.observe(np.array([d for d, _ in delays]), np.array([n for _, n in delays]))
    for delay, count in delays:
        for _ in range(count):
            theirs.observe(delay)
    (family,) = ours.collect()
    (expected,) = registry.collect()
    found = [(s.labels.get("le"), s.value) for s in family.samples if s.name.endswith("_bucket")]
    wanted = [(s.labels.get("le"), s.value) for s in expected.samples if s.name.endswith("_bucket")]
    assert [(float(le), n) for le, n in found if le] == [(float(le), n) for le, n in wanted if le]
    total = next(s.value for s in family.samples if s.name.endswith("_sum"))
    assert math.isclose(total, sum(d * n for d, n in delays), rel_tol=1e-9, abs_tol=1e-9)


@given(DELAYS, st.sampled_from([0.5, 0.99]))
def test_a_quantile_is_the_bound_of_its_bucket(delays: list[tuple[float, int]], q: float) -> None:
    freshness = Freshness()
    freshness.observe(np.array([d for d, _ in delays]), np.array([n for _, n in delays]))
    every = np.repeat([d for d, _ in delays], [n for _, n in delays])
    exact = float(np.quantile(every, q, method="inverted_cdf"))
    found = freshness.quantile(q)
    assert found >= exact and (exact < 0.05 or math.isinf(found) or found <= exact * 2**0.25 * 1.001)


def test_nothing_observed() -> None:
    assert math.isnan(Freshness().quantile(0.5))
    assert b"livectr_freshness_seconds" in generate_latest()
