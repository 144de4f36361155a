"""Each model against its plainly written equation; the law of DES: any split of the fields gives the same."""

import pytest
import torch
from torch import Tensor

from livectr.models import FM, LR, CTRModel, DeepFM, ModelConfig, TwoTower
from livectr.models.roles import role_slices, row_segments
from livectr.models.two_tower import SOFT_NORM, TwoTowerModel

FIELDS = ("user", "ad", "hour", "words")
DENSE = ("price", "age")
CONFIGS = {
    "LR": LR(),
    "FM": FM(dim=4),
    "DeepFM": DeepFM(dim=4, hidden=(8, 5)),
    "TwoTower": TwoTower(
        user=("user", "hour", "age"), item=("ad", "words", "price"), dim=4, hidden=(8,), out=6
    ),
}
B = 7


@pytest.fixture(params=CONFIGS)
def config(request: pytest.FixtureRequest) -> ModelConfig:
    """Every model once."""
    return CONFIGS[request.param]


def build(config: ModelConfig, local: tuple[str, ...] = FIELDS, *, dense: bool = True) -> CTRModel:
    """A rank's network, with parameters that are not at their zeros."""
    model = config.build(FIELDS, local, DENSE, dense, seed=3)
    if "wide.dense" in dict(model.named_parameters()):
        model.load(
            model.local_state()
            | model.shared_state()
            | {"wide.dense/price": torch.tensor(0.3), "wide.dense/age": torch.tensor(-0.2)}
            | {f"wide.scale/{name}": torch.tensor(0.5 + i) for i, name in enumerate(local)}
        )
    return model


def inputs(config: ModelConfig) -> tuple[Tensor, Tensor]:
    """Values f32[B, F, D_model] and dense f32[B, Dd]."""
    source = torch.Generator().manual_seed(1)
    return torch.randn(B, len(FIELDS), config.width, generator=source), torch.randn(
        B, len(DENSE), generator=source
    )


def test_a_permuted_batch_gives_permuted_logits(config: ModelConfig) -> None:
    model = build(config)
    values, dense = inputs(config)
    order = torch.randperm(B, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(model(values[order], dense[order]), model(values, dense)[order])


def test_missing_fields_and_no_rows(config: ModelConfig) -> None:
    model = build(config)
    values, dense = inputs(config)
    assert torch.isfinite(model(torch.zeros_like(values), torch.zeros_like(dense))).all()
    assert model(values[:0], dense[:0]).shape == (0,)


def test_state_round_trip(config: ModelConfig) -> None:
    values, dense = inputs(config)
    one, other = build(config), config.build(FIELDS, FIELDS, DENSE, True, seed=4)
    other.load(one.local_state() | one.shared_state() | {"unknown": torch.zeros(1)})
    assert torch.equal(one(values, dense), other(values, dense))
    state = one.local_state() | one.shared_state()
    del state["bias"]
    with pytest.raises(KeyError, match="bias"):
        other.load(state)
    with pytest.raises(ValueError, match="bias has shape"):
        other.load(state | {"bias": torch.zeros(2)})


def test_inner_product_is_the_logit() -> None:
    config = CONFIGS["TwoTower"]
    model = build(config)
    values, dense = inputs(config)
    both = model.partial(values, dense)
    user, item = model.user_vector(both), model.item_vector(both)  # type: ignore[operator]
    torch.testing.assert_close((user * item).sum(1) + model.bias, model.finish(both))
    assert (item.norm(dim=1) < 1).all()


def test_a_tower_that_says_nothing_has_bounded_gradients() -> None:
    """A plain norm would divide by zero where all outputs are zero."""
    model = build(CONFIGS["TwoTower"])
    values, dense = (torch.zeros_like(x) for x in inputs(CONFIGS["TwoTower"]))
    values += 1e-6
    values.requires_grad_()
    model(values, dense).sum().backward()
    assert values.grad is not None
    assert values.grad.abs().max() < 4 / SOFT_NORM**2 * 1e-3


def test_a_tower_of_an_unknown_field_is_named() -> None:
    with pytest.raises(ValueError, match="'usr'"):
        TwoTower(user=("usr",), item=("ad",)).build(FIELDS, FIELDS, DENSE, True, 0)
    with pytest.raises(ValueError, match="both towers"):
        TwoTower(user=("ad",), item=("ad",))


def test_roles_share_a_row() -> None:
    roles: dict[str, ModelConfig] = {"rank": CONFIGS["DeepFM"], "prerank": CONFIGS["TwoTower"]}
    assert [s.name for s in row_segments(roles)] == ["rank.w", "rank.v", "prerank.t"]
    assert role_slices(roles) == {"rank": slice(0, 5), "prerank": slice(5, 9)}


def test_a_tower_that_names_a_vector_has_its_numbers() -> None:
    config = TwoTower(user=("u",), item=("i", "v"), dim=4, hidden=(8,), out=4)
    model = config.build(["u", "i"], ["u", "i"], ("price", "v.0", "v.1"), True, 1)
    assert isinstance(model, TwoTowerModel)
    assert model.item.first.dense_index.tolist() == [1, 2] and model.user.first.dense_index.tolist() == []
    with pytest.raises(ValueError, match="names 'w'"):
        TwoTower(user=("u",), item=("i", "w"), dim=4, hidden=(8,), out=4).build(
            ["u", "i"], ["u", "i"], (), True, 1
        )
