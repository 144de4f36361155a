"""Promotion rule of a rollout: conditions on what two runs predicted for the same examples. Pure policy.

    RULE = CONDITION [and CONDITION]…

    examples >= N          ask whenever N more examples are in both runs
    hours >= H             they span this event time
    auc > D, gauc > D      the 95 % interval of new − old lies above D
    logloss < D            the 95 % interval of new − old lies below D
    calibration in A..B    of the new run, unless the old one's is no nearer to 1

The measures are those of the newer half of the examples: weights that have just joined a model may cost it at
first (bench/carry.py), and what they cost then says nothing of what they will bring.

An interval that lies on the other side refuses the new run; one that holds D waits for more examples, and
refuses it after `most`. The rule is asked at multiples of N, so that it decides the same however often
somebody looks. Each question is one more chance to be wrong: a small N asks often.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from enum import StrEnum

from livectr.rollout.defaults import EXAMPLES
from livectr.rollout.measures import MEASURES, Measures
from livectr.system.errors import ConfigError

FORM = (
    "CONDITION [and CONDITION]…, where a condition is examples >= N, hours >= H, auc > D, gauc > D, "
    "logloss < D or calibration in A..B"
)
_NUMBER = r"-?[\d_]*\.?[\d_]+"
_CONDITION = re.compile(
    rf"(?P<least>examples|hours) *>= *(?P<of>{_NUMBER})|(?P<above>auc|gauc) *> *(?P<over>{_NUMBER})"
    rf"|logloss *< *(?P<under>{_NUMBER})|calibration +in +(?P<low>{_NUMBER}?)\.\.(?P<high>{_NUMBER})"
)
TIMES = 10
"""Questions after which a run that was never good enough is refused, by default."""


class Outcome(StrEnum):
    """Answers of a rule."""

    WAIT = "wait"
    PROMOTE = "promote"
    REFUSE = "refuse"


@dataclass(frozen=True)
class Verdict:
    """Answer of a rule, with its reason as the rest of a sentence."""

    outcome: Outcome
    reason: str


@dataclass(frozen=True)
class Rule:
    """Promotion rule.

    Args:
        examples: N.
        hours: of event time.
        bounds: measure → bound D of the difference new − old.
        calibration: A and B; None: any.
        most: examples after which the new run is refused; 0: TIMES · N.
    """

    examples: int
    hours: float = 0.0
    bounds: dict[str, float] = field(default_factory=dict)
    calibration: tuple[float, float] | None = None
    most: int = 0

    @staticmethod
    def parse(text: str, most: int = 0) -> Rule:
        """Parse a rule. Raises ConfigError with the word that is wrong."""
        least = {"examples": float(EXAMPLES), "hours": 0.0}
        bounds, calibration = dict[str, float](), None
        for part in re.split(r"\s+and\s+", text.strip()):
            found = _CONDITION.fullmatch(part.strip())
            if found is None:
                raise ConfigError(f"rule {text!r}: {part!r} is no condition; a rule is {FORM}")
            if found["least"]:
                least[found["least"]] = float(found["of"])
            elif found["above"]:
                bounds[found["above"]] = float(found["over"])
            elif found["under"]:
                bounds["logloss"] = float(found["under"])
            else:
                calibration = float(found["low"]), float(found["high"])
        examples = int(least["examples"])
        if examples < 1:
            raise ConfigError(f"rule {text!r}: examples must be at least 1")
        if most and most < examples:
            raise ConfigError(f"--most {most} is less than the {examples} examples of the rule; say more")
        return Rule(examples, least["hours"], bounds, calibration, most)

    @property
    def last(self) -> int:
        """Examples after which the rule is asked for the last time."""
        most = self.most or TIMES * self.examples
        return most - most % self.examples

    def asked_at(self, count: int) -> int:
        """Newest number of examples at which the rule is asked; 0: none yet."""
        return min(count - count % self.examples, self.last)

    def judge(self, seen: Measures, count: int, *, end: bool = False) -> Verdict:
        """Ask the rule.

        Args:
            seen: measures of the newer half of the first examples that are in both.
            count: those examples.
            end: there will be no more.
        """
        if count < self.examples:
            few = f"{count:,} examples are in both, and the rule asks at {self.examples:,}"
            return Verdict(Outcome.REFUSE if end else Outcome.WAIT, few)
        after = f"after {count:,} examples, in the newer half of them"
        refuted = [why for name, bound in self.bounds.items() if (why := _refuted(seen, name, bound))]
        if refuted:
            return Verdict(Outcome.REFUSE, f"{after} {'; '.join(refuted)}")
        open_ = [why for name, bound in self.bounds.items() if (why := _unsure(seen, name, bound))]
        if seen.hours < self.hours:
            open_.append(f"the examples span {seen.hours:.2f} h of {self.hours:g} h")
        if self.calibration is not None and (why := _uncalibrated(seen, self.calibration)):
            open_.append(why)
        said = f"{after} {'; '.join(open_)}"
        if open_:
            over = end or count >= self.last
            return Verdict(Outcome.REFUSE if over else Outcome.WAIT, said)
        held = [_interval(seen, name) for name in self.bounds] or ["all conditions hold"]
        return Verdict(Outcome.PROMOTE, f"{after} {'; '.join(held)}")


def _interval(seen: Measures, name: str) -> str:
    low, high = seen.interval(name)
    return f"{MEASURES[name]} is {low:+.4f} to {high:+.4f} off the old one's"


def _refuted(seen: Measures, name: str, bound: float) -> str:
    """Reason why a condition is wrong for sure; "": it is not."""
    low, high = seen.interval(name)
    wrong = low > bound if name == "logloss" else high < bound
    side = "below" if name == "logloss" else "above"
    return f"{_interval(seen, name)}, which is not {side} {bound:+g}" if wrong else ""


def _unsure(seen: Measures, name: str, bound: float) -> str:
    """Reason why a condition is not right for sure; "": it is."""
    low, high = seen.interval(name)
    right = high < bound if name == "logloss" else low > bound
    if right:
        return ""
    if math.isnan(low) or math.isnan(high):
        return f"{MEASURES[name]} has no interval yet"
    return f"{_interval(seen, name)}, and {bound:+g} lies within"


def _uncalibrated(seen: Measures, limits: tuple[float, float]) -> str:
    old, new = seen.calibration
    nearer = new > 0 and old > 0 and abs(math.log(new)) <= abs(math.log(old))
    if limits[0] <= new <= limits[1] or nearer:
        return ""
    return f"calibration is {new:.3f} (old: {old:.3f}), not in {limits[0]:g}..{limits[1]:g}"
