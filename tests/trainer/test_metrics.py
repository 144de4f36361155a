"""Quality measures against brute force."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from livectr.analysis.compare import differences
from livectr.trainer.quality.metrics import (
    LOGIT_LIMIT,
    SlidingWindow,
    auc,
    calibration,
    gauc,
    gauc_error,
    logloss,
    quality,
)
from livectr.trainer.quality.seen import COLD, ItemCounts, is_cold

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


def test_the_error_of_gauc_is_that_of_a_bootstrap_over_users() -> None:
    rng = np.random.default_rng(5)
    users = [int(n) for n in rng.integers(2, 30, 150)]
    user = np.repeat(np.arange(150), users)
    skill = rng.normal(size=150)[user]
    label = (rng.random(len(user)) < 0.3).astype(np.float32)
    a = (label * skill + rng.normal(size=len(user))).astype(np.float32)
    b = (a + 0.5 * rng.normal(size=len(user))).astype(np.float32)
    rows = [np.flatnonzero(user == u) for u in range(150)]
    found = []
    for _ in range(400):
        drawn = rng.integers(0, 150, 150)
        at = np.concatenate([rows[u] for u in drawn])
        ids = np.repeat(np.arange(150), [users[u] for u in drawn])
        found.append([gauc(ids, z[at], label[at])[0] for z in (a, b)])
    one, two = np.array(found).T
    # The bootstrap's own error: 1 / √(2 · 400) = 3.5 % of a standard error.
    assert gauc_error(user, a, label) == pytest.approx(np.std(one), rel=0.12)
    assert gauc_error(user, a, label, b) == pytest.approx(np.std(one - two), rel=0.12)
    assert gauc_error(user, a, label, 2 * a) == 0
    assert math.isnan(gauc_error(user[:0], a[:0], label[:0]))
    assert math.isnan(gauc_error(np.zeros(9, np.int64), a[:9], label[:9]))


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


def test_an_extreme_logit_does_not_hide_all_others() -> None:
    """The mean since the start and that of a window bound logits alike."""
    logit, label = np.array([0.0, -3e38, np.inf, np.nan], np.float32), np.array([1, 1, 0, 1], np.float32)
    expected = (2 * math.log(2) + 2 * LOGIT_LIMIT) / 4
    assert logloss(logit, label) == pytest.approx(expected)
    found = differences(np.arange(4), logit, logit, label, np.zeros(4, np.bool_))["logloss"]
    assert found.a == found.b == pytest.approx(expected)


ids = st.sampled_from([0, 1, -1, 2**15, 2**16, 2**40 + 7, -(2**63), 2**63 - 1])


@given(st.lists(st.tuples(ids, st.integers(-3, 3), st.booleans()), min_size=1, max_size=60))
def test_gauc_of_any_user_ids(rows: list[tuple[int, int, bool]]) -> None:
    """Hashes of names are user ids too: 64 bits with a sign."""
    user, logit, label = columns(rows)
    small = np.unique(user, return_inverse=True)[1]
    assert gauc(user, logit, label) == pytest.approx(gauc(small, logit, label), nan_ok=True)


def test_logits_of_either_width_keep_their_ties() -> None:
    logit = np.array([1, 1 + 1e-12, 1, 2], np.float64)
    label = np.array([0, 1, 1, 0], np.float32)
    assert auc(logit, label) == 1.5 / 4
    assert auc(logit.astype(np.float32), label) == 1.0 / 4


def brute_force_gauc(rows: list[dict[str, float]]) -> tuple[float, int]:
    """DICM §7.1 as it is written: loops over users and over pairs of a click and a non-click."""
    users: dict[float, list[dict[str, float]]] = {}
    for row in rows:
        users.setdefault(row["user"], []).append(row)
    weighted = impressions = 0.0
    left_out = 0
    for shown in users.values():
        wins, pairs = 0.0, 0
        for clicked in shown:
            for other in shown:
                if clicked["label"] == 1 and other["label"] == 0:
                    pairs += 1
                    if clicked["logit"] > other["logit"]:
                        wins += 1
                    elif clicked["logit"] == other["logit"]:
                        wins += 0.5
        if pairs == 0:
            left_out += 1
            continue
        weighted += len(shown) * wins / pairs
        impressions += len(shown)
    return (weighted / impressions if impressions else math.nan), left_out


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(-3, 3), st.booleans(), st.integers(0, 3)), max_size=80)
)
def test_gauc_and_cold_gauc_against_the_definition(rows: list[tuple[int, int, bool, int]]) -> None:
    """Cold counted by a loop over the impressions; each item had 18 before."""
    table = np.array(rows, np.int64).reshape(-1, 4)
    user, logit, label = table[:, 0], table[:, 1].astype(np.float32), table[:, 2].astype(np.float32)
    held, cold = [18] * 4, []
    loops: list[dict[str, float]] = []
    for u, z, y, item in rows:
        loops.append(dict(user=u, logit=z, label=int(y)))
        cold.append(held[item] < COLD)
        held[item] += 1
    counts = ItemCounts()
    counts.seen(np.repeat(np.arange(4), 18))
    found = quality(user, logit, label, is_cold(counts.seen(table[:, 3])))
    assert (found.gauc, found.skipped_users) == pytest.approx(brute_force_gauc(loops), nan_ok=True)
    only = [row for row, yes in zip(loops, cold, strict=True) if yes]
    assert (found.cold_gauc, found.cold_users_left_out) == pytest.approx(brute_force_gauc(only), nan_ok=True)
    assert found.cold_examples == len(only)
    cold_label = np.array([row["label"] for row in only])
    cold_logit = np.array([row["logit"] for row in only])
    assert found.cold_auc == pytest.approx(pairwise_auc(cold_logit, cold_label), nan_ok=True)


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 50), st.integers(0, 3), st.booleans()), max_size=15), max_size=8
    )
)
def test_window_against_a_list(batches: list[list[tuple[int, int, bool]]]) -> None:
    window = SlidingWindow(20, ["rank", "ids"], capacity=16)
    seen: list[tuple[int, int, bool]] = []
    for batch in batches:
        time_ms, logit, label = columns(batch)
        window.add(time_ms, time_ms % 3, {"rank": logit, "ids": -logit}, label, time_ms % 2 == 0)
        seen += batch
    kept = [row for row in seen[-16:] if row[0] > max(t for t, _, _ in seen) - 20]
    time_ms, logit, label = columns(kept)
    found = window.quality()
    for role, z in (("rank", logit), ("ids", -logit)):
        expected = quality(time_ms % 3, z, label, time_ms % 2 == 0)
        assert found[role].as_dict() == pytest.approx(expected.as_dict())


def test_a_batch_larger_than_the_window_keeps_its_last() -> None:
    window = SlidingWindow(1000, ["rank"], capacity=4)
    logit = np.arange(10, dtype=np.float32)
    label = (logit > 7).astype(np.float32)
    window.add(np.arange(10), np.zeros(10, np.int64), {"rank": logit}, label, label > 0)
    found = window.quality()["rank"]
    assert (found.examples, found.auc, found.cold_examples) == (4, 1.0, 2)


@given(st.integers(0, 40), st.integers(0, 12), st.integers(1, 20))
def test_a_window_continues_from_its_state(before: int, after: int, saved: int) -> None:
    """With all that a state holds it is the unbroken window, and its next state is the same, too."""
    rng = np.random.default_rng(before * 100 + after)

    def add(window: SlidingWindow, n: int, start: int) -> None:
        time_ms = start + np.arange(n)
        logits = {role: rng.normal(size=n).astype(np.float32) for role in ("rank", "ids")}
        label = rng.integers(0, 2, n).astype(np.float32)
        window.add(time_ms, time_ms % 3, logits, label, time_ms % 2 == 0)

    unbroken = SlidingWindow(min(saved, 15), ["rank", "ids"], capacity=16)
    for at in range(before):
        add(unbroken, 1, at)
    resumed = SlidingWindow(min(saved, 15), ["rank", "ids"], capacity=16)
    resumed.load(unbroken.state(saved))
    assert resumed.added == unbroken.added
    for window in (unbroken, resumed):
        rng = np.random.default_rng(after)
        add(window, after, before)
    assert repr(resumed.quality()) == repr(unbroken.quality())
    first, second = unbroken.state(saved), resumed.state(saved)
    assert [(n, a.tolist()) for n, a in first.items()] == [(n, a.tolist()) for n, a in second.items()]


def test_a_window_leaves_out_the_state_of_other_models() -> None:
    window = SlidingWindow(1000, ["rank"])
    window.load(SlidingWindow(1000, ["other"]).state(10))
    assert window.added == 0


def test_an_empty_report_is_json() -> None:
    nothing = np.empty(0, np.float32)
    report = quality(np.empty(0, np.int64), nothing, nothing, np.empty(0, np.bool_)).as_dict()
    assert report == {
        "examples": 0,
        "auc": None,
        "gauc": None,
        "skipped_users": 0,
        "logloss": None,
        "calibration": None,
        "cold_examples": 0,
        "cold_auc": None,
        "cold_gauc": None,
        "cold_users_left_out": 0,
    }
