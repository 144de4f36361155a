"""Blocks of small batches: one compiled call has the bits of a step for each batch."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bench.planted import pipeline
from livectr.ingest.common_features import FEW
from livectr.ingest.pipeline import Pipeline
from livectr.ingest.plan.features import Features
from livectr.kernels.stream.join import FINAL_LATE, FINAL_NEGATIVE
from livectr.models import DCN, DNN, FM, LR, PNN, AutoInt, DeepFM, ModelConfig, WideDeep, decay
from livectr.models.es_dfm import HEADS
from livectr.models.losses import LATE
from livectr.trainer.des.biases import ENOUGH
from livectr.trainer.des.result import StepResult
from livectr.trainer.des.small_batch import MOST
from livectr.trainer.des.step import DesStep, Teach, TeachPart
from livectr.trainer.step_settings import StepSettings
from livectr.trainer.stream.batcher import BLOCK
from tests.trainer import common_worker
from tests.trainer.late_lessons import Way, lessons_of_parts, weighted_parts

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]
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
    """Lists of keys, some empty, which fields share."""
    lengths = rng.integers(0, 3, fields * rows)
    keys = rng.integers(0, 9, lengths.sum())
    x = (5 * rng.normal(size=(rows, dense))).astype(np.float32)  # some beyond ±1
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return Features(rows, offsets, keys, x), rng.choice(np.array([0, 1], np.float32), rows)


def both(pipeline: Pipeline, online: int, models: Mapping[str, ModelConfig] | None = None) -> list[DesStep]:
    """Two steps that have learned the same batch."""
    steps = [DesStep(pipeline, seed=1, settings=StepSettings(online=online), models=models) for _ in range(2)]
    fields, dense = len(steps[0].spec.fields), len(steps[0].spec.dense_names)
    first, rng = batch(np.random.default_rng(9), 5, fields, dense), np.random.default_rng(9)
    for step in steps:
        assert step.learn_block(*first, np.array([0, 5])) is None, "the first batch sets the biases"
        late = pipeline.log.finals
        teach = None
        if late:
            teach = lessons_of_parts("heads" if models is HEADS else "fnw", first[1].astype(int), rng)
        elif pipeline.example_weights is not None:
            teach = weighted_parts(first[1], np.random.default_rng(9))
        one_by_one(step, *first, np.array([0, 5]), teach)
    return steps


def one_by_one(
    step: DesStep, features: Features, label: F32, bounds: I64, teach: TeachPart | None = None
) -> list[StepResult]:
    found = []
    for start, end in itertools.pairwise(bounds.tolist()):
        prepared = step.prepare(features.take(np.arange(start, end)), label[start:end])
        found.append(step.learn(prepared, None if teach is None else of_rows(teach, slice(start, end))))
    return found


def of_rows(teach: TeachPart, rows: slice) -> Teach:
    return lambda logits: teach(logits, rows)


def bits(step: DesStep) -> dict[str, bytes]:
    found = {name: tensor.numpy().tobytes() for name, tensor in step.state_dense().items()}
    for name, table in step.tables.items():
        keys, rows = table.export()
        found[f"table {name}"] = rows[np.argsort(keys)].tobytes()
    return found


def assert_same(
    steps: list[DesStep], features: Features, label: F32, bounds: I64, teach: TeachPart | None = None
) -> None:
    block = steps[0].learn_block(features, label, bounds, teach)
    assert block is not None
    each = one_by_one(steps[1], features, label, bounds, teach)
    for role, logits in block.logits.items():
        assert logits.tobytes() == np.concatenate([part.logits[role] for part in each]).tobytes(), role
    np.testing.assert_array_equal(block.label, np.concatenate([part.label for part in each]))
    assert bits(steps[0]) == bits(steps[1])
    assert steps[0].skipped == steps[1].skipped and steps[0].dense.steps == steps[1].dense.steps


@settings(max_examples=25, deadline=None)
@given(
    models=st.lists(st.sampled_from(MODELS), min_size=1, max_size=3),
    sizes=st.lists(st.one_of(st.integers(0, 9), st.just(MOST)), min_size=1, max_size=6),
    fields=st.integers(1, 4),
    dense=st.integers(0, 3),
    online=st.sampled_from([0, 4, MOST]),
    seed=st.integers(0, 99),
)
def test_a_block_has_the_bits_of_its_batches(
    models: list[ModelConfig], sizes: list[int], fields: int, dense: int, online: int, seed: int
) -> None:
    """Several roles, fields that share a table, batches without examples, late positives."""
    whole = pipeline(models[0], fields=fields, dense=dense, shared=[(fields, 1)] if fields > 1 else [])
    late = replace(whole, log=replace(whole.log, delayed="vanilla"))
    roles = {f"shadow{i}" if i else "rank": model for i, model in enumerate(models)}
    steps = both(late, online, roles)
    rng = np.random.default_rng(seed)
    for _ in range(2):
        features, label = batch(rng, sum(sizes), fields, dense)
        label[rng.random(len(label)) < 0.1] = LATE
        assert_same(steps, features, label, np.cumsum([0, *sizes]))


@settings(max_examples=25, deadline=None)
@given(
    way=st.sampled_from(["fnw", "es_dfm", "heads"]),
    models=st.lists(st.sampled_from(MODELS), min_size=1, max_size=2),
    sizes=st.lists(st.one_of(st.integers(0, 9), st.just(MOST)), min_size=1, max_size=6),
    online=st.sampled_from([0, 4, MOST]),
    broken=st.booleans(),
    seed=st.integers(0, 99),
)
def test_late_labels_teach_a_block_what_they_teach_its_batches(
    way: Way, models: list[ModelConfig], sizes: list[int], online: int, broken: bool, seed: int
) -> None:
    """Targets, weights of 0 too, and sure labels, which move the biases until there are enough."""
    whole = pipeline(models[0], fields=3, dense=2)
    late = replace(whole, log=replace(whole.log, delayed="es_dfm" if way == "heads" else way))
    roles = {f"shadow{i}" if i else "rank": model for i, model in enumerate(models)}
    steps, rng = both(late, online, HEADS if way == "heads" else roles), np.random.default_rng(seed)
    if seed % 2:
        for step in steps:
            step._sure = dict.fromkeys(step._sure, ENOUGH - 5)
    bounds = np.cumsum([0, *sizes])
    for _ in range(2):
        features, _ = batch(rng, sum(sizes), 3, 2)
        outcome = rng.integers(0, FINAL_LATE + 1, len(features.dense))
        label = (outcome % FINAL_NEGATIVE > 0).astype(np.float32)
        if broken and len(label):
            features.dense[rng.integers(len(label))] = np.inf
        teach = lessons_of_parts(way, outcome, rng)
        assert teach is not None
        with np.errstate(all="ignore"):
            assert_same(steps, features, label, bounds, teach)
        assert steps[0]._sure == steps[1]._sure


@settings(max_examples=15, deadline=None)
@given(
    models=st.lists(st.sampled_from(MODELS), min_size=1, max_size=2),
    sizes=st.lists(st.one_of(st.integers(0, 9), st.just(MOST)), min_size=1, max_size=6),
    online=st.sampled_from([0, 4, MOST]),
    seed=st.integers(0, 99),
)
def test_weights_and_rates_teach_a_block_what_they_teach_its_batches(
    models: list[ModelConfig], sizes: list[int], online: int, seed: int
) -> None:
    roles = {f"shadow{i}" if i else "rank": model for i, model in enumerate(models)}
    steps = both(replace(pipeline(models[0], fields=3, dense=2), sampling=0.5), online, roles)
    rng = np.random.default_rng(seed)
    for _ in range(2):
        features, label = batch(rng, sum(sizes), 3, 2)
        assert_same(steps, features, label, np.cumsum([0, *sizes]), weighted_parts(label, rng))


@pytest.mark.parametrize("place", [0, 2, 4])
def test_a_batch_that_is_not_finite_is_not_learned(place: int, caplog: pytest.LogCaptureFixture) -> None:
    """It is scored, and batches after it are learned."""
    steps, rng = both(pipeline(DeepFM(dim=4, hidden=(8,)), fields=3, dense=2), MOST), np.random.default_rng(0)
    features, label = batch(rng, 15, 3, 2)
    features.dense[3 * place] = np.inf
    with caplog.at_level(logging.WARNING), np.errstate(all="ignore"):
        assert_same(steps, features, label, np.arange(0, 16, 3))
    assert len(caplog.records) == 2 and steps[0].dense.steps == 1 + 4
    assert steps[0].skipped.batches == (place == 4)


def test_features_of_users_are_learned_in_blocks() -> None:
    whole = common_worker.pipeline(DeepFM(dim=4, hidden=(16, 8)))
    steps = both(whole, MOST)
    fields, dense = len(steps[0].spec.fields), len(steps[0].spec.dense_names)
    assert steps[0].spec.common.fields and steps[0].spec.common.dense
    assert_same(steps, *batch(np.random.default_rng(1), 12, fields, dense), np.arange(0, 13, 4))


def test_rates_that_change_within_a_block_are_left_to_its_batches() -> None:
    steps = both(pipeline(LR(schedule=decay(0.5, every=4)), fields=2, dense=0), MOST)
    features, label = batch(np.random.default_rng(1), 6, 2, 0)
    assert_same(steps, features, label, np.array([0, 2, 4, 6]))
    assert steps[0].learn_block(features, label, np.arange(7)) is None


def test_labels_and_bounds_are_checked() -> None:
    step, _ = both(pipeline(LR(), fields=2, dense=0), MOST)
    features, label = batch(np.random.default_rng(1), 6, 2, 0)
    with pytest.raises(ValueError, match="labels must be 0 or 1, not 2"):
        step.learn_block(features, label + 2 - label, np.array([0, 6]))
    for bounds in ([1, 6], [0, 4, 3, 6]):
        with pytest.raises(ValueError, match="bounds"):
            step.learn_block(features, label, np.array(bounds))


def test_blocks_are_short_where_steps_are_long() -> None:
    """Commits and signals wait for the end of a block."""
    large = DeepFM(hidden=(2048, 1024))
    lr, deep, torch = (
        DesStep(pipeline(model, fields=26, dense=13), seed=1).together for model in (LR(), large, AutoInt())
    )
    assert lr > BLOCK > deep > torch == FEW
