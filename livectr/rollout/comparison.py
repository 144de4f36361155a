"""Comparison of two runs that learn: both predict the same examples, and a rule judges them as they come."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from livectr.analysis.paired_runs import PairedRuns
from livectr.rollout.measures import Measures, measured
from livectr.rollout.rule import Outcome, Rule, Verdict
from livectr.rollout.screen import progress, show

MEASURE_EVERY_S = 3.0
LINE_EVERY_S = 10.0
NOT_PROMOTED = 1
"""Exit code."""


class Comparison:
    """Pairs of two runs, and the answer of a rule.

    Args:
        old: prediction log of the run that serves; it may not have begun its log yet.
        new: prediction log of the other one; likewise.
        rule: is asked at multiples of its examples.
        passed: records of each log that are not compared, from its run's beginning.

    Attributes:
        paired: the examples that both have scored.
        seen: measures that were taken last; None: nothing is in both runs yet.
        of: examples that both had scored then; `seen` is of the newer of them.
        verdict: of the rule; it stays once it is not to wait.
    """

    def __init__(
        self,
        old: Path,
        new: Path,
        rule: Rule,
        *,
        passed: tuple[int, int] = (0, 0),
    ) -> None:
        self.paired = PairedRuns(old, new, passed=passed)
        self.seen: Measures | None = None
        self.of = 0
        self.verdict = Verdict(Outcome.WAIT, "")
        self._rule = rule
        self._begun = self._asked = 0
        self._next_measure = 0.0

    def begin(self) -> None:
        """Ask the rule anew, about the examples that come."""
        self._begun, self._asked = self.paired.count, 0
        self.verdict = Verdict(Outcome.WAIT, "")

    def judge(self, *, over: bool) -> bool:
        """Ask the rule at multiples of its examples, and measure all pairs now and then.

        Args:
            over: there will be no more examples.

        Returns:
            Whether the rule was asked; `verdict` is its answer.
        """
        paired, count = self.paired, self.paired.count
        if paired.left is None or paired.right is None or not count:
            if over and self.verdict.outcome is Outcome.WAIT:
                self.verdict = Verdict(Outcome.REFUSE, "no example is in both prediction logs")
            return False
        seen = count - self._begun
        at = seen if over and seen < self._rule.last else self._rule.asked_at(seen)
        if (at > self._asked or over) and self.verdict.outcome is Outcome.WAIT:
            self._asked = at
            asked, first = at or seen, self._begun - (count - len(paired.left))
            end = max(1, first + asked)
            newer = slice(min(max(0, first + asked // 2), end - 1), end)
            self.seen, self.of = measured(paired.left[newer], paired.right[newer]), asked
            self.verdict = self._rule.judge(self.seen, asked, end=over)
            return at > 0
        if time.monotonic() >= self._next_measure and (self.seen is None or self.seen.examples < count):
            began = time.monotonic()
            self.seen, self.of = measured(paired.left, paired.right), len(paired.left)
            # Trainers want the cores, too: at most a tenth of the time is spent here.
            self._next_measure = time.monotonic() + max(MEASURE_EVERY_S, 10 * (time.monotonic() - began))
        return False

    def line(self) -> str:
        """Line on how it stands."""
        return progress(self.seen, self.paired.count, self.paired.alone)


def judge_runs(old: Path, new: Path, rule: Rule, say: Callable[[str], None], *, every_s: float | None) -> int:
    """Ask a rule about two runs, until it promotes the new one or refuses it; change nothing.

    Args:
        old: prediction log of the run that serves.
        new: prediction log of the other one.
        rule: is asked at multiples of its examples.
        say: prints a line; the last one begins with the answer.
        every_s: time between two looks, for runs that go on; None: judge what there is.

    Returns:
        Exit code: 0 promote; NOT_PROMOTED.

    Raises:
        ConfigError: a file is no prediction log.
    """
    compared = Comparison(old, new, rule)
    next_line = time.monotonic() + LINE_EVERY_S
    while True:
        compared.paired.look()
        asked = compared.judge(over=every_s is None)
        verdict = compared.verdict
        if verdict.outcome is not Outcome.WAIT:
            show(compared.seen, compared.of)
            say(f"{verdict.outcome}: {verdict.reason}")
            return 0 if verdict.outcome is Outcome.PROMOTE else NOT_PROMOTED
        if asked:
            say(f"{verdict.outcome}: {verdict.reason}")
        elif time.monotonic() >= next_line:
            next_line = time.monotonic() + LINE_EVERY_S
            say(compared.line())
        time.sleep(every_s or 0.0)
