"""Values of 2 bytes: how they are rounded, and that learning continues as with 4."""

import numpy as np
import numpy.typing as npt
import pytest
import torch

from livectr.kernels.table.layout import FTRL, SGD, AdaGrad, RowLayout, Segment, Values
from livectr.kernels.table.table import DynamicTable
from tests.kernels.reference import nearest, rounded, stream

KINDS: list[Values] = ["fp16", "bf16"]
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
F32 = npt.NDArray[np.float32]


def table_of(values: Values, dim: int = 1, lr: float = 1.0) -> DynamicTable:
    return DynamicTable(RowLayout((Segment("v", dim, SGD(lr)),), values), name="t", seed=5)


def rows_of(values: F32) -> F32:
    """Raw rows with these values float32[n, D] and no update yet."""
    return np.append(values, np.zeros((len(values), 1), np.float32), axis=1)


@pytest.mark.parametrize("values", KINDS)
def test_every_number_of_the_type_comes_back(values: Values) -> None:
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    numbers = bits.view(DTYPES[values]).float().numpy()
    numbers = numbers[np.isfinite(numbers)]
    table, keys = table_of(values), np.arange(len(numbers))
    table.assign(keys, rows_of(numbers[:, None]))
    assert (table.lookup(keys)[:, 0].view(np.int32) == numbers.view(np.int32)).all()
    table.update(keys, np.zeros((len(keys), 1), np.float32))  # nothing to round
    assert (table.lookup(keys)[:, 0] == numbers).all()
    exported_keys, rows = table.export()
    again = table_of(values)
    again.assign(exported_keys, rows)
    for one, other in zip(table.export(), again.export(), strict=True):
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


@pytest.mark.parametrize("values", ["fp32", *KINDS])
def test_a_row_that_lacks_segments_has_the_initial_values_of_the_whole_row(values: Values) -> None:
    whole = RowLayout(tuple(Segment(name, 3, SGD(), 0.1) for name in "abc"), values)
    part = RowLayout((Segment("a", 3, SGD(), 0.1), Segment("c", 3, SGD(), 0.1, place=6)), values)
    wide, narrow = (DynamicTable(layout, name="t", seed=5) for layout in (whole, part))
    keys = np.arange(100) - 50
    want = wide.lookup(keys)[:, [0, 1, 2, 6, 7, 8]]
    assert len(np.unique(want)) > 100
    assert narrow.lookup(keys).tobytes() == want.tobytes()
    narrow.find_or_insert(keys)
    assert narrow.lookup(keys).tobytes() == want.tobytes()


@pytest.mark.parametrize("values", KINDS)
def test_assigned_values_are_rounded_to_nearest(values: Values) -> None:
    rng = np.random.default_rng(0)
    numbers = np.concatenate(
        [
            rng.normal(size=20_000) * 2.0 ** rng.integers(-30, 20, 20_000),
            np.array([65504, 65519.9, 65520, 1e6, -1e6, np.inf, -np.inf, 3.3895e38, 3.4e38, 0.0, -0.0]),
            (2 * rng.integers(0, 2048, 1000) + 1) * 2.0**-25,  # ties of subnormals
            (2 * rng.integers(128, 2048, 1000) + 1) * 2.0**-3,
        ]
    ).astype(np.float32)
    table, keys = table_of(values), np.arange(len(numbers))
    table.assign(keys, rows_of(numbers[:, None]))
    np.testing.assert_array_equal(table.lookup(keys)[:, 0], nearest(numbers, values))
    table.assign([1], [[np.nan, 0.0]])
    assert np.isnan(table.lookup([1])).all()


@pytest.mark.parametrize("values", KINDS)
def test_updates_are_rounded_without_bias(values: Values) -> None:
    """The mean of many keys' new values is the value, at every size, and each lies beside it."""
    n = 200_000
    for number in (1.0 + 2.0**-12, -(1.0 - 2.0**-13), 3e-3 * 1.0001, -7.3e-6, 5.01e-7, 300.03):
        table, keys = table_of(values), np.arange(n)
        table.update(keys, np.full((n, 1), -number, np.float32))
        got = table.lookup(keys)[:, 0].astype(np.float64)
        wanted = float(np.float32(number))
        assert len(np.unique(got)) == 2 and got.min() < wanted < got.max()
        unit = got.max() - got.min()
        up = (wanted - got.min()) / unit
        assert abs(got.mean() - wanted) < 5 * unit * (up * (1 - up) / n) ** 0.5
        sample = [rounded(np.array([number], np.float32), values, stream("t", 5, k), 0) for k in range(200)]
        assert (got[:200] == np.concatenate(sample)).all()


@pytest.mark.parametrize("values", KINDS)
def test_equal_small_updates_add_up(values: Values) -> None:
    """A step of a hundredth of a unit in the last place is lost if rounded to nearest; here it counts."""
    n, steps = 500, 400
    table, keys = table_of(values, dim=3), np.arange(n)
    unit = {"fp16": 2.0**-10, "bf16": 2.0**-7}[values]
    table.assign(keys, rows_of(np.ones((n, 3), np.float32)))
    grads = np.full((n, 3), -unit / 100, np.float32)
    for _ in range(steps):
        table.update(keys, grads)
    moved = (table.lookup(keys).astype(np.float64) - 1.0) / unit
    # each value's steps up are Binomial(400, 0.01) as long as they are few
    assert abs(moved.mean() - steps / 100) < 5 * (steps * 0.01 * 0.99 / (3 * n)) ** 0.5
    assert abs(np.corrcoef(moved[:, 0], moved[:, 1])[0, 1]) < 0.15  # places are rounded apart
    assert moved.std() > 1.0  # and so are keys


@pytest.mark.parametrize("values", KINDS)
def test_rounding_continues_after_a_restore(values: Values) -> None:
    rng = np.random.default_rng(1)
    layout = RowLayout((Segment("w", 1, FTRL(l1=0.01)), Segment("v", 6, AdaGrad(), 0.1)), values)
    whole = DynamicTable(layout, name="t", seed=5)
    parts = whole
    keys = np.arange(50)
    for step in range(10):
        if step == 5:
            parts = DynamicTable(layout, name="t", seed=5)
            parts.restore(*whole.export())
        grads = rng.normal(size=(50, 7)).astype(np.float32)
        whole.update(keys, grads)
        if parts is not whole:
            parts.update(keys, grads)
    for one, other in zip(whole.export(), parts.export(), strict=True):
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


@pytest.mark.parametrize("values", KINDS)
def test_learns_like_a_table_of_fp32(values: Values) -> None:
    """Logistic regression on a stream of sparse examples: test-then-train log loss of both tables."""
    rng = np.random.default_rng(7)
    ids, per_row, batch = 500, 4, 256
    truth = rng.normal(size=ids)
    kinds: list[Values] = ["fp32", values]
    segments = (Segment("v", 1, AdaGrad(0.1)),)
    tables = [DynamicTable(RowLayout(segments, kind), name="t", seed=5) for kind in kinds]
    losses = np.zeros(2)
    for step in range(400):
        keys = (ids * rng.random((batch, per_row)) ** 2).astype(np.int64)
        label = rng.random(batch) < 1 / (1 + np.exp(-truth[keys].sum(1)))
        for i, table in enumerate(tables):
            score = 1 / (1 + np.exp(-table.lookup(keys.ravel()).reshape(batch, per_row).sum(1)))
            if step >= 200:
                losses[i] -= np.log(np.where(label, score, 1 - score)).mean() / 200
            grad = np.repeat((score - label).astype(np.float32), per_row)
            table.update(keys.ravel(), grad[:, None])
    assert losses[0] < 0.55  # it has learned: a constant gives 0.69
    assert abs(losses[1] - losses[0]) < 0.002


def test_rows_take_half_the_bytes_and_an_unknown_type_is_named() -> None:
    layouts = [RowLayout((Segment("v", 64, SGD()),), values) for values in ("fp32", "bf16")]
    tables = [DynamicTable(layout, name="t", seed=5) for layout in layouts]
    for table in tables:
        table.find_or_insert(np.arange(5_000))
    assert (tables[0].nbytes - tables[1].nbytes) / 5_000 == 120  # 128 of values, less a number of updates
    with pytest.raises(ValueError, match="fp32, fp16, bf16, not 'fp8'"):
        RowLayout((Segment("v", 1, SGD()),), "fp8")  # type: ignore[arg-type]
