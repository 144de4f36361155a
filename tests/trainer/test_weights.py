"""Weights of examples and sampled negatives, in runs: what is learned and measured is of the whole log."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import livectr
from livectr.analysis.page.importance import Asked, importance
from livectr.analysis.score_log import Scoring, score_log
from livectr.ingest.language.calibration import Calibration
from livectr.ingest.language.delays import Delayed
from livectr.ingest.language.streams import Stream, label_join, labelled
from livectr.ingest.operators import fill_null, where, zscore
from livectr.ingest.pipeline import Pipeline
from livectr.inspection.trained import facts_of
from livectr.models import FM, LR, DeepFM, Hedge, ModelConfig
from livectr.system.errors import ConfigError, MismatchError
from livectr.trainer.checkpoint.manifest import newest_manifest
from livectr.trainer.checkpoint.restored import Restored
from livectr.trainer.quality.metrics import calibration
from livectr.trainer.quality.predictions import Records, quality_of, read_predictions, weights_of
from livectr.trainer.report import Report
from livectr.trainer.run import TrainOptions, train
from tests.ranks import Processes
from tests.trainer.ad_logs import ad_pipeline, write_files
from tests.trainer.kills import OPTIONS, kill_group, kill_one_rank, kill_somewhere
from tests.trainer.processes import finish
from tests.trainer.run_result import Result, assert_close, assert_same
from tests.trainer.weighted_once import weighted_ads

ROWS = 12_000
Rows = dict[str, Any]


def market(rows: int = ROWS, seed: int = 0) -> Rows:
    """A whole log: clicks by ad and segment, 5 % of all, and a value of each row."""
    rng = np.random.default_rng(seed)
    ad, segment = rng.integers(0, 20, rows), rng.integers(0, 4, rows)
    logit = -3 + rng.normal(0, 0.7, 20)[ad] + 0.4 * segment
    clicked = (rng.random(rows) < 1 / (1 + np.exp(-logit))).astype(np.int32)
    kept = np.array([0.1, 0.2, 0.5, 1.0], np.float32)[segment]
    columns = dict(user=np.arange(rows), ad=ad, segment=segment, clicked=clicked, kept=kept)
    return columns | {"value": rng.integers(0, 4, rows) / 2}


def sampled(log: Rows) -> Rows:
    """The rows with a click, and of the others the share that `kept` says."""
    stays = (log["clicked"] == 1) | (np.random.default_rng(1).random(len(log["ad"])) < log["kept"])
    return {name: values[stays] for name, values in log.items()}


STREAM = Stream(
    "shown",
    key="user",
    columns=dict(
        user="int64",
        ad="int64",
        segment="int64",
        clicked="int32",
        kept="float32",
        value="float64",
        tags="list<int64>",
    ),
)
LOG = labelled(STREAM, label="clicked")
STRANGE = Stream("other", key="x", columns={"x": "int64"})


def market_pipeline(model: ModelConfig | Hedge | None = None, **changes: Any) -> Pipeline:
    return Pipeline(
        LOG, sparse={"ad": LOG.ad, "segment": LOG.segment}, rank=LR() if model is None else model, **changes
    )


def learned(pipeline: Pipeline, log: Rows, **options: Any) -> tuple[livectr.Trained, Records]:
    run = livectr.train(pipeline, log, seed=1, threads=1, **{"batch_size": 64, **options})
    return run, read_predictions(Path(run.checkpoint) / "predictions")


@pytest.mark.parametrize(("model", "batch_size"), [(DeepFM(dim=4, hidden=(8,)), 64), (LR(), 1024)])
def test_a_weight_of_one_changes_no_bit(model: ModelConfig, batch_size: int) -> None:
    log, changes = market(3_000), {"weight": LOG.kept * 0 + 1, "sampling": 1.0}
    (_, plain), (_, ones) = (
        learned(market_pipeline(model, **given), log, batch_size=batch_size) for given in ({}, changes)
    )
    assert weights_of(plain) is None and (ones["weight"] == 1).all()
    for name in plain.dtype.names or ():
        assert plain[name].tobytes() == ones[name].tobytes(), name


@pytest.mark.parametrize("model", [LR(), DeepFM(dim=4, hidden=(8,))])
def test_a_sampled_log_is_learned_and_measured_as_the_whole_one(model: ModelConfig) -> None:
    """Rates differ by segment: what would be one shift of all logits is not enough."""
    part = sampled(market())
    run, found = learned(market_pipeline(model, sampling=LOG.kept), part)
    assert len(found) == len(part["ad"]) < ROWS / 2
    assert weights_of(found) is not None and found["weight"].sum() == pytest.approx(ROWS, rel=0.05)
    assert run.report.calibration == pytest.approx(1, abs=0.08)
    late = found[len(found) // 2 :]
    segment = part["segment"][len(found) // 2 :]
    for number in range(4):
        of = late[segment == number]
        label = of["label"].astype(np.float32)
        assert calibration(of["rank"], label, of["weight"]) == pytest.approx(1, abs=0.2), number
    _, naive = learned(market_pipeline(model), part)
    first = naive[len(found) // 2 :][segment == 0]
    rate = first["label"].astype(np.float32)
    assert calibration(first["rank"], rate, late["weight"][segment == 0]) > 4


def test_a_number_is_the_rate_of_all_rows() -> None:
    log = market()
    log["kept"] = np.full(ROWS, 0.25, np.float32)
    part = sampled(log)
    (one, by_number), (_, by_column) = (
        learned(market_pipeline(sampling=rate), part) for rate in (0.25, LOG.kept)
    )
    assert by_number.tobytes() == by_column.tobytes()
    whole, _ = learned(market_pipeline(), log)
    assert one.report.logloss == pytest.approx(whole.report.logloss, rel=0.05)


@pytest.mark.parametrize("high", [True, False])
def test_rows_of_weight_zero_teach_nothing(high: bool) -> None:
    """Half of the rows are clicked by another rule, and only one half counts."""
    log = market()
    of_high = log["value"] > 0.75
    log["clicked"] = np.where(of_high, log["clicked"] | (log["ad"] % 2 == 0), log["clicked"]).astype(np.int32)
    weight = where(LOG.value > 0.75, 3.0 * high, 3.0 * (not high))
    _, found = learned(market_pipeline(weight=weight), log)
    counts = of_high == high
    assert (found["weight"] == 3 * counts).all()
    for kind in (0, 1):
        of = counts & (np.arange(ROWS) > ROWS // 2) & (log["ad"] % 2 == kind)
        assert calibration(found["rank"][of], log["clicked"][of].astype(np.float32)) == pytest.approx(
            1, abs=0.2
        )


def test_rows_whose_weight_cannot_be_used_go_to_the_dead_letters(tmp_path: Path) -> None:
    rows = [
        {"user": i, "ad": i % 5, "segment": 0, "clicked": i % 2, "kept": 0.5, "value": 1.0}
        for i in range(1_000)
    ]
    rows[10]["value"] = None  # type: ignore[assignment]
    rows[11]["value"] = -1.0
    rows[12]["value"] = 1e300
    rows[13]["kept"] = 0.0
    rows[14]["kept"] = 1.5
    (tmp_path / "shown").mkdir()
    (tmp_path / "shown" / "00000.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pipeline = market_pipeline(weight=LOG.value * 2, sampling=LOG.kept)
    options = TrainOptions(f"file:{tmp_path}", until_end=True, threads=1, checkpoint=str(tmp_path / "c"))
    report = train(pipeline, options)
    assert report.dead_letter_reasons == {"bad_weight": 5} and report.examples_trained == 995
    assert report.rows["shown"]["rows"] == 1_000 and report.rows["shown"]["unusable"] == 5
    assert dict(facts_of(report))["rows"] == "995 used, 5 set aside"
    letters = [
        json.loads(line)
        for file in sorted((tmp_path / "livectr.dead_letters").glob("*.jsonl"))
        for line in file.read_text().splitlines()
    ]
    assert {letter["reason"] for letter in letters} == {"bad_weight"}
    said = "\n".join(letter["detail"] for letter in letters)
    assert (
        said.count("shown.value, which the weight multiply(shown.value, 2.0) reads, is null; fill_null") == 1
    )
    assert said.count("is out of range or no number; a weight is from 0 to 1e+09") == 2
    assert said.count("the sampling rate shown.kept is out of range or no number; a rate is") == 2
    assert report.stream["clicked"] == 498  # of rows 10 to 14, 11 and 13 have a click
    filled = replace(pipeline, weight=fill_null(LOG.value, 1.0))
    report = train(filled, replace(options, checkpoint=str(tmp_path / "filled")))
    assert report.examples_trained == 996


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sampling": 0}, "sampling is 0; it is the share of the examples without a click"),
        ({"sampling": 1.5}, "sampling is 1.5; it is the share"),
        ({"sampling": float("nan")}, "sampling is nan; it is the share"),
        ({"sampling": True}, "sampling is True; write the rate, such as 0.1"),
        ({"sampling": "kept"}, "sampling is 'kept'; write the rate, such as 0.1, or a column"),
        ({"weight": 2.0}, "weight is 2.0; write a column or an expression"),
        ({"weight": zscore(LOG.value)}, "depends on running statistics"),
        ({"weight": LOG["tags"]}, "weight shown.tags is list<int64>; write a column or an expression"),
        ({"weight": STRANGE.x}, "other.x is not known when an impression of shown is scored"),
    ],
)
def test_what_is_no_weight_and_no_rate_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        market_pipeline(**changes)


def parts_of_a_run(root: Path, source: str, pipeline: Pipeline, *stops: int | None) -> dict[str, Any]:
    """Bits of a run that ends at some steps and is resumed."""
    options: dict[str, Any] = dict(
        until_end=True, threads=1, batch_size=64, checkpoint=str(root), run_log=str(root / "log")
    )
    for steps in stops:
        train(pipeline, TrainOptions(source, max_steps=steps, **options))
    manifest = newest_manifest(root)
    assert manifest is not None
    restored = Restored(root, manifest)
    kinds = ("weights", "calibration", "hedge", "window", "gate", "contest")
    states = {kind: {n: v.tobytes() for n, v in restored.state(kind).items()} for kind in kinds}
    dense = {name: tensor.numpy().tobytes() for name, tensor in restored.dense().items()}
    return {"predictions": read_predictions(root / "predictions").tobytes(), "dense": dense, **states}


def test_a_run_that_is_resumed_has_the_bits_of_an_unbroken_one(tmp_path: Path) -> None:
    """With maps by segment, heads that are mixed, a challenger, and examples that wait for their labels."""
    source = write_files(tmp_path / "logs", 800)
    pipeline = weighted_ads(
        rank=Hedge((LR(), FM(dim=4))),
        challengers={"deep": DeepFM(dim=4, hidden=(8,))},
        calibration=Calibration("category", 100),
    )
    whole = parts_of_a_run(tmp_path / "whole", source, pipeline, None)
    assert whole["weights"] and whole["calibration"] and whole["hedge"] and whole["contest"]
    assert parts_of_a_run(tmp_path / "broken", source, pipeline, 7, 20, None) == whole


def test_ranks_that_are_killed_end_as_one_that_was_not(tmp_path: Path) -> None:
    source = write_files(tmp_path / "logs", 1_500)

    def begin(world: int, name: str) -> Processes:
        options = {**OPTIONS, "source": source, "checkpoint": str(tmp_path / name)}
        return Processes(world, "tests.trainer.weighted_once", [json.dumps(options)])

    def result(name: str) -> Result:
        return Result(tmp_path / name, weighted_ads())

    finish(begin(1, "unbroken"))
    for world, name, kill in ((1, "one", kill_group), (2, "two", kill_one_rank)):
        kill_somewhere(begin(world, name), tmp_path / name, random.Random(), kill)
        finish(begin(world, name))
    unbroken = result("unbroken")
    assert set(unbroken.predictions["weight"]) > {0.0}
    assert_same(result("one"), unbroken)
    assert_close(result("two"), unbroken)
    weights = (result(name).predictions["weight"].tobytes() for name in ("unbroken", "two"))
    assert len(set(weights)) == 1


@pytest.mark.parametrize("delayed", ["vanilla", "fnw", "es_dfm"])
def test_weights_go_with_labels_that_come_late(tmp_path: Path, delayed: Delayed) -> None:
    """Weights of 1 change no bit; a rate is refused: a label that is not final tells not what was kept."""
    source = write_files(tmp_path / "logs", 300)
    plain = replace(ad_pipeline(delayed=delayed), prerank=None)
    price = plain.dense["price"]
    one = replace(plain, weight=price * 0 + 1)
    found = []
    for name, pipeline in (("plain", plain), ("one", one), ("price", replace(plain, weight=price))):
        root = tmp_path / name
        train(pipeline, TrainOptions(source, until_end=True, batch_size=64, threads=1, checkpoint=str(root)))
        found.append(read_predictions(root / "predictions"))
    for name in found[0].dtype.names or ():
        assert found[0][name].tobytes() == found[1][name].tobytes(), name
    assert (found[1]["weight"] == 1).all() and found[0]["rank"].tobytes() != found[2]["rank"].tobytes()
    np.testing.assert_allclose(found[2]["weight"], found[2]["item"] / 10, rtol=1e-6)
    with pytest.raises(ConfigError, match=f'sampling does not go with delayed="{delayed}"'):
        replace(plain, sampling=0.5)


def test_what_is_scored_needs_neither(tmp_path: Path) -> None:
    """A row to be scored has no weight, and its probability is that of the whole log."""
    part = sampled(market())
    pipeline = market_pipeline(weight=LOG.value * 0 + 1, sampling=LOG.kept)
    run, _ = learned(pipeline, part)
    rows = {name: part[name] for name in ("user", "ad", "segment")}
    p = livectr.score(pipeline, run.checkpoint, rows)
    assert p.sum() < 0.9 * part["clicked"].sum()  # of the whole log fewer are clicked than of these rows
    counts = np.where(part["clicked"] > 0, 1, 1 / part["kept"])
    assert (p * counts).sum() / part["clicked"].sum() == pytest.approx(1, abs=0.15)
    (tmp_path / "pipeline.py").write_text(
        "from tests.trainer.weighted_once import weighted_ads\n\npipeline = weighted_ads()\n"
    )
    source = write_files(tmp_path / "logs", 500)
    options = TrainOptions(
        source, until_end=True, batch_size=64, threads=1, checkpoint=str(tmp_path / "c"), max_steps=10
    )
    train(weighted_ads(), options)
    path = score_log(
        Scoring(str(tmp_path / "pipeline.py"), tmp_path / "c", source, tmp_path / "scored", from_start=True)
    )
    assert path is not None
    scored = read_predictions(path)
    assert len(scored) == 500
    want = scored["item"] / 10 / np.where((scored["item"] % 2 == 0) & (scored["label"] == 0), 0.5, 1)
    np.testing.assert_allclose(scored["weight"], want, rtol=1e-6)
    found = importance(
        Asked(str(tmp_path / "pipeline.py"), tmp_path / "c", source, from_start=True, most=500)
    )
    assert found.logloss == pytest.approx(quality_of(scored, "rank").logloss, rel=1e-4)
    assert found.auc == pytest.approx(quality_of(scored, "rank").auc, rel=1e-4)


@pytest.mark.parametrize("delayed", ["fnw", "vanilla"])
def test_an_impression_that_leaves_again_has_one_dead_letter(tmp_path: Path, delayed: Delayed) -> None:
    source = write_files(tmp_path / "logs", 300)
    plain = replace(ad_pipeline(delayed=delayed), prerank=None)
    wrong = replace(plain, weight=where(plain.log.ad_id < 10, -1, 1))
    root = tmp_path / "c"
    report = train(
        wrong, TrainOptions(source, until_end=True, threads=1, checkpoint=str(root), at_end="learn")
    )
    (reason, count), *_ = report.dead_letter_reasons.items()
    assert reason == "bad_weight" and count == 300 - report.examples_trained > 0
    found = read_predictions(root / "predictions")
    assert report.stream["clicked"] == found["label"].sum()


def test_the_label_is_a_weights_column_or_an_error() -> None:
    """It is no attribute of the log, which would be None in a label join, and then no weight at all."""
    columns = dict(user="int64", id="int64", ts="int64")
    shown, clicks = (Stream(name, key="user", time="ts", columns=columns) for name in ("shown", "clicks"))
    with pytest.raises(ConfigError, match="shown has no column 'label'"):
        label_join(shown, clicks, on="id", window="1m").label  # noqa: B018
    graded = Stream("shown", key="user", time="ts", columns={**columns, "label": "float32"})
    log = label_join(graded, clicks, on="id", window="1m")
    pipeline = Pipeline(log, sparse={"user": log.user}, rank=LR(), weight=log.label)
    assert str(pipeline.weight) == "shown.label"


def test_a_run_takes_up_weights_and_leaves_them(tmp_path: Path) -> None:
    """Impressions that wait have the columns that features read before; others are null in them."""
    source = write_files(tmp_path / "logs", 600)
    plain, weighted = weighted_ads(weight=None, sampling=None), weighted_ads()
    unknown = weighted_ads(weight=weighted.log.request_id * 0 + 2)

    def run(pipeline: Pipeline, name: str, before: str | None = None, **options: Any) -> Report:
        if before is not None:
            options |= dict(warm_start=str(tmp_path / before), warm_parts="run")
        fixed: dict[str, Any] = dict(until_end=True, batch_size=64, batch_ramp=0, threads=1, at_end="learn")
        return train(pipeline, TrainOptions(source, checkpoint=str(tmp_path / name), **{**fixed, **options}))

    run(plain, "plain", max_steps=4)
    with pytest.raises(MismatchError, match="weights"):
        run(weighted, "plain")
    run(weighted, "weighted", "plain", max_steps=7)
    log = read_predictions(tmp_path / "weighted" / "predictions")
    assert len(log) == 3 * 64
    np.testing.assert_allclose(
        log["weight"][log["label"] == 1], log["item"][log["label"] == 1] / 10, rtol=1e-6
    )
    assert run(plain, "left", "weighted").examples_trained == 600
    assert weights_of(read_predictions(tmp_path / "left" / "predictions")) is None
    assert run(unknown, "unknown", "plain").dead_letter_reasons == {"bad_weight": 600 - 4 * 64}


@pytest.mark.parametrize("value", [1e300, float("1e39")])
def test_numbers_that_do_not_fit_are_told(value: float) -> None:
    log = market(500)
    log["value"][7] = value
    run, _ = learned(market_pipeline(dense={"value": LOG.value}), log)
    (hint,) = run.report.hints
    assert hint.startswith(
        "1 numbers of dense features were infinite, none, or beyond float32, and learned as 0"
    )
