"""Step of a single rank: order of its parts, state, bad input, and learning of planted weights."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from bench.planted import Planted, pipeline
from livectr.ingest.plan.features import Features
from livectr.kernels.table.layout import Values
from livectr.models import FM, LR, DeepFM, ModelConfig, TwoTower, decay
from livectr.models.base import prior_log_odds
from livectr.system.errors import ConfigError, MismatchError
from livectr.trainer import telemetry
from livectr.trainer.des.dense import DenseAdam
from livectr.trainer.des.item_vectors import item_vectors
from livectr.trainer.des.step import DesStep
from livectr.trainer.quality.metrics import auc, calibration, logloss
from livectr.trainer.step_settings import StepSettings
from tests.metrics_page import metric_value
from tests.tiers import few
from tests.trainer.checksums import checksum
from tests.trainer.des_worker import FIELDS, batch
from tests.trainer.single_step import BOTH, step_of


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Small batches on a busy machine: torch's threads would mostly wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def scores(des: DesStep, features: Features, role: str) -> np.ndarray:
    """Scores as serving computes them: rows without inserting, partial, finish."""
    values = torch.from_numpy(des.front.infer(features.offsets, features.keys, features.rows)[0])
    with torch.no_grad():
        logits: np.ndarray = des.models[role](
            values[..., des.spec.slices[role]], torch.from_numpy(features.dense)
        ).numpy()
    return logits


def test_a_batch_is_scored_before_it_is_learned() -> None:
    des = step_of(*BOTH)
    rng = np.random.default_rng(0)
    for step in range(3):
        features, label = batch(rng, 50)
        before = {role: scores(des, features, role) for role in des.models}
        result = des.step(features, label)
        for role, logits in before.items():
            np.testing.assert_allclose(result.logits[role], logits, rtol=1e-5, atol=1e-6)
            assert not np.allclose(scores(des, features, role), logits)
        shift = prior_log_odds(label.sum(), (1 - label).sum()) - prior_log_odds() if step == 0 else 0.0
        probability = 1 / (1 + np.exp(-np.stack(list(before.values())) - shift))
        loss = -np.log(np.where(label > 0, probability, 1 - probability)).mean(axis=1).sum()
        assert result.loss == pytest.approx(loss, rel=1e-4)


def test_equal_runs_give_equal_bits() -> None:
    def run() -> dict[str, torch.Tensor]:
        des, rng = step_of(*BOTH), np.random.default_rng(0)
        for _ in range(3):
            des.step(*batch(rng, 60))
        return des.state_dense() | {n: torch.from_numpy(t.export()[1]) for n, t in des.tables.items()}

    one, other = run(), run()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_resumed_step_equals_the_unbroken_one() -> None:
    unbroken, resumed = step_of(*BOTH), step_of(*BOTH)
    rng = np.random.default_rng(0)
    for _ in range(2):
        unbroken.step(*batch(rng, 60))
    resumed.load_dense(unbroken.state_dense())
    for name, table in unbroken.tables.items():
        resumed.tables[name].assign(*table.export())
    for _ in range(2):
        examples = batch(rng, 60)
        one, other = unbroken.step(*examples), resumed.step(*examples)
        for role, logits in one.logits.items():
            np.testing.assert_array_equal(logits, other.logits[role])
    state = resumed.state_dense()
    assert all(torch.equal(tensor, state[name]) for name, tensor in unbroken.state_dense().items())
    for name, table in unbroken.tables.items():
        np.testing.assert_array_equal(table.export()[1], resumed.tables[name].export()[1])


@pytest.mark.parametrize("clicks", [0, 1, 200])
def test_the_first_batch_sets_the_bias(clicks: int) -> None:
    """It is scored at the prior CTR; then every bias is near the batch's own, finite without any click."""
    des, rng = step_of(*BOTH), np.random.default_rng(0)
    features, label = batch(rng, 500)
    label[:] = np.arange(500) < clicks
    nothing = batch(rng, 0)
    des.step(*nothing)
    assert {model.bias.item() for model in des.models.values()} == {np.float32(prior_log_odds())}
    result = des.step(features, label)
    assert expit(float(np.median(result.logits["rank"]))) == pytest.approx(0.05, abs=0.01)
    start = expit(prior_log_odds(clicks, 500 - clicks))
    for model in des.models.values():
        assert expit(model.bias.item()) == pytest.approx(start, rel=0.35)  # and one step
    before = [model.bias.item() for model in des.models.values()]
    des.step(*batch(rng, 500))
    after = [model.bias.item() for model in des.models.values()]
    # the most that AdaGrad moves it, no second start
    np.testing.assert_allclose(after, before, atol=1.01 * DenseAdam.BIAS_RATE)


def test_rare_clicks_are_calibrated_from_the_first_examples() -> None:
    """4 clicks in 1,000, log loss near that of the constant that is right, whole run."""
    des, rng = step_of(DeepFM(dim=8, hidden=(64, 32))), np.random.default_rng(0)
    seen = []
    for _ in range(60):
        features, _ = batch(rng, 500)
        result = des.step(features, (rng.random(500) < 0.004).astype(np.float32))
        seen.append((result.logits["rank"], result.label))
    logit, label = (np.concatenate(column) for column in zip(*seen, strict=True))
    ctr = label.mean()
    entropy = -ctr * np.log(ctr) - (1 - ctr) * np.log(1 - ctr)
    assert calibration(logit, label) == pytest.approx(1.0, abs=0.5)
    assert logloss(logit, label) < 1.06 * entropy


def expit(logit: float) -> float:
    """Probability of a logit."""
    return float(1 / (1 + np.exp(-logit)))


def test_weights_are_named_by_role_and_field() -> None:
    names = step_of(*BOTH).weights().keys()
    assert {
        "rank.first.weight/C1",
        "rank.first.dense/I3",
        "rank.mlp.weights.0",
        "prerank.item.first.weight/C2",
    } <= names
    assert not any(name.startswith("adam.") for name in names)


def test_another_pipelines_state_is_refused() -> None:
    with pytest.raises(MismatchError, match="belongs to another pipeline"):
        step_of(FM()).load_dense(step_of(LR()).state_dense() | {"rank.bias": torch.zeros(2)})
    with pytest.raises(MismatchError, match=r"rank\.first"):
        step_of(DeepFM()).load_dense(step_of(LR()).state_dense())


def test_no_examples_change_nothing() -> None:
    des = step_of(*BOTH)
    before = checksum(des.dense)
    result = des.step(*batch(np.random.default_rng(0), 0))
    assert result.logits["rank"].shape == (0,)
    assert checksum(des.dense) == before
    assert item_vectors(des, batch(np.random.default_rng(0), 0)[0]).shape == (0, 6)


def test_item_vectors_are_those_of_the_logit() -> None:
    des, rng = step_of(*BOTH), np.random.default_rng(0)
    for _ in range(2):
        des.step(*batch(rng, 60))
    features, _ = batch(rng, 20)
    model = des.models["prerank"]
    values = torch.from_numpy(des.front.infer(features.offsets, features.keys, 20)[0])[
        ..., des.spec.slices["prerank"]
    ]
    with torch.no_grad():
        user = model.user_vector(model.partial(values, torch.from_numpy(features.dense))).numpy()  # type: ignore[operator]
    logits = (user * item_vectors(des, features)).sum(axis=1) + model.bias.item()
    np.testing.assert_allclose(logits, scores(des, features, "prerank"), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("rank", "prerank", "message"),
    [
        ("DeepFM", None, "livectr.models.DeepFM()"),
        (LR(), None, None),
    ],
)
def test_configurations(rank: ModelConfig, prerank: TwoTower | None, message: str | None) -> None:
    if message is None:
        with pytest.raises(ConfigError, match="item vectors need prerank="):
            item_vectors(step_of(rank, prerank), batch(np.random.default_rng(0), 1)[0])
    else:
        with pytest.raises(ConfigError, match=message.replace("(", r"\(").replace(")", r"\)")):
            step_of(rank, prerank)


LEARNERS = [
    # (model, strength of the planted parts that it can express, share of the Bayes AUC to reach)
    (LR(), (1.0, 0.0, 0.0), 0.97),
    (FM(dim=8), (0.7, 0.7, 0.0), 0.88),
    (DeepFM(dim=8, hidden=(64, 32)), (0.7, 0.7, 0.7), 0.91),
    (TwoTower(user=("C1", "C3", "C5", "I1", "I2"), item=("C2", "C4", "C6")), (0.7, 0.7, 0.7), 0.90),
]


@pytest.mark.parametrize(
    ("config", "strength", "share"), few(LEARNERS, LEARNERS[1]), ids=["LR", "FM", "DeepFM", "TwoTower"]
)
def test_one_pass_learns_what_was_planted(
    config: ModelConfig, strength: tuple[float, float, float], share: float
) -> None:
    """`share` of the true probabilities' AUC above ½, over the last fifth of 200,000 examples."""
    source = Planted([50, 80, 30, 100, 30, 60], dense=2, strength=strength, seed=3)
    des = DesStep(pipeline(config, fields=6, dense=2), seed=1)
    rng = np.random.default_rng(0)
    seen = []
    for _ in range(400):
        features, label, truth = source.batch(rng, 500)
        seen.append((des.step(features, label).logits["rank"], label, truth))
    logit, label, truth = (np.concatenate(column)[-40_000:] for column in zip(*seen, strict=True))
    assert (auc(logit, label) - 0.5) / (auc(truth, label) - 0.5) > share
    assert calibration(logit, label) == pytest.approx(1.0, abs=0.05)


def test_a_batch_whose_gradients_are_not_finite_is_scored_and_not_learned() -> None:
    des, rng = step_of(*BOTH), np.random.default_rng(0)
    skipped = metric_value(telemetry.SKIPPED_BATCHES)
    for first in (True, False):
        features, label = batch(rng, 60)
        features.dense[7, 1] = np.nan
        des.front.forward(features.offsets, features.keys, features.rows)  # so that no row is new
        before, rows = des.state_dense(), [table.export()[1] for table in des.tables.values()]
        result = des.step(features, label)
        assert np.isnan(result.logits["rank"]).any()
        after, others = des.state_dense(), [table.export()[1] for table in des.tables.values()]
        assert all(torch.equal(before[name], after[name]) for name in before)
        for one, other in zip(rows, others, strict=True):
            np.testing.assert_array_equal(one, other)
        if first:
            assert np.isfinite(des.step(*batch(rng, 60)).loss)
    assert metric_value(telemetry.SKIPPED_BATCHES) == skipped + 2


@pytest.mark.parametrize("wrong", [0.5, -1.0, 2.0, np.nan])
def test_a_label_is_0_or_1(wrong: float) -> None:
    features, label = batch(np.random.default_rng(0), 10)
    label[3] = wrong
    with pytest.raises(ValueError, match="labels must be 0 or 1"):
        step_of(LR()).step(features, label)


def test_learning_rates_follow_the_schedule() -> None:
    """A factor of a millionth after two batches: tables and network all but stand still."""
    des = step_of(DeepFM(dim=4, hidden=(8,), schedule=decay(1e-6, every=2)))
    features, label = batch(np.random.default_rng(0), 60)
    moved = []
    for _ in range(3):
        before: list[Any] = [des.state_dense()["rank.mlp.weights.0"], des.tables["C1"].export(state=False)[1]]
        des.step(features, label)
        after: list[Any] = [des.state_dense()["rank.mlp.weights.0"], des.tables["C1"].export(state=False)[1]]
        if len(before[1]) == len(after[1]):
            moved.append([float(abs(a - b).max()) for a, b in zip(after, before, strict=True)])
    assert min(moved[0]) > 1e-4
    assert max(moved[1]) < 1e-6


def test_rows_of_half_the_size_learn_as_well() -> None:
    """bfloat16 values with fp32 state: the AUC of one pass is within 0.005 of fp32's."""
    source = Planted([50, 800, 3_000, 100], dense=1, strength=(0.8, 0.6, 0.3), seed=3)
    found = {}
    values: tuple[Values, ...] = ("fp32", "bf16")
    for kept in values:
        built = replace(pipeline(DeepFM(dim=8, hidden=(32, 16)), fields=4, dense=1), row_values=kept)
        des, rng, seen = DesStep(built, seed=1), np.random.default_rng(0), []
        for _ in range(120):
            features, label, _ = source.batch(rng, 500)
            seen.append((des.step(features, label).logits["rank"], label))
        logit, label = (np.concatenate(column)[-30_000:] for column in zip(*seen, strict=True))
        found[kept] = auc(logit, label)
        exported = des.tables["C2"].export(state=False)[1]
        assert bool((exported.view(np.uint32) & 0xFFFF).any()) is (kept == "fp32")
    assert found["bf16"] == pytest.approx(found["fp32"], abs=0.005)


@pytest.mark.parametrize("settings", [StepSettings(), StepSettings(online=100)], ids=["batch", "online"])
def test_a_field_of_noise_counts_less(settings: StepSettings) -> None:
    """Clicks follow the first field; the second has as many ids, which say nothing."""
    des, rng = step_of(LR(), settings=settings), np.random.default_rng(0)
    assert torch.equal(des.models["rank"].get_parameter("wide.scale"), torch.ones(FIELDS))
    for _ in range(150):
        features, label = batch(rng, 100)
        likely = features.keys[:100] % 2 == 0
        label[:] = rng.random(100) < np.where(likely, 0.8, 0.2)
        des.step(features, label)
    signal, noise, *_ = des.models["rank"].get_parameter("wide.scale").tolist()
    assert signal > 0.8 and abs(noise) < 0.5 * signal
