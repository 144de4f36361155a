"""`livectr evaluate --off-policy`: estimates by hand, and of all answers that a side may give."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from livectr.analysis.served.estimators import Estimate, Pages, effective, estimates
from livectr.serving.explore.options import ExploreOptions
from livectr.serving.explore.orders import Explorer


def by_name(pages: Pages) -> dict[str, Estimate]:
    return {one.of: one for one in estimates(pages)}


def test_estimates_by_hand() -> None:
    """Three requests of one place; the target would have shown the first and the third."""
    found = by_name(
        Pages(
            weight=np.array([[2.0], [0.0], [4.0]]),
            reward=np.array([[1.0], [1.0], [0.0]]),
            shown=np.array([[0.5], [0.4], [0.2]]),
            target=np.array([[0.5], [0.1], [0.2]]),
            user=np.array([1, 2, 3]),
        )
    )
    assert found["log"].mean == pytest.approx(2 / 3)
    assert found["matched"].mean == pytest.approx(1 / 2)
    assert found["ips"].mean == pytest.approx(2 / 3)
    assert found["snips"].mean == pytest.approx(2 / 6)
    # (.5 + 2 · .5) + (.1 + 0) + (.2 + 4 · −.2)
    assert found["dr"].mean == pytest.approx((1.5 + 0.1 - 0.6) / 3)
    spread = np.std([2.0, 0.0, 0.0], ddof=1) / 3**0.5
    assert found["ips"].high - found["ips"].mean == pytest.approx(1.959964 * spread)
    gain = np.std([1.0, -1.0, 0.0], ddof=1) / 3**0.5
    assert found["ips"].gain == pytest.approx(0) and found["ips"].gain_high == pytest.approx(1.959964 * gain)
    assert effective(np.array([2.0, 0.0, 4.0])) == pytest.approx(36 / 20) and effective(np.zeros(3)) == 0


def test_estimates_are_those_of_the_open_bandit_pipeline() -> None:
    """Figures of obp 0.4.1 for these logs; three places are its SlateRewardInteractionIPS."""
    i = np.arange(60)
    shown, target = i * 7 % 5, i * i % 5
    weight = (shown == target) / (0.1 + (i * 11 % 13) / 20)
    reward, model = (i * 5 % 7 < 2).astype(np.float64), (i[:, None] * 3 + np.arange(5) * 4) % 11 / 10
    pages = Pages(weight[:, None], reward[:, None], model[i, shown][:, None], model[i, target][:, None], i)
    found = by_name(pages)
    means = [found[name].mean for name in ("ips", "snips", "dr")]
    assert means == pytest.approx([0.6279100529100529, 0.4386080762642707, 0.4956327006327007])

    rows = i.reshape(20, 3)
    propensity = np.cumprod(0.3 + (rows * 11 % 13) / 20, axis=1)
    same = np.logical_and.accumulate(rows * 7 % 5 > 0, axis=1)
    clicks, nothing = (rows * 5 % 7 < 2).astype(np.float64), np.zeros((20, 3))
    slates = by_name(Pages(same / propensity, clicks, nothing, nothing, np.arange(20)))
    assert slates["ips"].mean == pytest.approx(2.3488184020046767)


def test_users_are_the_units_of_intervals() -> None:
    """Each request twice, of the same user: the interval is that of half as many requests."""
    rng = np.random.default_rng(1)
    a, b, c, d = (rng.random((50, 2)) for _ in range(4))
    once = by_name(Pages(a, b, c, d, np.arange(50)))
    a, b, c, d = (np.repeat(column, 2, axis=0) for column in (a, b, c, d))
    twice = by_name(Pages(a, b, c, d, np.arange(100) // 2))
    for name, one in once.items():
        assert (one.low, one.high) == pytest.approx((twice[name].low, twice[name].high))


def test_estimates_are_right_on_average() -> None:
    """Over all answers of a side that explores, each as often as its propensity: IPS and DR are the truth.

    The model of DR is wrong, and clicks of the second place depend on what stands above it.
    """
    explorer = Explorer(ExploreOptions.parse("share=0.7,temperature=0.8,top=3"))
    values, target = np.array([0.4, 0.1, 0.3, 0.05]), np.array([2, 0])
    clicks, below = np.array([0.3, 0.6, 0.2, 0.9]), np.array([1.0, 0.1, 0.5, 0.7])
    model = np.array([0.5, 0.1, 0.1, 0.2])
    orders = [np.array(order) for order in itertools.permutations(range(4), 2)]
    propensity = np.stack([explorer.propensity(values, order) for order in orders])
    possible = propensity[:, -1] > 0
    chance, shown = propensity[possible, -1], np.stack(orders)[possible]
    same = np.logical_and.accumulate(shown == target, axis=1)
    reward = np.stack([clicks[shown[:, 0]], clicks[shown[:, 1]] * below[shown[:, 0]]], axis=1)
    truth = clicks[2] + clicks[0] * below[2]
    n = len(shown)
    weight = same / propensity[possible]
    pages = Pages(weight, reward, model[shown], np.tile(model[target], (n, 1)), np.arange(n))
    # Means of terms that are each weighted by its chance, as many answers would be.
    terms = {
        "ips": (pages.weight * pages.reward).sum(1),
        "dr": (pages.target + pages.weight * (pages.reward - pages.shown)).sum(1),
    }
    for name, each in terms.items():
        assert float((chance * each).sum()) == pytest.approx(truth), name
        assert by_name(pages)[name].mean == pytest.approx(each.mean())
    assert float((chance * weight[:, -1]).sum()) == pytest.approx(1.0)
    assert abs(float((chance * reward.sum(1)).sum()) - truth) > 0.05
