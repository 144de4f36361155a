"""Small batches: compiled calls learn what torch's step learns, whatever the shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from bench.planted import pipeline
from livectr.ingest.plan.features import Features
from livectr.models import DNN, FM, LR, DeepFM, ModelConfig, WideDeep
from livectr.models.losses import Lesson
from livectr.trainer.des.small_batch import MOST
from livectr.trainer.des.step import DesStep
from livectr.trainer.step_settings import StepSettings

F32 = NDArray[np.float32]
MODELS: tuple[ModelConfig, ...] = (
    LR(),
    FM(dim=3),
    DNN(dim=5, hidden=(33,)),
    WideDeep(dim=4, hidden=(16, 7)),
    DeepFM(dim=16, hidden=(70, 32, 5)),
)


def batch(rng: np.random.Generator, rows: int, fields: int, dense: int) -> tuple[Features, F32]:
    lengths = rng.integers(0, 3, fields * rows)
    keys = rng.integers(0, 9, lengths.sum()) + (np.repeat(np.arange(fields * rows) // rows, lengths) << 32)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    x = rng.normal(size=(rows, dense)).astype(np.float32)
    return Features(rows, offsets, keys, x), rng.choice(np.array([0, 1], np.float32), rows)


def teach(logits: Mapping[str, Tensor]) -> dict[str, Lesson]:
    """Targets and weights that differ by example; some rows teach nothing, some are sure."""
    lessons = {}
    for role, z in logits.items():
        rng = np.random.default_rng(len(z))
        weight = rng.choice(np.array([0, 0.3, 1, 2.5], np.float32), len(z))
        target = rng.random(len(z), np.float32)
        lessons[role] = Lesson(torch.from_numpy(target), torch.from_numpy(weight))
    return lessons


def state(step: DesStep) -> dict[str, F32]:
    found = {name: tensor.numpy() for name, tensor in step.state_dense().items()}
    for name, table in step.tables.items():
        keys, rows = table.export()
        found[f"table {name}"] = rows[np.argsort(keys)]
    return found


@settings(max_examples=25, deadline=None)
@given(
    model=st.sampled_from(MODELS),
    rows=st.one_of(st.integers(1, 9), st.just(MOST)),
    fields=st.integers(1, 4),
    dense=st.integers(0, 3),
    online=st.sampled_from([0, MOST]),
    taught=st.booleans(),
    seed=st.integers(0, 99),
)
def test_compiled_steps_equal_torchs(
    model: ModelConfig, rows: int, fields: int, dense: int, online: int, taught: bool, seed: int
) -> None:
    """Losses, logits, rows and networks agree; sums alone are taken in another order."""
    planted = pipeline(model, fields=fields, dense=dense)
    if taught:
        planted = replace(planted, log=replace(planted.log, delayed="fnw"))
    steps = [DesStep(planted, seed=1, settings=StepSettings(online=online)) for _ in range(2)]
    compiled, reference = steps
    assert compiled.small is not None, "the compiled step is what is tested"
    reference.small = None
    rng = np.random.default_rng(seed)

    for _ in range(4):
        features, label = batch(rng, rows, fields, dense)
        found = [step.learn(step.prepare(features, label), teach if taught else None) for step in steps]
        assert found[0].loss == pytest.approx(found[1].loss, rel=1e-5)
        np.testing.assert_allclose(found[0].logits["rank"], found[1].logits["rank"], rtol=2e-5, atol=2e-6)
    for name, expected in state(reference).items():
        np.testing.assert_allclose(state(compiled)[name], expected, rtol=2e-4, atol=2e-6, err_msg=name)
