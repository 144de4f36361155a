"""Place at which an impression was shown: an expression that training reads (models.position_bias).

It is no feature: a request has none, since places are given by the order of the answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from livectr.ingest.language.expr import Expr
from livectr.ingest.language.hidden import refuse
from livectr.ingest.language.streams import View
from livectr.ingest.plan.dag import FeaturePlan
from livectr.ingest.plan.root_checks import check_of_row
from livectr.ingest.plan.weights import IN_RANGE, within
from livectr.system.errors import ConfigError

PLACE = "place"
"""Name of the value in `ShownAt.plan`."""
PLACES = 1_000
"""Places are whole numbers from 0, below it."""


@dataclass(frozen=True, eq=False)
class ShownAt:
    """Place of a pipeline's impressions, as it declares it.

    Args:
        expr: expression of the place.
        log: its columns and those of its look-ups may be read.

    Raises:
        ConfigError: it is no whole number of an impression, or does not go with the log.
    """

    expr: Expr
    log: View

    def __post_init__(self) -> None:
        expr = self.expr
        refuse(expr, "position_bias")
        if not isinstance(expr, Expr):
            raise ConfigError(f"Pipeline: position_bias is {expr!r}; write a column, such as log.position")
        if expr.dtype not in ("int32", "int64"):
            raise ConfigError(
                f"Pipeline: position_bias {expr} is {expr.dtype}; write a whole number: the place "
                "on the page, such as log.position"
            )
        check_of_row(expr, f"Pipeline: position_bias {expr}", self.log)
        if self.log.provisional:
            raise ConfigError(
                f'Pipeline: position_bias does not go with delayed="{self.log.delayed}": labels have to be '
                'final; use delayed="wait"'
            )

    @cached_property
    def plan(self) -> FeaturePlan:
        """Place of a row, and beside it whether it is in range."""
        return FeaturePlan({}, {PLACE: self.expr, IN_RANGE + PLACE: within(self.expr, 0, PLACES - 1)})

    @property
    def columns(self) -> dict[str, Expr]:
        """Expression by a name that is no feature's."""
        return {"#place": self.expr}


def check_beside(sampling: object, calibration: object, rank: object) -> None:
    """Check what a pipeline with a position has besides.

    Raises:
        ConfigError: it does not go with a position.
    """
    reasons = {
        "sampling": (sampling, "rates of the log are of what was clicked, not of what was seen"),
        "calibration": (
            calibration,
            "observed click rates are of all places, what is served is of the first",
        ),
        "a hedge": (getattr(rank, "heads", None), "its heads would each see another curve; take one model"),
    }
    for name, (given, why) in reasons.items():
        if given is not None:
            raise ConfigError(f"Pipeline: position_bias does not go with {name}: {why}")
