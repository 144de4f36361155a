"""Champion and challengers in real runs: the same change on any number of ranks, and after kill -9."""

from __future__ import annotations

import functools
import json
import random
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from livectr.ingest.language.promotion import Promotion
from livectr.models import DIN, FM, LR, DeepFM, TwoTower
from livectr.system.errors import ConfigError, MismatchError
from livectr.trainer.checkpoint.manifest import newest_manifest
from livectr.trainer.checkpoint.restored import Restored
from livectr.trainer.part import Scored
from livectr.trainer.quality.calibrator import Calibrator, saved_maps
from livectr.trainer.quality.champion import CONTEST, ChampionPolicy
from livectr.trainer.quality.metrics import example_losses
from livectr.trainer.quality.predictions import CALIBRATED, Records, read_predictions
from livectr.trainer.quality.telemetry import CHAMPION, CHAMPION_CHANGES, CONTEST_EXAMPLES, CONTEST_LOGLOSS
from livectr.trainer.run import TrainOptions, train
from tests.metrics_page import metric_value
from tests.ranks import Processes
from tests.trainer.ad_logs import ad_pipeline, write_files
from tests.trainer.kills import kill_group, kill_one_rank, kill_somewhere, kill_up_to
from tests.trainer.planted_log import CALIBRATION, WINDOW, contest_pipeline, write_log
from tests.trainer.processes import finish

EXAMPLES = 6_000
OPTIONS: dict[str, object] = dict(
    batch_size=64, batch_ramp=0, publish_interval_s=0.1, threads=1, until_end=True
)


def start(world: int, root: Path, source: str) -> Processes:
    """Train in a process group of its own; report and predictions are in `root`."""
    options = {**OPTIONS, "source": source, "checkpoint": str(root), "report": str(root.parent / "report")}
    return Processes(world, "tests.trainer.contest_once", [json.dumps(options)])


@dataclass(frozen=True)
class Result:
    """Contest of a finished run: its report, its state in the checkpoint, and its predictions.

    Attributes:
        calibration: state of the calibration.
    """

    report: dict[str, Any]
    state: dict[str, np.ndarray]
    calibration: dict[str, np.ndarray]
    predictions: Records

    @staticmethod
    def of(root: Path) -> Result:
        manifest = newest_manifest(root)
        assert manifest is not None
        report = json.loads((root.parent / "report").read_text())
        state, calibration = (Restored(root, manifest).state(kind) for kind in (CONTEST, Calibrator.kind))
        return Result(report["contest"], state, calibration, read_predictions(root / "predictions"))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_log(tmp_path_factory.mktemp("logs"), EXAMPLES)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory, source: str) -> Result:
    root = tmp_path_factory.mktemp("unbroken") / "checkpoint"
    text = finish(start(1, root, source))
    result = Result.of(root)
    step = result.report["since_step"]
    assert f"champion: fm takes the place of rank after step {step}: log loss 0." in text
    assert f"over the last {WINDOW:,} examples" in text and "(margin 1.00%)" in text
    return result


def replayed(predictions: Records, contenders: list[str], rule: Promotion) -> ChampionPolicy:
    """Policy over the logged scores and final labels, fed one example after the other."""
    policy = ChampionPolicy(contenders, rule)
    for record in np.split(predictions, len(predictions)):
        policy.add(np.stack([example_losses(record[role], record["label"]) for role in contenders]))
    return policy


def test_the_better_challenger_becomes_the_champion(unbroken: Result) -> None:
    assert unbroken.report["champion"] == "fm" and unbroken.report["changes"] == 1
    assert WINDOW / 64 < unbroken.report["since_step"] < EXAMPLES / 64
    pipeline = contest_pipeline()
    policy = replayed(unbroken.predictions, ["rank", "deep", "fm"], pipeline.promotion)
    assert (policy.champion, policy.changes, policy.counted) == ("fm", 1, EXAMPLES)
    assert (policy.state()["numbers"] == unbroken.state["numbers"]).all()
    np.testing.assert_allclose(policy.state()["closed"], unbroken.state["closed"], rtol=1e-12)


def test_the_champions_logits_are_calibrated(unbroken: Result) -> None:
    """Maps are of the examples before; of the new champion from its promotion on."""
    log, since = unbroken.predictions, 64 * unbroken.report["since_step"]
    assert (log[CALIBRATED][:64] == log["rank"][:64]).all(), "nothing is known yet"
    replayed = Calibrator(CALIBRATION, ["rank", "deep", "fm"])
    for start in range(0, len(log), 64):
        part, champion = log[start : start + 64], "rank" if start < since else "fm"
        mapped = replayed.calibrated(part[champion], part["segment"], champion)
        assert (mapped == part[CALIBRATED]).all(), start
        logits = {role: part[role] for role in ("rank", "deep", "fm", CALIBRATED)}
        replayed.measure(Scored(part, logits, 1, champion))
    saved, maps = saved_maps(unbroken.calibration, "fm"), replayed.maps("fm")
    assert saved is not None and (saved.scale == maps.scale).all() and (saved.shift == maps.shift).all()
    assert len(maps.keys) == 30


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.full)])
def test_any_number_of_ranks_changes_at_the_same_step(
    tmp_path: Path, source: str, unbroken: Result, world: int
) -> None:
    finish(start(world, tmp_path / "checkpoint", source))
    result = Result.of(tmp_path / "checkpoint")
    assert result.report == unbroken.report
    assert (result.state["numbers"] == unbroken.state["numbers"]).all()
    # ranks add partial results in another order: logits differ in the last bits
    np.testing.assert_allclose(result.state["closed"], unbroken.state["closed"], rtol=1e-4)
    for name in ("numbers", "segments"):
        assert np.array_equal(result.calibration[name], unbroken.calibration[name])
    np.testing.assert_allclose(result.calibration["lines"], unbroken.calibration["lines"], atol=1e-3)


def test_killed_anywhere_it_changes_at_the_same_step(tmp_path: Path, source: str, unbroken: Result) -> None:
    """Bit for bit on one rank."""
    root = tmp_path / "checkpoint"
    kill = functools.partial(kill_somewhere, root=root, rng=random.Random(), sudden=kill_group)
    kill_up_to(2, lambda: start(1, root, source), kill, lambda: shutil.rmtree(root))
    finish(start(1, root, source))
    result = Result.of(root)
    assert result.report == unbroken.report
    for mine, theirs in ((result.state, unbroken.state), (result.calibration, unbroken.calibration)):
        assert mine.keys() == theirs.keys()
        for name, values in theirs.items():
            assert mine[name].tobytes() == values.tobytes(), name
    assert result.predictions.tobytes() == unbroken.predictions.tobytes()


def test_ranks_killed_and_resumed_by_another_number_change_at_the_same_step(
    tmp_path: Path, source: str, unbroken: Result
) -> None:
    rng, root = random.Random(), tmp_path / "checkpoint"
    kill_somewhere(start(2, root, source), root, rng, kill_one_rank)
    finish(start(1, root, source))
    assert Result.of(root).report == unbroken.report


def test_late_labels_are_waited_for(tmp_path: Path) -> None:
    """The rule reads the labels that the prediction log has: final, each impression once."""
    source = write_files(tmp_path / "logs", 1_500)
    rule = Promotion(margin=0.0, window=300)
    pipeline = replace(
        ad_pipeline(delayed="fnw"), rank=LR(), challengers={"deep": DeepFM(dim=4)}, promotion=rule
    )
    fixed: dict[str, Any] = dict(until_end=True, batch_size=32, batch_ramp=0, threads=1)
    root = tmp_path / "checkpoint"
    stopped = train(pipeline, TrainOptions(source, checkpoint=str(root), max_steps=20, **fixed))
    report = train(pipeline, TrainOptions(source, checkpoint=str(root), **fixed))
    assert report.stream["late_positives"] > 0
    manifest = newest_manifest(root)
    assert manifest is not None
    policy = replayed(read_predictions(root / "predictions"), ["rank", "deep"], rule)
    state = Restored(root, manifest).state(CONTEST)
    assert policy.counted == 1_500 and policy.changes
    assert (policy.state()["numbers"] == state["numbers"]).all()
    assert report.contest["champion"] == policy.champion
    assert len(read_predictions(root / "predictions")) > 0
    assert stopped.contest["changes"] <= report.contest["changes"]


def test_metrics_and_report(tmp_path: Path, source: str) -> None:
    before = metric_value(CHAMPION_CHANGES)
    report = train(contest_pipeline(), TrainOptions(source, **OPTIONS, checkpoint=str(tmp_path)))  # type: ignore[arg-type]
    values = {role: metric_value(CHAMPION, model=role) for role in ("rank", "deep", "fm")}
    assert values == {"rank": 0, "deep": 0, "fm": 1}
    assert metric_value(CHAMPION_CHANGES) == before + 1
    assert 0 < metric_value(CONTEST_EXAMPLES) <= WINDOW
    assert metric_value(CONTEST_LOGLOSS, model="fm") < metric_value(CONTEST_LOGLOSS, model="rank")
    assert report.challengers.keys() == {"deep", "fm"} and report.shadows == {}
    assert report.challengers["fm"]["logloss"] < report.logloss


def test_another_rule_continues_and_another_challenger_does_not(tmp_path: Path, source: str) -> None:
    """The rule is no part of a checkpoint's identity; models are."""
    options: dict[str, Any] = {**OPTIONS, "source": source, "checkpoint": str(tmp_path)}
    strict, lax = Promotion(margin=0.5, window=WINDOW), Promotion(margin=0.01, window=500)
    report = train(contest_pipeline(promotion=strict), TrainOptions(**options, max_steps=40))
    assert report.contest == {"champion": "rank", "since_step": 0, "changes": 0}
    report = train(contest_pipeline(promotion=lax), TrainOptions(**options, max_steps=60))
    assert report.contest["champion"] == "fm" and report.contest["since_step"] > 40
    with pytest.raises(MismatchError, match="challenger models"):
        train(contest_pipeline(challengers={"fm": FM(dim=5)}), TrainOptions(**options))
    with pytest.raises(MismatchError, match="challenger models"):
        train(contest_pipeline(challengers={}, promotion=Promotion()), TrainOptions(**options))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (dict(challengers={"rank": FM()}), "a challenger cannot be named 'rank'"),
        (dict(challengers={"prerank": FM()}), "a challenger cannot be named 'prerank'"),
        (dict(challengers={"content": FM()}), "a challenger cannot be named 'content'"),
        (dict(challengers={"two words": FM()}), "a challenger cannot be named 'two words'"),
        (dict(challengers={"fm": FM()}, shadows={"fm": LR()}), "a shadow cannot be named 'fm'"),
        (
            dict(challengers={"towers": TwoTower(user=("C1",), item=("C2",), dim=2, hidden=(2,), out=2)}),
            "challengers: 'towers' is a TwoTower, a pre-rank model; challengers compete for rank",
        ),
        (
            dict(challengers={"din": DIN(target=("C1",), behaviors=("C9",))}),
            "din: .*C9",
        ),
        (dict(challengers={}), "there is a rule of promotion, but challengers= names no model"),
        (dict(promotion="1%"), "promotion is '1%'; write promotion=Promotion"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        contest_pipeline(**changes)


def test_what_is_no_model_is_refused(source: str) -> None:
    with pytest.raises(ConfigError, match="Pipeline: fm= must be a model such as"):
        train(contest_pipeline(challengers={"fm": "FM"}), TrainOptions(source, until_end=True))


def test_without_challengers_nothing_changes() -> None:
    """The rule of promotion is no part of the fingerprint, and without challengers nothing is."""
    plain = contest_pipeline(challengers={}, promotion=Promotion())
    assert plain.fingerprint != contest_pipeline().fingerprint
    assert contest_pipeline(promotion=Promotion(margin=0.2)).fingerprint == contest_pipeline().fingerprint
