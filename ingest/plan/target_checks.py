"""Check of a pipeline's targets against its log and models."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from livectr.ingest.language import dtypes
from livectr.ingest.language.expr import ColumnRef, Expr
from livectr.ingest.language.roots import roots_of
from livectr.ingest.language.streams import View
from livectr.ingest.language.targets import Target
from livectr.ingest.plan.root_checks import check_of_row
from livectr.system.errors import ConfigError

MOST = 32
"""Targets of a pipeline; their labels are bits of a word."""


def check_targets(
    targets: object, log: View, rank: Any, challengers: Iterable[str], *, positioned: bool = False
) -> None:
    """Check that a pipeline's targets fit its log and models.

    Args:
        targets: of the pipeline.
        log: of the pipeline.
        rank: the ranking model.
        challengers: names.
        positioned: the pipeline has a position.

    Raises:
        ConfigError: they do not.
    """
    if not isinstance(targets, Sequence) or not all(isinstance(one, Target) for one in targets):
        raise ConfigError(
            f"Pipeline: targets is {targets!r}; write targets=[Target('order', log.ordered, after='click')]"
        )
    found = {target.name: target for target in targets}
    for label in log.more_labels:
        if label.name not in found or found[label.name].label is not None:
            raise ConfigError(
                f"Label {label.name!r} of the label join teaches nothing; add Target({label.name!r}) to the "
                "pipeline's targets, or leave the label out"
            )
    if not targets:
        return
    if len(targets) > MOST:
        raise ConfigError(f"Pipeline: {len(targets)} targets; at most {MOST} are learned beside the click")
    names = [target.name for target in targets]
    if len(set(names)) < len(names):
        raise ConfigError(f"Pipeline: two targets have the same name: {', '.join(names)}")
    if log.provisional:
        raise ConfigError(
            f'Pipeline: targets do not go with delayed="{log.delayed}": their labels have to be final; use '
            'delayed="wait"'
        )
    if hasattr(rank, "heads") or list(challengers):
        raise ConfigError("Pipeline: targets go with one ranking model: no hedge, and no challengers")
    joined = [label.name for label in log.more_labels]
    late = {label.name for label in log.late_labels}
    if positioned and (alone := [t.name for t in targets if t.name in late and t.after is None]):
        raise ConfigError(
            f"Pipeline: position_bias does not go with the late label {alone[0]!r}: leave its delayed= out, "
            "or say after='click'"
        )
    for target in targets:
        if target.value is not None:
            _check_value(target, target.value, log)
        if target.label is None:
            if target.name not in joined:
                known = f"it has {', '.join(map(repr, joined))}" if joined else "it has none"
                raise ConfigError(
                    f"Target {target.name!r} has no label: write the column that says it, or give label_join "
                    f"labels=[Label({target.name!r}, its stream, window=...)] ({known})"
                )
            continue
        check_of_row(target.label, f"Target {target.name!r}", log, label=True)


def _check_value(target: Target, value: Expr, log: View) -> None:
    """Check that a value reads what the log has: of the events of its own label one column, a number."""
    what = f"Target {target.name!r}: its value"
    own = [label.stream for label in log.more_labels if label.name == target.name]
    amounts = [root for root in roots_of(value) if own and root.ref.source == own[0].topic]
    amounts = [root for root in amounts if isinstance(root.ref, ColumnRef) and not root.ref.table]
    if len(amounts) > 1:
        raise ConfigError(
            f"{what} reads {' and '.join(map(str, amounts))}; the join keeps one column of an event: write "
            "the value as a column of the events"
        )
    if amounts and amounts[0].dtype not in dtypes.FIXED:
        raise ConfigError(f"{what} reads {amounts[0]}, {amounts[0].dtype}; the join keeps numbers of events")
    check_of_row(value, what, log, label=True, events=own[0] if amounts else None)
