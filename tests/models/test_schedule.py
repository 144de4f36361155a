"""Learning rates over time, and the optimisers that a pipeline file may name."""

from dataclasses import fields

import pytest

from livectr.kernels.table.rows import OPTIMISERS as KINDS
from livectr.kernels.table.rows import optimiser
from livectr.models import LR, DeepFM, Schedule, TwoTower, adagrad, adam, decay, ftrl, rowwise_adagrad, sgd
from livectr.models.learning import OPTIMISERS
from livectr.models.roles import row_segments


def test_dicm_schedule() -> None:
    schedule = decay(factor=0.9, every=24_000)
    assert [schedule.factor(step) for step in (0, 23_999, 24_000, 47_999, 48_000)] == [1, 1, 0.9, 0.9, 0.9**2]
    assert schedule.factor(10**9) == 1e-6
    assert (decay().decay, decay().every) == (0.9, 24_000)
    assert Schedule().factor(10**9) == 1.0
    assert str(schedule) == "times 0.9 every 24,000 batches" and str(Schedule()) == "constant"


def test_every_model_has_a_schedule() -> None:
    assert DeepFM(8).schedule == Schedule()
    assert DeepFM(8, schedule=decay(0.5, 10)).schedule.factor(25) == 0.25
    assert TwoTower(user=("u",), item=("i",), schedule=decay(every=5)).schedule.every == 5


def test_a_wrong_schedule_says_what_it_must_be() -> None:
    for wrong in (0.0, 1.5, float("nan"), True):
        with pytest.raises(ValueError, match="above 0 and at most 1"):
            decay(wrong)
    with pytest.raises(ValueError, match="at least one batch"):
        decay(every=0)
    with pytest.raises(ValueError, match="whole number of batches"):
        decay(every=-3)
    with pytest.raises(ValueError, match=r"DeepFM: schedule is 0\.9, but must be a Schedule, as by decay"):
        DeepFM(schedule=0.9)  # type: ignore[arg-type]


@pytest.mark.parametrize("spec", [sgd(), adagrad(), rowwise_adagrad(), adam(), ftrl()])
def test_named_optimisers_are_the_kernels(spec: object) -> None:
    name = spec.name  # type: ignore[attr-defined]
    assert set(OPTIMISERS) == set(KINDS)
    assert type(optimiser(spec)).__name__ == name  # type: ignore[arg-type]
    regularised = set() if name == "FTRL" else {"adaptive_l2"}  # of any optimiser that is not FTRL
    assert set(OPTIMISERS[name]) == {field.name for field in fields(KINDS[name])} | regularised


def test_an_alpha_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="alpha is 0"):
        ftrl(alpha=0.0)


def test_a_default_rate_follows_the_number_of_features() -> None:
    """New rows of an example move the same way: its logit moves by F rates."""
    assert ftrl(l1=1.0).for_features(25) == ftrl(alpha=3.2 / 25, l1=1.0)
    assert adagrad().for_features(25) == adagrad(lr=0.5 / 25)
    assert (
        rowwise_adagrad().for_features(3) == rowwise_adagrad().for_features(0) == rowwise_adagrad(lr=0.5 / 3)
    )
    assert adagrad(lr=0.5).for_features(25) == adagrad(lr=0.5)
    assert [spec.for_features(25) for spec in (sgd(), adam())] == [sgd(), adam()]
    roles = {"rank": LR(), "other": LR(ftrl(alpha=0.3))}
    assert [dict(s.optimiser.params) for s in row_segments(roles, 25)] == [
        {"alpha": 3.2 / 25},
        {"alpha": 0.3},
    ]
