"""Small batches: compiled calls learn what torch's step learns, whatever the shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bench.planted import pipeline
from livectr.ingest.common_features import AnyFeatures, Common
from livectr.ingest.pipeline import Pipeline
from livectr.ingest.plan.features import Features
from livectr.kernels.stream.join import FINAL_LATE, FINAL_NEGATIVE, LATE_POSITIVE
from livectr.models import (
    DCN,
    DNN,
    FM,
    LR,
    PNN,
    AutoInt,
    DeepFM,
    ModelConfig,
    WideDeep,
    XDeepFM,
)
from livectr.models.es_dfm import HEADS
from livectr.trainer.des.result import StepResult
from livectr.trainer.des.small_batch import MOST
from livectr.trainer.des.step import DesStep
from livectr.trainer.step_settings import StepSettings
from tests.trainer import common_worker
from tests.trainer.late_lessons import Way, lessons, weighted_parts

F32 = NDArray[np.float32]
MODELS: tuple[ModelConfig, ...] = (
    LR(),
    FM(dim=3),
    DNN(dim=5, hidden=(33,)),
    WideDeep(dim=4, hidden=(16, 7)),
    DeepFM(dim=16, hidden=(70, 32, 5)),
    DCN(dim=5, layers=1, hidden=(18,)),
    DCN(dim=4, layers=3, hidden=(33, 6)),
    PNN(dim=4, hidden=(18, 6)),
    PNN(product="outer", dim=5, hidden=(19,)),
)


def batch(rng: np.random.Generator, rows: int, fields: int, dense: int) -> tuple[Features, F32]:
    lengths = rng.integers(0, 3, fields * rows)
    keys = rng.integers(0, 9, lengths.sum()) + (np.repeat(np.arange(fields * rows) // rows, lengths) << 32)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    x = (5 * rng.normal(size=(rows, dense))).astype(np.float32)  # some beyond ±1
    return Features(rows, offsets, keys, x), rng.choice(np.array([0, 1], np.float32), rows)


def state(step: DesStep) -> dict[str, F32]:
    found = {name: tensor.numpy() for name, tensor in step.state_dense().items()}
    for name, table in step.tables.items():
        keys, rows = table.export()
        found[f"table {name}"] = rows[np.argsort(keys)]
    return found


def both(pipeline: Pipeline, online: int, models: Mapping[str, ModelConfig] | None = None) -> list[DesStep]:
    """The step whose small batches are compiled, and the one of torch."""
    settings = StepSettings(online=online)
    steps = [DesStep(pipeline, seed=1, settings=settings, models=models) for _ in range(2)]
    assert steps[0].small is not None, "the compiled step is what is tested"
    steps[1].small = None
    return steps


def assert_equal(compiled: DesStep, reference: DesStep) -> None:
    """Rows and networks, up to the order of sums."""
    found, expected = state(compiled), state(reference)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-4, atol=2e-6, err_msg=name)


def assert_equal_results(compiled: StepResult, reference: StepResult) -> None:
    """Losses and logits, up to the order of sums."""
    assert compiled.loss == pytest.approx(reference.loss, rel=1e-5)
    np.testing.assert_array_equal(compiled.label, reference.label)
    for role, logits in reference.logits.items():
        np.testing.assert_allclose(compiled.logits[role], logits, rtol=2e-5, atol=2e-6)


@settings(max_examples=25, deadline=None)
@given(
    model=st.sampled_from(MODELS),
    rows=st.one_of(st.integers(1, 9), st.just(MOST)),
    fields=st.integers(1, 4),
    dense=st.integers(0, 3),
    online=st.sampled_from([0, MOST]),
    seed=st.integers(0, 99),
)
def test_compiled_steps_equal_torchs(
    model: ModelConfig, rows: int, fields: int, dense: int, online: int, seed: int
) -> None:
    """Losses, logits, rows and networks agree; sums alone are taken in another order."""
    steps = both(pipeline(model, fields=fields, dense=dense), online)
    rng = np.random.default_rng(seed)
    for _ in range(4):
        features, label = batch(rng, rows, fields, dense)
        assert_equal_results(*(step.step(features, label) for step in steps))
    assert_equal(*steps)


BESIDE: tuple[Mapping[str, ModelConfig], ...] = (
    {"rank": DeepFM(dim=4, hidden=(8,)), "prerank": common_worker.TOWERS},
    {"rank": AutoInt(dim=4, layers=1), "shadow": LR(), "other": DCN(dim=4, layers=1, hidden=(8,))},
    {"rank": XDeepFM(dim=3, cin=(4,), hidden=(8,)), "shadow": PNN(dim=4, hidden=(6,))},
)


@settings(max_examples=15, deadline=None)
@given(
    models=st.sampled_from(BESIDE),
    way=st.sampled_from(["vanilla", "fnw"]),
    grouped=st.booleans(),
    online=st.sampled_from([0, MOST]),
    seed=st.integers(0, 99),
)
def test_models_of_torch_are_learned_beside_compiled_ones(
    models: Mapping[str, ModelConfig], way: Literal["vanilla", "fnw"], grouped: bool, online: int, seed: int
) -> None:
    """Each learns what it learns where torch learns all; a batch that is not finite teaches none."""
    whole = common_worker.pipeline(DeepFM(dim=4))
    late = replace(whole, log=replace(whole.log, delayed=way))
    steps, rng = both(late, online, models), np.random.default_rng(seed)
    assert steps[0].small is not None and steps[0].small.others is not None

    def learn(features: AnyFeatures) -> list[StepResult]:
        outcome = rng.integers(0, LATE_POSITIVE + 1 if way == "vanilla" else FINAL_LATE + 1, 9)
        label = (outcome if way == "vanilla" else (outcome % FINAL_NEGATIVE > 0)).astype(np.float32)
        teach = lessons(way, outcome, rng)
        return [step.learn(step.prepare(features, label), teach) for step in steps]

    for _ in range(4):
        features, _ = common_worker.batch(rng, 9, 4)
        assert_equal_results(*learn(features if grouped else features.plain(Common.of(whole))))
    assert_equal(*steps)
    broken = common_worker.batch(rng, 9, 4)[0].plain(Common.of(whole))
    broken.dense[3] = np.inf
    with np.errstate(all="ignore"):
        learn(broken)
    assert [step.skipped.batches for step in steps] == [1, 1]
    assert_equal(*steps)


@settings(max_examples=30, deadline=None)
@given(
    way=st.sampled_from(get_args(Way)),
    model=st.sampled_from(MODELS),
    rows=st.integers(1, 9),
    online=st.sampled_from([0, MOST]),
    squares=st.sampled_from([0.0, 900.0]),
    seed=st.integers(0, 99),
)
def test_late_labels_teach_what_they_teach_torch(
    way: Way, model: ModelConfig, rows: int, online: int, squares: float, seed: int
) -> None:
    """Targets, weights of 0 too, and sure labels, which move the bias. Heads of ES-DFM are two networks. What
    all keys share settles with the sum of its squares."""
    whole = pipeline(model, fields=3, dense=2)
    late = replace(whole, log=replace(whole.log, delayed="es_dfm" if way == "heads" else way))
    steps = both(late, online, HEADS if way == "heads" else None)
    for dense, role in ((step.dense, role) for step in steps for role in step.models):
        for shared in (dense.learned(dense.models[role].bias)[2], *(s.squares for s in dense.scales(role))):
            shared.fill_(squares)
    rng = np.random.default_rng(seed)
    for _ in range(4):
        features, _ = batch(rng, rows, 3, 2)
        outcome = rng.integers(0, LATE_POSITIVE + 1 if way == "vanilla" else FINAL_LATE + 1, rows)
        label = outcome if way == "vanilla" else (outcome % FINAL_NEGATIVE > 0)
        teach = lessons(way, outcome, rng)
        prepared = [step.prepare(features, label.astype(np.float32)) for step in steps]
        pairs = zip(steps, prepared, strict=True)
        results = (step.learn(ready, teach) for step, ready in pairs)
        assert_equal_results(*results)
    assert_equal(*steps)


@pytest.mark.parametrize("online", [0, MOST])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_weights_and_rates_teach_what_they_teach_torch(model: ModelConfig, online: int) -> None:
    steps = both(replace(pipeline(model, fields=3, dense=2), sampling=0.5), online)
    rng = np.random.default_rng(3)
    for _ in range(4):
        features, label = batch(rng, 7, 3, 2)
        teach = weighted_parts(label, rng)
        results = (
            step.learn(step.prepare(features, label), lambda z: teach(z, slice(None)))  # noqa: B023, at once
            for step in steps
        )
        assert_equal_results(*results)
    assert_equal(*steps)


def test_late_labels_without_lessons_are_refused() -> None:
    whole = pipeline(LR(), fields=3, dense=0)
    (compiled, reference) = both(replace(whole, log=replace(whole.log, delayed="fnw")), 0)
    for step in (compiled, reference):
        with pytest.raises(TypeError, match="need"):
            step.step(*batch(np.random.default_rng(0), 4, 3, 0))


@pytest.mark.parametrize("online", [0, MOST])
@pytest.mark.parametrize(
    "model", [LR(), FM(dim=3), DeepFM(dim=4, hidden=(16, 8))], ids=lambda model: type(model).__name__
)
def test_features_of_a_group_teach_what_they_teach_torch(model: ModelConfig, online: int) -> None:
    """Fields and dense features of users, whose examples are grouped, or are not, in turn."""
    steps = both(common_worker.pipeline(model), online)
    common, rng = Common.of(common_worker.pipeline(model)), np.random.default_rng(0)
    assert common.fields and common.dense
    for rows, groups in ((1, 1), (9, 4), (MOST, 20), (7, 7)):
        features, label = common_worker.batch(rng, rows, groups)
        for given_ in (features, features.plain(common)):
            assert_equal_results(*(step.step(given_, label) for step in steps))
    assert_equal(*steps)
