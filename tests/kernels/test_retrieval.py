"""The best rows of a matrix are those of a stable sort of all scores."""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from livectr.kernels.keys.keys import KeyNumbers
from livectr.kernels.network.retrieval import Query, Selection, best_of_keys, best_rows
from tests.commands import run
from tests.tiers import examples

F32 = NDArray[np.float32]

NONE = np.empty(0, np.uint32)
SCORES = st.lists(
    st.one_of(st.integers(-5, 5).map(float), st.sampled_from([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-40])),
    min_size=1,
    max_size=90,
)


def expected(scores: F32, k: int) -> list[int]:
    """NumPy's stable sort puts NaN last."""
    return np.argsort(-scores, kind="stable")[:k].tolist()


def same(found: Selection, scores: F32, k: int) -> None:
    assert found.positions.tolist() == expected(scores, k)
    np.testing.assert_array_equal(found.scores, scores[found.positions])


def numbered(keys: NDArray[np.int64]) -> KeyNumbers:
    numbers = KeyNumbers()
    numbers.assign(keys)
    return numbers


@given(SCORES, st.integers(1, 100), st.sets(st.integers(0, 89)))
def test_keys_are_in_the_order_of_a_stable_sort(values: list[float], k: int, cold: set[int]) -> None:
    """Also where the vectors of some keys are not in the matrix, but given."""
    scores, keys = np.array(values, np.float32), np.arange(len(values))
    vectors, is_cold = scores[:, None], np.isin(keys, list(cold))
    numbers, one = numbered(keys[~is_cold]), Query(np.ones(1, np.float32), 0.0, k)
    found, unknown, best = best_of_keys(numbers, keys, vectors[~is_cold], one, vectors[is_cold])
    np.testing.assert_array_equal(unknown, is_cold)
    np.testing.assert_array_equal(found, scores)
    assert best is not None
    same(best, scores, k)


@given(SCORES, st.integers(1, 100), st.sets(st.integers(0, 89)))
def test_rows_are_those_of_a_stable_sort(values: list[float], k: int, excluded: set[int]) -> None:
    """A matrix of width 1 times 1 gives the scores themselves, with their ties, NaN and infinities."""
    scores = np.array(values, np.float32)
    rows = np.array(sorted(excluded), np.uint32)
    left = np.array([i for i in range(len(scores)) if i not in excluded], np.int64)
    found = best_rows(scores[:, None], Query(np.ones(1, np.float32), 0.0, k), rows)
    assert found.positions.tolist() == left[expected(scores[left], k)].tolist()
    np.testing.assert_array_equal(found.scores, scores[found.positions])


@pytest.mark.parametrize("order", ["random", "ascending", "descending", "level", "nan"])
@pytest.mark.parametrize("k", [1, 400, 20_000, 70_000])
def test_large_matrices(order: str, k: int) -> None:
    """More rows than a thread scans at a time, in orders that are hard for a running bound."""
    scores = np.random.default_rng(0).normal(size=50_000).astype(np.float32)
    if order in ("ascending", "descending"):
        scores = np.sort(scores)[:: 1 if order == "ascending" else -1]
    if order == "level":
        scores = np.round(scores)
    if order == "nan":
        scores = np.where(np.arange(len(scores)) % 1000 == 999, scores, np.nan).astype(np.float32)
    same(best_rows(scores[:, None], Query(np.ones(1, np.float32), 0.0, k), NONE), scores, k)


@examples(60)
@given(st.integers(1, 70), st.integers(1, 80), st.integers(1, 90), st.integers(0, 2**32 - 1))
def test_products(rows: int, dim: int, k: int, seed: int) -> None:
    """Scores are the products; a row has the same bits wherever it lies, in the scan as among candidates."""
    rng = np.random.default_rng(seed)
    vectors, vector = (
        rng.normal(size=(rows, dim)).astype(np.float32),
        rng.normal(size=dim).astype(np.float32),
    )
    vectors[rng.random(rows) < 0.3] = vectors[0]
    ids = rng.permutation(10 * rows)[:rows]
    query = Query(vector, 0.25, k)
    asked = rng.choice(rows, 2 * rows)
    scores, unknown, found = best_of_keys(numbered(ids), ids[asked], vectors, query)
    assert not unknown.any() and found is not None
    exact = vectors[asked].astype(np.float64) @ vector.astype(np.float64) + 0.25
    np.testing.assert_allclose(scores, exact, rtol=1e-5, atol=1e-5)
    same(found, scores, k)
    of_row = dict(zip(asked.tolist(), scores.tolist(), strict=True))
    assert all(of_row[row] == score for row, score in zip(asked.tolist(), scores.tolist(), strict=True))
    scanned = best_rows(vectors, query, NONE)
    pairs = zip(scanned.positions, scanned.scores, strict=True)
    assert all(of_row[row] == score for row, score in pairs if row in of_row)
    level = scores[(vectors[asked] == vectors[0]).all(axis=1)]
    assert len(np.unique(level)) <= 1


def valued(scores: F32, worths: NDArray[np.float32]) -> F32:
    """Values in float32, as they are ordered."""
    with np.errstate(over="ignore", invalid="ignore"):
        return (worths.astype(np.float64) / (1 + np.exp(-scores.astype(np.float64)))).astype(np.float32)


@given(SCORES, st.integers(1, 100), st.integers(0, 2**32 - 1), st.booleans())
def test_worths_weigh_the_logistic_scores(values: list[float], k: int, seed: int, few: bool) -> None:
    """Any scores, worths of 0 and ties; the rows' worths in a scan are bids of their keys."""
    scores, rng = np.array(values, np.float32), np.random.default_rng(seed)
    worths = (rng.integers(0, 3, len(scores)) if few else rng.lognormal(0, 3, len(scores))).astype(np.float32)
    one, keys = Query(np.ones(1, np.float32), 0.0, k), np.arange(len(scores))
    scanned = best_rows(scores[:, None], one, NONE, worths)
    _, _, named = best_of_keys(numbered(keys), keys, scores[:, None], one, bids=worths.astype(np.float64))
    assert named is not None
    for found in (scanned, named):
        assert found.values is not None
        assert found.positions.tolist() == expected(valued(scores, worths), k)
        np.testing.assert_array_equal(found.values, valued(scores, worths)[found.positions])
        np.testing.assert_array_equal(found.scores, scores[found.positions])


def test_a_large_scan_by_worths_is_exact() -> None:
    """Bounds refuse most rows; no row that belongs to the best is among them."""
    rng = np.random.default_rng(0)
    scores = rng.normal(-4, 3, 60_000).astype(np.float32)
    worths = rng.lognormal(0, 1, 60_000).astype(np.float32)
    found = best_rows(scores[:, None], Query(np.ones(1, np.float32), 0.0, 600), NONE, worths)
    assert found.positions.tolist() == expected(valued(scores, worths), 600)


def test_rows_beside_do_not_matter() -> None:
    """A row of NaN or infinity leaves its neighbors alone, also where rows end within a register."""
    for dim in (1, 5, 16, 19, 32, 33):
        vectors = np.random.default_rng(1).normal(size=(40, dim)).astype(np.float32)
        query = Query(np.ones(dim, np.float32), 0.0, 40)
        clean = best_rows(vectors, query, NONE)
        bad = vectors.copy()
        bad[3], bad[20] = np.nan, np.inf
        found = best_rows(bad, query, NONE)
        assert found.positions[0] == 20 and found.positions[-1] == 3
        keep = ~np.isin(clean.positions, [3, 20])
        assert found.positions[1:-1].tolist() == clean.positions[keep].tolist()
        np.testing.assert_array_equal(found.scores[1:-1], clean.scores[keep])


def test_unknown_keys_have_no_score() -> None:
    vectors = np.arange(6, dtype=np.float32).reshape(3, 2)
    query = Query(np.ones(2, np.float32), 1.0, 2)
    scores, unknown, found = best_of_keys(numbered(np.array([7, 8, 9])), np.array([9, 1, 7]), vectors, query)
    np.testing.assert_array_equal(scores, np.array([10, np.nan, 2], np.float32))
    assert unknown.tolist() == [False, True, False] and found is None
    scores, unknown, _ = best_of_keys(KeyNumbers(), np.array([1]), np.empty((0, 2), np.float32), query)
    assert np.isnan(scores).all() and unknown.all()


def test_empty() -> None:
    query = Query(np.ones(2, np.float32), 0.0, 3)
    assert len(best_rows(np.empty((0, 2), np.float32), query, NONE).positions) == 0
    every = np.arange(4, dtype=np.uint32)
    assert len(best_rows(np.ones((4, 2), np.float32), query, every).positions) == 0


def test_mistakes() -> None:
    vectors, one = np.ones((4, 2), np.float32), np.ones(2, np.float32)
    with pytest.raises(ValueError, match="at least 1"):
        Query(one, 0.0, 0)
    with pytest.raises(ValueError, match="shape"):
        best_rows(vectors, Query(np.ones(3, np.float32), 0.0, 1), NONE)
    with pytest.raises(ValueError, match="rows"):
        best_of_keys(numbered(np.arange(5)), np.arange(5), vectors, Query(one, 0.0, 1))


def test_threads_change_nothing() -> None:
    """The bound that threads share depends on their turns; the results do not."""
    code = (
        "import numpy as np, hashlib; from livectr.kernels.network.retrieval import *\n"
        "rng = np.random.default_rng(0); v = np.round(rng.normal(size=(200_000, 8)), 1).astype(np.float32)\n"
        "q = Query(np.round(rng.normal(size=8), 1).astype(np.float32), 0.5, 700)\n"
        "for _ in range(5):\n"
        "    f = best_rows(v, q, np.arange(0, 200_000, 7, dtype=np.uint32))\n"
        "    print(hashlib.sha256(f.positions.tobytes() + f.scores.tobytes()).hexdigest())\n"
    )
    printed = [
        run(
            [sys.executable, "-c", code],
            env={**os.environ, "LIVECTR_THREADS": threads},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for threads in ("1", "3")
    ]
    assert printed[0] == printed[1] and len(set(printed[0].split())) == 1
