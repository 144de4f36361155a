"""The rows of bench.delayed, from made-up measures, and its choice of models that are a window old."""

from dataclasses import replace

import numpy as np
import pytest

from bench.delayed import BATCH, STALE_S, WAYS, WINDOW_S, rows, spoilt, steps
from livectr.trainer.quality.metrics import Quality

NONE = Quality(9, 0.0, 0.0, 0, 0.0, 0.0, 0, 0.0, 0.0, 0)


def measured(auc: float, logloss: float, calibration: float) -> Quality:
    return replace(NONE, auc=auc, logloss=logloss, calibration=calibration)


def test_relative_measures_are_shares_of_the_oracles_gain() -> None:
    seed = {
        "pretrained": measured(0.69, 0.41, 0.7),
        "wait": measured(0.715, 0.38, 0.9),
        "vanilla": measured(0.70, 0.40, 0.8),
        "fnw": measured(0.71, 0.37, 1.02),
        "es_dfm": measured(0.72, 0.41, 1.01),
        "oracle": measured(0.74, 0.36, 1.0),
    }
    assert tuple(seed) == WAYS
    other = {way: replace(of, auc=of.auc + 0.02) for way, of in seed.items()}
    found = {str(line["figure"]): line for line in rows([seed, other], [0.01, 0.02], 900)}
    assert len(found) == 2 * (5 + 2) + 1 + 6
    assert found["AUC, fnw"]["ours"] == pytest.approx(0.72) and found["AUC, fnw"]["peer"] == pytest.approx(
        0.71
    )
    assert found["R-AUC, fnw"]["ours"] == pytest.approx(0.25) and found["R-AUC, fnw"]["met"] is None
    assert found["R-AUC, es_dfm"]["ours"] == pytest.approx(0.5) and found["R-AUC, es_dfm"]["met"] is True
    assert found["R-NLL, es_dfm"]["ours"] == pytest.approx(-0.25) and found["R-NLL, es_dfm"]["met"] is False
    assert found["log loss, fnw"]["ratio"] == pytest.approx(0.40 / 0.37)
    assert found["AUC that vanilla's bias costs"]["ours"] == pytest.approx(0.015)
    assert [found[f"calibration, {way}"]["ours"] for way in seed] == pytest.approx(
        [0.7, 0.9, 0.8, 1.02, 1.01, 1.0]
    )


def test_a_model_of_wait_has_learned_up_to_a_window_before_the_middle_of_what_it_scores() -> None:
    time_ms = np.arange(0, 3_600_000, 10)  # an impression each 10 ms
    chosen = list(steps(time_ms, 1_800_000))
    assert [start for _, start, _ in chosen] == list(range(1_800_000, 3_600_000, 1000 * STALE_S))
    for step, start, end in chosen:
        learned_to = time_ms[step * BATCH - 1]
        assert (start + end) / 2 - learned_to == pytest.approx(1000 * WINDOW_S, abs=10 * BATCH)


def test_the_log_gives_something_to_win() -> None:
    """A model that knows every rate and every delay loses AUC by the bias of vanilla alone."""
    assert spoilt(1, 600) > 0.005
