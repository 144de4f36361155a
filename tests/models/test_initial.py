"""Initial values of networks: the prior CTR, Glorot's bound of a whole layer's inputs, and plain starts."""

from __future__ import annotations

import math
from dataclasses import replace
from fnmatch import fnmatch

import pytest
import torch

from livectr.models import ModelConfig
from livectr.models.aggregators import AggregatorName, Mean, aggregator
from livectr.models.base import CTRModel, prior_log_odds
from livectr.models.inputs import Ragged
from livectr.models.layers import DENSE_SCALE, IMAGE_SCALE
from tests.models.examples import CONTENT_EXAMPLES, DENSE, EXAMPLES, FIELDS

CONFIGS: dict[str, ModelConfig] = {name: e[0] for name, e in (EXAMPLES | CONTENT_EXAMPLES).items()}
CONSTANTS = {
    "bias": math.log(0.05 / 0.95),
    "gamma": 4.0,
    "within": 0.5,  # FM's second order of a group: half of all ordered pairs
    "between": 1.0,
    "wide.dense": 0.0,
    "wide.scale": 1.0,
    "*slopes.*": 0.25,
    "images.aggregator.*.biases.1": 1.0,  # the last layer's: a new unit averages
    "*bias*": 0.0,
}
"""Pattern of a parameter's name → its initial value; the first that fits counts."""
HIDDEN = 64
"""Units of a layer whose weights are so many that the largest is near its bound."""


def new(config: ModelConfig) -> CTRModel:
    return config.build(FIELDS, FIELDS, DENSE, dense_local=True, seed=3)


def test_log_odds_after_clicks_and_misses() -> None:
    assert prior_log_odds() == pytest.approx(math.log(0.05 / 0.95))
    assert prior_log_odds(clicks=3, misses=17) == pytest.approx(math.log(3.1 / 18.9))


@pytest.mark.parametrize("name", CONFIGS)
def test_constants(name: str) -> None:
    for parameter, tensor in new(CONFIGS[name]).named_parameters():
        constant = next((v for pattern, v in CONSTANTS.items() if fnmatch(parameter, pattern)), None)
        if constant is None:
            unique = tensor.unique()  # type: ignore[no-untyped-call]
            assert len(unique) == tensor.numel(), f"{parameter} is not random"
        else:
            torch.testing.assert_close(tensor.detach(), torch.full_like(tensor, constant))


@pytest.mark.parametrize(
    ("name", "parameter", "fan_in", "scale"),
    [
        ("DNN", "first.weight", 6 * 4 + 3, 1.0),
        ("DNN", "first.dense", 6 * 4 + 3, DENSE_SCALE),
        ("TwoTower", "user.first.weight", 3 * 4 + 1, 1.0),
        ("TwoTower", "item.first.dense", 2 * 4 + 1, DENSE_SCALE),
        ("TwoTower with images", "user.images", 2 * 4 + 1 + 2 * 3, IMAGE_SCALE),
        ("TwoTower with images", "item.images", 2 * 4 + 1 + 3, IMAGE_SCALE),
        ("DICM", "images.weight", 6 * 4 + 3 + 3 * 3, IMAGE_SCALE),  # the ad's image, and two poolings
        ("DICM, max", "images.weight", 6 * 4 + 3 + 3, IMAGE_SCALE),
    ],
)
def test_blocks_of_a_first_layer_share_its_fan_in(
    name: str, parameter: str, fan_in: int, scale: float
) -> None:
    """A bound by the block's own inputs would make the layer's sums too large."""
    model = new(replace(CONFIGS[name], hidden=(HIDDEN,)))  # type: ignore[call-arg]
    bound = scale * math.sqrt(6 / (fan_in + HIDDEN))
    largest = dict(model.named_parameters())[parameter].abs().max().item()
    assert 0.95 * bound < largest <= bound * (1 + 1e-6)


@pytest.mark.parametrize("name", ["attentive", "multi_query_attentive"])
def test_a_new_attention_is_near_the_mean(name: AggregatorName) -> None:
    source = torch.Generator().manual_seed(1)
    vectors, image, ad = (0.1 * torch.randn(*shape, generator=source) for shape in ((9, 4), (2, 4), (2, 3)))
    behaviors = Ragged(vectors, torch.tensor([0, 2, 9]))
    built = aggregator(name, image_dim=4, id_dim=3, length=1, attention=(6,), seed=1, ad_image=True)
    mean = Mean(4)(behaviors, None, None)
    for channel in built(behaviors, image, ad).split(4, dim=1):
        torch.testing.assert_close(channel, mean, rtol=0.1, atol=1e-3)
