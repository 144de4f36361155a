"""Targets: labels beside the click, which rows or events of other streams say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from livectr.ingest.language import dtypes
from livectr.ingest.language.expr import Expr
from livectr.ingest.language.hidden import refuse
from livectr.ingest.language.labels import CLICK, check_name
from livectr.ingest.language.roots import needs_counts, needs_statistics
from livectr.system.errors import ConfigError

Values = Literal["lognormal", "ziln"]
"""Distribution of a target's values (models.lognormal)."""


@dataclass(frozen=True, eq=False)
class Target:
    """Label that a head of the ranking model predicts, beside the log's own label, the click.

    The head has the configuration of `rank`, and values and network of its own; its rows are in the same
    tables. See models.esmm.

    Args:
        name: of the target, such as "order".
        label: expression of the label, 0 or 1: a column of the rows. A null is no label: the row is refused.
            None: events of the label join's `Label` of this name.
        after: "click": it can come only after a click, so that its probability is that of the click times
            that after one. None: it comes by itself.
        value: number of a row whose label came, such as the price of an order. It is predicted, too, given
            that the target comes. It may read a number of the label's own events. None: it has none.
        values: distribution of the values: "lognormal" of values above 0, "ziln" of values that may be 0.

    Raises:
        ConfigError: an argument is wrong.

    Example:
        targets = [Target("order", log.ordered, after="click", value=log.price)]
    """

    name: str
    label: Expr | None = None
    after: str | None = None
    value: Expr | None = None
    values: Values = "lognormal"

    def __post_init__(self) -> None:
        check_name(self.name, "Target")
        if self.label is not None:
            self._check(self.label)
        if self.value is not None:
            self._check(self.value, "value")
        if self.values not in get_args(Values):
            ways = " or ".join(map(repr, get_args(Values)))
            raise ConfigError(f"Target {self.name!r}: values is {self.values!r}; it must be {ways}")
        if self.after is not None and (not isinstance(self.after, str) or self.after != CLICK):
            given = str(self.after) if isinstance(self.after, Expr) else repr(self.after)
            raise ConfigError(
                f"Target {self.name!r}: after is {given}; it is 'click', the log's own label, or None"
            )

    def _check(self, label: Expr, part: str = "label") -> None:
        refuse(label, f"Target {self.name!r}")
        if not isinstance(label, Expr) or label.dtype not in dtypes.FIXED:
            given = f"{label} is {label.dtype}" if isinstance(label, Expr) else repr(label)
            of = "numbers or bools" if part == "label" else "numbers as its value"
            raise ConfigError(f"Target {self.name!r}: write a column of {of}, not {given}")
        if needs_statistics(label):
            raise ConfigError(f"Target {self.name!r}: {label} depends on running statistics")
        if needs_counts(label):
            raise ConfigError(f"Target {self.name!r}: {label} depends on counters")

    @property
    def role(self) -> str:
        """Role of its head."""
        return f"rank.{self.name}"

    @property
    def value_roles(self) -> tuple[str, ...]:
        """Roles of the heads of its values (models.lognormal); (): it has none."""
        if self.value is None:
            return ()
        heads = ("value", "spread", *(["paid"] if self.values == "ziln" else []))
        return tuple(f"{self.role}.{head}" for head in heads)

    @property
    def roles(self) -> tuple[str, ...]:
        """Roles of all its heads."""
        return (self.role, *self.value_roles)

    @property
    def meaning(self) -> tuple[str | None, ...]:
        """Part of the pipeline's fingerprint."""
        value = () if self.value is None else (self.value.meaning, self.values)
        return self.name, "" if self.label is None else self.label.meaning, self.after, *value
