"""Raw counts and rates, 1e9 beside 1e-3, do not ruin a network: it learns as from their logarithms."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from bench.planted import pipeline
from livectr.ingest.plan.features import Features
from livectr.models import DCN, DNN, AutoInt, DeepFM, ModelConfig
from livectr.trainer.des.step import DesStep
from livectr.trainer.quality.metrics import auc

ROWS, BATCH, FIELDS = 6000, 40, 3
MEDIANS = np.array([1e9, 1e6, 1e3, 30, 1, 1e-3])
SPREAD = 1.5
"""Standard deviation of the numbers' logarithms."""


class Log(NamedTuple):
    """Rows of ids, lognormal numbers and labels."""

    ids: NDArray[np.int64]
    numbers: NDArray[np.float32]
    label: NDArray[np.float32]


@pytest.fixture(scope="module")
def log() -> Log:
    """A label depends on ids, and on the logarithm of each number."""
    rng = np.random.default_rng(1)
    ids, z = rng.integers(0, 20, (FIELDS, ROWS)), rng.normal(size=(ROWS, len(MEDIANS)))
    logit = rng.normal(0, 0.5, (FIELDS, 20))[np.arange(FIELDS)[:, None], ids].sum(0)
    logit += 0.8 * np.tanh(z).sum(1) - 1
    label = (rng.random(ROWS) < 1 / (1 + np.exp(-logit))).astype(np.float32)
    return Log(ids, (MEDIANS * np.exp(SPREAD * z)).astype(np.float32), label)


def area(model: ModelConfig, log: Log, numbers: NDArray[np.float32]) -> float:
    """AUC of the scores that the later half of the rows got before they were learned."""
    step = DesStep(pipeline(model, fields=FIELDS, dense=numbers.shape[1]), seed=1)
    logits = []
    for first in range(0, ROWS, BATCH):
        rows = slice(first, first + BATCH)
        offsets = np.arange(FIELDS * BATCH + 1, dtype=np.int32)
        keys = (log.ids[:, rows] + (np.arange(FIELDS)[:, None] << 32)).ravel()
        result = step.step(Features(BATCH, offsets, keys, numbers[rows]), log.label[rows])
        logits.append(result.logits["rank"])
    later = slice(ROWS // 2, None)
    return auc(np.concatenate(logits)[later], log.label[later])


@pytest.mark.parametrize(
    ("model", "worse"), [(DeepFM(), 0.01), (DNN(), 0.01), (DCN(), 0.01), (AutoInt(), 0.02)]
)
def test_raw_numbers_are_learned_like_their_logarithms(model: ModelConfig, worse: float, log: Log) -> None:
    raw, logarithms = (area(model, log, numbers) for numbers in (log.numbers, np.log1p(log.numbers)))
    assert raw > logarithms - worse
