"""Value of an impression: what the probabilities of its labels are worth, as a pipeline declares it.

value = Σ worth_l · P(l)      l: the click, or a target of the pipeline
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from livectr.ingest.language.labels import CLICK
from livectr.system.errors import ConfigError

Worth = Any
"""Number, or expression; expressions know this module."""


@dataclass(frozen=True, eq=False)
class Value:
    """Sum of probabilities, each times what its label is worth. `probability` begins one.

    Args:
        worths: label → worth: a number, or an expression of columns that are known when an ad is scored.
    """

    worths: dict[str, Worth]

    def __mul__(self, factor: Worth) -> Value:
        """Multiply all worths."""
        _check_factor(factor)
        return Value({label: _product(worth, factor) for label, worth in self.worths.items()})

    __rmul__ = __mul__

    def __add__(self, other: Value) -> Value:
        """Add the value of further labels."""
        if not isinstance(other, Value):
            raise ConfigError(f"value: {other!r} cannot be added; write a worth times probability('...')")
        if twice := sorted(self.worths.keys() & other.worths.keys()):
            raise ConfigError(f"value: probability({twice[0]!r}) is there twice; add its worths first")
        return Value({**self.worths, **other.worths})

    def __str__(self) -> str:
        return " + ".join(f"{worth} * probability({label!r})" for label, worth in self.worths.items())

    @property
    def bid_label(self) -> str:
        """Label whose worth the bids of a request are: the click, or else the first target."""
        return CLICK if CLICK in self.worths else next(iter(self.worths))

    @property
    def meaning(self) -> list[tuple[str, str]]:
        """Part of the pipeline's fingerprint."""
        return [(label, getattr(worth, "meaning", repr(worth))) for label, worth in self.worths.items()]


def probability(label: str = CLICK) -> Value:
    """Probability of a label, for the pipeline's `value=`.

    Args:
        label: "click", or the name of a target. The probability of a target `after="click"` is that of both.

    Raises:
        ConfigError: the label is no name.

    Example:
        value = ads.bid * probability("click") + ads.order_bid * probability("order")
    """
    if not isinstance(label, str) or not label.isidentifier():
        raise ConfigError(f"probability: the label is {label!r}; write 'click' or the name of a target")
    return Value({label: 1})


def _check_factor(factor: object) -> None:
    if isinstance(factor, Value):
        raise ConfigError(
            "value: a product of two probabilities has no meaning here; the probability of a target "
            "after='click' is that of the click and the target"
        )
    if isinstance(factor, bool) or not (isinstance(factor, int | float) or hasattr(factor, "meaning")):
        raise ConfigError(f"value: {factor!r} is no worth; write a number or a column, such as ads.bid")


def _product(worth: Worth, factor: Worth) -> Worth:
    return factor if isinstance(worth, int) and worth == 1 else worth * factor
