"""Calibration maps: a planted miscalibration is mended by segment, whatever the batches; the order stays."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from livectr.ingest.language.calibration import Calibration
from livectr.ingest.plan.segments import NO_SEGMENT
from livectr.system.errors import ConfigError
from livectr.trainer.part import Scored
from livectr.trainer.quality import calibrator as module
from livectr.trainer.quality.calibrator import Calibrator, saved_maps
from livectr.trainer.quality.metrics import auc, calibration
from livectr.trainer.quality.predictions import CALIBRATED, Records, records
from tests.trainer.planted_log import contest_pipeline

F64 = npt.NDArray[np.float64]

SEGMENTS = np.array([31, 0, 1 << 40, -5])
BIAS = np.array([np.log(4), 0.0, -0.5, 0.3])
"""Shift of each segment's logits; that of segment 31 is of negatives of which a fourth is kept."""


def constant(example: F64) -> F64:
    return np.zeros(len(example))


def rising(example: F64) -> F64:
    """Drift of all logits."""
    return example / 300_000


def plant(examples: int, drift: Callable[[F64], F64] = constant, seed: int = 0) -> Records:
    """Examples whose logits are biased by segment, too steep by 1.3, and drift."""
    rng = np.random.default_rng(seed)
    place = rng.choice(len(SEGMENTS), examples, p=[0.1, 0.2, 0.3, 0.4])
    truth = rng.normal(-3.2, 1, examples)
    label = rng.random(examples) < 1 / (1 + np.exp(-truth))
    logit = (1.3 * (truth + BIAS[place] + drift(np.arange(examples, dtype=np.float64)))).astype(np.float32)
    none = np.zeros(examples, np.int64)
    return records(
        instance=none,
        user=none,
        item=none,
        time_ms=none,
        seen=none.astype(np.uint32),
        logits={"rank": logit, CALIBRATED: logit},
        label=label.astype(np.float32),
        segment=SEGMENTS[place],
    )


def learn(calibrator: Calibrator, log: Records, batch: int) -> None:
    """Score and then count the log by batches; CALIBRATED gets the prequential logits."""
    for start in range(0, len(log), batch):
        part = log[start : start + batch]
        part[CALIBRATED] = calibrator.calibrated(part["rank"], part["segment"], "rank")
        logits = {role: part[role] for role in ("rank", CALIBRATED)}
        calibrator.measure(Scored(part, logits, 1, "rank"))


def made(by: str | None = "placement", window: int = 2_000) -> Calibrator:
    return Calibrator(Calibration(by, window), ["rank"])


@pytest.mark.parametrize("drift", [constant, rising])
def test_a_planted_miscalibration_is_mended(drift: Callable[[F64], F64]) -> None:
    """Calibration of every segment over the last two thirds is 1 within two standard errors of its clicks."""
    calibrator, log = made(), plant(150_000, drift)
    learn(calibrator, log, 500)
    late = log[50_000:]
    for segment, bias in zip(SEGMENTS, BIAS, strict=True):
        of = late[late["segment"] == segment]
        clicks = of["label"].sum(dtype=np.int64)
        raw, mapped = (calibration(of[role], of["label"].astype(np.float32)) for role in ("rank", CALIBRATED))
        allowed = 2 / np.sqrt(clicks) + (0.02 if drift is rising else 0)
        assert clicks > 500 and abs(mapped - 1) < allowed, (segment, mapped)
        if drift is constant and bias:
            assert abs(raw - 1) > 0.2
    report = calibrator.report()["segments"]
    assert report["segments"] == report["judged"] == 4
    (lowest, highest), raws = report["calibrated"], report["raw"]
    assert 0.92 < lowest <= highest < 1.08 and raws[1] - raws[0] > 0.5  # windows of 600 clicks and more


def test_the_order_of_a_segment_stays() -> None:
    calibrator, log = made(), plant(20_000)
    learn(calibrator, log, 500)
    maps = calibrator.maps("rank")
    assert (maps.scale > 0).all()
    for segment in SEGMENTS:
        of = log[log["segment"] == segment]
        mapped, label = maps(of["rank"], of["segment"]), of["label"].astype(np.float32)
        assert auc(mapped, label) == auc(of["rank"], label)
        assert len(np.unique(mapped)) == len(np.unique(of["rank"]))


def test_maps_do_not_depend_on_batches_and_restarts() -> None:
    log, calibrators = plant(6_000), (made(), made())
    once, often = (calibrator.state() for calibrator in calibrators)
    learn(calibrators[0], log.copy(), 6_000)
    resumed = calibrators[1]
    for part in np.split(log.copy(), [1_234, 1_240, 5_000]):
        learn(resumed, part, 17)
        state, resumed = resumed.state(), made()
        resumed.load(state)
    once, often = calibrators[0].state(), resumed.state()
    for name in ("segments", "bins", "pane", "lines", "numbers"):
        assert once[name].tobytes() == often[name].tobytes(), name
    maps, saved = resumed.maps("rank"), saved_maps(often, "rank")
    assert saved is not None and saved_maps({}, "rank") is None and saved_maps(often, "deep") is None
    for mine, theirs in zip(maps.arrays().values(), saved.arrays().values(), strict=True):
        assert mine.tobytes() == theirs.tobytes()


def test_few_clicks_shrink_to_the_map_of_all() -> None:
    calibrator, log = made(), plant(20_000)
    rare = log[log["segment"] == 31][:100]
    learn(calibrator, log[log["segment"] != 31], 500)
    learn(calibrator, rare, 100)
    maps, segment = calibrator.maps("rank"), np.array([31, 999, NO_SEGMENT])
    scale, shift = maps.of(segment)
    assert scale[1] == scale[2] == maps.scale[-1] and shift[1] == shift[2] == maps.shift[-1]
    at = scale * -2 + shift
    clicks = int(rare["label"].sum())
    assert clicks < 12 and -np.log(4) * 1.3 * 0.9 < at[0] - at[1] < 0


def test_without_segments_there_is_one_map() -> None:
    calibrator, log = made(None), plant(20_000)
    learn(calibrator, log, 500)
    late = log[10_000:]
    assert calibration(late["rank"], late["label"].astype(np.float32)) < 0.85
    assert calibration(late[CALIBRATED], late["label"].astype(np.float32)) == pytest.approx(1, abs=0.06)
    assert len(calibrator.maps("rank").keys) == 0 and calibrator.report()["segments"]["judged"] == 1


def test_later_segments_than_a_bound_have_the_map_of_all(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "MOST_SEGMENTS", 2)
    calibrator, log = made(), plant(2_000)
    learn(calibrator, log, 500)
    known = list(dict.fromkeys(log["segment"].tolist()))[:2]
    assert calibrator.maps("rank").keys.tolist() == sorted(known)
    assert "field placement has 2 segments" in caplog.text


def test_a_state_of_other_segments_is_left_out() -> None:
    calibrator, other = made(), made("hour")
    learn(calibrator, plant(1_000), 500)
    other.load(calibrator.state())
    assert other.seen == 0 and len(other.maps("rank").keys) == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"by": "place"}, "by names 'place', which is no sparse field; take one of C1, C2, C3, C4"),
        ({"by": 3}, "by is 3; write the name of a sparse field"),
        ({"window_clicks": 10}, "window_clicks is 10; it is a number of clicks, at least 50"),
        ({"window_clicks": 2e3}, "window_clicks is 2000.0; it is a number of clicks"),
    ],
)
def test_a_wrong_declaration_is_refused_in_a_sentence(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        contest_pipeline(calibration=Calibration(**changes))  # type: ignore[arg-type]


def test_other_things_than_a_calibration_are_refused() -> None:
    with pytest.raises(ConfigError, match=re.escape("write calibration=Calibration(by='placement')")):
        contest_pipeline(calibration="C1")


def test_segments_are_part_of_the_fingerprint_and_the_window_is_not() -> None:
    plain, by_c1 = contest_pipeline(), contest_pipeline(calibration=Calibration("C1"))
    assert plain.fingerprint != by_c1.fingerprint
    assert by_c1.fingerprint == contest_pipeline(calibration=Calibration("C1", 500)).fingerprint
    assert by_c1.fingerprint != contest_pipeline(calibration=Calibration("C2")).fingerprint
