"""Drift of features: PSI of known distributions, and of a log whose features move."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from livectr.ingest.drift.counts import BIN, Counts, codes_of, dense_bins
from livectr.ingest.drift.psi import MOST_BIAS, psi
from livectr.ingest.plan.features import Features
from livectr.system.errors import ConfigError
from livectr.trainer.drift import feature_drift
from livectr.trainer.run import TrainOptions, train
from tests.metrics_page import metric_value
from tests.trainer.shifting_log import pipeline, write_log


def of_numbers(numbers: np.ndarray) -> Counts:
    return Counts.of(dense_bins(numbers.astype(np.float32)))


def test_bins_rise_with_their_numbers_and_zero_is_one() -> None:
    numbers = np.array([-3e38, -2.0, -1.0, -1e-40, -0.0, 0.0, 1e-40, 0.5, 1.0, 1.05, 3e38], np.float32)
    bins = dense_bins(numbers)
    assert bins[4] == bins[5] and (np.diff(bins) >= 0).all() and bins[0] >= 0 and bins[-1] < BIN
    assert len(set(bins.tolist())) >= 8


@pytest.mark.parametrize("rows", [2_000, 20_000])
def test_psi_of_equal_distributions_is_as_small_as_samples_allow(rows: int) -> None:
    rng = np.random.default_rng(rows)
    found = [
        psi(of_numbers(rng.normal(size=rows)), of_numbers(rng.normal(size=rows)), (rows, rows), dense=True)
        for _ in range(60)
    ]
    mean = np.mean([value for value in found if value is not None])
    assert mean == pytest.approx(9 * 2 / rows, rel=0.35)  # χ² of 9: its mean of 60 is known to 6 %


def test_psi_is_that_of_known_shares() -> None:
    """Two keys, of shares .5 and .5 against .8 and .2: Σ (q − p) ln(q / p)."""
    many = 10**7
    even, odd = Counts(np.array([3, 9]), np.array([many, many])), Counts(np.array([3, 9]), np.array([8, 2]))
    odd = Counts(odd.codes, odd.counts * many)
    found = psi(even, odd, (2 * many, 10 * many), dense=False)
    assert found == pytest.approx(0.3 * np.log(1.6) - 0.3 * np.log(0.4), rel=1e-4)
    assert psi(even, even, (2 * many, 2 * many), dense=False) == 0


def test_nothing_is_said_of_few_rows() -> None:
    numbers = of_numbers(np.random.default_rng(1).normal(size=800))
    assert MOST_BIAS < 9 * 2 / 800
    assert psi(numbers, numbers, (800, 800), dense=True) is None
    assert psi(Counts.none(), numbers, (0, 800), dense=True) is None


def test_a_key_that_takes_a_share_is_seen_among_many_and_ads_that_change_are_not() -> None:
    rng = np.random.default_rng(4)
    before, after = (Counts.of(1 + rng.integers(low, low + 700, 50_000)) for low in (0, 300))
    sides = (50_000.0, 50_000.0)
    assert (psi(before, after, sides, dense=False) or 0) < 0.01
    one = Counts.total([after, Counts(np.array([1023]), np.array([30_000]))])
    assert (psi(before, one, (50_000, 80_000), dense=False) or 0) > 0.25


def test_codes_count_rows_keys_rows_without_keys_and_numbers() -> None:
    offsets = np.array([0, 1, 3, 3, 4, 4, 5], np.int32)  # two fields of three rows
    features = Features(3, offsets, np.array([5, 5, 6, 9, 9]), np.array([[0], [1], [1]], np.float32))
    counted = Counts.of(codes_of(features, np.array([0, 0, 2])))
    first, last = counted.of_period(0), counted.of_period(2)
    assert (first.rows, last.rows) == (2, 1)
    assert sorted(first.of_feature(1).counts.tolist()) == [1, 2]
    assert last.of_feature(1).codes.tolist() == [0]  # no keys
    assert first.of_feature(2).codes[0] == 0 and len(first.of_feature(2)) == 2
    assert first.of_feature(3).counts.tolist() == [1, 1] and last.of_feature(3).counts.tolist() == [1]


@pytest.mark.parametrize("moves", [True, False])
def test_a_run_tells_which_features_have_moved(
    tmp_path: Path, moves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature_drift, "EVERY", 2)
    source = write_log(tmp_path / "logs", 9_000, every_ms=10, moves=moves)
    options = TrainOptions(source, until_end=True, threads=1, batch_size=512, drift_window_s=30)
    drift = train(pipeline(), options).drift
    assert set(drift) == {"ad", "user", "device", "tags", "hour", "price", "wait"}
    moved = {name for name, value in drift.items() if value > 0.25}
    assert moved == ({"device", "tags", "price"} if moves else set()), drift
    assert all(value < 0.1 for name, value in drift.items() if name not in moved), drift
    assert metric_value("livectr_feature_drift_psi", feature="price") == pytest.approx(
        drift["price"], abs=1e-4
    )


@pytest.mark.parametrize("off", ["setting", "features"])
def test_a_run_counts_nothing_if_it_is_told_or_has_too_many_features(
    tmp_path: Path, off: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature_drift, "EVERY", 1)
    if off == "features":
        monkeypatch.setattr(feature_drift, "MOST_FEATURES", 6)
    source = write_log(tmp_path / "logs", 3_000, every_ms=10, moves=True)
    window_s = 0 if off == "setting" else 10
    options = TrainOptions(source, until_end=True, drift_window_s=window_s)
    assert train(pipeline(), options).drift == {}


def test_a_window_of_a_moment_is_refused() -> None:
    with pytest.raises(ConfigError, match="drift_window_s is 2, but must be at least 10"):
        TrainOptions("file:logs", drift_window_s=2)
