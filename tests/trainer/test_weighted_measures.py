"""Measures of examples with weights: a weight of k is k equal examples, whatever the unit."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest
import torch

from livectr.analysis.compare import differences
from livectr.analysis.page.quality import groups_of
from livectr.ingest.extract.weights import counts_of
from livectr.ingest.language.calibration import Calibration
from livectr.models.importance import plain, weighted
from livectr.models.losses import weighted_cross_entropy
from livectr.trainer.part import Scored
from livectr.trainer.quality.calibrator import Calibrator
from livectr.trainer.quality.gate import PANES, GateRule, PublishGate
from livectr.trainer.quality.metrics import SlidingWindow, gauc_error, quality
from livectr.trainer.quality.predictions import CALIBRATED, Records, quality_of, records, weights_of_both
from livectr.trainer.quality.scales import Scales
from livectr.trainer.quality.windows import Windows

N = 600


def scored(rows: int = N, seed: int = 0) -> tuple[Records, np.ndarray]:
    """Records with whole weights from 0 to 3, and the same with each row as often as its weight says."""
    rng = np.random.default_rng(seed)
    logit = rng.normal(-1, 1, rows).round(1).astype(np.float32)
    label = (rng.random(rows) < 1 / (1 + np.exp(-logit))).astype(np.float32)
    weight = rng.integers(0, 4, rows)
    user = rng.integers(0, 25, rows)
    ids = np.arange(rows)
    other = (logit + rng.normal(0, 1, rows)).astype(np.float32)

    def packed(at: np.ndarray, w: np.ndarray | None) -> Records:
        return records(
            instance=ids[at],
            user=user[at],
            item=ids[at] % 7,
            time_ms=ids[at],
            seen=(ids[at] % 50).astype(np.uint32),
            logits={"rank": logit[at], "other": other[at]},
            label=label[at],
            weight=w,
        )

    return packed(ids, weight.astype(np.float32)), packed(np.repeat(ids, weight), None)


def test_two_runs_are_measured_by_the_weights_of_the_new_one() -> None:
    """A pipeline that gets weights is judged by them; one that loses them, by those that it had."""
    heavy, _ = scored()
    plain_run = heavy[[name for name in heavy.dtype.names or () if name != "weight"]]
    for old, new in ((plain_run, heavy), (heavy, plain_run)):
        found = weights_of_both(old, new)
        assert found is not None and np.array_equal(found, heavy["weight"])
    assert weights_of_both(plain_run, plain_run) is None


def test_weights_are_rows_that_are_there_so_often() -> None:
    heavy, often = scored()
    got, want = asdict(quality_of(heavy, "rank")), asdict(quality_of(often, "rank"))
    for name in ("auc", "gauc", "logloss", "calibration", "cold_auc", "cold_gauc"):
        assert got[name] == pytest.approx(want[name], rel=1e-6), name
    assert got["examples"] == N
    for scale in (1e-3, 1e4):
        light = heavy.copy()
        light["weight"] *= np.float32(scale)
        other = asdict(quality_of(light, "rank"))
        assert other["auc"] == pytest.approx(got["auc"]) and other["logloss"] == pytest.approx(got["logloss"])
    errors = (
        gauc_error(of["user"], of["rank"], of["label"].astype(np.float32), weight=w)
        for of, w in ((heavy, heavy["weight"]), (often, None))
    )
    assert next(errors) == pytest.approx(next(errors), rel=1e-6)


def test_equal_weights_are_none() -> None:
    heavy, _ = scored()
    label, cold = heavy["label"].astype(np.float32), heavy["seen"] < 10
    same = np.full(N, 2, np.float32)
    with_, without = (asdict(quality(heavy["user"], heavy["rank"], label, cold, w)) for w in (same, None))
    assert with_ == pytest.approx(without)
    found, want = (
        differences(heavy["user"], heavy["other"], heavy["rank"], label, cold, w) for w in (same, None)
    )
    for name, difference in want.items():
        assert found[name].difference == pytest.approx(difference.difference, rel=1e-5), name
        assert found[name].standard_error == pytest.approx(difference.standard_error, rel=0.02), name


def test_weights_of_zero_measure_nothing() -> None:
    heavy, _ = scored()
    heavy["weight"] = 0
    got = quality_of(heavy, "rank")
    assert np.isnan([got.auc, got.gauc, got.logloss, got.calibration]).all()
    (window,) = windows(heavy, N).finish()
    assert window["models"]["rank"]["logloss"] is None


def test_the_window_of_gauges_has_weights_and_keeps_them() -> None:
    heavy, often = scored()
    rings = SlidingWindow(N, ["rank"], weighted=True), SlidingWindow(N, ["rank"])
    for ring, of, w in zip(rings, (heavy, often), (heavy["weight"], None), strict=True):
        ring.add(of["time_ms"], of["user"], {"rank": of["rank"]}, of["label"], of["seen"] < 5, w)
    got, want = (ring.quality()["rank"] for ring in rings)
    assert (got.auc, got.calibration) == pytest.approx((want.auc, want.calibration))
    rates, of_often = (ring.rates() for ring in rings)
    assert rates.observed == pytest.approx(of_often.observed)
    assert rates.predicted == pytest.approx(of_often.predicted)
    again = SlidingWindow(N, ["rank"], weighted=True)
    again.load(rings[0].state(N))
    assert again.quality() == rings[0].quality()
    again.load(rings[1].state(len(often)))  # of a run in which each example counted once
    assert again.quality()["rank"].auc == pytest.approx(want.auc)


def windows(of: Records, batch: int) -> Windows:
    found = Windows(["rank", "other"], weighted="weight" in (of.dtype.names or ()))
    for start in range(0, len(of), batch):
        found.add(of[start : start + batch])
    return found


def test_windows_of_the_run_log_are_of_weights() -> None:
    heavy, often = scored(400)
    (got,), (want,) = windows(heavy, 33).finish(), windows(often[:499], 33).finish()
    assert windows(heavy, 400).finish() == [got]
    for name in ("logloss", "predicted", "calibration"):
        whole = Windows(["rank", "other"])
        whole.before = 10**6  # windows of 20,000
        whole.add(often)
        (want,) = whole.finish()
        assert got["models"]["rank"][name] == pytest.approx(want["models"]["rank"][name], rel=1e-6), name
    bins = np.array(got["models"]["rank"]["bins"])
    assert bins[:, 1].sum() == heavy["weight"].sum() and got["examples"] == 400


def calibrated(of: Records, batch: int, scale: float = 1.0) -> Calibrator:
    """Calibrator of one segment that has counted a log, with logits that promise too much."""
    found, scales = Calibrator(Calibration(window_clicks=10**6), ["rank"]), Scales()
    of = of.copy()
    if "weight" in (of.dtype.names or ()):
        of["weight"] *= np.float32(scale)
    for start in range(0, len(of), batch):
        part = of[start : start + batch]
        scaled = scales.scaled(part) if "weight" in (of.dtype.names or ()) else None
        logits = {"rank": part["rank"] + 1, CALIBRATED: part["rank"] + 1}
        with_segment = np.zeros(len(part), [*part.dtype.descr, ("segment", "<i8")])
        for name in part.dtype.names or ():
            with_segment[name] = part[name]
        found.measure(Scored(with_segment, logits, 1, "rank", scaled=scaled))
    return found


def test_maps_are_of_weights_in_any_unit() -> None:
    """A map undoes the 1 that logits promise too much, as that of the rows that are there so often."""
    heavy, often = scored(8_000)
    z = np.array([-2.0, 0.0, 1.0], np.float32)
    none = np.zeros(3, np.int64)
    want = calibrated(often, 97).calibrated(z + 1, none, "rank")
    np.testing.assert_allclose(want, z, atol=0.25)
    for scale in (1.0, 1e4):
        got = calibrated(heavy, 97, scale)
        np.testing.assert_allclose(got.calibrated(z + 1, none, "rank"), want, atol=0.15)
        assert got.state()["bins"].tobytes() == calibrated(heavy, 1_000, scale).state()["bins"].tobytes()


def test_scales_do_not_depend_on_batches_and_restarts() -> None:
    heavy, _ = scored()
    once, often, found = Scales(), Scales(), []
    whole = once.scaled(heavy)
    for part in np.split(heavy, [1, 77, 77, 400]):
        found.append(often.scaled(part))
        state, often = often.state(), Scales()
        often.load(state)
    assert np.concatenate([each.by_click for each in found]).tobytes() == whole.by_click.tobytes()
    assert np.concatenate([each.by_example for each in found]).tobytes() == whole.by_example.tobytes()
    assert whole.by_example.mean() == pytest.approx(1, abs=0.2)
    assert whole.by_click[heavy["label"] == 1].mean() == pytest.approx(1, abs=0.2)


def test_the_gate_counts_weights() -> None:
    rng = np.random.default_rng(0)
    logit = rng.normal(-2, 1, 4_000).astype(np.float32)
    label = rng.random(4_000) < 1 / (1 + np.exp(-logit))
    kept = label | (rng.random(4_000) < 0.5)
    z, y = logit[kept], label[kept].astype(np.float32)
    weight = np.where(y > 0, 1.0, 2.0)
    gates = PublishGate(GateRule(window=1_000)), PublishGate(GateRule(window=1_000))
    for gate, w in zip(gates, (weight, None), strict=True):
        gate.add(z, y, w)
    assert gates[0].measures.calibration == pytest.approx(1, abs=0.2)
    assert gates[1].measures.calibration < 0.8
    again = PublishGate(GateRule(window=1_000))
    again.load(gates[0].state())
    assert again.measures == gates[0].measures and PANES


def test_the_loss_is_of_the_log_that_is_there() -> None:
    """w CE(σ(z − log r), y), whose gradient is w (σ(z − log r) − y)."""
    rng = np.random.default_rng(0)
    z, label = rng.normal(size=8).astype(np.float32), np.array([0, 1, 2, 0, 1, 0, 0, 1], np.float32)
    weights = rng.random((8, 2)).astype(np.float32)
    logit = torch.from_numpy(z).requires_grad_()
    lesson = weighted(plain(torch.from_numpy(label)), torch.from_numpy(weights))
    weighted_cross_entropy(logit, lesson).backward()  # type: ignore[no-untyped-call]
    y = np.minimum(label, 1)
    p = 1 / (1 + np.exp(np.log(weights[:, 1]) - z))
    assert logit.grad is not None
    np.testing.assert_allclose(logit.grad.numpy(), weights[:, 0] * (p - y), rtol=1e-4)
    assert lesson.counts is not None
    np.testing.assert_allclose(lesson.counts.numpy(), counts_of(weights, y), rtol=1e-5)
    assert weighted(lesson, torch.ones(8, 2)).offset is None


def test_the_page_of_a_run_groups_weights() -> None:
    """Weights far below 1 are no counts of 0."""
    bins = np.tile([1e-3, 2e-4, 1e-4], (80, 1))
    groups = groups_of(bins)
    assert sum(group.examples for group in groups) == pytest.approx(0.08)
    assert groups[0].rate == pytest.approx(0.2) and groups[0].promised == pytest.approx(0.1)
    assert all(low <= group.rate <= high for group in groups for low, high in [group.interval])
