"""ES-DFM: weights against plain NumPy, and the rates at which expected gradients vanish."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from livectr.kernels.stream.join import FINAL_LATE, FINAL_NEGATIVE, FINAL_POSITIVE
from livectr.models.es_dfm import LEAST, importance_weighted, lessons_of_heads
from livectr.models.losses import LATE, LOSSES, Lesson, weighted_cross_entropy

RATES = st.floats(0.001, 0.9)
LABELS = np.array([0.0, 1.0, LATE], np.float32)


def log_odds(p: float) -> float:
    return math.log(p / (1 - p))


def gradients(logit: float, lesson: Lesson) -> list[float]:
    z = torch.full((len(lesson.target),), logit, requires_grad=True)
    weighted_cross_entropy(z, lesson).backward()
    assert z.grad is not None
    return z.grad.tolist()


@given(st.floats(-9, 9), st.floats(-12, 12), st.floats(-12, 12))
def test_the_loss_is_that_of_a_plain_reference(logit: float, delayed: float, fake: float) -> None:
    d, r = 1 / (1 + np.exp(-delayed)), max(LEAST, 1 / (1 + np.exp(fake)))
    p = 1 / (1 + np.exp(-logit))
    wanted = -(1 + d) * (r * np.log1p(-p) + 2 * np.log(p))  # a provisional negative and two positives
    z = torch.full((3,), logit, dtype=torch.float32)
    lesson = importance_weighted(torch.from_numpy(LABELS), torch.full((3,), delayed), torch.full((3,), fake))
    assert weighted_cross_entropy(z, lesson).item() == pytest.approx(wanted, rel=1e-4)


@given(RATES, st.floats(0, 0.999))
def test_it_learns_the_rate_of_final_labels_whatever_the_delays_are(clicked: float, in_time: float) -> None:
    """With the heads' true rates, the expected gradient of an impression is (1 + d) (p − c)."""
    late = clicked * (1 - in_time)
    negative = 1 - clicked * in_time
    fake = late / negative
    if 1 - fake < LEAST:
        return
    heads = (torch.full((3,), log_odds(max(rate, 1e-9))) for rate in (late, fake))
    lesson = importance_weighted(torch.from_numpy(LABELS), *heads)
    for p in (clicked, 0.8 * clicked, 1 - 0.8 * (1 - clicked)):
        each = gradients(log_odds(p), lesson)
        mean = negative * each[0] + clicked * in_time * each[1] + late * each[2]
        assert mean == pytest.approx((1 + late) * (p - clicked), abs=1e-5)


@given(RATES, st.floats(0.001, 0.999))
def test_heads_learn_their_rates_from_finals(clicked: float, in_time: float) -> None:
    late = clicked * (1 - in_time)
    outcomes = {FINAL_NEGATIVE: 1 - clicked, FINAL_POSITIVE: clicked * in_time, FINAL_LATE: late}
    lessons = lessons_of_heads(torch.tensor([*outcomes], dtype=torch.float32))
    true = {"delayed": late, "fake": late / (1 - clicked * in_time)}
    for head, rate in true.items():
        each = gradients(log_odds(rate), lessons[head])
        assert np.dot(each, [*outcomes.values()]) == pytest.approx(0, abs=1e-6)


def test_only_finals_teach_the_heads() -> None:
    codes = [0, 1, LATE, FINAL_NEGATIVE, FINAL_POSITIVE, FINAL_LATE]
    lessons = lessons_of_heads(torch.tensor(codes))
    assert lessons["delayed"].weight.tolist() == [0, 0, 0, 1, 1, 1]
    assert lessons["fake"].weight.tolist() == [0, 0, 0, 1, 0, 1]
    assert lessons["delayed"].target.tolist() == lessons["fake"].target.tolist() == [0, 0, 0, 0, 0, 1]


def test_no_gradient_goes_through_the_weights_and_they_are_bounded() -> None:
    heads = [torch.tensor([-200.0, 0.0, 200.0], requires_grad=True) for _ in range(2)]
    lesson = importance_weighted(torch.zeros(3), *heads)
    assert not lesson.weight.requires_grad
    assert lesson.weight.tolist() == pytest.approx([1.0, 1.5 * 0.5, 2 * LEAST])


def test_labels_in_place_of_a_lesson_are_an_error() -> None:
    with pytest.raises(TypeError, match="needs a lesson, which its heads give"):
        LOSSES["es_dfm"](torch.zeros(2), torch.zeros(2))
