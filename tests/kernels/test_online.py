"""First and second order example by example, against a loop of the formulas; segments in the tables' rows."""

import numpy as np
import pytest
from numpy.typing import NDArray

from livectr.kernels.online.examples import Labels, Learned, Occurrences, Scale, learn_examples
from livectr.kernels.table.field_tables import FieldTables
from livectr.kernels.table.layout import FTRL, AdaGrad, RowLayout, Segment, Values
from livectr.kernels.table.table import DynamicTable

F32 = NDArray[np.float32]
Lists = list[list[list[int]]]
HYPER = FTRL(alpha=0.3, beta=0.7, l1=0.01, l2=0.2)
LINEAR = FTRL(alpha=1.0)
VECTORS = AdaGrad(lr=0.2, initial=0.3)
DIM = 3
RATE = 0.4


def loop(
    logits: F32,
    label: F32,
    order: NDArray[np.int64],
    lists: list[list[list[int]]],
    state: NDArray[np.float64],
    vectors: NDArray[np.float64],
    scale: NDArray[np.float64],
    weight: NDArray[np.float64],
    bias: NDArray[np.float64] | None,
    *,
    settles: bool,
) -> F32:
    """Algorithm 1 of McMahan et al. 2013, and AdaGrad, in float64; lists[f][i]: rows of example i in f.

    bias: b, which keeps the mean of all logits, and N; None: it stays.
    """
    start, out = state[:, 0].copy(), logits.astype(np.float64)
    start_scale = scale[:, 0].copy()
    v = vectors[:, : vectors.shape[1] // 2]
    first_v, first_bias = v.copy(), 0.0 if bias is None else bias[0]

    def pooled(of: NDArray[np.float64], i: int) -> NDArray[np.float64]:
        rows = [[u for u in field[i] if not np.isnan(start[u])] for field in lists]
        return np.stack([of[found].sum(0) for found in rows])

    def pairs(p: NDArray[np.float64]) -> float:
        return float(sum(p[f] @ p[g] for f in range(len(p)) for g in range(f)))

    for i in order:
        slots = [u for field in lists for u in field[i] if not np.isnan(start[u])]
        now = pooled(v, i)
        rows = [[u for u in field[i] if not np.isnan(start[u])] for field in lists]
        sums = np.array([state[found, 0].sum() for found in rows])
        out[i] += scale[:, 0] @ sums - start_scale @ [start[found].sum() for found in rows]
        out[i] += pairs(now) - pairs(pooled(first_v, i))
        out[i] += 0.0 if bias is None else bias[0] - first_bias
        slopes = {
            u: sum(field[i].count(u) * (now.sum(0) - now[f]) for f, field in enumerate(lists)) for u in slots
        }
        g = (1 / (1 + np.exp(-out[i])) - min(label[i], 1)) * weight[i]
        times = {u: sum(s * found.count(u) for (s, _), found in zip(scale, rows, strict=True)) for u in slots}
        shares = {u: state[u, 2] / s**2 if s else 0.0 for u, s in times.items()}
        everyone = 1.0 if bias is None else max([bias[1] + 4, *shares.values()])
        moved = 0.0
        for u in dict.fromkeys(slots):
            w, z, n, _ = state[u]
            gradient = g * times[u]
            sigma = (np.sqrt(n + gradient**2) - np.sqrt(n)) / HYPER.alpha
            part, root = 0.0 if bias is None else shares[u] / everyone, np.sqrt(n + gradient**2)
            apart = 1 - HYPER.beta * part / (HYPER.beta + (1 - part) * root)
            z, n = z + apart * gradient - sigma * w, n + gradient**2
            shrunk = np.sign(z) * max(abs(z) - HYPER.l1, 0)
            w = -shrunk / ((HYPER.beta + np.sqrt(n)) / HYPER.alpha + HYPER.l2)
            moved += shares[u] / everyone * times[u] * (w - state[u, 0])
            state[u] = w, z, n, HYPER.alpha
            of_v, squares = g * slopes[u], vectors[u, v.shape[1] :]
            squares += of_v**2
            v[u] -= VECTORS.lr * of_v / (np.sqrt(squares) + VECTORS.eps)
        if bias is not None:
            newton = np.log1p(abs(g) / (0.1 + bias[1]))
            bias[1] += g**2
            bias[0] -= moved + np.sign(g) * max(newton, 0.2 * abs(g) / np.sqrt(1 + bias[1]))
        scale[:, 1] += (g * sums) ** 2
        size = np.sqrt(1 + scale[:, 1]) / RATE
        scale[:, 0] = np.maximum(scale[:, 0] - g * sums / np.maximum(size, settles * scale[:, 1]), 0)
    return np.asarray(out, np.float32)


@pytest.mark.parametrize("dim", [0, DIM])
@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
def test_examples_are_learned_one_after_the_other(with_bias: bool, weights: bool, dim: int) -> None:
    """Lists with repeated keys, an order that is not the rows', missing rows; late and soft labels."""
    rng, examples, fields, rows = np.random.default_rng(0), 200, 3, 12
    lists = [
        [rng.integers(0, rows, rng.integers(0, 4)).tolist() for _ in range(examples)] for _ in range(fields)
    ]
    offsets = np.cumsum([0, *(len(keys) for field in lists for keys in field)]).astype(np.int32)
    slots = np.array([u for field in lists for keys in field for u in keys], np.uint32)
    label = rng.choice([0.0, 0.4, 1.0, 2.0], examples).astype(np.float32)
    logits, order = rng.normal(size=examples).astype(np.float32), rng.permutation(examples)
    ours = np.zeros((rows, 4), np.float32)
    ours[:, 3] = HYPER.alpha
    ours[5, 0] = np.nan
    vectors = rng.uniform(-0.5, 0.5, (rows, 2 * dim)).astype(np.float32)
    vectors[:, dim:] = VECTORS.initial
    vectors[5] = np.nan
    theirs, their_vectors = ours.astype(np.float64), vectors.astype(np.float64)
    # Weight 0 leaves the rows of an example as they are.
    weight = rng.choice([0.0, 0.3, 1.7], examples) if weights else np.ones(examples)
    scale = np.stack([rng.uniform(0.0, 1.0, fields), rng.uniform(0.0, 2.0, fields)], 1).astype(np.float32)
    their_scale = scale.astype(np.float64)
    bias = np.array([-0.5, 0.3], np.float32) if with_bias else None
    their_bias = None if bias is None else bias.astype(np.float64)
    expected = loop(
        logits, label, order, lists, theirs, their_vectors, their_scale, weight, their_bias, settles=weights
    )
    labels = Labels(label, weight.astype(np.float32) if weights else None)
    second = Learned(vectors, VECTORS.hyper()) if dim else None
    occurrences, scales = Occurrences(order, offsets, slots), Scale(scale, RATE, settles=weights)
    got = learn_examples(logits, labels, occurrences, scales, Learned(ours, HYPER.hyper()), second, bias=bias)
    if bias is not None and their_bias is not None:
        np.testing.assert_allclose(bias, their_bias, rtol=1e-3, atol=1e-4)
        assert abs(bias[0] + 0.5) > 0.1
    np.testing.assert_allclose(scale, their_scale, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(vectors, their_vectors, rtol=1e-3, atol=1e-4)
    assert np.abs(got - logits).max() > 0.1


ONE = Scale(np.ones((1, 2), np.float32), RATE)


@pytest.mark.parametrize(
    ("sequence", "slots", "sentence"),
    [
        ([0, 2], [0, 1], "sequence must name 2 examples"),
        ([0, 1], [0, 7], "do not fit 2 examples and 2 slots of 2"),
        ([0, 1], [0, 1, 1], "do not fit"),
    ],
)
def test_wrong_numbers_are_refused(sequence: list[int], slots: list[int], sentence: str) -> None:
    zeros, offsets = np.zeros(2, np.float32), np.arange(3, dtype=np.int32)
    given = Occurrences(np.array(sequence), offsets, np.array(slots, np.uint32))
    with pytest.raises(ValueError, match=sentence):
        learn_examples(zeros, Labels(zeros), given, ONE, Learned(np.zeros((2, 4), np.float32), HYPER.hyper()))


@pytest.mark.parametrize("bias", [np.zeros(3, np.float32), np.zeros(2)])
def test_a_wrong_bias_is_refused(bias: NDArray[np.float32]) -> None:
    zeros, offsets = np.zeros(2, np.float32), np.arange(3, dtype=np.int32)
    given = Occurrences(np.arange(2), offsets, np.zeros(2, np.uint32))
    first = Learned(np.zeros((2, 4), np.float32), HYPER.hyper())
    with pytest.raises(ValueError, match="bias must be"):
        learn_examples(zeros, Labels(zeros), given, ONE, first, bias=bias)


@pytest.mark.parametrize(("first", "second"), [((2, 3), None), ((2, 4), (3, 2)), ((2, 4), (2, 3))])
def test_wrong_states_are_refused(first: tuple[int, int], second: tuple[int, int] | None) -> None:
    zeros = np.zeros(2, np.float32)
    given = Occurrences(np.arange(2), np.arange(3, dtype=np.int32), np.zeros(2, np.uint32))
    states = [Learned(np.zeros(shape, np.float32), (1.0,) * 4) for shape in (first, second) if shape]
    with pytest.raises(ValueError, match="must be C-contiguous float32"):
        learn_examples(zeros, Labels(zeros), given, ONE, *states)


@pytest.mark.parametrize("values", ["fp32", "bf16"])
def test_a_segments_state_is_read_and_written(values: Values) -> None:
    """What is written decides the weight of the next step; other values and missing keys stay as they are."""
    layout = RowLayout((Segment("v", 3, AdaGrad(), 0.1), Segment("w", 1, HYPER)), values)
    tables = {name: DynamicTable(layout, name=name, seed=1) for name in ("a", "b")}
    front = FieldTables(tables, [("one", "b"), ("two", "a"), ("three", "b")])
    assert front.used == ("b", "a")
    keys = np.array([1, 2, 3, 1, 7, 8])
    front.forward(np.arange(7, dtype=np.int32), keys, 2)
    gradient = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    front.backward(gradient)
    asked, bounds = np.array([7, 1, 99, 3]), np.array([0, 3, 4])
    rows, found = front.read_segment("w", bounds, asked)
    vector_rows, vectors = front.read_segment("v", bounds, asked)
    np.testing.assert_array_equal(vector_rows, rows)
    assert np.isnan(found[2, 0]) and not np.isnan(found[[0, 1, 3]]).any()
    for place, (table, key) in {0: ("b", 7), 1: ("b", 1), 3: ("a", 3)}.items():
        row = tables[table].read(tables[table].find([key]))[1][0]
        np.testing.assert_array_equal(found[place], row[[3, 7, 8, 9]])
        np.testing.assert_array_equal(vectors[place], row[[0, 1, 2, 4, 5, 6]])
    changed = found.copy()
    changed[0, 1:3] = 2.5, 4.0
    front.write_segment("w", bounds, rows, changed)
    before = tables["b"].lookup([7, 1, 2])
    front.forward(np.arange(7, dtype=np.int32), keys, 2)
    front.backward(np.zeros_like(gradient))
    after = tables["b"].lookup([7, 1, 2])
    expected = -(2.5 - HYPER.l1) / ((HYPER.beta + 2.0) / HYPER.alpha + HYPER.l2)
    assert after[0, 3] == pytest.approx(expected, rel=1e-6 if values == "fp32" else 1e-2)
    if values == "fp32":
        np.testing.assert_array_equal(after[:, :3], before[:, :3])
        np.testing.assert_array_equal(after[1:, 3], before[1:, 3])


def test_values_of_a_segment_are_written() -> None:
    """The next forward reads them, and the next step learns from the state beside them."""
    layout = RowLayout((Segment("w", 1, HYPER), Segment("v", DIM, VECTORS, 0.1)))
    table = DynamicTable(layout, name="a", seed=1)
    front = FieldTables({"a": table}, [("one", "a")])
    front.forward(np.arange(4, dtype=np.int32), np.array([1, 2, 3]), 3)
    rows, found = front.read_segment("v", np.array([0, 2]), np.array([3, 99]))
    found[0] = 1.0, 2.0, 3.0, 4.0, 5.0, 6.0
    front.write_segment("v", np.array([0, 2]), rows, found)
    gradient = np.zeros((3, 1, 1 + DIM), np.float32)
    gradient[2, 0, 1:] = 1.0
    front.backward(gradient)
    expected = np.array([1, 2, 3]) - VECTORS.lr / np.sqrt([5, 6, 7])
    np.testing.assert_allclose(table.lookup([3])[0, 1:], expected, rtol=1e-6)


def test_keys_that_have_stopped_keep_their_rate() -> None:
    """Ten keys of one rate, shown one after the other: the next ones move the bias, which all keys share."""
    keys, shown, seeds, rate = 10, 2_000, 15, 0.1
    found = np.empty((seeds, keys))
    for seed in range(seeds):
        label = (np.random.default_rng(seed).random(keys * shown) < rate).astype(np.float32)
        given = Occurrences(
            np.arange(len(label)),
            np.arange(len(label) + 1, dtype=np.int32),
            np.repeat(np.arange(keys, dtype=np.uint32), shown),
        )
        weights, scale, bias = (np.zeros(shape, np.float32) for shape in ((keys, 4), (1, 2), 2))
        scale[0, 0], bias[0], weights[:, 3] = 1, np.log(0.05 / 0.95), LINEAR.alpha
        start = np.full(len(label), bias[0], np.float32)
        first = Learned(weights, LINEAR.hyper())
        learn_examples(start, Labels(label), given, Scale(scale, 0.1), first, bias=bias)
        found[seed] = bias[0] + scale[0, 0] * weights[:, 0] - np.log(rate / (1 - rate))
    noise = 1 / np.sqrt(rate * (1 - rate) * shown)
    assert np.median(np.sqrt((found**2).mean(1))) < noise
