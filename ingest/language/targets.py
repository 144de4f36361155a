"""Targets: labels beside the click, which rows or events of other streams say."""

from __future__ import annotations

from dataclasses import dataclass

from livectr.ingest.language import dtypes
from livectr.ingest.language.expr import Expr
from livectr.ingest.language.hidden import refuse
from livectr.ingest.language.labels import CLICK, check_name
from livectr.ingest.language.roots import needs_counts, needs_statistics
from livectr.system.errors import ConfigError


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

    Raises:
        ConfigError: an argument is wrong.

    Example:
        targets = [Target("order", log.ordered, after="click")]
    """

    name: str
    label: Expr | None = None
    after: str | None = None

    def __post_init__(self) -> None:
        check_name(self.name, "Target")
        if self.label is not None:
            self._check(self.label)
        if self.after is not None and (not isinstance(self.after, str) or self.after != CLICK):
            given = str(self.after) if isinstance(self.after, Expr) else repr(self.after)
            raise ConfigError(
                f"Target {self.name!r}: after is {given}; it is 'click', the log's own label, or None"
            )

    def _check(self, label: Expr) -> None:
        refuse(label, f"Target {self.name!r}")
        if not isinstance(label, Expr) or label.dtype not in dtypes.FIXED:
            given = f"{label} is {label.dtype}" if isinstance(label, Expr) else repr(label)
            raise ConfigError(f"Target {self.name!r}: write a column of numbers or bools, not {given}")
        if needs_statistics(label):
            raise ConfigError(f"Target {self.name!r}: {label} depends on running statistics")
        if needs_counts(label):
            raise ConfigError(f"Target {self.name!r}: {label} depends on counters")

    @property
    def role(self) -> str:
        """Role of its head."""
        return f"rank.{self.name}"

    @property
    def meaning(self) -> tuple[str, str, str | None]:
        """Part of the pipeline's fingerprint."""
        return self.name, "" if self.label is None else self.label.meaning, self.after
