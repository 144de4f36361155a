"""A synchronous mesh parameter server learns the same as a single process of ours."""

import numpy as np
import pytest

from bench.mesh.synchronous import Synchronous
from bench.mesh.worker import Request
from bench.peers.workloads import P, W
from bench.planted import Planted, pipeline
from livectr.models import LR, DeepFM, ModelConfig
from livectr.trainer.des.step import DesStep

FIELDS, DENSE = 5, 3
ALIKE = [LR(), DeepFM(dim=4, hidden=(8,), init_scale=0.0)]  # initial rows depend on the table's name


@pytest.mark.parametrize("config", ALIKE, ids=["LR", "DeepFM"])
def test_alone_it_equals_our_step(config: ModelConfig) -> None:
    source, rng = Planted([50] * FIELDS, DENSE), np.random.default_rng(0)
    des = DesStep(pipeline(config, fields=FIELDS, dense=DENSE), seed=3)
    names = [f"C{i + 1}" for i in range(FIELDS)], [f"I{i + 1}" for i in range(DENSE)]
    mesh = Synchronous(config, *names, seed=3)
    for step in range(6):
        features, label, _ = source.batch(rng, 64)
        mine = des.step(features, label).logits["rank"]
        theirs = mesh.step(features, label)
        if step:  # ours reports the first batch's logits before its bias is moved
            np.testing.assert_allclose(theirs, mine, atol=2e-5)


@pytest.mark.parametrize("work", [P, W], ids=["P", "W"])
@pytest.mark.parametrize("world", [1, 4])
def test_a_request_names_each_key_once(work: object, world: int) -> None:
    assert work in (P, W)
    features = (P if work is P else W).batches(0, 64, 1)[0].features
    request = Request.of(features, world)
    assert len(np.unique(request.keys)) == len(request.keys)
    assert request.bounds[-1] == len(request.keys) and len(request.bounds) == world + 1
    field = np.repeat(np.arange(features.fields), features.lengths.sum(axis=1))
    pairs: dict[tuple[int, int], int] = {}
    for key, f, requested in zip(
        features.keys.tolist(), field.tolist(), request.keys[request.index].tolist(), strict=True
    ):
        assert pairs.setdefault((key, f), requested) == requested
    assert len(pairs) == len(request.keys)
