"""Promotion rule of a rollout: what it says of differences with their intervals, and how it is written."""

from __future__ import annotations

import math

import pytest

from livectr.analysis.paired_auc import Difference
from livectr.rollout.defaults import DEFAULT
from livectr.rollout.in_run import with_value
from livectr.rollout.measures import Measures
from livectr.rollout.rule import Outcome, Rule
from livectr.system.errors import ConfigError
from livectr.up.folder import Kind, Part


def seen(
    examples: int = 20_000,
    auc: tuple[float, float] = (0.0, 0.0002),
    logloss: tuple[float, float] = (0.0, 0.0),
    calibration: tuple[float, float] = (1.0, 1.0),
    hours: float = 1.0,
) -> Measures:
    """Measures of runs whose differences are (difference, standard error)."""
    found = {"auc": auc, "gauc": auc, "logloss": logloss}
    differences = {name: Difference(0.5, 0.5 + d, error) for name, (d, error) in found.items()}
    return Measures(examples, hours, differences, calibration)


@pytest.mark.parametrize(
    ("measures", "outcome", "says"),
    [
        (
            seen(),
            Outcome.PROMOTE,
            "after 20,000 examples, in the newer half of them AUC is -0.0004 to +0.0004 off",
        ),
        (seen(examples=19_999), Outcome.WAIT, "19,999 examples are in both"),
        (seen(auc=(0.0, 0.001)), Outcome.WAIT, "and -0.001 lies within"),
        (
            seen(auc=(-0.01, 0.001)),
            Outcome.REFUSE,
            "AUC is -0.0120 to -0.0080 off the old one's, which is not",
        ),
        (seen(auc=(math.nan, math.nan)), Outcome.WAIT, "AUC has no interval yet"),
        (seen(calibration=(1.0, 1.2)), Outcome.WAIT, "calibration is 1.200 (old: 1.000), not in 0.9..1.1"),
        (seen(calibration=(0.7, 1.3)), Outcome.PROMOTE, "AUC"),
        (seen(examples=200_000, auc=(0.0, 0.001)), Outcome.REFUSE, "lies within"),
    ],
)
def test_the_default_rule(measures: Measures, outcome: Outcome, says: str) -> None:
    verdict = Rule.parse(DEFAULT).judge(measures, measures.examples)
    assert (verdict.outcome, says in verdict.reason) == (outcome, True), verdict


def test_conditions_of_a_rule() -> None:
    rule = Rule.parse(
        "examples >= 5_000 and hours >= 2 and gauc > .01 and logloss < -1e-3".replace("-1e-3", "-0.001")
    )
    assert (rule.examples, rule.last, rule.hours) == (5_000, 50_000, 2.0)
    good = seen(5_000, auc=(0.02, 0.001), logloss=(-0.002, 0.0001), hours=3)
    assert rule.judge(good, 5_000).outcome is Outcome.PROMOTE
    short = rule.judge(seen(5_000, auc=(0.02, 0.001), logloss=(-0.002, 0.0001), hours=1), 5_000)
    assert short.outcome is Outcome.WAIT and "1.00 h of 2 h" in short.reason
    assert (
        rule.judge(seen(5_000, auc=(0.02, 0.001), logloss=(0.0, 0.0001), hours=3), 5_000).outcome
        is Outcome.REFUSE
    )
    assert rule.judge(seen(5_000, auc=(0.02, 0.02), hours=3), 5_000, end=True).outcome is Outcome.REFUSE
    assert [rule.asked_at(n) for n in (4_999, 5_000, 12_345, 999_999)] == [0, 5_000, 10_000, 50_000]
    assert Rule.parse("auc > 0", most=70_000).last == 60_000
    assert Rule.parse("calibration in .5..2 and examples>=9").calibration == (0.5, 2.0)


@pytest.mark.parametrize(
    "text", ["", "auc >= 0", "auc > 0 or gauc > 0", "calibration in 1", "examples >= 0", "rows >= 3"]
)
def test_mistakes_in_a_rule_are_sentences(text: str) -> None:
    with pytest.raises(ConfigError, match=r"is no condition; a rule is|must be at least 1"):
        Rule.parse(text)


def test_settings_of_a_part_are_read_and_changed() -> None:
    words = (
        "serve",
        "rank",
        "--pipeline",
        "old.py",
        "--reflection",
        "--set",
        "share_port=true",
        "canary=ns=b,share=0",
    )
    part = Part("rank", Kind.SERVER, words, environment={"LIVECTR_REDIS": "redis://r"})
    assert [part.setting(name) for name in ("pipeline", "canary", "redis", "namespace")] == [
        "old.py",
        "ns=b,share=0",
        "redis://r",
        None,
    ]
    assert with_value(words, "canary", None) == words[:-1]
    assert with_value(words, "pipeline", "new.py")[2:6] == ("--reflection", "--pipeline", "new.py", "--set")
    assert with_value(words, "namespace", "b")[5:7] == ("--namespace", "b")
    assert with_value(("train", "--no-until-end"), "until_end", "true") == ("train", "--until-end")
    assert with_value(("train", "--set", "seed=1"), "seed", None) == ("train",)
    assert with_value(("train", "--namespace=a"), "seed", "2") == (
        "train",
        "--namespace=a",
        "--set",
        "seed=2",
    )
