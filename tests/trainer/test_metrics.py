"""Quality measures against brute force."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.metrics import SlidingWindow, auc, calibration, gauc, logloss, quality, run_report

examples = st.lists(
    # few distinct logits and users, so that ties and one-class users occur
    st.tuples(st.integers(0, 4), st.integers(-3, 3), st.booleans()),
    max_size=60,
)


def columns(rows: list[tuple[int, int, bool]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    table = np.array(rows, np.int64).reshape(-1, 3)
    return table[:, 0], (table[:, 1] / 2).astype(np.float32), table[:, 2].astype(np.float32)


def pairwise_auc(logit: np.ndarray, label: np.ndarray) -> float:
    wins = [float(a > b) + 0.5 * float(a == b) for a in logit[label == 1] for b in logit[label == 0]]
    return sum(wins) / len(wins) if wins else math.nan


@given(examples)
def test_auc(rows: list[tuple[int, int, bool]]) -> None:
    _, logit, label = columns(rows)
    assert auc(logit, label) == pytest.approx(pairwise_auc(logit, label), nan_ok=True)


@given(examples)
def test_gauc(rows: list[tuple[int, int, bool]]) -> None:
    user, logit, label = columns(rows)
    areas = {
        u: (pairwise_auc(logit[user == u], label[user == u]), int((user == u).sum()))
        for u in set(user.tolist())
    }
    mixed = [(area, n) for area, n in areas.values() if not math.isnan(area)]
    expected = sum(a * n for a, n in mixed) / sum(n for _, n in mixed) if mixed else math.nan
    value, left_out = gauc(user, logit, label)
    assert value == pytest.approx(expected, nan_ok=True)
    assert left_out == len(areas) - len(mixed)


@given(examples.filter(bool))
def test_logloss_and_calibration(rows: list[tuple[int, int, bool]]) -> None:
    _, logit, label = columns(rows)
    p = [1 / (1 + math.exp(-z)) for z in logit.tolist()]
    expected = -sum(math.log(q if y else 1 - q) for q, y in zip(p, label, strict=True)) / len(p)
    assert logloss(logit, label) == pytest.approx(expected)
    assert calibration(logit, label) == pytest.approx(
        sum(p) / label.sum() if label.any() else math.nan, nan_ok=True
    )


def test_confident_logits_are_no_ties() -> None:
    """float32 probabilities of both would round to 1."""
    assert auc(np.array([40, 50], np.float32), np.array([0, 1], np.float32)) == 1.0
    assert math.isfinite(logloss(np.array([-500.0, 500.0]), np.array([1.0, 0.0])))


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 50), st.integers(0, 3), st.booleans()), max_size=15), max_size=8
    )
)
def test_window_against_a_list(batches: list[list[tuple[int, int, bool]]]) -> None:
    window = SlidingWindow(20, capacity=16)
    seen: list[tuple[int, int, bool]] = []
    for batch in batches:
        time_ms, logit, label = columns(batch)
        window.add(time_ms, np.zeros(len(batch), np.int64), logit, label)
        seen += batch
    kept = [row for row in seen[-16:] if row[0] > max(t for t, _, _ in seen) - 20]
    _, logit, label = columns(kept)
    expected = quality(np.zeros(len(kept), np.int64), logit, label)
    assert window.quality().as_dict() == pytest.approx(expected.as_dict())


def test_a_batch_larger_than_the_window_keeps_its_last() -> None:
    window = SlidingWindow(1000, capacity=4)
    logit = np.arange(10, dtype=np.float32)
    window.add(np.arange(10), np.zeros(10, np.int64), logit, (logit > 7).astype(np.float32))
    assert window.quality().examples == 4
    assert window.quality().auc == 1.0


def test_run_report() -> None:
    logit = np.linspace(-1, 1, 100, dtype=np.float32)
    label = (np.arange(100) % 2).astype(np.float32)
    report = run_report(np.zeros(100, np.int64), logit, label)
    assert report["all"].examples == 100
    assert report["last"] == quality(np.zeros(20, np.int64), logit[80:], label[80:])


def test_an_empty_report_is_json() -> None:
    nothing = np.empty(0, np.float32)
    report = quality(np.empty(0, np.int64), nothing, nothing).as_dict()
    assert report == {
        "examples": 0,
        "auc": None,
        "gauc": None,
        "users_left_out": 0,
        "logloss": None,
        "calibration": None,
    }
