"""Weight of an example, and the rate at which its log has kept negatives: expressions that training reads.

They are no features: a request has neither, and a model does not depend on them when it scores.

    weight      w ≥ 0, by which an example counts in losses and measures
    sampling    r in (0, 1], share of the examples without a click that the log kept; clicks are all there
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from livectr.ingest.language import dtypes
from livectr.ingest.language.expr import Expr
from livectr.ingest.language.hidden import refuse
from livectr.ingest.language.streams import View
from livectr.ingest.plan.dag import FeaturePlan
from livectr.ingest.plan.root_checks import check_of_row
from livectr.system.errors import ConfigError

LEAST_RATE = 1e-6
LARGEST_WEIGHT = 1e9
"""Bounds within which sums of float32 losses stay finite."""


@dataclass(frozen=True, eq=False)
class ExampleWeights:
    """Weights of a pipeline's examples, as it declares them.

    Args:
        weight: expression of the weight; None: 1.
        sampling: rate, or its expression; None: the log is whole.
        log: its columns and those of its look-ups may be read, the label too.

    Raises:
        ConfigError: a value out of range, or an expression that is no number of an impression.
    """

    weight: Expr | None
    sampling: float | Expr | None
    log: View

    def __post_init__(self) -> None:
        if self.weight is not None:
            self._check(self.weight, "weight", "write a column or an expression, such as log.value")
        sampling = self.sampling
        if sampling is None:
            return
        if self.log.provisional:
            raise ConfigError(
                f'Pipeline: sampling does not go with delayed="{self.log.delayed}": which negatives a log '
                'keeps is decided when labels are final; use delayed="wait"'
            )
        if self.log.more_labels:
            raise ConfigError(
                "Pipeline: sampling does not go with labels=[...] of the label join: which negatives a log "
                "keeps is decided by clicks, and other labels come later; keep all rows"
            )
        if isinstance(sampling, bool) or not isinstance(sampling, int | float):
            self._check(sampling, "sampling", "write the rate, such as 0.1, or a column with it")
        elif not LEAST_RATE <= sampling <= 1:
            raise ConfigError(
                f"Pipeline: sampling is {sampling!r}; it is the share of the examples without a click that "
                f"the log kept, above 0 (at least {LEAST_RATE:g}) and at most 1"
            )

    def _check(self, expr: object, name: str, cure: str) -> None:
        refuse(expr, name)
        if not isinstance(expr, Expr):
            raise ConfigError(f"Pipeline: {name} is {expr!r}; {cure}")
        if expr.dtype not in dtypes.FIXED:
            raise ConfigError(f"Pipeline: {name} {expr} is {expr.dtype}; {cure}")
        check_of_row(expr, f"Pipeline: {name} {expr}", self.log, label=True)

    @property
    def rate(self) -> Expr | None:
        """Expression of the rate; None: it is a number, or the log is whole."""
        return self.sampling if isinstance(self.sampling, Expr) else None

    def __str__(self) -> str:
        said = [] if self.weight is None else [f"an example counts {self.weight}"]
        said += [] if self.sampling is None else [f"the log kept {self.sampling} of those without a click"]
        return "; ".join(said)

    @property
    def columns(self) -> dict[str, Expr]:
        """Expressions by names that are no feature's."""
        given = {"#weight": self.weight, "#sampling": self.rate}
        return {name: expr for name, expr in given.items() if expr is not None}

    @cached_property
    def plan(self) -> FeaturePlan:
        """Values of a row, and beside each whether it is in range: operators overflow, and give NaN."""
        dense: dict[str, Expr] = {}
        if self.weight is not None:
            dense |= {WEIGHT: self.weight, IN_RANGE + WEIGHT: within(self.weight, 0.0, LARGEST_WEIGHT)}
        if self.rate is not None:
            dense |= {RATE: self.rate, IN_RANGE + RATE: within(self.rate, LEAST_RATE, 1.0)}
        return FeaturePlan({}, dense)

    @property
    def meaning(self) -> tuple[str, str]:
        """Parts of the pipeline's fingerprint."""
        weight = "" if self.weight is None else self.weight.meaning
        return weight, repr(self.sampling) if self.rate is None else self.rate.meaning


WEIGHT, RATE, IN_RANGE = "weight", "rate", "in range: "
"""Names of the values in `ExampleWeights.plan`."""


def within(x: Expr, least: float, most: float) -> Expr:
    """Bool expression; false for NaN."""
    return (x >= least) & (x <= most)
