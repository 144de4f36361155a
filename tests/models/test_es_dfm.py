"""ES-DFM: lessons against plain NumPy, and the rates at which expected gradients vanish."""

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
from livectr.models.es_dfm import ARRIVED, EARLY, LEAST, expected_labels, lessons_of_heads
from livectr.models.losses import LOSSES, Lesson, weighted_cross_entropy

RATES = st.floats(0.001, 0.9)
PROVISIONAL, FINAL = (NEGATIVE, POSITIVE, LATE_POSITIVE), (FINAL_NEGATIVE, FINAL_POSITIVE, FINAL_LATE)
OUTCOMES = torch.tensor([*PROVISIONAL, *FINAL], dtype=torch.float32)


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
    r = min(1.0, max(LEAST, (1 - c) / (1 - t)))
    positive, negative = -np.log(p), -np.log1p(-p)
    wanted = EARLY * (r * negative + (1 - r) * positive + positive) + negative + 2 * positive
    heads = (torch.full((6,), head) for head in (clicked, in_time))
    z = torch.full((6,), logit, dtype=torch.float32)
    assert weighted_cross_entropy(z, expected_labels(OUTCOMES, *heads)).item() == pytest.approx(
        wanted, rel=1e-4
    )


def shares(clicked: float, in_time: float) -> list[float]:
    """Observations of each of OUTCOMES for an impression with a click rate, of which a share is in time."""
    soon, late = clicked * in_time, clicked * (1 - in_time)
    return [1 - soon, soon, late, 1 - clicked, soon, late]


def mean_gradients(p: float, clicked: float, in_time: float, says: float) -> tuple[float, float]:
    """Expected gradients at p of an impression when it leaves, and when its window has passed; the head
    `clicked` says another rate and the head `in_time` the true one."""
    heads = (torch.full((6,), log_odds(max(rate, 1e-9))) for rate in (says, clicked * in_time))
    each = np.multiply(gradients(log_odds(p), expected_labels(OUTCOMES, *heads)), shares(clicked, in_time))
    return float(each[:3].sum()), float(each[3:].sum())


@given(RATES, st.floats(0, 0.999))
def test_each_stage_by_itself_learns_the_rate_of_final_labels(clicked: float, in_time: float) -> None:
    """So it does while a key is shown, from its start, and after its stop; late positives teach nothing."""
    for p in (clicked, 0.8 * clicked, 1 - 0.8 * (1 - clicked)):
        leaves, ends = mean_gradients(p, clicked, in_time, clicked)
        assert leaves == pytest.approx(EARLY * (p - clicked), abs=1e-5)
        assert ends == pytest.approx(p - clicked, abs=1e-5)


@given(RATES, st.floats(0, 0.999), st.floats(0, 1))
def test_an_error_of_the_click_rate_is_damped(clicked: float, in_time: float, share: float) -> None:
    """p = (c + EARLY c') / (1 + EARLY)."""
    says = clicked * in_time + share * (0.95 - clicked * in_time)
    p = (clicked + EARLY * says) / (1 + EARLY)
    assert sum(mean_gradients(p, clicked, in_time, says)) == pytest.approx(0, abs=1e-5)


@given(RATES, st.floats(0.001, 0.999))
def test_heads_learn_their_rates(clicked: float, in_time: float) -> None:
    """`in_time` at once; `clicked` from finals, and a little less from clicks that have come."""
    of, soon = shares(clicked, in_time), clicked * in_time
    lessons = lessons_of_heads(OUTCOMES)
    in_time_gradient = np.dot(gradients(log_odds(soon), lessons["in_time"]), of)
    assert in_time_gradient == pytest.approx(0, abs=1e-6)
    each = np.multiply(gradients(log_odds(clicked), lessons["clicked"]), of)
    assert each[3:].sum() == pytest.approx(0, abs=1e-6)
    assert each.sum() == pytest.approx(ARRIVED * clicked * (clicked - soon), abs=1e-6)


def test_a_head_is_sure_of_what_can_change_no_more() -> None:
    """The click rate from finals; that within the wait from impressions when they leave."""
    lessons = lessons_of_heads(OUTCOMES)
    assert lessons["clicked"].weight.tolist() == pytest.approx([*[ARRIVED] * 3, 1, 1, 1])
    assert lessons["clicked"].target.tolist() == [0, 1, 1, 0, 1, 1]
    assert lessons["in_time"].weight.tolist() == [1, 1, 0, 0, 0, 0]
    assert lessons["in_time"].target.tolist() == [0, 1, 0, 0, 0, 0]


def test_no_gradient_goes_through_the_heads_and_targets_are_bounded() -> None:
    ends = [-200.0, 200.0]
    clicked, in_time = (torch.tensor(z, requires_grad=True) for z in ([*ends, *ends], [*ends, *ends[::-1]]))
    lesson = expected_labels(torch.zeros(4), clicked, in_time)
    assert not lesson.target.requires_grad and not lesson.weight.requires_grad
    assert lesson.target.tolist() == pytest.approx([0.0, 0.0, 0.0, 1 - LEAST])


@pytest.mark.parametrize("delayed", ["fnw", "es_dfm"])
def test_labels_in_place_of_a_lesson_are_an_error(delayed: str) -> None:
    with pytest.raises(TypeError, match="needs a lesson in place of labels"):
        LOSSES[delayed](torch.zeros(2), torch.zeros(2))
