"""Losses of labels that come late: equations, and the click rate at which their gradients vanish."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import binary_cross_entropy_with_logits

from livectr.models.fnw import LATE, fake_negative_weighted
from livectr.models.losses import LOSSES, Loss

RATES = st.floats(0.001, 0.95)


def gradient(loss: Loss, logit: float, label: float) -> float:
    z = torch.tensor([logit], requires_grad=True)
    loss(z, torch.tensor([label])).backward()  # type: ignore[no-untyped-call]
    assert z.grad is not None
    return float(z.grad[0])


def expected_gradient(loss: Loss, p: float, clicked: float, in_time: float) -> float:
    """Mean gradient of an impression with a click rate, of which a share comes within the wait."""
    z = math.log(p / (1 - p))
    late = clicked * (1 - in_time)
    of = {label: gradient(loss, z, label) for label in (0.0, 1.0, LATE)}
    return (1 - clicked * in_time) * of[0.0] + clicked * in_time * of[1.0] + late * of[LATE]


@given(st.floats(-8, 8))
def test_weights_are_those_of_the_paper(logit: float) -> None:
    """Cross entropies with weights that have no gradient; a click in time has those of both stages."""
    p = 1 / (1 + math.exp(-logit))
    negative, positive = (1 - p) * (1 + p) * p, (1 + p) * (p - 1)
    wanted = {0.0: negative, LATE: positive, 1.0: negative + positive}
    for label, value in wanted.items():
        assert gradient(fake_negative_weighted, logit, label) == pytest.approx(value, rel=1e-3, abs=1e-6)


@given(RATES, st.floats(0, 1))
def test_fnw_learns_the_rate_of_final_labels_whatever_the_delays_are(clicked: float, in_time: float) -> None:
    loss = LOSSES["fnw"]
    assert expected_gradient(loss, clicked, clicked, in_time) == pytest.approx(0, abs=1e-6)
    assert expected_gradient(loss, 0.8 * clicked, clicked, in_time) < 0
    assert expected_gradient(loss, 1 - 0.8 * (1 - clicked), clicked, in_time) > 0


@given(RATES, st.floats(0, 1))
def test_vanilla_is_biased_as_it_is_documented(clicked: float, in_time: float) -> None:
    late = clicked * (1 - in_time)
    biased = clicked / (1 + late)
    assert expected_gradient(LOSSES["vanilla"], biased, clicked, in_time) == pytest.approx(0, abs=1e-6)


def test_where_labels_are_final_the_loss_is_cross_entropy_bit_for_bit() -> None:
    logit, label = torch.randn(4096) * 3, (torch.rand(4096) < 0.1).float()
    wanted = binary_cross_entropy_with_logits(logit, label, reduction="sum")
    assert LOSSES["wait"](logit, label).equal(wanted)


def test_large_logits_stay_finite() -> None:
    for logit in (-200.0, 200.0):
        for label in (0.0, 1.0, LATE):
            assert math.isfinite(gradient(fake_negative_weighted, logit, label))
