"""Biases of a new model, fitted to the first labels that are sure."""

from __future__ import annotations

import math

import pytest
import torch

from livectr.models.losses import Lesson
from livectr.trainer.des.biases import ENOUGH, HELD, MEMORY, fitted_shift, inertia


def lesson(clicks: int, misses: int) -> Lesson:
    """Sure labels, and as many again that are not."""
    target = torch.tensor([*[1.0] * clicks, *[0.0] * misses])
    return Lesson(
        torch.cat([target, 1 - target]), torch.cat([torch.ones(len(target)), torch.full_like(target, 0.3)])
    )


def test_a_bias_is_the_mean_of_all_sure_labels_so_far() -> None:
    bias, seen = math.log(0.05 / 0.95), 0
    for clicks, misses in [(3, 20), (0, 4), (40, 260)]:
        moved, count = fitted_shift(bias, lesson(clicks, misses), seen)
        assert count == clicks + misses
        bias, seen = bias + moved, seen + count
    rate = (0.05 * HELD + 43) / (HELD + 327)
    assert bias == pytest.approx(math.log(rate / (1 - rate)))


def test_a_few_labels_move_it_little_and_after_enough_it_is_left_alone() -> None:
    bias = math.log(0.05 / 0.95)
    one, _ = fitted_shift(bias, lesson(1, 0), 0)
    assert 0 < one < 0.8
    assert fitted_shift(bias, lesson(9, 1), ENOUGH) == (0.0, 10)
    assert fitted_shift(bias, lesson(0, 0), 5) == (0.0, 0)


def test_lessons_hold_a_bias_but_not_for_ever() -> None:
    assert inertia(50.0, 0, 3) == inertia(50.0, ENOUGH - 1, ENOUGH) == math.inf, "labels have moved it"
    assert inertia(50.0, 20, 20) == inertia(50.0, ENOUGH, ENOUGH + 9) == 50.0
    assert inertia(1e7, ENOUGH, ENOUGH + 9) == MEMORY
