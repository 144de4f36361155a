"""Publish gate: versions are held while the test-then-train quality of the newest examples is bad.

    window   the last W examples with final labels, in PANES panes of W / PANES
    asked    at the end of a pane, once the window is full
    usual    running means of the windows' AUC and click rate while nothing is held: u += (AUC - u) / MEMORY
    held     auc: AUC < u - bound
             calibration: predicted and observed clicks differ by more than the bound
             clicks: observed clicks differ from those of the usual rate by more than the bound

A model that learns online soon predicts what comes: when a click topic fails, its calibration is bad for a
moment only, and `clicks` is what lasts.

The newest window is compared with what is usual and not with the window of the version before: versions are
seconds apart, and a fall that is slow by their measure would never be seen. While versions are held, `usual`
stays, so that a bad time does not become the measure. A difference of less than SIGMAS standard errors begins
no hold (of AUC: Hanley & McNeil 1982). A hold ends when the window is seen to be within its bound: few
clicks, or a window of one class, show nothing.

The gate reads scores and labels in the order of the examples, and is asked at numbers of examples. So it
decides the same for any batches, number of ranks and restart, up to the rounding of the logits.

AUC is counted in BINS bins of the logit; two examples of a bin are a tie. The ends hold all logits beyond.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from livectr.trainer.part import F32, Arrays, Part, Scored
from livectr.trainer.publish.telemetry import PUBLISH_HELD
from livectr.trainer.quality import telemetry
from livectr.trainer.quality.metrics import Labels
from livectr.trainer.setup import Setup

LOG = logging.getLogger(__name__)
PANES = 10
MEMORY = 100
"""Panes over which `usual` is a mean: ten windows."""
SIGMAS = 4.0
"""Chance reaches it once in 30,000 windows, and a window ends every few seconds."""
BINS, LIMIT = 2048, 12.0
REASONS = ("auc", "calibration", "clicks")
"""Bounds of a rule, and reasons for which versions are held."""
I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class GateRule:
    """Bounds of the gate.

    Attributes:
        auc: largest fall of AUC below what is usual; 0: none is too large.
        calibration: largest share by which predicted clicks exceed observed, or observed predicted; 0: none.
        clicks: largest share by which observed clicks exceed the usual, or the usual observed; 0: none.
        window: examples of the newest window.
    """

    auc: float = 0.0
    calibration: float = 0.0
    clicks: float = 0.0
    window: int = 20_000


@dataclass(frozen=True)
class Measures:
    """Measures of a window; NaN: not measured.

    Attributes:
        auc_error: standard error of `auc`.
        predicted, clicks, examples: predicted and observed clicks, and examples; with weights their sums.
    """

    auc: float = np.nan
    auc_error: float = np.nan
    predicted: float = 0.0
    clicks: float = 0
    examples: float = 0

    @property
    def calibration(self) -> float:
        """Predicted over observed clicks."""
        return self.predicted / self.clicks if self.clicks else np.nan

    @property
    def rate(self) -> float:
        """Clicked share."""
        return self.clicks / self.examples if self.examples else np.nan


class PublishGate(Part):
    """Gate of a run, on rank 0.

    Attributes:
        held: reasons for which versions are held, of REASONS.
        usual, usual_rate: usual AUC and click rate; NaN before the first full window.
        measures: of the newest window, once it was full.
    """

    kind = "gate"

    def __init__(self, rule: GateRule) -> None:
        self.rule = rule
        self.held: tuple[str, ...] = ()
        self.usual = self.usual_rate = np.nan
        self.measures = Measures()
        self._excused = False  # an operator has accepted a calibration beyond the bound
        self._filled = 0  # examples of the open pane
        self._counts: I64 | F64 = np.zeros((PANES, 2, BINS), np.int64)  # the last is the open pane
        self._predicted = np.zeros(PANES)
        self._closed = 0  # panes that were closed, at most PANES
        self._show(self.measures)  # unknown figures are there from the start, as NaN

    @staticmethod
    def of(setup: Setup) -> PublishGate | None:
        """Gate of a run on rank 0; None where nothing is published, and on other ranks."""
        options = setup.options
        if setup.rank != 0 or options.publish is None:
            return None
        bounds = options.publish_gate_auc, options.publish_gate_calibration, options.publish_gate_clicks
        return PublishGate(GateRule(*bounds, options.publish_gate_window))

    def measure(self, scored: Scored) -> None:
        """Add the served scores; a pane that ends may hold versions or release them."""
        weight = None if scored.scaled is None else scored.scaled.by_click
        self.add(scored.served, scored.records["label"], weight)

    def add(self, logit: F32, label: Labels, weight: F64 | None = None) -> None:
        """Add examples in order.

        Args:
            logit: f32[n], scores of the model that is published.
            label: [n] in {0, 1}.
            weight: f64[n], 1 in the mean over clicks; None: 1.
        """
        logit = np.nan_to_num(logit, nan=0.0, posinf=LIMIT, neginf=-LIMIT)
        start = 0
        while start < len(logit):
            part = slice(start, start + self._pane - self._filled)
            self._count(logit[part], label[part], None if weight is None else weight[part])
            start = part.stop
            if self._filled == self._pane:
                self._close()

    def accept(self) -> None:
        """Take the newest window as usual, whatever it is: an operator's word."""
        if self.held:
            LOG.warning("publish gate: an operator accepts the newest window (%s)", self._figures())
        self._excused = "calibration" in self.held
        self.usual = self.usual if np.isnan(self.measures.auc) else self.measures.auc
        self.usual_rate = self.measures.rate
        self._hold(())

    def state(self) -> Arrays:
        """Quality so far: figures f64, numbers i64[4], and of each pane counts i64[PANES, 2, BINS]."""
        now = self.measures
        held = [reason in self.held for reason in REASONS]
        measures = [now.auc, now.auc_error, now.predicted, now.clicks, now.examples]
        figures = [*held, self.usual, self.usual_rate, *measures]
        return {
            "figures": np.array([float(value) for value in figures]),
            "numbers": np.array([self.rule.window, self._filled, self._closed, self._excused]),
            "counts": self._counts.copy(),
            "predicted": self._predicted.copy(),
        }

    def load(self, state: Arrays) -> None:
        """Resume from a `state`; of another window's, `usual` alone is kept."""
        held = [name for name, is_held in zip(REASONS, state["figures"], strict=False) if is_held]
        self.usual, self.usual_rate, *figures = state["figures"].tolist()[len(REASONS) :]
        window, filled, closed, excused = state["numbers"].tolist()
        if window == self.rule.window:
            self._filled, self._closed, self._excused = filled, closed, bool(excused)
            self._counts, self._predicted = state["counts"].copy(), state["predicted"].copy()
            area, error, predicted, clicks, examples = figures
            self.measures = Measures(area, error, predicted, _count(clicks), _count(examples))
            self._hold(tuple(reason for reason in held if getattr(self.rule, reason)))
        self._show(self.measures)

    def measured(self) -> dict[str, Any]:
        """Measures for people: {} before the first full window."""
        if self._closed < PANES:
            return {}
        figures = {"auc": self.measures.auc, "calibration": self.measures.calibration}
        return {
            "window": self.rule.window,
            **{name: None if value != value else round(value, 6) for name, value in figures.items()},
        }

    @property
    def _pane(self) -> int:
        return max(1, self.rule.window // PANES)

    def _count(self, logit: F32, label: Labels, weight: F64 | None) -> None:
        bins = (np.clip(logit, -LIMIT, LIMIT) + LIMIT) * (BINS / (2 * LIMIT))
        place = np.minimum(bins.astype(np.int64), BINS - 1)
        clicked = label > 0.5
        predicted = 0.5 * (1 + np.tanh(0.5 * logit.astype(np.float64)))
        if weight is None:
            for kind in (0, 1):
                self._counts[-1, kind] += np.bincount(place[clicked == kind], minlength=BINS)
        else:
            self._counts, predicted = self._counts.astype(np.float64), predicted * weight
            np.add.at(self._counts[-1], (clicked.astype(np.int64), place), weight)
        # One by one: the bits do not depend on the batches.
        self._predicted[-1] = np.cumsum(np.append(self._predicted[-1], predicted))[-1]
        self._filled += len(logit)

    def _close(self) -> None:
        """Ask the rule, if the window is full; begin a new pane."""
        self._closed, self._filled = min(self._closed + 1, PANES), 0
        now = measure(self._counts.sum(axis=0), float(self._predicted.sum()))
        if self._closed == PANES:
            self._judge(now)
        self._show(now)
        self._counts = np.concatenate([self._counts[1:], np.zeros((1, 2, BINS), self._counts.dtype)])
        self._predicted = np.append(self._predicted[1:], 0.0)

    def _judge(self, now: Measures) -> None:
        self.measures = now
        reasons = []
        for reason, apart in (
            ("auc", self._fell(now)),
            ("calibration", self._differ("calibration", now.predicted, now.clicks)),
            ("clicks", self._differ("clicks", self.usual_rate * now.examples, now.clicks)),
        ):
            if getattr(self.rule, reason) and apart:
                reasons.append(reason)
        if self._excused and "calibration" in reasons:
            reasons.remove("calibration")
        else:
            self._excused = False
        if not reasons:
            self.usual = _moved(self.usual, now.auc)
            self.usual_rate = _moved(self.usual_rate, now.rate)
        self._hold(tuple(reasons))

    def _show(self, now: Measures) -> None:
        """Tell Prometheus of the window, also while it fills."""
        for name, value in (("newest", now.auc), ("usual", self.usual)):
            telemetry.GATE_AUC.labels(name).set(value)
        for name, value in (("newest", now.rate), ("usual", self.usual_rate)):
            telemetry.GATE_CLICK_RATE.labels(name).set(value)
        telemetry.GATE_CALIBRATION.set(now.calibration)

    def _fell(self, now: Measures) -> bool:
        """Tell if AUC is below what is usual: by more than chance, unless it has been before."""
        if "auc" in self.held:
            return not self.usual - now.auc <= self.rule.auc
        return self.usual - now.auc > max(self.rule.auc, SIGMAS * now.auc_error)

    def _differ(self, reason: str, expected: float, clicks: float) -> bool:
        """Tell if clicks differ from the expected: by more than chance, unless they have before."""
        more, less = max(expected, clicks), min(expected, clicks)
        sure = reason in self.held or more - less > SIGMAS * np.sqrt(more)
        return bool(more > (1 + getattr(self.rule, reason)) * less and sure)

    def _hold(self, reasons: tuple[str, ...]) -> None:
        if reasons and reasons != self.held:
            LOG.warning(
                "publish gate: no version is published (%s): %s; mend the logs or the model, or say `livectr "
                "versions release` to accept it",
                " and ".join(reasons),
                self._figures(),
            )
        if self.held and not reasons:
            LOG.info("publish gate: versions are published again: %s", self._figures())
        self.held = reasons
        for name in REASONS:
            PUBLISH_HELD.labels(name).set(int(name in reasons))

    def _figures(self) -> str:
        now, rule = self.measures, self.rule
        return (
            f"AUC of the last {rule.window:,} examples {now.auc:.4f}, usual {self.usual:.4f} "
            f"(publish_gate_auc {rule.auc:g}); {now.predicted:,.0f} clicks predicted, {now.clicks:,.0f} came "
            f"(publish_gate_calibration {rule.calibration:g}), {self.usual_rate * now.examples:,.0f} are "
            f"usual (publish_gate_clicks {rule.clicks:g})"
        )


def measure(counts: I64 | F64, predicted: float) -> Measures:
    """Measures of a window.

    Args:
        counts: [2, BINS], not clicked and clicked examples, or their weights, by bins of their logits.
        predicted: sum of the predicted probabilities.
    """
    negative, positive = counts
    n, p = negative.sum().item(), positive.sum().item()
    if not n or not p:
        return Measures(predicted=predicted, clicks=p, examples=n + p)
    below = np.cumsum(negative) - negative
    area = float(np.sum(positive * (below + 0.5 * negative))) / (n * p)
    q1, q2 = area / (2 - area), 2 * area**2 / (1 + area)
    spread = area * (1 - area) + (p - 1) * (q1 - area**2) + (n - 1) * (q2 - area**2)
    return Measures(area, float(np.sqrt(max(spread, 0.0) / (n * p))), predicted, p, n + p)


def _count(number: float) -> float:
    """A count; of weights a number."""
    return int(number) if number == int(number) else number


def _moved(usual: float, now: float) -> float:
    """Running mean after another window; a window without the measure moves nothing."""
    if np.isnan(now):
        return usual
    return now if np.isnan(usual) else usual + (now - usual) / MEMORY
