"""Check of a plan's roots against the view of the log: what is known when an impression is scored."""

from __future__ import annotations

from collections.abc import Mapping

from livectr.ingest.language.counts import CountedRef
from livectr.ingest.language.expr import ColumnRef, Expr, RecentRef
from livectr.ingest.language.roots import needs_counts, needs_statistics, roots_of
from livectr.ingest.language.streams import Stream, View
from livectr.system.errors import ConfigError


def check_root(root: Expr, log: View, *, label: bool = False, events: Stream | None = None) -> None:
    """Check that the log has a root: a column of its impressions or of a table, or a history of its clicks.

    Args:
        root: of an expression.
        log: of the pipeline.
        label: the expression may read the label.
        events: stream whose columns it may read, too.

    Raises:
        ConfigError: it does not, or the root is the label.
    """
    ref = root.ref
    if isinstance(ref, CountedRef):
        counted = ref.counted
        assert counted is not None
        known = all(name in log.impressions.columns for name in counted.by)
        if log.impressions.time is None or not known or counted.lag_ms != log.known_after_ms:
            raise ConfigError(
                f"{counted.maker} by {' and '.join(counted.by)} are of another log; "
                f"call {counted.maker}(log, …) with the pipeline's log"
            )
        return
    tables = {lookup.table.topic: lookup.table for lookup in log.lookups}
    if isinstance(ref, RecentRef):
        if log.clicks is None or ref.source != log.clicks.topic:
            raise ConfigError(f"{root}: histories are made of the click stream of a label_join")
    elif ref.table:
        if ref.source not in tables:
            raise ConfigError(
                f"{root}: table {ref.source} is not looked up; add .lookup({ref.source}) to the log"
            )
        _check_declared(root, ref, tables[ref.source].columns)
    elif events is not None and ref.source == events.topic:
        _check_declared(root, ref, events.columns)
    elif ref.source != log.impressions.topic:
        raise ConfigError(
            f"{root} is not known when an impression of {log.impressions.topic} is scored; "
            "use its history, recent(...), or a column of the impressions"
        )
    else:
        _check_declared(root, ref, log.impressions.columns)
        if ref.column == log.label_column and not label:
            raise ConfigError(f"{root} is the label; it cannot be a feature")


def check_of_row(
    expr: Expr, what: str, log: View, *, label: bool = False, events: Stream | None = None
) -> None:
    """Check that an expression that is no feature is a function of an impression and its look-up rows alone.

    Args:
        expr: expression.
        what: the expression, as an error names it.
        log: of the pipeline.
        label: the expression may read the label.
        events: stream whose columns it may read, too.

    Raises:
        ConfigError: it depends on other rows, or the log does not have what it reads.
    """
    if needs_statistics(expr) or needs_counts(expr):
        raise ConfigError(
            f"{what} depends on running statistics or counters, so that it would differ in another order; "
            "take a function of the row alone"
        )
    for root in roots_of(expr):
        if not isinstance(root.ref, ColumnRef):
            raise ConfigError(f"{what} reads a history; take columns alone")
        check_root(root, log, label=label, events=events)


def _check_declared(root: Expr, ref: ColumnRef, columns: Mapping[str, str]) -> None:
    if columns.get(ref.column) != root.dtype:
        raise ConfigError(f"{root} comes from another declaration of {ref.source}; declare each topic once")
