"""Value of an impression: what the probabilities of its labels are worth, as a pipeline declares it.

value = Σ worth_l · P(l) · E(v | l)      l: the click, or a target of the pipeline

E(v | l) is a target's expected value, given that it comes; it is a factor where the pipeline says so.
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
        expected: labels whose term has the expected value of their target as a factor, too.
    """

    worths: dict[str, Worth]
    expected: tuple[str, ...] = ()

    def __mul__(self, factor: Worth) -> Value:
        """Multiply all worths; an expected value multiplies the probability of its own target."""
        if isinstance(factor, ExpectedValue):
            return self._with(factor)
        _check_factor(factor)
        worths = {label: _product(worth, factor) for label, worth in self.worths.items()}
        return Value(worths, self.expected)

    __rmul__ = __mul__

    def __add__(self, other: Value) -> Value:
        """Add the value of further labels."""
        if not isinstance(other, Value):
            raise ConfigError(f"value: {other!r} cannot be added; write a worth times probability('...')")
        if twice := sorted(self.worths.keys() & other.worths.keys()):
            raise ConfigError(f"value: probability({twice[0]!r}) is there twice; add its worths first")
        return Value({**self.worths, **other.worths}, (*self.expected, *other.expected))

    def _with(self, factor: ExpectedValue) -> Value:
        label = factor.label
        if self.worths.keys() != {label} or self.expected:
            raise ConfigError(
                f"value: expected_value({label!r}) multiplies probability({label!r}), once: it is given that "
                f"the target comes; write worth * probability({label!r}) * expected_value({label!r})"
            )
        worth = self.worths[label]
        return Value({label: worth if factor.is_plain else _product(worth, factor.worth)}, (label,))

    def __str__(self) -> str:
        return " + ".join(self.term(label) for label in self.worths)

    def term(self, label: str) -> str:
        """Summand of a label, as it is declared."""
        factor = f" * expected_value({label!r})" if label in self.expected else ""
        return f"{self.worths[label]} * probability({label!r}){factor}"

    @property
    def bid_label(self) -> str:
        """Label whose worth the bids of a request are: the click, or else the first target."""
        return CLICK if CLICK in self.worths else next(iter(self.worths))

    @property
    def meaning(self) -> list[tuple[str, ...]]:
        """Part of the pipeline's fingerprint."""
        return [
            (label, getattr(worth, "meaning", repr(worth)), *(["expected"] if label in self.expected else []))
            for label, worth in self.worths.items()
        ]


@dataclass(frozen=True, eq=False)
class ExpectedValue:
    """Expected value of a target, given that it comes. `expected_value` begins one.

    Args:
        label: name of the target.
        worth: number, or expression, that multiplies it.
    """

    label: str
    worth: Worth = 1

    def __mul__(self, factor: Any) -> Any:
        """Multiply by a worth, or by the probability of the target: the product is a `Value`."""
        if isinstance(factor, Value):
            return factor * self
        _check_factor(factor)
        return ExpectedValue(self.label, _product(self.worth, factor))

    __rmul__ = __mul__

    @property
    def is_plain(self) -> bool:
        """True if no worth multiplies it."""
        return isinstance(self.worth, int) and self.worth == 1


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


def expected_value(label: str) -> ExpectedValue:
    """Expected value of a target, given that it comes, for the pipeline's `value=`.

    It multiplies the probability of the same target, which predicts values: `Target(…, value=)`.

    Args:
        label: name of the target.

    Raises:
        ConfigError: the label is no name.

    Example:
        value = ads.bid * probability("click") + 0.1 * probability("order") * expected_value("order")
    """
    if not isinstance(label, str) or not label.isidentifier():
        raise ConfigError(f"expected_value: the label is {label!r}; write the name of a target")
    return ExpectedValue(label)


def _check_factor(factor: object) -> None:
    if isinstance(factor, ExpectedValue):
        raise ConfigError("value: a product of two expected values has no meaning here")
    if isinstance(factor, Value):
        raise ConfigError(
            "value: a product of two probabilities has no meaning here; the probability of a target "
            "after='click' is that of the click and the target"
        )
    if isinstance(factor, bool) or not (isinstance(factor, int | float) or hasattr(factor, "meaning")):
        raise ConfigError(f"value: {factor!r} is no worth; write a number or a column, such as ads.bid")


def _product(worth: Worth, factor: Worth) -> Worth:
    return factor if isinstance(worth, int) and worth == 1 else worth * factor
