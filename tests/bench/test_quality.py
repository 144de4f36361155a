"""The parts of bench.quality and bench.scaling that need neither peers nor ranks."""

import json
from dataclasses import replace

import numpy as np
import pytest

from bench.one_pass import MODELS, late_auc, log, one_pass
from bench.peers.ours import OURS, Ours, trainer
from bench.quality import mesh_rows, torchrec_rows
from bench.scaling import AXES, BASE, Found, measure, point_rows, points
from bench.scaling_page import picture, read, table
from livectr.trainer.comm.collectives import Collectives


def test_a_seed_is_a_log_of_its_own() -> None:
    (_, first), (_, again), (_, other) = log(1, 1), log(1, 1), log(2, 1)
    assert (first[0].label == again[0].label).all()
    assert (first[0].label != other[0].label).any()


def test_the_last_half_counts() -> None:
    _, batches = log(1, 4)
    right = [batch.label for batch in batches]
    wrong = [-batch.label for batch in batches]
    assert late_auc([*wrong[:2], *right[2:]], batches) == 1.0
    assert late_auc([*right[:2], *wrong[2:]], batches) == 0.0


def test_a_model_learns_in_one_pass() -> None:
    work, batches = log(1, 30)
    step = trainer(work, Collectives(), OURS["fp32"])
    assert one_pass(lambda batch: step(batch).logits["rank"], batches) > 0.55


def test_rows_tell_the_gain_on_the_same_log() -> None:
    beside = {name: [0.7, 0.8] for name in OURS} | {"TorchRec": [0.6, 0.7]}
    first = torchrec_rows(beside, 4)[0]
    assert first["met"] is True and "+10.00 ± 0.00 points" in str(first["workload"])
    stale = {model: [0.69, 0.79] for model in MODELS}
    assert "+1.00 ± 0.00" in str(mesh_rows({model: [0.7, 0.8] for model in MODELS}, stale, 4)[0]["workload"])


def test_every_size_grows_alone() -> None:
    found = points(False)
    assert len(found) == sum(map(len, AXES.values())) - len(AXES) + 1
    for point in found:
        assert sum(getattr(point, axis) != getattr(BASE, axis) for axis in AXES) <= 1


@pytest.mark.parametrize("field_exchange", ["partial", "vectors", "rows"])
def test_formulas_by_hand(field_exchange: str) -> None:
    point = replace(BASE, n=4, b=8, f=3, k=1)
    by_hand = {
        "partial": 8 * 0.75 * 8 * (64 + 2),
        "vectors": 8 * 3 / 16 * 8 * 3 * 2,
        "rows": 8 * 0.75 * 5 * 2,
    }
    assert point.predicted(field_exchange, 5) == pytest.approx(by_hand[field_exchange])  # type: ignore[arg-type]


def test_page_and_picture_are_of_the_rows() -> None:
    rows = []
    for b in (512, 1024):
        point = replace(BASE, b=b)
        rows += point_rows(Found(point, "partial", 9.0, {"sum": 3e6}, {"sum": 0.001}, 0.002))
    result = {"rows": rows, "commit": "c", "hardware": {"cores": 2, "processor": "p"}}
    result = json.loads(json.dumps(result))
    assert len(read(result)) == len(rows)
    assert "| 2 | 512 | 32 | 8 | 3,000 (150) | 2.0 |" in table(result)
    assert picture(result).count("<circle") == 3 + 2


def test_one_rank_is_measured() -> None:
    found = measure(Collectives(), replace(BASE, n=1, b=64, f=4), "partial")
    assert found.step > 0 and found.model == 0 and 0 < found.unique <= 4 * 64
    assert np.isfinite(found.step)


def test_ours_defaults_are_the_steps() -> None:
    assert OURS["fp32"] == Ours()
