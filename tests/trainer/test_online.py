"""First and second order of a small batch, learned example by example: they equal batches of one example."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from bench.planted import pipeline
from livectr.ingest.plan.features import Features
from livectr.kernels.table.layout import Values
from livectr.models import FM, LR, DeepFM, ModelConfig, sgd
from livectr.trainer.des.step import DesStep
from livectr.trainer.step_settings import StepSettings
from tests.models.examples import SHARED
from tests.trainer.des_worker import FIELDS, batch

ONE_BY_ONE = StepSettings(online=100)


def step_of(model: ModelConfig, settings: StepSettings = ONE_BY_ONE) -> DesStep:
    """A rank without dense features, whose bias begins at the prior CTR."""
    des = DesStep(pipeline(model, fields=FIELDS, dense=0, shared=SHARED), seed=5, settings=settings)
    des.start_from({}, trained=True)
    return des


def examples(seed: int, rows: int) -> tuple[Features, NDArray[np.float32]]:
    features, label = batch(np.random.default_rng(seed), rows)
    return replace(features, dense=features.dense[:, :0]), label


def learned_rows(des: DesStep) -> dict[str, NDArray[np.float32]]:
    """Table → w and v of its keys, which are sorted."""
    exported = {name: table.export() for name, table in des.tables.items()}
    return {name: rows[np.argsort(keys), : des.spec.layout.dim] for name, (keys, rows) in exported.items()}


@pytest.mark.parametrize("model", [LR(), FM()])
def test_a_batch_equals_batches_of_one_example(model: ModelConfig) -> None:
    """Scores, rows and bias, in an order that is not the rows'; with lists, and fields that share a table."""
    des, singles = step_of(model), step_of(model)
    order = np.random.default_rng(1).permutation(90)
    for step in range(2):
        features, label = examples(step, 90)
        result = des.learn(des.prepare(features, label, order))
        apart = [singles.step(features.take([i]), label[[i]]).logits["rank"][0] for i in order]
        np.testing.assert_allclose(result.logits["rank"][order], apart, rtol=1e-4, atol=1e-5)
    ours, theirs = learned_rows(des), learned_rows(singles)
    assert ours.keys() == theirs.keys()
    for name, rows in ours.items():
        np.testing.assert_allclose(rows, theirs[name], rtol=1e-3, atol=1e-4)
    scales = [one.models["rank"].get_parameter("wide.scale").detach() for one in (des, singles)]
    torch.testing.assert_close(scales[0], scales[1], rtol=1e-3, atol=1e-4)
    assert float((scales[0] - 1).abs().min()) > 1e-3
    biases = [one.models["rank"].bias.item() for one in (des, singles)]
    assert biases[0] == pytest.approx(biases[1], rel=1e-3)


def test_the_order_of_rows_does_not_count() -> None:
    """The rows of two ranks, merged, are another order of the same sequence."""
    features, label = examples(0, 80)
    rows = np.random.default_rng(2).permutation(80)
    one, other = step_of(DeepFM(dim=4, hidden=(8,))), step_of(DeepFM(dim=4, hidden=(8,)))
    first = one.learn(one.prepare(features, label))
    second = other.learn(other.prepare(features.take(rows), label[rows], np.argsort(rows)))
    np.testing.assert_allclose(second.logits["rank"], first.logits["rank"][rows], rtol=1e-5, atol=1e-6)
    for name, learned in learned_rows(one).items():
        np.testing.assert_allclose(learned_rows(other)[name], learned, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("model", "rows", "same"),
    [(FM(), 100, False), (FM(), 101, True), (LR(optimiser=sgd(lr=0.1)), 50, True)],
    ids=["small", "large", "another optimiser"],
)
def test_only_ftrl_of_small_batches(model: ModelConfig, rows: int, same: bool) -> None:
    features, label = examples(0, rows)
    logits = []
    for settings in (ONE_BY_ONE, StepSettings()):
        des = step_of(model, settings)
        des.step(features, label)
        logits.append(des.step(features, label).logits["rank"])
    assert np.array_equal(logits[0], logits[1]) is same


def test_a_batch_that_is_not_finite_leaves_the_rows_alone() -> None:
    des = DesStep(pipeline(LR(), fields=FIELDS, dense=1), seed=1, settings=ONE_BY_ONE)
    for wrong in (False, True):
        features, label = batch(np.random.default_rng(0), 60)
        features = replace(features, dense=features.dense[:, :1])
        before = learned_rows(des)
        if wrong:
            features.dense[7] = np.nan
        des.step(features, label)
        after = learned_rows(des)
        same = [np.array_equal(after[name], before.get(name)) for name in after]  # type: ignore[arg-type]
        assert all(same) is wrong


def test_what_follows_in_a_batch_profits_from_what_precedes() -> None:
    """A user clicks on all, another on nothing: the second half of their first batch is told apart."""
    des = step_of(LR())
    user = np.tile([1, 2], 40)
    keys = np.concatenate([user, *np.random.default_rng(0).integers(100, 10**6, (FIELDS - 1, 80))])
    offsets = np.arange(len(keys) + 1, dtype=np.int32)
    features = Features(80, offsets, keys.astype(np.int64), np.empty((80, 0), np.float32))
    logits = des.step(features, (user == 1).astype(np.float32)).logits["rank"]
    assert logits[40::2].min() > logits[41::2].max() + 1


def test_common_keys_do_not_move_the_mean_of_all_logits() -> None:
    """Labels are coins, and all examples have the same keys: scores settle as the mean of the labels does."""
    des = DesStep(pipeline(LR(), fields=FIELDS, dense=0), seed=5, settings=ONE_BY_ONE)
    rng = np.random.default_rng(4)
    keys, offsets = np.repeat(np.arange(1, FIELDS + 1), 400), np.arange(400 * FIELDS + 1, dtype=np.int32)
    features = Features(400, offsets, keys.astype(np.int64), np.empty((400, 0), np.float32))
    label = rng.integers(0, 2, 400).astype(np.float32)
    logits = np.concatenate(
        [
            des.step(features.take(np.arange(at, at + 4)), label[at : at + 4]).logits["rank"]
            for at in range(0, 400, 4)
        ]
    )
    assert np.std(logits[100:]) < 0.15


@pytest.mark.parametrize("model", [LR(), DeepFM(dim=4, hidden=(8,))])
def test_numbers_do_not_move_the_mean_of_all_logits(model: ModelConfig) -> None:
    """Large numbers with little spread tell nothing of coins: scores settle, too."""
    des = DesStep(pipeline(model, fields=FIELDS, dense=3), seed=5, settings=ONE_BY_ONE)
    rng, logits = np.random.default_rng(4), []
    for _ in range(100):
        keys, offsets = rng.integers(100, 10**6, 4 * FIELDS), np.arange(4 * FIELDS + 1, dtype=np.int32)
        features = Features(4, offsets, keys, rng.normal(50, 1, (4, 3)).astype(np.float32))
        label = rng.integers(0, 2, 4).astype(np.float32)
        logits.append(des.step(features, label).logits["rank"])
    assert np.std(np.concatenate(logits[25:])) < 0.12


def test_vectors_of_the_deep_part_learn_from_both() -> None:
    """v moves by FM's pass alone where the deep part has no gradient, and by more where it has one."""
    features, label = examples(0, 90)
    moved = {}
    for name, lr in {"still": 0.0, "deep": 1.0}.items():
        des = step_of(DeepFM(dim=4, hidden=(8,)))
        for parameter, value in des.models["rank"].named_parameters():
            if parameter.startswith("first."):
                value.data *= lr
        des.step(features, label)
        moved[name] = learned_rows(des)
    fm = step_of(FM(dim=4, init_scale=DeepFM().init_scale))
    fm.step(features, label)
    for table, rows in learned_rows(fm).items():
        np.testing.assert_allclose(moved["still"][table], rows, rtol=1e-4, atol=1e-6)
        assert not np.allclose(moved["deep"][table], rows, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("values", "second"), [("fp32", True), ("bf16", False)])
def test_vectors_of_two_bytes_learn_by_batch(values: Values, second: bool) -> None:
    """Their rounding at every example would be a bias that the deep part's step does not see."""
    built = replace(pipeline(FM(), fields=FIELDS, dense=0, shared=SHARED), row_values=values)
    des = DesStep(built, seed=5, settings=ONE_BY_ONE)
    des.step(*examples(0, 60))
    assert des.models["rank"].online is second
