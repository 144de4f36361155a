"""Worths of labels: what a pipeline's value multiplies probabilities with, and where that is known.

columns of a look-up table    known to servers, from the candidate's row; bids of a request win
columns of the impressions    known to the log alone: a request brings them as its bids

The expected value of a target is no part of its worth: it is predicted beside the probability.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from livectr.ingest.language import dtypes
from livectr.ingest.language.expr import ColumnRef, Expr
from livectr.ingest.language.hidden import refuse
from livectr.ingest.language.labels import CLICK
from livectr.ingest.language.roots import roots_of
from livectr.ingest.language.streams import View
from livectr.ingest.language.tables import Lookup, Table
from livectr.ingest.language.targets import Target
from livectr.ingest.language.value import Value
from livectr.ingest.plan.dag import FeaturePlan
from livectr.ingest.plan.root_checks import check_of_row
from livectr.system.errors import ConfigError

CAME = ".came"
"""End of the name of a label's worth that is measured once its expected value has come."""


@dataclass(frozen=True, eq=False)
class Worths:
    """Worths of a pipeline's labels.

    Args:
        value: as the pipeline declares it.
        log: its columns and those of its look-ups may be read.
        items: look-up table of the ranked items, or None.
        targets: labels beside the click.
        prerank: the pipeline has a pre-rank model.

    Raises:
        ConfigError: a worth that is no number, or that nobody knows when an ad is scored; an expected value
            that nothing predicts.
    """

    value: Value
    log: View
    items: Table | None
    targets: Sequence[Target]
    prerank: bool

    def __post_init__(self) -> None:
        if not isinstance(self.value, Value):
            raise ConfigError(
                f"Pipeline: value is {self.value!r}; write value=ads.bid * probability('click'), with "
                "`from livectr import probability`"
            )
        known = (CLICK, *(target.name for target in self.targets))
        for label, worth in self.value.worths.items():
            if label not in known:
                raise ConfigError(
                    f"Pipeline: value reads probability({label!r}), which is no label; the labels are "
                    f"{', '.join(known)}"
                )
            self._check(label, worth)
        for label in self.value.expected:
            self._check_expected(label)
        _ = self.lookup

    def _check(self, label: str, worth: object) -> None:
        if not isinstance(worth, Expr):
            if isinstance(worth, int | float) and not 0 <= worth < float("inf"):
                raise ConfigError(f"Pipeline: the worth of {label} is {worth!r}; it is at least 0")
            return
        refuse(worth, "value")
        if worth.dtype not in dtypes.FIXED:
            raise ConfigError(f"Pipeline: the worth of {label}, {worth}, is {worth.dtype}; write a number")
        check_of_row(worth, f"Pipeline: the worth of {label}, {worth},", self.log)
        if not _is_of_rows(worth) and label != self.value.bid_label:
            raise ConfigError(
                f"Pipeline: the worth of {label}, {worth}, reads the impressions, but the bids of a request "
                f"are the worth of {self.value.bid_label}; take columns of a look-up table"
            )

    def _check_expected(self, label: str) -> None:
        if label not in [target.name for target in self.targets if target.value is not None]:
            raise ConfigError(
                f"Pipeline: value reads expected_value({label!r}), but no target predicts it; write "
                f"Target({label!r}, ..., value=...), with the column that says what it came to"
            )
        if label in [late.name for late in self.log.late_labels]:
            raise ConfigError(
                f"Pipeline: value reads expected_value({label!r}), which is measured of final labels; leave "
                f"delayed= of Label({label!r}) out"
            )

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels."""
        return tuple(self.value.worths)

    @property
    def measured(self) -> tuple[str, ...]:
        """Names of what is measured of an example: each label, and each expected value that came."""
        return (*self.labels, *(label + CAME for label in self.value.expected))

    @property
    def cut_without(self) -> str:
        """Sentence on expected values, of which the cut of pre-rank knows nothing; "": there are none."""
        if not self.prerank or not self.value.expected:
            return ""
        terms = " and ".join(self.value.term(label) for label in self.value.expected)
        bids = self.value.worths[self.value.bid_label]
        return (
            f"pre-rank cuts by {bids} * probability('click'): two towers predict no expected values, so "
            f"{terms} orders rank and recommend alone"
        )

    @property
    def columns(self) -> dict[str, Expr]:
        """Expressions of the worths by names that are no feature's."""
        return {
            f"#value.{label}": each for label, each in self.value.worths.items() if isinstance(each, Expr)
        }

    @property
    def needs_bids(self) -> bool:
        """True if a request must have bids: no look-up row has them."""
        return not _is_of_rows(self.value.worths[self.value.bid_label])

    @cached_property
    def plan(self) -> FeaturePlan:
        """Worths of examples, by label; numbers are no part of it."""
        return FeaturePlan(
            {}, {name: each for name, each in self.value.worths.items() if isinstance(each, Expr)}
        )

    @cached_property
    def row_plan(self) -> FeaturePlan:
        """Worths that rows of the look-up table have, by label."""
        dense = {name: each for name, each in self.plan.dense.items() if _is_of_rows(each)}
        return FeaturePlan({}, dense)

    @cached_property
    def lookup(self) -> Lookup | None:
        """Look-up whose rows have worths; None: they are numbers, or come with requests."""
        topics = sorted({root.ref.source for root in self.row_plan.roots})
        if not topics:
            return None
        if len(topics) > 1:
            raise ConfigError(f"Pipeline: value reads the tables {' and '.join(topics)}; take one table")
        found = next(each for each in self.log.lookups if each.table.topic == topics[0])
        if found.more or found.counted is not None:
            raise ConfigError(f"Pipeline: value reads {topics[0]}, whose key has several columns")
        if self.prerank and (self.items is None or self.items.topic != topics[0]):
            raise ConfigError(
                f"Pipeline: value reads {topics[0]}, but pre-rank knows the rows of items= alone; take its "
                "columns"
            )
        return found

    @property
    def published(self) -> bool:
        """True if versions hold the bids of the items, beside their vectors.

        Pre-rank predicts clicks alone: it multiplies their probability with the worth of the bids' label.
        """
        return self.prerank and not self.needs_bids


def _is_of_rows(worth: object) -> bool:
    refs = [root.ref for root in roots_of(worth)] if isinstance(worth, Expr) else []
    return all(isinstance(ref, ColumnRef) and ref.table for ref in refs)
