"""Weights and rows of every model for a pipeline with more features: the first logits are the old ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bench.planted import pipeline
from livectr.ingest.pipeline import Pipeline
from livectr.ingest.plan.features import Features
from livectr.kernels.table.layout import FTRL, AdaGrad, Adam, Adaptive, RowLayout, Segment
from livectr.kernels.table.table import DynamicTable
from livectr.models import DNN, TwoTower
from livectr.models.configs import model_configs
from livectr.trainer.carry.rows import CarriedRows
from livectr.trainer.carry.weights import Features as Named
from livectr.trainer.carry.weights import carried_weights
from livectr.trainer.des.from_zero import from_zero_state
from livectr.trainer.des.step import DesStep
from tests.models.examples import DENSE, EXAMPLES, FIELDS, SHARED
from tests.models.one_rank import batch

SEED, ROWS = 5, 50
BEFORE = Named(FIELDS, DENSE)
ATTENDS = {"AutoInt", "AutoInt+"}
"""Their softmax is over all fields."""


def wide(features: Features, fields: int, dense: int) -> Features:
    """The features with more fields of one key, and more numbers, behind them."""
    rng = np.random.default_rng(2)
    keys = np.r_[features.keys, rng.integers(1, 9, fields * features.rows)].astype(np.int64)
    more = features.offsets[-1] + 1 + np.arange(fields * features.rows)
    numbers = np.c_[features.dense, rng.normal(size=(features.rows, dense))].astype(np.float32)
    return Features(features.rows, np.r_[features.offsets, more].astype(np.int32), keys, numbers)


def learned(built: Pipeline, batches: int = 4) -> DesStep:
    step, rng = DesStep(built, seed=SEED), np.random.default_rng(1)
    for _ in range(batches):
        step.step(batch(rng, ROWS), (rng.random(ROWS) < 0.4).astype(np.float32))
    return step


def carried(old: DesStep, new: Pipeline) -> DesStep:
    """A step of another pipeline that goes on with the model of `old`."""
    step = DesStep(new, seed=SEED)
    tables = frozenset({*step.tables} - {*old.tables})
    found = carried_weights(
        old.state_dense(), new, model_configs(new), SEED, before=BEFORE, new_tables=tables
    )
    for name in step.tables.keys() & old.tables.keys():
        keys, rows = old.tables[name].export(state=True)
        step.tables[name].assign(keys, rows)
    step.load_dense(found.state | from_zero_state(found.from_zero))
    return step


def scored(step: DesStep, features: Features) -> dict[str, np.ndarray]:
    return step.step(features, np.zeros(features.rows, np.float32)).logits


@pytest.mark.parametrize("name", EXAMPLES)
def test_more_features_leave_the_logits(name: str) -> None:
    config, _ = EXAMPLES[name]
    old = learned(pipeline(config, fields=len(FIELDS), dense=len(DENSE), shared=SHARED))
    new = carried(old, pipeline(config, fields=8, dense=5, shared=SHARED))
    features = batch(np.random.default_rng(9), ROWS)
    got, want = scored(new, wide(features, 2, 2))["rank"], scored(old, features)["rank"]
    if name in ATTENDS:  # what it has learned is there all the same
        assert not np.allclose(got, want, atol=1e-4)
        assert np.corrcoef(got, want)[0, 1] > 0.9
    else:
        np.testing.assert_allclose(got, want, atol=1e-6)  # LR's sum of two terms more
    before = {name: tensor.clone() for name, tensor in new.weights().items()}
    for seed in range(3):
        scored(new, wide(batch(np.random.default_rng(seed), ROWS), 2, 2))
    if name == "TwoTower":  # its features are named
        return
    assert all(np.abs(new.tables[table].export()[1]).max() > 0 for table in ("C7", "C8"))
    of_new = [n for n in before if n.endswith(("/C7", "/I4")) and "scale" not in n]
    assert of_new or name in ("FM", "AutoInt")
    assert not any(torch.equal(before[n], new.weights()[n]) for n in of_new), of_new


def test_a_field_that_shares_a_table_begins_with_weights_of_zero() -> None:
    config = DNN(dim=4, hidden=(8, 5))
    old = learned(pipeline(config, fields=len(FIELDS), dense=len(DENSE), shared=SHARED))
    new = carried(old, pipeline(config, fields=7, dense=len(DENSE), shared=[*SHARED, (7, 1)]))
    assert not new.from_zero
    assert not new.weights()["rank.first.weight/C7"].any()
    features = batch(np.random.default_rng(9), ROWS)
    got, want = scored(new, wide(features, 1, 0))["rank"], scored(old, features)["rank"]
    np.testing.assert_array_equal(got, want)


def test_a_new_model_begins_as_in_a_new_run() -> None:
    """Beside a model that goes on; its bias is the click rate's."""
    old = learned(pipeline(DNN(dim=4, hidden=(8, 5)), fields=len(FIELDS), dense=len(DENSE), shared=SHARED))
    towers = TwoTower(user=("C1",), item=("C2", "C4"), dim=4, hidden=(8,), out=6)
    both = pipeline(DNN(dim=4, hidden=(8, 5)), fields=6, dense=3, shared=SHARED, prerank=towers)
    step, fresh = DesStep(both, seed=SEED), DesStep(both, seed=SEED).weights()
    found = carried_weights(
        old.state_dense(), both, model_configs(both), SEED, before=BEFORE, new_tables=frozenset()
    )
    step.load_dense(found.state)
    assert not found.dropped and not found.from_zero
    for name, tensor in step.weights().items():
        want = old.weights().get(name, fresh[name])
        want = old.weights()["rank.bias"] if name == "prerank.bias" else want
        assert torch.equal(tensor, want), name


@pytest.mark.parametrize("values", ["fp32", "bf16"])
def test_segments_that_are_the_same_keep_values_and_state(values: str) -> None:
    def layout(*segments: Segment) -> RowLayout:
        return RowLayout(segments, values)  # type: ignore[arg-type]

    theirs = layout(Segment("rank.w", 1, FTRL()), Segment("rank.v", 4, Adaptive(AdaGrad(), 0.1), 0.1),
                    Segment("prerank.t", 3, Adam(), 0.1))  # fmt: skip
    ours = layout(Segment("prerank.t", 3, Adam(), 0.1), Segment("rank.w", 1, FTRL()),
                  Segment("rank.v", 8, AdaGrad(), 0.1))  # fmt: skip
    old = DynamicTable(theirs, name="ad", seed=SEED)
    keys = np.array([7, -3, 11])
    old.update(old.find_or_insert(keys), np.ones((3, theirs.dim), np.float32))
    moves = CarriedRows(theirs.describe(), ours, SEED)
    assert not moves.same and moves.kept == {"prerank.t": "prerank.t", "rank.w": "rank.w"}
    rows = old.read(old.find(keys))[1]
    moved, fresh = moves.moved("ad", keys, rows), DynamicTable(ours, name="ad", seed=SEED)
    new = fresh.read(fresh.find_or_insert(keys))[1]
    w, t = theirs.places["rank.w"], theirs.places["prerank.t"]
    np.testing.assert_array_equal(moved[:, :3], rows[:, t[0] : t[0] + 3])
    np.testing.assert_array_equal(moved[:, 3], rows[:, w[0]])
    np.testing.assert_array_equal(moved[:, 4:12], new[:, 4:12])
    states = moved[:, ours.dim :], rows[:, theirs.dim :]
    np.testing.assert_array_equal(states[0][:, : t[3]], states[1][:, t[2] : t[2] + t[3]])
    np.testing.assert_array_equal(states[0][:, t[3] : t[3] + w[3]], states[1][:, w[2] : w[2] + w[3]])
    np.testing.assert_array_equal(states[0][:, t[3] + w[3] :], new[:, ours.dim + t[3] + w[3] :])
    assert CarriedRows(ours.describe(), ours, SEED).same


def test_words_that_describe_no_layout() -> None:
    for words in (("fp8", "rank.w FTRL<1>"), ("fp32", "rank.w Momentum<1>"), ("fp32", "rank.w")):
        with pytest.raises(ValueError, match=r"is no storage type|describes no segment"):
            RowLayout.described(words)
