"""Losses of labels that come late: equations, and the click rate at which their gradients vanish."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import binary_cross_entropy_with_logits

from livectr.kernels.stream.join import (
    FINAL_LATE,
    FINAL_NEGATIVE,
    FINAL_POSITIVE,
    LATE_POSITIVE,
    NEGATIVE,
    POSITIVE,
)
from livectr.models.fnw import EARLY, fake_negative_weighted
from livectr.models.losses import LATE, LOSSES, Loss, weighted_cross_entropy

RATES = st.floats(0.001, 0.95)
PROVISIONAL, FINAL = (NEGATIVE, POSITIVE, LATE_POSITIVE), (FINAL_NEGATIVE, FINAL_POSITIVE, FINAL_LATE)


def gradient(loss: Loss, logit: float, label: float) -> float:
    z = torch.tensor([logit], requires_grad=True)
    loss(z, torch.tensor([label])).backward()  # type: ignore[no-untyped-call]
    assert z.grad is not None
    return float(z.grad[0])


def fnw(logit: torch.Tensor, outcome: torch.Tensor) -> torch.Tensor:
    return weighted_cross_entropy(logit, fake_negative_weighted(logit, outcome))


def shares(clicked: float, in_time: float) -> dict[int, float]:
    """Outcome → observations of it for each impression with a click rate, of which a share is in time."""
    soon, late = clicked * in_time, clicked * (1 - in_time)
    return {
        NEGATIVE: 1 - soon,
        POSITIVE: soon,
        LATE_POSITIVE: late,
        FINAL_NEGATIVE: 1 - clicked,
        FINAL_POSITIVE: soon,
        FINAL_LATE: late,
    }


def mean_gradient(loss: Loss, p: float, of: dict[int, float]) -> float:
    z = math.log(p / (1 - p))
    return sum(share * gradient(loss, z, outcome) for outcome, share in of.items())


@given(st.floats(-8, 8))
def test_weights_are_those_of_the_paper(logit: float) -> None:
    """Cross entropies with weights that have no gradient; a click in time has those of both stages."""
    p = 1 / (1 + math.exp(-logit))
    negative, positive = (1 - p) * (1 + p) * p, (1 + p) * (p - 1)
    wanted = {NEGATIVE: negative, LATE_POSITIVE: positive, POSITIVE: negative + positive}
    for outcome, value in wanted.items():
        assert gradient(fnw, logit, outcome) == pytest.approx(EARLY * value, rel=1e-3, abs=1e-6)
    for outcome in FINAL:
        assert gradient(fnw, logit, outcome) == pytest.approx(p - (outcome != FINAL_NEGATIVE), abs=1e-6)


@given(RATES, st.floats(0, 1))
def test_fnw_learns_the_rate_of_final_labels_whatever_the_delays_are(clicked: float, in_time: float) -> None:
    """While a key is shown, before labels are final and after, each by itself."""
    every = shares(clicked, in_time)
    for stage in (PROVISIONAL, FINAL):
        of = {outcome: every[outcome] for outcome in stage}
        assert mean_gradient(fnw, clicked, of) == pytest.approx(0, abs=1e-6)
        assert mean_gradient(fnw, 0.8 * clicked, of) < 0
        assert mean_gradient(fnw, 1 - 0.8 * (1 - clicked), of) > 0


@given(RATES, st.floats(0, 1), st.floats(0, 1))
def test_a_key_that_has_stopped_is_held_by_its_finals(clicked: float, in_time: float, left: float) -> None:
    """Late positives come without negatives, a share of those that came before. With finals p stays within a
    tenth of its rate; without them every late positive would raise it."""
    of = {outcome: share for outcome, share in shares(clicked, in_time).items() if outcome in FINAL}
    of[LATE_POSITIVE] = left * clicked * (1 - in_time)
    assert mean_gradient(fnw, min(clicked * (1 + EARLY), (1 + clicked) / 2), of) > -1e-6
    assert mean_gradient(fnw, clicked, {LATE_POSITIVE: of[LATE_POSITIVE]}) <= 0


@given(RATES, st.floats(0, 1))
def test_vanilla_is_biased_as_it_is_documented(clicked: float, in_time: float) -> None:
    late = clicked * (1 - in_time)
    of = {outcome: share for outcome, share in shares(clicked, in_time).items() if outcome in PROVISIONAL}
    assert mean_gradient(LOSSES["vanilla"], clicked / (1 + late), of) == pytest.approx(0, abs=1e-6)


def test_where_labels_are_final_the_loss_is_cross_entropy_bit_for_bit() -> None:
    logit, label = torch.randn(4096) * 3, (torch.rand(4096) < 0.1).float()
    wanted = binary_cross_entropy_with_logits(logit, label, reduction="sum")
    assert LOSSES["wait"](logit, label).equal(wanted)


def test_large_logits_stay_finite_and_final_labels_alone_are_sure() -> None:
    outcomes = torch.tensor([*PROVISIONAL, *FINAL], dtype=torch.float32)
    for logit in (-200.0, 200.0):
        for outcome in outcomes.tolist():
            assert math.isfinite(gradient(fnw, logit, outcome))
        weight = fake_negative_weighted(torch.full((6,), logit), outcomes).weight.numpy()
        assert np.array_equal(weight == 1, [False] * 3 + [True] * 3) and (weight >= 0).all()
    assert LATE == LATE_POSITIVE
