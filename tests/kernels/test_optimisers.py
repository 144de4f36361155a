"""Optimisers of rows against NumPy (bit for bit), and against torch's where torch has them."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from livectr.kernels.table.layout import (
    FTRL,
    SGD,
    AdaGrad,
    Adam,
    Adaptive,
    Optimiser,
    RowAdaGrad,
    RowLayout,
    Segment,
    Values,
)
from livectr.kernels.table.rows import optimiser as optimiser_of
from livectr.kernels.table.table import DynamicTable
from livectr.models.learning import OptimiserSpec, adagrad, adam, ftrl, rowwise_adagrad, sgd
from livectr.system.errors import ConfigError
from tests.kernels.reference import initial_row, stream, updated_row

KINDS: list[Optimiser] = [
    SGD(lr=0.1),
    AdaGrad(),
    RowAdaGrad(),
    Adam(lr=0.01),
    FTRL(l1=0.5, l2=0.1),
    FTRL(l1=0.0),
    Adaptive(SGD(lr=0.1), 0.5),
    Adaptive(AdaGrad(), 0.2),
    Adaptive(RowAdaGrad(), 0.2),
    Adaptive(Adam(lr=0.01), 0.1),
]


@pytest.mark.parametrize("dim", [1, 3, 16])
@pytest.mark.parametrize("scale", [0.0, 0.3])
def test_equals_numpy(dim: int, scale: float) -> None:
    layout = RowLayout(tuple(Segment(str(i), dim, kind, scale) for i, kind in enumerate(KINDS)))
    table = DynamicTable(layout, name="o", seed=1)
    rng = np.random.default_rng(dim)
    keys = np.arange(8)
    rows = {key: initial_row(layout, "o", 1, key) for key in keys.tolist()}
    for step in range(30):
        factor = 0.7 ** (step // 8)
        table.set_rate(factor)
        some = rng.permutation(keys)[:5]
        grads = rng.normal(size=(5, layout.dim)).astype(np.float32)
        table.update(some, grads)
        for key, grad in zip(some.tolist(), grads, strict=True):
            rows[key] = updated_row(layout, rows[key], grad, factor)
    got_keys, got = table.export()
    np.testing.assert_array_equal(got, np.stack([rows[key] for key in got_keys.tolist()]))


@pytest.mark.parametrize(
    "optimiser, peer",
    [
        (SGD(0.1), lambda p: torch.optim.SGD(p, 0.1)),
        (AdaGrad(), lambda p: torch.optim.Adagrad(p, 0.05, initial_accumulator_value=0.1)),
        (Adam(0.01), lambda p: torch.optim.Adam(p, 0.01)),
    ],
    ids=["SGD", "AdaGrad", "Adam"],
)
def test_equals_torch(optimiser: Optimiser, peer: object) -> None:
    table = DynamicTable(RowLayout((Segment("v", 8, optimiser, 0.1),)), name="o", seed=1)
    weight = torch.nn.Parameter(torch.from_numpy(table.lookup([7])))
    assert callable(peer)
    steps = peer([weight])
    rng = np.random.default_rng(0)
    for _ in range(200):
        weight.grad = torch.from_numpy(rng.normal(size=(1, 8)).astype(np.float32))
        steps.step()
        table.update([7], weight.grad.numpy())
    # torch fuses and reorders some operations: single precision over 200 steps
    np.testing.assert_allclose(table.lookup([7]), weight.detach().numpy(), rtol=2e-5, atol=2e-6)


def test_rowwise_adagrad_is_the_published_formula() -> None:
    """FBGEMM's exact row-wise Adagrad: G += Σ g² / D; w -= lr g / (√G + eps), in double precision."""
    table = DynamicTable(RowLayout((Segment("v", 19, RowAdaGrad(0.1, 1e-8, 0.0), 0.1),)), name="o", seed=1)
    weight, total = table.lookup([7])[0].astype(np.float64), 0.0
    rng = np.random.default_rng(0)
    for _ in range(100):
        grad = rng.normal(size=19).astype(np.float32)
        table.update([7], grad[None])
        total += float((grad.astype(np.float64) ** 2).mean())
        weight -= 0.1 * grad / (total**0.5 + 1e-8)
    _, rows = table.export()
    np.testing.assert_allclose(rows[0], [*weight, total], rtol=1e-5, atol=1e-6)


def test_adam_with_sparse_gradients_has_the_bias_terms_of_its_own_steps() -> None:
    """A key seen in one batch of three takes the steps of torch's Adam on its three gradients alone."""
    table = DynamicTable(RowLayout((Segment("v", 4, Adam(lr=0.01)),)), name="o", seed=1)
    weight = torch.nn.Parameter(torch.zeros(1, 4))
    adam = torch.optim.Adam([weight], 0.01)
    rng = np.random.default_rng(2)
    for step in range(9):
        keys = [1, 2] if step % 3 else [1]
        grads = rng.normal(size=(len(keys), 4)).astype(np.float32)
        table.update(keys, grads)
        if 2 in keys:
            weight.grad = torch.from_numpy(grads[1:])
            adam.step()
    np.testing.assert_allclose(table.lookup([2]), weight.detach().numpy(), rtol=1e-5)


def test_adam_counts_the_steps_of_each_row() -> None:
    """The first step of a key is lr * sign(g), however late it comes."""
    table = DynamicTable(RowLayout((Segment("v", 1, Adam(lr=0.01)),)), name="o", seed=1)
    for _ in range(100):
        table.update([1], [[1.0]])
    table.update([2], [[0.5]])
    np.testing.assert_allclose(table.lookup([2]), [[-0.01]], rtol=1e-5)


def test_ftrl_is_exactly_zero_up_to_l1() -> None:
    table = DynamicTable(RowLayout((Segment("w", 1, FTRL(alpha=0.1, l1=1.0)),)), name="o", seed=1)
    weights = []
    for grad in (0.5, 0.5, 0.25, -3.0):
        table.update([1], [[grad]])
        weights.append(float(table.lookup([1])[0, 0]))
    assert weights[:2] == [0.0, 0.0]  # |z| = 0.5, then exactly l1
    assert weights[2] < 0.0 < weights[3]


def test_ftrl_keeps_a_nonzero_initial_weight() -> None:
    table = DynamicTable(RowLayout((Segment("w", 4, FTRL(l1=0.2, l2=0.5), 0.3),)), name="o", seed=1)
    before = table.lookup([1])
    table.update([1], np.zeros((1, 4), np.float32))
    np.testing.assert_allclose(table.lookup([1]), before, rtol=1e-5)


def test_a_rate_that_falls_slows_ftrl_down_and_keeps_its_weights() -> None:
    table = DynamicTable(RowLayout((Segment("w", 2, FTRL(alpha=0.1, l1=0.1)),)), name="o", seed=1)
    for _ in range(20):
        table.update([1, 2], [[1.0, -0.5], [1.0, -0.5]])
    before = table.lookup([1])
    table.set_rate(0.5)
    table.update([1], [[0.0, 0.0]])
    np.testing.assert_allclose(table.lookup([1]), before, rtol=1e-5)
    after_rest = table.lookup([2])
    table.update([2], [[1.0, -0.5]])
    slow = table.lookup([2]) - after_rest
    table.set_rate(1.0)
    table.update([1], [[1.0, -0.5]])
    fast = table.lookup([1]) - before
    np.testing.assert_allclose(slow / fast, [[0.5, 0.5]], rtol=2e-2)  # to second order in the step


def test_rates_of_segments() -> None:
    layout = RowLayout(tuple(Segment(name, 1, SGD(0.1)) for name in ("rank.w", "rank.v", "prerank.v")))
    table = DynamicTable(layout, name="o", seed=1)
    table.set_rate(0.5)
    table.set_rate(0.1, "rank.")
    table.update([1], np.ones((1, 3), np.float32))
    np.testing.assert_allclose(table.lookup([1]), [[-0.01, -0.01, -0.05]], rtol=1e-6)
    table.clear()
    table.update([1], np.ones((1, 3), np.float32))
    np.testing.assert_allclose(table.lookup([1]), [[-0.01, -0.01, -0.05]], rtol=1e-6)
    for factor in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="factor of a learning rate"):
            table.set_rate(factor)


def test_adaptive_regularisation_is_the_published_formula() -> None:
    """DIN: w -= lr (g + l2 w / n) for the keys of a batch, in double precision; others rest."""
    lr, l2 = 0.1, 0.5
    table = DynamicTable(RowLayout((Segment("v", 3, Adaptive(SGD(lr), l2), 0.3),)), name="o", seed=1)
    weights, seen = table.lookup(np.arange(4)).astype(np.float64), np.zeros(4)
    rng = np.random.default_rng(0)
    for step in range(60):
        keys = np.array([0, *([1] if step % 3 == 0 else []), *([2] if step == 7 else [])])
        grads = rng.normal(size=(len(keys), 3)).astype(np.float32)
        table.update(keys, grads)
        seen[keys] += 1
        weights[keys] -= lr * (grads + l2 * weights[keys] / seen[keys, None])
    np.testing.assert_allclose(table.lookup(np.arange(4)), weights, rtol=1e-5, atol=1e-6)
    keys, rows = table.export()
    np.testing.assert_array_equal(rows[np.argsort(keys), -1], [60, 20, 1])


def test_adaptive_regularisation_counts_batches_not_samples() -> None:
    table = DynamicTable(RowLayout((Segment("v", 3, Adaptive(SGD(0.1), 1.0), 0.3),)), name="o", seed=1)
    before = table.lookup([5])
    table.update([5, 5, 5], np.zeros((3, 3), np.float32))
    np.testing.assert_allclose(table.lookup([5]), 0.9 * before, rtol=1e-6)
    assert table.export()[1][0, -1] == 1


def test_adaptive_regularisation_counts_to_2_to_the_24th() -> None:
    table = DynamicTable(RowLayout((Segment("v", 3, Adaptive(SGD(0.1), 1.0)),)), name="o", seed=1)
    table.assign([1, 2], [[1.0, 1.0, 1.0, 2**24 - 1], [1.0, 1.0, 1.0, 2**24]])
    table.update([1, 2], np.zeros((2, 3), np.float32))
    np.testing.assert_array_equal(table.export()[1][:, -1], [2**24, 2**24])


@pytest.mark.parametrize("values", ["fp32", "fp16", "bf16"])
def test_adaptive_regularisation_continues_with_exported_rows(values: Values) -> None:
    """A table filled from another's rows continues as that table does, bit for bit, and as NumPy does."""
    kinds = [SGD(0.1), AdaGrad(), RowAdaGrad(), Adam(0.01)]
    segments = (Segment(str(i), 3, Adaptive(kind, 0.3), 0.2) for i, kind in enumerate(kinds))
    layout = RowLayout(tuple(segments), values)
    tables = [DynamicTable(layout, name="o", seed=1) for _ in range(2)]
    row = initial_row(layout, "o", 1, 7)
    rng = np.random.default_rng(0)
    for step in range(20):
        grad = rng.normal(size=layout.dim).astype(np.float32)
        row = updated_row(layout, row, grad, base=stream("o", 1, 7))
        for table in tables[: 1 if step < 10 else 2]:
            table.update([7], grad[None])
        if step == 9:
            tables[1].assign(*tables[0].export())
    for table in tables:
        assert table.export()[1].tobytes() == row.tobytes()


@pytest.mark.parametrize("make", [sgd, adagrad, rowwise_adagrad, adam])
def test_adaptive_l2_of_a_model(make: Callable[..., OptimiserSpec]) -> None:
    """A parameter of every optimiser but FTRL; without it, or at 0, a row has no state for it."""
    plain = optimiser_of(make())
    assert optimiser_of(make(adaptive_l2=0.0)) == plain
    assert optimiser_of(make(adaptive_l2=0.25)) == Adaptive(plain, 0.25)
    assert Adaptive(plain, 0.25).state_floats(8) == plain.state_floats(8) + 1


def test_ftrl_has_no_adaptive_l2() -> None:
    with pytest.raises(ValueError, match="FTRL has no parameter 'adaptive_l2'"):
        ftrl(adaptive_l2=0.1)

    class Spec:
        name, params = "FTRL", (("adaptive_l2", 0.1),)

    with pytest.raises(ConfigError, match="FTRL has no adaptive regularisation: leave out adaptive_l2"):
        optimiser_of(Spec())


def test_rows_that_can_stand_for_each_other_are_described_alike() -> None:
    """Rates do not matter; names, dims, optimisers, their regularisation and the type of values do."""
    kinds: tuple[tuple[int, Optimiser, Values], ...] = (
        (4, AdaGrad(), "fp32"),
        (5, AdaGrad(), "fp32"),
        (4, RowAdaGrad(), "fp32"),
        (4, Adaptive(AdaGrad(), 0.1), "fp32"),
        (4, AdaGrad(), "bf16"),
    )
    rows = [RowLayout((Segment("v", dim, made, 0.1),), values) for dim, made, values in kinds]
    assert len({row.describe() for row in rows}) == len(rows)
    assert RowLayout((Segment("v", 4, AdaGrad(lr=0.5)),)).describe() == rows[0].describe()
