"""Champion and challengers: the promotion rule over a sliding window of prequential log loss. Pure policy.

Every contender scores each example before it learns it (prequential evaluation, Dawid 1984), and all
contenders score the same examples, so that the difference of their mean losses is the mean of paired
differences. A sliding window forgets the losses of a young model (Gama, Sebastião, Rodrigues 2013, "On
evaluating stream learning algorithms").

    window   the last W examples, in PANES panes of W / PANES
    asked    at the end of a pane, once W examples were counted since the last change
    promoted the contender with the least mean loss l, if l < (1 - margin) · l of the champion

The rule reads nothing but losses in the order of the examples, and is asked at numbers of examples. So it
decides the same for any batches, number of ranks and restart, up to the rounding of the logits.

A loss that is not finite counts as infinite: a model that has diverged loses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from livectr.ingest.language.promotion import PANES, Promotion

F64 = npt.NDArray[np.float64]
CONTEST = "contest"
"""Kind of the file of a policy's state in a checkpoint."""


@dataclass(frozen=True)
class Change:
    """Change of the champion.

    Attributes:
        champion: role of the new champion.
        before: role of the champion until here.
        losses: role → mean log loss in nats over the window that decided.
        counted: examples until the decision, since the run began.
    """

    champion: str
    before: str
    losses: Mapping[str, float]
    counted: int


class ChampionPolicy:
    """Champion of some contenders.

    Args:
        contenders: roles; the first is the first champion, and of equal losses the earlier role wins.
        rule: margin and window.

    Attributes:
        champion: role of the champion.
        changes: number of changes since the run began.
        counted: examples since the run began.
    """

    def __init__(self, contenders: Sequence[str], rule: Promotion) -> None:
        self.contenders = tuple(contenders)
        self.champion = self.contenders[0]
        self.changes = self.counted = 0
        self._rule = rule
        self._closed: list[F64]
        self._open: F64
        self._begin()

    def add(self, losses: F64) -> list[Change]:
        """Add examples in order.

        Args:
            losses: f64[C, n], log loss of each contender on each example.

        Returns:
            Changes that the examples have brought, in order; mostly none.
        """
        losses = np.where(np.isfinite(losses), losses, np.inf)
        found, start = [], 0
        while start < losses.shape[1]:
            part = losses[:, start : start + self._end_of_pane - self._since]
            self._open += part.sum(axis=1)
            start += part.shape[1]
            self._since += part.shape[1]
            self.counted += part.shape[1]
            if self._since == self._end_of_pane:
                found += self._close_pane()
        return found

    @property
    def window(self) -> tuple[int, dict[str, float]]:
        """Examples of the window, and the mean log loss of each contender over them (NaN of none)."""
        size = self._since - self._bound(self._panes - len(self._closed))
        total = np.sum([*self._closed, self._open], axis=0)
        mean = total / size if size else np.full(len(self.contenders), np.nan)
        return size, dict(zip(self.contenders, mean.tolist(), strict=True))

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """State for a checkpoint: equal for equal states."""
        return {
            "champion": np.frombuffer(self.champion.encode(), np.uint8).copy(),
            "numbers": np.array([self.changes, self.counted, self._rule.window, self._since, self._panes]),
            "closed": np.array(self._closed).reshape(-1, len(self.contenders)),
            "open": self._open.copy(),
        }

    def load(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Resume from a `state` of the same contenders. Of another window's the champion alone is kept."""
        self.champion = champion_of(state)
        self.changes, self.counted, window, since, panes = state["numbers"].tolist()
        self._begin()
        if window == self._rule.window:
            self._since, self._panes = since, panes
            self._closed, self._open = list(state["closed"].copy()), state["open"].copy()

    def _begin(self) -> None:
        """Begin a new window."""
        self._since = self._panes = 0
        self._closed, self._open = [], np.zeros(len(self.contenders))

    def _bound(self, panes: int) -> int:
        """Examples of the first panes since the last change: any PANES panes in a row hold a window."""
        return panes * self._rule.window // PANES

    @property
    def _end_of_pane(self) -> int:
        return self._bound(self._panes + 1)

    def _close_pane(self) -> list[Change]:
        """Ask the rule, if the window is full."""
        self._closed = [*self._closed, self._open][-PANES:]
        self._open, self._panes = np.zeros(len(self.contenders)), self._panes + 1
        if self._panes < PANES:
            return []
        mean = np.sum(self._closed, axis=0) / self._rule.window
        best, held = int(np.argmin(mean)), self.contenders.index(self.champion)
        if not mean[best] < (1 - self._rule.margin) * mean[held]:
            return []
        losses = dict(zip(self.contenders, mean.tolist(), strict=True))
        change = Change(self.contenders[best], self.champion, losses, self.counted)
        self.champion, self.changes = change.champion, self.changes + 1
        self._begin()
        return [change]


def champion_of(state: Mapping[str, npt.NDArray[Any]]) -> str:
    """Champion in a policy's state; "rank" of a run without challengers, which has none."""
    return state["champion"].tobytes().decode() if state else "rank"
