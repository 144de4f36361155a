"""Promotion: the rule by which a challenger takes the champion's place (trainer.quality.champion)."""

from __future__ import annotations

from dataclasses import dataclass

from livectr.system.errors import ConfigError

PANES = 20
"""Panes of a window: the rule is asked after each, so that many times in a window."""


@dataclass(frozen=True)
class Promotion:
    """Rule: a challenger is promoted when its mean log loss is below (1 - margin) times the champion's.

    Both are means over a whole window, on the same examples.

    The window begins again at every change. So there is at most one change in a window, and the demoted model
    returns only with the same margin, over a window of its own (hysteresis).

    The window counts examples, not time. A mean over n examples errs by 1 / √n, so the margin means the same
    at night; logs need no event time; and no wrong time stamp fills or empties the window.

    Args:
        margin: share of the champion's log loss, at least 0 and below 1.
        window: examples with final labels, at least PANES.

    Raises:
        ConfigError: a value out of range.

    Example:
        >>> Promotion(margin=0.002, window=1_000_000)
        Promotion(margin=0.002, window=1000000)
    """

    margin: float = 0.005
    window: int = 200_000

    def __post_init__(self) -> None:
        if isinstance(self.margin, bool) or not isinstance(self.margin, int | float):
            raise ConfigError(f"Promotion: margin is {self.margin!r}; write a share such as 0.005")
        if not 0 <= self.margin < 1:
            raise ConfigError(
                f"Promotion: margin is {self.margin}; it is a share of the champion's log loss: "
                "at least 0 and below 1"
            )
        if isinstance(self.window, bool) or not isinstance(self.window, int) or self.window < PANES:
            raise ConfigError(
                f"Promotion: window is {self.window!r}; it is a number of examples, at least {PANES}"
            )
