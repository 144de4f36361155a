"""ES-DFM: weights against plain NumPy, and the rates at which expected gradients vanish."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from livectr.kernels.stream.join import (
    FINAL_LATE,
    FINAL_NEGATIVE,
    FINAL_POSITIVE,
    LATE_POSITIVE,
    NEGATIVE,
    POSITIVE,
)
from livectr.models.es_dfm import LEAST, importance_weighted, lessons_of_heads
from livectr.models.losses import LATE, LOSSES, Lesson, weighted_cross_entropy

RATES = st.floats(0.001, 0.9)
LABELS = np.array([0.0, 1.0, LATE], np.float32)


def log_odds(p: float) -> float:
    return math.log(p / (1 - p))


def gradients(logit: float, lesson: Lesson) -> list[float]:
    z = torch.full((len(lesson.target),), logit, requires_grad=True)
    weighted_cross_entropy(z, lesson).backward()  # type: ignore[no-untyped-call]
    assert z.grad is not None
    return z.grad.tolist()


@given(st.floats(-9, 9), st.floats(-12, 12), st.floats(-12, 12))
def test_the_loss_is_that_of_a_plain_reference(logit: float, clicked: float, in_time: float) -> None:
    c, t, p = (1 / (1 + np.exp(-z)) for z in (clicked, in_time, logit))
    d, r = max(0.0, c - t), min(1.0, max(LEAST, (1 - c) / (1 - t)))
    wanted = -(1 + d) * (r * np.log1p(-p) + 2 * np.log(p))  # a provisional negative and two positives
    z = torch.full((3,), logit, dtype=torch.float32)
    heads = (torch.full((3,), head) for head in (clicked, in_time))
    lesson = importance_weighted(torch.from_numpy(LABELS), *heads)
    assert weighted_cross_entropy(z, lesson).item() == pytest.approx(wanted, rel=1e-4)


def mean_gradient(p: float, clicked: float, in_time: float, says: float) -> float:
    """Expected gradient at p of an impression that is clicked at a rate, a share of it within the wait, where
    the head `clicked` says another rate and the head `in_time` the true one."""
    soon = clicked * in_time
    heads = (torch.full((3,), log_odds(max(rate, 1e-9))) for rate in (says, soon))
    each = gradients(log_odds(p), importance_weighted(torch.from_numpy(LABELS), *heads))
    return (1 - soon) * each[0] + soon * each[1] + (clicked - soon) * each[2]


@given(RATES, st.floats(0, 0.999))
def test_it_learns_the_rate_of_final_labels_whatever_the_delays_are(clicked: float, in_time: float) -> None:
    """With the heads' true rates, the expected gradient of an impression is (1 + d) (p − c)."""
    late = clicked * (1 - in_time)
    for p in (clicked, 0.8 * clicked, 1 - 0.8 * (1 - clicked)):
        mean = mean_gradient(p, clicked, in_time, clicked)
        assert mean == pytest.approx((1 + late) * (p - clicked), abs=1e-5)


@given(RATES, st.floats(0, 0.999), st.floats(0, 1))
def test_an_error_of_the_click_rate_is_damped(clicked: float, in_time: float, share: float) -> None:
    """p = c / (1 + c − c'), which is vanilla's c / (1 + d) where c' knows of no late click."""
    soon = clicked * in_time
    says = soon + share * (0.95 - soon)
    p = clicked / (1 + clicked - says)
    if p < 0.999:
        assert mean_gradient(p, clicked, in_time, says) == pytest.approx(0, abs=1e-5)


@given(RATES, st.floats(0.001, 0.999))
def test_heads_learn_their_rates(clicked: float, in_time: float) -> None:
    soon, late = clicked * in_time, clicked * (1 - in_time)
    rates = {
        NEGATIVE: 1 - soon,
        POSITIVE: soon,
        LATE_POSITIVE: late,
        FINAL_NEGATIVE: 1 - clicked,
        FINAL_POSITIVE: soon,
        FINAL_LATE: late,
    }
    lessons = lessons_of_heads(torch.tensor([*rates], dtype=torch.float32))
    for head, rate in {"clicked": clicked, "in_time": soon}.items():
        each = gradients(log_odds(rate), lessons[head])
        assert np.dot(each, [*rates.values()]) == pytest.approx(0, abs=1e-6)


def test_a_head_learns_what_can_change_no_more() -> None:
    """The click rate from finals alone; that within the wait from impressions when they leave."""
    codes = [NEGATIVE, POSITIVE, LATE, FINAL_NEGATIVE, FINAL_POSITIVE, FINAL_LATE]
    lessons = lessons_of_heads(torch.tensor(codes))
    assert lessons["clicked"].weight.tolist() == [0, 0, 0, 1, 1, 1]
    assert lessons["clicked"].target.tolist() == [0, 0, 0, 0, 1, 1]
    assert lessons["in_time"].weight.tolist() == [1, 1, 0, 0, 0, 0]
    assert lessons["in_time"].target.tolist() == [0, 1, 0, 0, 0, 0]


def test_no_gradient_goes_through_the_weights_and_they_are_bounded() -> None:
    ends = [-200.0, 200.0]
    clicked, in_time = (torch.tensor(z, requires_grad=True) for z in ([*ends, *ends], [*ends, *ends[::-1]]))
    lesson = importance_weighted(torch.zeros(4), clicked, in_time)
    assert not lesson.weight.requires_grad
    assert lesson.weight.tolist() == pytest.approx([1.0, 1.0, 1.0, 2 * LEAST])


def test_labels_in_place_of_a_lesson_are_an_error() -> None:
    with pytest.raises(TypeError, match="needs a lesson, which its heads give"):
        LOSSES["es_dfm"](torch.zeros(2), torch.zeros(2))
