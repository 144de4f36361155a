"""Windows of a run's examples: measures, calibration and scores of each model, for the run log.

A window holds a fiftieth of the examples before it, or those of an hour of event time if they are fewer; but
at least LEAST. So a learning curve has about fifty points at first, some hundred after millions of examples,
and 24 a day from then on. Where windows end is a function of the log alone.

Sums and histograms are of all examples of a window, CHUNK after CHUNK, so that no bit depends on the batches.
AUC and GAUC are of its newest MEASURED, which are held in memory and in checkpoints (about 40 bytes each).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from livectr.trainer.quality.metrics import bounded, example_losses, gauc_error, quality
from livectr.trainer.quality.predictions import Records, label_of, layout, weights_of

SHARE, LEAST = 50, 500
SPAN_MS = 3_600_000
MEASURED = 50_000
CHUNK = 1024
"""Examples of a window that are summed at once."""
FIRST_LOGIT, BIN_WIDTH, BINS = -10.0, 0.25, 80
"""Bins of scores, by logit; the outer bins hold all scores beyond."""


def window_size(before: int) -> int:
    """Examples of the window that follows `before` examples."""
    return max(before // SHARE, LEAST)


class Windows:
    """Windows of the examples of a run, in training order.

    Args:
        roles: models whose logits the examples carry.
        weighted: examples have weights. All sums are of weights, and the error is that of (Σ w)² / Σ w²
            examples of equal weight (Kish 1965).
        targets: roles with labels of their own.
        unknown: roles among them whose labels the examples do not know: they are not measured.
        worths: names of measured worths (`Worths.measured`).

    Attributes:
        before: examples of all closed windows.
        count: examples of the open window.
    """

    def __init__(
        self,
        roles: Collection[str],
        *,
        weighted: bool = False,
        targets: Collection[str] = (),
        unknown: Collection[str] = (),
        worths: Collection[str] = (),
    ) -> None:
        self.roles, self._weighted = tuple(role for role in roles if role not in unknown), weighted
        self._columns = layout(roles, weighted=weighted, targets=targets, worths=worths)
        self.before = 0
        self._begin()

    def _begin(self) -> None:
        """Open a window."""
        self.count = self._clicks = self._opened_ms = 0
        self._times: list[int] = []
        self._newest: list[Records] = []
        self._waiting: list[Records] = []  # examples that are not summed, fewer than CHUNK
        self._losses = np.zeros((len(self.roles), 2))
        self._bins = np.zeros((len(self.roles), BINS, 3))
        self._mass = np.zeros(2)  # Σ w and Σ w² of examples with weights

    def add(self, scored: Records) -> list[tuple[int, dict[str, Any]]]:
        """Add examples with final labels.

        Args:
            scored: records[B] (trainer.quality.predictions), in training order.

        Returns:
            Windows that the examples have filled, as JSON values, each with the number of the example that
            closed it; mostly none.
        """
        closed: list[tuple[int, dict[str, Any]]] = []
        start = 0
        while start < len(scored):
            size = window_size(self.before)
            part = scored[start : start + size - self.count]
            part, full = self._within_span(part)
            if len(part):
                self._add(part)
            start += len(part)
            if full or self.count == size:
                closed.append((start if full else start - 1, self._close()))
        return closed

    def finish(self) -> list[dict[str, Any]]:
        """Close the open window, if it has examples."""
        return [self._close()] if self.count else []

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """State for a checkpoint: equal for equal states."""
        numbers = np.array([self.before, self.count, self._clicks, self._opened_ms, *self._times], np.int64)
        newest = np.frombuffer(self._measured().tobytes(), np.uint8)
        return {
            "numbers": numbers,
            "waiting": np.array([sum(map(len, self._waiting))], np.int64),
            "newest": newest,
            "losses": self._losses.copy(),
            "bins": self._bins.copy(),
            **({"mass": self._mass.copy()} if self._weighted else {}),
        }

    def load(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Resume from a `state` of the same models."""
        self._begin()
        self.before, self.count, self._clicks, self._opened_ms, *self._times = state["numbers"].tolist()
        self._newest = [np.frombuffer(state["newest"].tobytes(), self._columns)] if self.count else []
        self._losses, self._bins = state["losses"].copy(), state["bins"].copy()
        self._mass = state["mass"].copy() if self._weighted else self._mass
        # Checkpoints of before have summed all.
        if waiting := int(state["waiting"][0]) if "waiting" in state else 0:
            self._waiting = [self._newest[0][-waiting:]]

    def _within_span(self, part: Records) -> tuple[Records, bool]:
        """Examples before the first that is SPAN_MS after the window's first; True if there is that one."""
        if not self.count:
            self._opened_ms = int(part["time_ms"][0])
        beyond = part["time_ms"] >= self._opened_ms + SPAN_MS
        beyond[: max(0, LEAST - self.count)] = False
        return (part[: int(beyond.argmax())], True) if beyond.any() else (part, False)

    def _add(self, part: Records) -> None:
        times = part["time_ms"]
        self._times = [
            min([*self._times[:1], int(times.min())]),
            max([*self._times[1:], int(times.max())]),
        ]
        self.count += len(part)
        self._clicks += int(np.count_nonzero(part["label"]))
        self._newest.append(part)
        held = sum(map(len, self._newest))
        while held - len(self._newest[0]) >= MEASURED:
            held -= len(self._newest.pop(0))
        self._waiting.append(part)
        if sum(map(len, self._waiting)) >= CHUNK:
            waiting = np.concatenate(self._waiting)
            for start in range(0, len(waiting) - CHUNK + 1, CHUNK):
                self._sum(waiting[start : start + CHUNK])
            left = waiting[len(waiting) - len(waiting) % CHUNK :]
            self._waiting = [left] if len(left) else []

    def _sum(self, part: Records) -> None:
        weight = np.ones(len(part))
        if (given := weights_of(part)) is not None:
            weight = given.astype(np.float64)
            self._mass += weight.sum(), np.square(weight).sum()
        for i, role in enumerate(self.roles):
            logit, label = bounded(part[role]), label_of(part, role).astype(np.float64)
            losses = example_losses(logit, label)
            self._losses[i] += (losses * weight).sum(), (np.square(losses) * weight).sum()
            place = np.clip((logit - FIRST_LOGIT) / BIN_WIDTH, 0, BINS - 1).astype(np.int64)
            probability = 0.5 * (1 + np.tanh(0.5 * logit))
            for j, counted in enumerate((weight, label * weight, probability * weight)):
                self._bins[i, :, j] += np.bincount(place, counted, BINS)

    def _measured(self) -> Records:
        return np.concatenate([np.empty(0, self._columns), *self._newest])[-MEASURED:]

    def _close(self) -> dict[str, Any]:
        if self._waiting:
            self._sum(np.concatenate(self._waiting))
        newest = self._measured()
        window = {
            "first_example": self.before,
            "examples": self.before + self.count,
            "first_ms": self._times[0],
            "last_ms": self._times[1],
            "clicks": self._clicks,
            "measured": len(newest),
            "models": {role: self._measures(i, newest) for i, role in enumerate(self.roles)},
        }
        self.before += self.count
        self._begin()
        return window

    def _measures(self, i: int, newest: Records) -> dict[str, Any]:
        """Measures of a model; None: not defined for the window."""
        user, label = newest["user"], label_of(newest, self.roles[i]).astype(np.float32)
        logit, weight = bounded(newest[self.roles[i]]), weights_of(newest)
        (total, squares), bins = self._losses[i].tolist(), self._bins[i]
        n, equal = float(self.count), float(self.count)
        if self._weighted:  # at least one of the weights is above 0, or nothing is measured
            n, of_squares = self._mass.tolist()
            n, equal = (n, n**2 / of_squares) if n else (float("nan"), float("nan"))
        spread = max(squares / n - (total / n) ** 2, 0.0)
        found = quality(user, logit, label, np.zeros(len(label), np.bool_), weight)
        predicted, clicks = float(bins[:, 2].sum()), float(bins[:, 1].sum())
        measures = {
            "auc": found.auc,
            "auc_error": auc_error(found.auc, int(label.sum()), len(label)),
            "gauc": found.gauc,
            "gauc_error": gauc_error(user, logit, label, weight=weight),
            "users_left_out": found.skipped_users,
            "logloss": total / n,
            "logloss_error": float(np.sqrt(spread / equal)),
            "predicted": predicted,
            "calibration": predicted / clicks if clicks else float("nan"),
        }
        return {name: value if value == value else None for name, value in measures.items()} | {
            "bins": [
                [b, *(_count(float(bins[b, i])) for i in (0, 1)), round(float(bins[b, 2]), 6)]
                for b in np.flatnonzero(bins[:, 0]).tolist()
            ]
        }


def _count(number: float) -> int | float:
    """A count; of weights a number."""
    return int(number) if number == int(number) else round(number, 6)


def auc_error(area: float, clicks: int, examples: int) -> float:
    """Standard error of an AUC (Hanley & McNeil 1982, eq. 2); NaN without both classes."""
    others = examples - clicks
    if not clicks or not others:
        return float("nan")
    q1, q2 = area / (2 - area), 2 * area**2 / (1 + area)
    spread = area * (1 - area) + (clicks - 1) * (q1 - area**2) + (others - 1) * (q2 - area**2)
    return float(np.sqrt(max(spread, 0.0) / (clicks * others)))
