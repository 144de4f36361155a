"""The rows of bench.delayed, from made-up measures."""

from dataclasses import replace

import pytest

from bench.delayed import rows
from livectr.trainer.quality.metrics import Quality

NONE = Quality(9, 0.0, 0.0, 0, 0.0, 0.0, 0, 0.0, 0.0, 0)


def measured(auc: float, logloss: float, calibration: float) -> Quality:
    return replace(NONE, auc=auc, logloss=logloss, calibration=calibration)


def test_relative_measures_are_shares_of_the_oracles_gain() -> None:
    seed = {
        "vanilla": measured(0.70, 0.40, 0.8),
        "fnw": measured(0.71, 0.37, 1.02),
        "oracle": measured(0.74, 0.36, 1.0),
    }
    other = {way: replace(of, auc=of.auc + 0.02) for way, of in seed.items()}
    found = {str(line["figure"]): line for line in rows([seed, other], 900)}
    assert found["AUC, fnw"]["ours"] == pytest.approx(0.72) and found["AUC, fnw"]["peer"] == pytest.approx(
        0.71
    )
    assert found["R-AUC, fnw"]["ours"] == pytest.approx(0.25) and found["R-AUC, fnw"]["met"] is False
    assert found["R-NLL, fnw"]["ours"] == pytest.approx(0.75) and found["R-NLL, fnw"]["met"] is True
    assert found["log loss, fnw"]["ratio"] == pytest.approx(0.40 / 0.37)
    assert [found[f"calibration, {way}"]["ours"] for way in seed] == pytest.approx([0.8, 1.02, 1.0])
