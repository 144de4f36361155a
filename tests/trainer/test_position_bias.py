"""Position bias in runs: what is served is the click of what is seen, and the curve of seeing is learned."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

import livectr
from livectr import Target
from livectr.check.rules import DOUBTFUL, findings
from livectr.check.sample import read_sample
from livectr.ingest.language.calibration import Calibration
from livectr.ingest.language.streams import Stream, labelled
from livectr.ingest.pipeline import Pipeline
from livectr.models import FM, LR, DeepFM, Hedge, ModelConfig
from livectr.models.importance import plain
from livectr.models.position_bias import Curve
from livectr.system.errors import ConfigError
from livectr.trainer.position_bias import PositionBias
from livectr.trainer.quality.metrics import auc, calibration
from livectr.trainer.quality.predictions import Records, read_predictions
from livectr.trainer.run import TrainOptions, train

ROWS, ADS = 40_000, 60
SEEN = np.array([1.0, 0.7, 0.5, 0.35, 0.25, 0.18])
"""Examination curve of the simulated page."""
STREAM = Stream(
    "shown", key="user", columns=dict(user="int64", ad="int64", place="int64", x="float64", clicked="int32")
)
LOG = labelled(STREAM, label="clicked")
Rows = dict[str, Any]
F64 = npt.NDArray[np.float64]


def page(rows: int = ROWS, seed: int = 0) -> tuple[Rows, F64]:
    """Rows of a log whose better ads were shown further down, and each ad's click rate if it is seen."""
    rng = np.random.default_rng(seed)
    rate = 1 / (1 + np.exp(1.2 - rng.normal(0, 0.8, ADS)))
    ad = rng.integers(0, ADS, rows)
    down = np.argsort(np.argsort(rate)) / ADS * len(SEEN)
    place = np.clip(down[ad] + rng.normal(0, 2.5, rows), 0, len(SEEN) - 1).astype(np.int64)
    clicked = (rng.random(rows) < SEEN[place] * rate[ad]).astype(np.int32)
    return dict(user=np.arange(rows), ad=ad, place=place + 1, x=rate[ad], clicked=clicked), rate


def pipeline_of(model: ModelConfig | Hedge, **changes: Any) -> Pipeline:
    return Pipeline(LOG, sparse={"ad": LOG.ad}, rank=model, **changes)


def learned(pipeline: Pipeline, log: Rows, **options: Any) -> tuple[livectr.Trained, Records]:
    run = livectr.train(pipeline, log, seed=1, threads=1, **{"batch_size": 64, **options})
    return run, read_predictions(Path(run.checkpoint) / "predictions")


def served(pipeline: Pipeline, run: livectr.Trained) -> F64:
    """Probability of each ad, as it is served: a request has no place."""
    p: F64 = livectr.score(pipeline, run.checkpoint, {"user": np.zeros(ADS, int), "ad": np.arange(ADS)})
    return p


@pytest.mark.parametrize("model", [LR(), DeepFM(dim=4, hidden=(8,))])
def test_ads_are_ordered_by_what_is_clicked_once_seen(model: ModelConfig) -> None:
    log, rate = page()
    plain, biased = pipeline_of(model), pipeline_of(model, position_bias=LOG.place)
    run, found = learned(biased, log)
    curve = run.report.position_bias["rank"]
    assert list(curve) == [str(place) for place in range(1, len(SEEN) + 1)]
    np.testing.assert_allclose(list(curve.values()), SEEN, atol=0.13)
    assert curve["1"] == 1 and sorted(curve.values(), reverse=True) == list(curve.values())
    p, without = served(biased, run), served(plain, learned(plain, log)[0])
    assert np.corrcoef(p, rate)[0, 1] > 0.95 > 0.85 > np.corrcoef(without, rate)[0, 1]
    better = (rate > np.median(rate)).astype(np.float32)
    assert auc(p, better) > auc(without, better) + 0.1
    assert p.mean() == pytest.approx(rate.mean(), rel=0.2)  # of a click at the first place
    # Measures are of the product: the clicks of the log as it is.
    late = slice(ROWS // 2, None)
    assert calibration(found["rank"][late], log["clicked"][late]) == pytest.approx(1, abs=0.05)
    for place in range(1, len(SEEN) + 1):
        of = log["place"][late] == place
        assert calibration(found["rank"][late][of], log["clicked"][late][of]) == pytest.approx(1, abs=0.15)


def test_the_lesson_is_the_gradient_of_the_product() -> None:
    """By both logits; the curve's step is that of a Newton step's size."""
    rng = np.random.default_rng(0)
    place, label = rng.integers(0, 3, 50), (rng.random(50) < 0.3).astype(np.float32)
    bias = PositionBias(["rank"])
    curve = bias.of_batch(place)
    curve.begin(slice(None))
    u = torch.tensor([40.0, 0.0, 0.0], dtype=torch.float64, requires_grad=True)
    z = torch.tensor(rng.normal(0, 1, 50), requires_grad=True)
    product = u[torch.from_numpy(place)].sigmoid() * z.sigmoid()
    target = torch.from_numpy(label)
    torch.nn.functional.binary_cross_entropy(product, target.double(), reduction="sum").backward()  # type: ignore[no-untyped-call]
    assert u.grad is not None and z.grad is not None
    logit = z.detach().float()
    lesson = curve.lesson("rank", logit, plain(target), slice(None))
    slope = lesson.weight * (logit.sigmoid() - lesson.target)
    np.testing.assert_allclose(slope.numpy(), z.grad.numpy(), rtol=1e-4, atol=1e-6)
    moved = bias.logits(np.arange(3))["rank"]
    assert moved[0] == np.inf and (np.sign(-moved[1:]) == np.sign(u.grad.numpy()[1:])).all()
    before = {name: array.copy() for name, array in bias.state().items()}
    again = PositionBias(["rank"])
    again.load(before)
    assert {name: array.tobytes() for name, array in again.state().items()} == {
        name: array.tobytes() for name, array in before.items()
    }
    curve.lesson("rank", logit * float("nan"), plain(target), slice(None))
    assert (bias.logits(np.arange(3))["rank"] == moved).all()


def test_the_first_place_is_the_least_that_came() -> None:
    curve = Curve(5)
    places, ones = torch.tensor([3, 2]), torch.ones(2, dtype=torch.float64)
    curve.meet(places)
    curve.learn(places, 0 * ones, ones, ones)
    assert curve.first == 2 and curve.seen.keys() == {2, 3} and curve.seen[2] == 1
    curve.meet(torch.tensor([1]))
    assert curve.seen == {1: 1.0, 3: curve.seen[3]} and curve.of(torch.tensor([1, 2])).tolist() == [np.inf, 0]


def test_rows_without_a_place_go_to_the_dead_letters(tmp_path: Path) -> None:
    rows: list[Rows] = [{"user": i, "ad": i % 5, "place": i % 3, "clicked": i % 2} for i in range(500)]
    rows[3]["place"], rows[4]["place"], rows[5]["place"] = None, -1, 1_000
    (tmp_path / "shown").mkdir()
    (tmp_path / "shown" / "00000.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = f"file:{tmp_path}"
    options = TrainOptions(source, until_end=True, threads=1, checkpoint=str(tmp_path / "c"))
    report = train(pipeline_of(LR(), position_bias=LOG.place), options)
    assert report.dead_letter_reasons == {"bad_position": 3} and report.examples_trained == 497
    letters = "".join(f.read_text() for f in (tmp_path / "livectr.dead_letters").glob("*.jsonl"))
    assert "shown.place, which the position shown.place reads, is null; fill_null(column, value)" in letters
    assert "the position shown.place is out of range; it is from 0 to 999" in letters
    both = Pipeline(LOG, sparse={"ad": LOG.ad, "at": LOG.place}, rank=LR(), position_bias=LOG.place)
    found = {one.what: one for one in findings(both, read_sample(both, source, 400))}
    assert found["position"].mark == DOUBTFUL and "is read by at, too" in found["position"].found
    assert found["dead letters, bad_position"].mark == DOUBTFUL


def test_a_changed_pipeline_goes_on_with_the_curve(tmp_path: Path) -> None:
    """Beside values, whose heads a pipeline may take up as well."""
    log, _ = page(4_000)
    rows = [
        {name: of.item() for name, of in zip(log, row, strict=True)}
        for row in zip(*log.values(), strict=True)
    ]
    (tmp_path / "shown").mkdir()
    (tmp_path / "shown" / "00000.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    old = pipeline_of(LR(), position_bias=LOG.place)
    new = replace(old, targets=[Target("low", LOG.place > 3, value=LOG.place)])
    newer = replace(new, sparse={"ad": LOG.ad, "user": LOG.user})
    curves: list[dict[str, float]] = []
    before: dict[str, Any] = {}
    for number, (pipeline, steps) in enumerate(((old, 40), (new, 41), (newer, 60))):
        options: dict[str, Any] = dict(
            batch_size=64, batch_ramp=0, until_end=True, threads=1, max_steps=steps
        )
        root = str(tmp_path / f"run{number}")
        report = train(pipeline, TrainOptions(f"file:{tmp_path}", checkpoint=root, **options, **before))
        curves.append(report.position_bias["rank"])
        before = dict(warm_start=root, warm_parts="run")
    assert max(abs(curves[0][at] - curves[1][at]) for at in curves[0]) < 0.05 < 0.5 - curves[0]["6"]
    found = report.values["low"]
    assert (found["examples"] or 0) > 100 and found["calibration"] == pytest.approx(1, abs=0.5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pipeline_of(LR(), position_bias=3), "position_bias is 3; write a column"),
        (lambda: pipeline_of(LR(), position_bias=LOG.x), "is float64; write a whole number"),
        (lambda: pipeline_of(LR(), position_bias=LOG.place, sampling=0.5), "does not go with sampling"),
        (lambda: pipeline_of(Hedge((LR(), FM())), position_bias=LOG.place), "does not go with a hedge"),
        (lambda: pipeline_of(LR(), position_bias=LOG.place, calibration=Calibration()), "with calibration"),
    ],
)
def test_what_is_no_place_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
