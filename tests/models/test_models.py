"""Each model against its plainly written equation; the law of DES: any split of the fields gives the same."""

import itertools

import pytest
import torch
from torch import Tensor

from models import FM, LR, CTRModel, DeepFM, ModelConfig, TwoTower
from models.base import Columns, role_slices, row_segments
from models.two_tower import SOFT, TwoTowerModel

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
    if "linear" in dict(model.named_parameters()):
        model.load(
            model.local_state()
            | model.shared_state()
            | {"linear/price": torch.tensor(0.3), "linear/age": torch.tensor(-0.2)}
        )
    return model


def inputs(config: ModelConfig) -> tuple[Tensor, Tensor]:
    """Values f32[B, F, D_model] and dense f32[B, Dd]."""
    source = torch.Generator().manual_seed(1)
    return torch.randn(B, len(FIELDS), config.width, generator=source), torch.randn(
        B, len(DENSE), generator=source
    )


def reference(config: ModelConfig, model: CTRModel, values: Tensor, dense: Tensor) -> Tensor:
    """The equation of the model's docstring, sample by sample and field by field."""
    p = model.local_state() | model.shared_state()

    def first_order(row: Tensor, x: Tensor) -> Tensor:
        return row[:, 0].sum() + sum(x[i] * p[f"linear/{d}"] for i, d in enumerate(DENSE)) + p["bias"]

    def second_order(vectors: Tensor) -> Tensor:
        return sum((a @ b for a, b in itertools.combinations(vectors, 2)), torch.tensor(0.0))

    def layers(name: str, x: Tensor) -> Tensor:
        x = x + p[f"{name}.first_bias"]
        for i in itertools.count():
            if f"{name}.weights.{i}" not in p:
                return x
            x = torch.relu(x) @ p[f"{name}.weights.{i}"] + p[f"{name}.biases.{i}"]
        raise AssertionError

    def first_layer(name: str, row: Tensor, x: Tensor, names: tuple[str, ...]) -> Tensor:
        parts = [row[i] @ p[f"{name}.weight/{f}"] for i, f in enumerate(FIELDS) if f in names]
        parts += [x[i] * p[f"{name}.dense/{d}"] for i, d in enumerate(DENSE) if d in names]
        return torch.stack(parts).sum(0)

    logits = []
    for row, x in zip(values, dense, strict=True):
        if isinstance(config, LR):
            logits.append(first_order(row, x))
        elif isinstance(config, FM):
            logits.append(first_order(row, x) + second_order(row[:, 1:]))
        elif isinstance(config, DeepFM):
            deep = layers("mlp", first_layer("first", row[:, 1:], x, FIELDS + DENSE))
            logits.append(first_order(row, x) + second_order(row[:, 1:]) + deep.squeeze())
        else:
            assert isinstance(config, TwoTower)
            user = layers("user.mlp", first_layer("user.first", row, x, config.user))
            item = layers("item.mlp", first_layer("item.first", row, x, config.item))
            logits.append(p["gamma"] * (user @ item) / (soft_norm(user) * soft_norm(item)) + p["bias"])
    return torch.stack(logits)


def soft_norm(y: Tensor) -> Tensor:
    return (y.square().sum() + SOFT**2).sqrt()


def test_equation(config: ModelConfig) -> None:
    model = build(config)
    values, dense = inputs(config)
    assert model.partial(values, dense).shape == (B, model.partial_size)
    torch.testing.assert_close(
        model(values, dense), reference(config, model, values, dense), rtol=1e-5, atol=1e-5
    )


def test_any_split_of_the_fields_gives_the_same(config: ModelConfig) -> None:
    values, dense = inputs(config)
    whole = build(config)
    for cut in range(1, len(FIELDS)):
        left, right = build(config, FIELDS[:cut], dense=False), build(config, FIELDS[cut:])
        total = left.partial(values[:, :cut], None) + right.partial(values[:, cut:], dense)
        torch.testing.assert_close(left.finish(total), whole(values, dense), rtol=1e-5, atol=1e-5)
        assert left.shared_state().keys() == right.shared_state().keys() == whole.shared_state().keys()
        parts = left.local_state() | right.local_state()
        assert parts.keys() == whole.local_state().keys()
        for name, tensor in whole.local_state().items():
            assert torch.equal(parts[name], tensor), name


@pytest.mark.parametrize("columns", [Columns((0, 2), (1,)), Columns((1, 2, 3), ()), Columns((), (0, 1))])
def test_parts_add_up_with_all_gradients(config: ModelConfig, columns: Columns) -> None:
    """What rows share may be computed apart: DICM's common features."""
    values, dense = inputs(config)
    others = Columns(
        tuple(f for f in range(len(FIELDS)) if f not in columns.fields),
        tuple(d for d in range(len(DENSE)) if d not in columns.dense),
    )
    split, whole = build(config).double(), build(config).double()
    parts = [
        split.partial(values[:, list(c.fields)].double(), dense[:, list(c.dense)].double(), c)
        for c in (columns, others)
    ]
    one, other = split.finish(parts[0] + parts[1]), whole(values.double(), dense.double())
    torch.testing.assert_close(one, other)
    for logits in (one, other):
        logits.square().sum().backward()
    wanted = dict(whole.named_parameters())
    for name, parameter in split.named_parameters():
        torch.testing.assert_close(parameter.grad, wanted[name].grad, msg=name)


def test_gradients_against_finite_differences(config: ModelConfig) -> None:
    model = build(config).double()
    values, dense = (x.double() for x in inputs(config))
    values.requires_grad_()
    assert torch.autograd.gradcheck(lambda v: model(v, dense), (values,))
    parameters = {n: p.detach().clone().requires_grad_() for n, p in model.named_parameters()}

    def logits(*tensors: Tensor) -> Tensor:
        return torch.func.functional_call(
            model, dict(zip(parameters, tensors, strict=True)), (values.detach(), dense)
        )

    assert torch.autograd.gradcheck(logits, tuple(parameters.values()))


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
    """Where all outputs are zero, a plain norm would divide by zero."""
    model = build(CONFIGS["TwoTower"])
    values, dense = (torch.zeros_like(x) for x in inputs(CONFIGS["TwoTower"]))
    values += 1e-6
    values.requires_grad_()
    model(values, dense).sum().backward()  # type: ignore[no-untyped-call]
    assert values.grad is not None
    assert values.grad.abs().max() < 4 / SOFT**2 * 1e-3


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
    assert model.item.dense_index.tolist() == [1, 2] and model.user.dense_index.tolist() == []
    with pytest.raises(ValueError, match="names 'w'"):
        TwoTower(user=("u",), item=("i", "w"), dim=4, hidden=(8,), out=4).build(
            ["u", "i"], ["u", "i"], (), True, 1
        )
