"""DICM in every variant of the paper's tables against the plain formula, and what its settings mean."""

from __future__ import annotations

import itertools
from typing import Any, get_args

import pytest
import torch

from livectr.models import DICM, DIN, DNN, LR, WideDeep
from livectr.models.aggregators import AGGREGATORS
from livectr.models.dicm import Basic, Images
from tests.models import references
from tests.models.examples import DENSE, FIELDS, dicm
from tests.models.inputs import Inputs, build

GRID = [
    variant
    for variant in itertools.product(get_args(Basic), AGGREGATORS, get_args(Images))
    if variant[1:] != ("attentive", "behaviors")
]


@pytest.mark.parametrize(("basic", "aggregator", "images"), GRID)
def test_equals_the_plain_formula_with_all_gradients(basic: str, aggregator: str, images: str) -> None:
    references.check(dicm(basic=basic, aggregator=aggregator, images=images))


PLAIN: dict[str, Any] = {
    "lr": LR(),
    "mlp": DNN(dim=4, hidden=(8, 5), activation="prelu"),
    "wide_deep": WideDeep(dim=4, hidden=(8, 5)),
    "din": DIN(("C2",), ("C6",), dim=4, hidden=(8, 5), attention=(6,), activation="prelu"),
}


@pytest.mark.parametrize("basic", get_args(Basic))
def test_without_images_it_is_the_basic_net(basic: str) -> None:
    """Parameters, their names and initial values, what is gathered and the logits, to the bit."""
    config, plain = dicm(basic=basic, images="none"), PLAIN[basic]
    assert config.gathers(FIELDS) == plain.gathers(FIELDS) and config.segments() == plain.segments()
    model, other = (one.build(FIELDS, FIELDS, DENSE, True, 3).double() for one in (config, plain))
    states = [one.local_state() | one.shared_state() for one in (model, other)]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    inputs = Inputs.of(config)
    assert torch.equal(inputs.logits(config, model), inputs.logits(plain, other))


@pytest.mark.parametrize("basic", get_args(Basic))
def test_images_add_parameters_and_change_no_others(basic: str) -> None:
    """So that variants of an ablation start alike, and a baseline's checkpoint names the same things."""
    with_images, without = (
        dicm(basic=basic, images=images).build(FIELDS, FIELDS, DENSE, True, 3).shared_state()
        for images in ("joint", "none")
    )
    assert without.keys() == {name for name in with_images if not name.startswith("images.")}
    assert all(torch.equal(with_images[name], without[name]) for name in without)


def test_what_is_gathered_is_what_takes_part() -> None:
    def wanted(**settings: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
        gathers = dicm(**settings).gathers(FIELDS)
        return gathers.pooled, gathers.content

    assert wanted(images="none") == ((), ())
    assert wanted(images="ad") == ((), ("C2",))
    assert wanted(images="behaviors") == (("C1",), ("C6",))
    assert wanted(images="joint", aggregator="sum") == ((), ("C2", "C6"))
    assert wanted(images="joint") == (("C1",), ("C2", "C6"))
    assert wanted(images="joint", basic="din") == (("C2", "C1"), ("C2", "C6"))
    assert wanted(images="joint", basic="din", target=("C1",)) == (("C1",), ("C2", "C6"))


def test_rows_have_a_vector_where_one_is_used() -> None:
    def row(**settings: Any) -> list[tuple[str, int]]:
        return [(segment.name, segment.dim) for segment in dicm(**settings).segments()]

    assert row() == row(basic="din", images="none") == [("v", 4)]
    assert row(basic="lr") == row(basic="lr", images="behaviors") == [("w", 1), ("v", 4)]
    assert row(basic="wide_deep") == row(basic="wide_deep", images="none") == [("w", 1), ("v", 4)]
    assert row(basic="lr", images="ad") == row(basic="lr", aggregator="sum") == [("w", 1)]


def test_an_unknown_variant_is_told() -> None:
    for setting, known in (
        ("aggregator", "concat, sum"),
        ("basic", "lr, mlp, din, wide_deep"),
        ("images", "none, ad"),
    ):
        with pytest.raises(ValueError, match=f"^DICM: {setting} is 'vgg', but must be one of {known}"):
            dicm(**{setting: "vgg"})
    with pytest.raises(ValueError, match="concat_length is 0, but must be a whole number above 0"):
        dicm(concat_length=0)
    with pytest.raises(ValueError, match="attentive looks at behaviors from the ad's image"):
        dicm(aggregator="attentive", images="behaviors")
    with pytest.raises(ValueError, match="DICM names C1 twice"):
        DICM(ad_image="C1", behavior_images="C1", ad="C2")
    with pytest.raises(ValueError, match=r"DICM: target is \(\), but must be one or more names"):
        DICM(ad_image="C1", behavior_images="C2", ad="C3", basic="din")
    with pytest.raises(ValueError, match="DICM with basic='din': DIN has 2 target and 1 behavior fields"):
        dicm(basic="din", target=("C1", "C2"))


def test_content_that_was_not_gathered_is_told() -> None:
    config = dicm(aggregator="sum")
    inputs, model = Inputs.of(config), build(config)
    wanted = inputs.gathered(config)
    assert wanted is not None
    only = type(wanted)(wanted.pooled, {}, content={"C2": wanted.content["C2"]})
    with pytest.raises(ValueError, match="content of 'C6', which gathers\\(\\) names, are not there"):
        model(inputs.values, inputs.dense, only)
