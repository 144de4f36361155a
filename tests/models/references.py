"""The papers' formulas, written plainly: sample by sample, field by field, layer by layer, with no thought of
ranks. `p` holds the parameters by their exported names."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from models import DCN, DNN, FLEN, FM, LR, PNN, DeepFM, ModelConfig, TwoTower, WideDeep
from models.two_tower import SOFT
from tests.models.examples import DENSE, FIELDS
from tests.models.inputs import Inputs, lists

P = dict[str, Tensor]


def zero() -> Tensor:
    return torch.zeros((), dtype=torch.float64)


def first_order(p: P, row: Tensor, x: Tensor) -> Tensor:
    """Σ w + Σ x u of a sample: row f64[F, D_model] with w first, x f64[Dd]."""
    return row[:, 0].sum() + sum((x[i] * p[f"linear/{d}"] for i, d in enumerate(DENSE)), zero())


def first_layer(p: P, name: str, vectors: Tensor, x: Tensor, names: Sequence[str]) -> Tensor:
    """[v …, x …] W of the named features, by one product of a whole row and a whole matrix."""
    fields = [f for f in FIELDS if f in names]
    numbers = [d for d in DENSE if d in names]
    inputs = torch.cat(
        [vectors[FIELDS.index(f)] for f in fields] + [x[DENSE.index(d), None] for d in numbers]
    )
    blocks = [p[f"{name}.weight/{f}"] for f in fields] + [p[f"{name}.dense/{d}"][None] for d in numbers]
    return inputs @ torch.cat(blocks)


def layers(p: P, name: str, x: Tensor) -> Tensor:
    """What follows the first layer's product."""
    x = x + p[f"{name}.first_bias"]
    i = 0
    while f"{name}.weights.{i}" in p:
        x = torch.relu(x) @ p[f"{name}.weights.{i}"] + p[f"{name}.biases.{i}"]
        i += 1
    return x


def deep(p: P, vectors: Tensor, x: Tensor) -> Tensor:
    """An MLP's number on everything."""
    return layers(p, "mlp", first_layer(p, "first", vectors, x, FIELDS + DENSE)).squeeze()


def lr(c: LR, p: P, row: Tensor, x: Tensor, lists: dict[str, Tensor]) -> Tensor:
    return first_order(p, row, x)


def pairs(vectors: Sequence[Tensor]) -> Tensor:
    return sum((a @ b for a, b in itertools.combinations(vectors, 2)), zero())


def fm(c: FM, p: P, row: Tensor, x: Tensor, lists: dict[str, Tensor]) -> Tensor:
    return first_order(p, row, x) + pairs(list(row[:, 1:]))


def dnn(c: DNN, p: P, row: Tensor, x: Tensor, lists: dict[str, Tensor]) -> Tensor:
    return deep(p, row, x)


def wide_deep(c: WideDeep, p: P, row: Tensor, x: Tensor, lists: dict[str, Tensor]) -> Tensor:
    return first_order(p, row, x) + deep(p, row[:, 1:], x)


def deepfm(c: DeepFM, p: P, row: Tensor, x: Tensor, lists: dict[str, Tensor]) -> Tensor:
    return first_order(p, row, x) + pairs(list(row[:, 1:])) + deep(p, row[:, 1:], x)


def pnn(c: PNN, p: P, row: Tensor, x: Tensor, lists: dict[str, Tensor]) -> Tensor:
    """Unit n's product signal is Σ over the entries of W_pⁿ times those of the matrix of products p."""
    units = []
    for n in range(c.hidden[0]):
        unit = zero()
        for (i, f), (j, g) in itertools.product(enumerate(FIELDS), repeat=2):
            if c.product == "inner":
                weight = p[f"product.theta/{f}"][n] * p[f"product.theta/{g}"][n]
                unit = unit + weight * (row[i] @ row[j])
            else:
                weight = p["product.weight"].reshape(c.dim, c.dim, c.hidden[0])[:, :, n]
                unit = unit + (weight * torch.outer(row[i], row[j])).sum()
        units.append(unit)
    linear = first_layer(p, "first", row, x, FIELDS + DENSE)
    return layers(p, "mlp", linear + torch.stack(units)).squeeze()


def dcn(c: DCN, p: P, row: Tensor, x: Tensor, lists: dict[str, Tensor]) -> Tensor:
    """The cross layers one after the other, on whole vectors."""

    def whole(kind: str, at: int) -> Tensor:
        fields = [p[f"cross.{kind}/{f}"][:, at] for f in FIELDS]
        return torch.cat(fields + [p[f"cross.dense_{kind}/{d}"][:, at] for d in DENSE])

    x_0 = torch.cat([row.flatten(), x])
    x_l = x_0
    for layer in range(c.layers):
        x_l = x_0 * (x_l @ whole("weight", layer)) + whole("bias", layer) + x_l
    return x_l @ whole("weight", c.layers) + deep(p, row, x)


def flen(c: FLEN, p: P, row: Tensor, x: Tensor, lists: dict[str, Tensor]) -> Tensor:
    """Pair by pair: FM within a group has every ordered pair of its fields, e ∘ e − Σ v ∘ v."""
    vectors = dict(zip(FIELDS, row[:, 1:], strict=True))
    total = torch.zeros(c.dim, dtype=torch.float64)
    for m, group in enumerate(c.groups):
        for f, g in itertools.permutations(group, 2):
            total = total + p["within"][m] * vectors[f] * vectors[g]
        for n in range(m + 1, len(c.groups)):
            for f, g in itertools.product(group, c.groups[n]):
                total = total + p["between"][m, n] * vectors[f] * vectors[g]
    return first_order(p, row, x) + total @ p["output"].squeeze() + deep(p, row[:, 1:], x)


def two_tower(c: TwoTower, p: P, row: Tensor, x: Tensor, lists: dict[str, Tensor]) -> Tensor:
    user = layers(p, "user.mlp", first_layer(p, "user.first", row, x, c.user))
    item = layers(p, "item.mlp", first_layer(p, "item.first", row, x, c.item))

    def norm(y: Tensor) -> Tensor:
        return (y.square().sum() + SOFT**2).sqrt()

    return p["gamma"] * (user @ item) / (norm(user) * norm(item))


Reference = Callable[..., Tensor]

REFERENCES: dict[type[ModelConfig], Reference] = {
    LR: lr,
    FM: fm,
    DNN: dnn,
    WideDeep: wide_deep,
    DeepFM: deepfm,
    PNN: pnn,
    DCN: dcn,
    FLEN: flen,
    TwoTower: two_tower,
}


def logits(config: ModelConfig, p: P, inputs: Inputs) -> Tensor:
    """The reference's f64[B]."""
    of = REFERENCES[type(config)]
    sequences = {name: lists(ragged) for name, ragged in inputs.sequences.items()}
    return torch.stack(
        [
            of(config, p, row, x, {n: parts[b] for n, parts in sequences.items()}) + p["bias"]
            for b, (row, x) in enumerate(zip(inputs.values, inputs.dense, strict=True))
        ]
    )
