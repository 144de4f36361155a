"""Hedge: it follows the better head, whatever the batches, and a run with it is resumed to the last bit."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from livectr.ingest.language.calibration import Calibration
from livectr.models import DIN, FM, LR, DeepFM, Hedge
from livectr.models.configs import model_configs
from livectr.store.hedge import mixed
from livectr.system.errors import ConfigError
from livectr.trainer.checkpoint.manifest import newest_manifest
from livectr.trainer.checkpoint.restored import Restored
from livectr.trainer.part import Scored
from livectr.trainer.quality.calibrator import Calibrator
from livectr.trainer.quality.hedger import Hedger
from livectr.trainer.quality.metrics import logloss
from livectr.trainer.quality.predictions import Records, read_predictions, records
from livectr.trainer.run import TrainOptions, train
from tests.trainer.ad_logs import without_users, write_files
from tests.trainer.planted_log import contest_pipeline, write_log

ROLES = "rank.LR", "rank.FM"
HEDGE = Hedge((LR(), FM(dim=4)), window=2_000)


def scored(logits: dict[str, np.ndarray], label: np.ndarray) -> Records:
    none = np.zeros(len(label), np.int64)
    return records(
        instance=none,
        user=none,
        item=none,
        time_ms=none,
        seen=none.astype(np.uint32),
        logits=logits,
        label=label,
    )


def learn(hedger: Hedger, log: Records, batch: int) -> np.ndarray:
    """Logits of the mixture, each batch scored before it is counted."""
    found = []
    for start in range(0, len(log), batch):
        part = log[start : start + batch]
        logits = {role: part[role] for role in hedger.roles}
        found.append(hedger.mixed(logits))
        hedger.measure(Scored(part, logits, 1, "rank"))
    return np.concatenate(found)


def changing(examples: int = 8_000) -> Records:
    """Two heads, of which one is right in the first half and the other in the last."""
    rng = np.random.default_rng(0)
    right, wrong = rng.normal(-1, 1.5, (2, examples)).astype(np.float32)
    label = (rng.random(examples) < 1 / (1 + np.exp(-right))).astype(np.float32)
    first = np.arange(examples) < examples // 2
    return scored({ROLES[0]: np.where(first, right, wrong), ROLES[1]: np.where(first, wrong, right)}, label)


def test_the_mixture_is_of_probabilities() -> None:
    logits = np.array([[-3.0, 0.0, 40.0, -90.0], [1.0, 2.0, -40.0, -95.0]], np.float32)
    p = 0.25 / (1 + np.exp(-logits[0].astype(np.float64))) + 0.75 / (
        1 + np.exp(-logits[1].astype(np.float64))
    )
    mixture = mixed(logits, np.array([0.25, 0.75])).astype(np.float64)
    np.testing.assert_allclose(1 / (1 + np.exp(-mixture)), p, rtol=1e-5)
    assert (mixed(logits, np.array([1.0, 0.0])) == logits[0]).all()


def test_it_is_at_most_a_constant_behind_the_best_head() -> None:
    """Without forgetting: ln 2 nats over all examples, and half a nat as weights wait for the end of a pane.

    With it the better head of each half wins.
    """
    log = changing()
    label = log["label"].astype(np.float32)
    first = log[: len(log) // 2]
    steady = learn(Hedger(ROLES, 10**12), first, 1)
    best = min(logloss(first[role], label[: len(first)]) for role in ROLES)
    assert (logloss(steady, label[: len(first)]) - best) * len(first) < np.log(2) + 0.5
    follows = Hedger(ROLES, 500)
    halves = learn(follows, log, 16)
    assert logloss(halves, label) < min(logloss(log[role], label) for role in ROLES) - 0.1
    assert follows.weights[1] > 0.99


def test_weights_do_not_depend_on_batches_and_restarts() -> None:
    log, once, often = changing(), Hedger(ROLES, 500), Hedger(ROLES, 500)
    learn(once, log, len(log))
    for part in np.split(log, [77, 3_000]):
        learn(often, part, 13)
        state, often = often.state(), Hedger(ROLES, 500)
        often.load(state)
    assert once.state()["losses"].tobytes() == often.state()["losses"].tobytes()


def test_a_run_mixes_what_its_heads_predict(tmp_path: Path) -> None:
    """In two parts, the run has the bits of an unbroken one."""
    source = write_log(tmp_path / "logs", 2_000)
    pipeline = contest_pipeline(rank=HEDGE, challengers={"deep": DeepFM(dim=2, hidden=(4,))})
    options: dict[str, Any] = dict(batch_size=64, batch_ramp=0, threads=1, until_end=True)
    report = train(pipeline, TrainOptions(source, checkpoint=str(tmp_path / "a"), **options))
    train(pipeline, TrainOptions(source, checkpoint=str(tmp_path / "b"), max_steps=9, **options))
    train(pipeline, TrainOptions(source, checkpoint=str(tmp_path / "b"), **options))
    runs = []
    for root in (tmp_path / "a", tmp_path / "b"):
        manifest = newest_manifest(root)
        assert manifest is not None
        log = read_predictions(root / "predictions")
        runs.append((log.tobytes(), Restored(root, manifest).state(Hedger.kind)["losses"].tobytes()))
    assert runs[0] == runs[1]
    hedger = Hedger(ROLES, HEDGE.window)
    for part in np.split(log, range(64, len(log), 64)):
        logits = {role: part[role] for role in ROLES}
        assert (hedger.mixed(logits) == part["rank"]).all()
        hedger.measure(Scored(part, logits, 1, "rank"))
    assert report.hedge == pytest.approx(dict(zip(ROLES, hedger.weights.tolist(), strict=True)), abs=1e-6)
    best = min(measures["logloss"] for measures in report.heads.values())
    assert report.logloss is not None and report.logloss < best + 0.001
    assert report.contest["champion"] in ("rank", "deep") and report.heads.keys() == {*ROLES}


def test_small_batches_of_blocks_are_mixed_and_calibrated_one_by_one(tmp_path: Path) -> None:
    """Blocks end by what is there: a run that stops inside of them has the same bits."""
    hedge = Hedge((LR(), DeepFM(dim=4, hidden=(8,))))
    pipeline = replace(without_users(), rank=hedge, calibration=Calibration("category", 100))
    source, options = write_files(tmp_path / "logs", 600), dict[str, Any](until_end=True, threads=1)
    runs = []
    for name, stops in (("unbroken", (None,)), ("stopped", (7, 33, None))):
        root = tmp_path / name
        for steps in stops:
            train(pipeline, TrainOptions(source, checkpoint=str(root), max_steps=steps, **options))
        manifest = newest_manifest(root)
        assert manifest is not None
        states = [Restored(root, manifest).state(kind) for kind in (Hedger.kind, Calibrator.kind)]
        runs.append((read_predictions(root / "predictions").tobytes(), *map(_bytes, states)))
    assert runs[0] == runs[1]


def _bytes(state: dict[str, np.ndarray]) -> dict[str, bytes]:
    return {name: values.tobytes() for name, values in state.items()}


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        ((LR(),), "must be two models or more"),
        ([LR(), FM()], "must be two models or more"),
        ((LR(), "FM"), "must be two models or more"),
    ],
)
def test_wrong_heads_are_refused(heads: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Hedge(heads)


def test_heads_that_a_pipeline_cannot_have_are_refused() -> None:
    attention = Hedge((LR(), DIN(target=("C1",), behaviors=("C2",))))
    with pytest.raises(ConfigError, match="DIN looks at the vectors of single keys, which no head may do"):
        contest_pipeline(rank=attention)
    pipeline = contest_pipeline(challengers={"mixed": HEDGE})
    with pytest.raises(
        ConfigError, match=re.escape("mixed= must be a model such as livectr.models.DeepFM()")
    ):
        model_configs(pipeline)


def test_equal_heads_have_names_of_their_own() -> None:
    assert Hedge((LR(), FM(dim=4), FM(dim=8), FM(dim=16))).names == ("LR", "FM", "FM2", "FM3")
