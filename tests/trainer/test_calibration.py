"""Calibration of new models with default settings: no step overshoots, whatever the size of batches."""

import itertools

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from bench.planted import Planted, pipeline
from livectr.models import DCN, FM, LR, PNN, DeepFM, ModelConfig
from livectr.trainer.des.step import DesStep
from livectr.trainer.quality.metrics import calibration
from livectr.trainer.ramp import FIRST, SLOPE, BatchRamp
from livectr.trainer.step_settings import ONLINE, StepSettings
from tests.tiers import few

CARDINALITIES, DENSE = (20_000, 5_000, 1_000, 200, 50, 20, 10, 5), 4
LOW, HIGH = 0.8, 1.25
RAMPS = [(16, SLOPE, 8_000), (65_536, SLOPE // 64, 200_000)]


def scores(
    model: ModelConfig, ramp: BatchRamp, seed: int, rows: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Logits that examples got before they were learned, and their labels."""
    torch.set_num_threads(1)
    built = pipeline(model, fields=len(CARDINALITIES), dense=DENSE)
    des = DesStep(built, seed=seed, settings=StepSettings(online=ONLINE))
    truth, rng, seen, found = Planted(CARDINALITIES, DENSE, seed=seed), np.random.default_rng(seed), 0, []
    while seen < rows:
        features, label, _ = truth.batch(rng, ramp.size(seen))
        found.append((des.step(features, label).logits["rank"], label))
        seen += len(label)
    logits, labels = (np.concatenate(column) for column in zip(*found, strict=True))
    return logits, labels


def check(logits: NDArray[np.float32], label: NDArray[np.float32]) -> None:
    """Calibration of every twentieth after the first fiftieth of the examples."""
    edges = np.linspace(len(label) // 50, len(label), 20).astype(int)
    found = [calibration(logits[a:b], label[a:b]) for a, b in itertools.pairwise(edges)]
    assert min(found) > LOW and max(found) < HIGH, found


@pytest.mark.parametrize("seed", few([1, 2], 1))
@pytest.mark.parametrize(
    ("batch_size", "slope", "rows"),
    few([(16, SLOPE, 8_000), (65_536, SLOPE // 64, 200_000)], (65_536, SLOPE // 64, 200_000)),
)
def test_any_size_of_batches(batch_size: int, slope: int, rows: int, seed: int) -> None:
    """Batches that grow 64 times as fast as by default reach 6,250 examples."""
    check(*scores(DeepFM(), BatchRamp(batch_size, FIRST, slope), seed, rows))


@pytest.mark.parametrize(
    "model", few([LR(), FM(), DCN(), PNN()], LR()), ids=lambda model: type(model).__name__
)
def test_any_model(model: ModelConfig) -> None:
    check(*scores(model, BatchRamp(4096, FIRST), 1, 6_000))
