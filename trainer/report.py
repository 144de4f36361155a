"""Report of a training run: counts, speed and test-then-train quality, as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from livectr.ingest.dead_letters.letters import Reason
from livectr.ingest.dead_letters.usable import too_many
from livectr.ingest.hints import leak_hint, not_finite, short_log
from livectr.ingest.join.stats import OF_PROCESS
from livectr.system.disk import writing
from livectr.system.errors import UserError
from livectr.trainer.counts import summed
from livectr.trainer.parts import Parts

_DECODED = {Reason.JOIN_FULL, *(reason for reason in Reason if reason.of_example)}
"""Dead letters of rows that are among the events: they were decoded before."""


@dataclass(frozen=True)
class Report:
    """Counts, speed and quality of a run. Quality is test-then-train: an example is scored, then learned.

    Counts cover the whole run, earlier processes of a resumed run included. A killed process's work after its
    last checkpoint is done and counted again. bytes_read, late_events, examples_per_second, seconds, rows and
    hints are this process's. Quality of a role that was not measured is None.

    Attributes:
        complete: the run came to its end; False: a signal has ended it before.
        dead_letters: rows that could not be used; an Arrow message counts its rows.
        precision: arithmetic of the networks' products on all ranks, as measured
            (models.precision.arithmetic_name).
        products: library of products that are fp32 (models.library).
        prerank: measures of the pre-rank model.
        calibrated: measures of the ranking model with calibrated logits; {} without calibration.
        measured_examples: number that the measures are of: those of the run, after a warm start without the
            examples of before.
        heads: role of a head of a hedge → its measures.
        targets: name of a target → measures of its probability, that of the click included, by its label.
        value: predicted and realised value of the examples, their ratio, and of each label; {} without a
            `value` of the pipeline.
        values: name of a target → measures of its predicted values; {} where no target has some.
        position_bias: model → place → probability that an impression there is seen, relative to the first
            place; {} where the pipeline names no position.
        hedge: role of a head → its weight; {} if the ranking model is no hedge.
        segments: number of the calibration's segments, of those judged by 500 clicks, and of these the lowest
            and highest calibration, raw and calibrated; {} without calibration.
        contest: the champion, the step since which it is the champion, and the number of changes; {} without
            challengers.
        challengers: name of a challenger → its measures.
        shadows: name of a shadow model → its measures.
        stream: counters of the source, summed over ranks.
        waiting: at the end of a log that may go on: impressions that the next run learns with their labels,
            since their window_ms has not passed, clicks that it reads again, and whether the impressions
            were learned (1), from which it goes back. {}: there are none.
        drift: feature → population stability index of its newest `drift_window_s` against the time before, of
            those with enough examples.
        rows: topic → rows that came, unusable rows, and the commonest complaint; of clicks also the share in
            another partition than their impression, and its cause.
        hints: likely mistakes in the data.
        field_keys: field → keys that were learned (of common features once a group).
        table_bytes: table → memory of its rows and index, over all ranks.
        dead_letter_reasons: reason → rows that could not be used.
        resumed: the process resumed from a checkpoint, so that `rows` are of a part of the input.
        dead_letter_place: path or URL of these rows; None: they are only counted.
        complete_versions: of the published versions, those that held every row; the others are deltas.
        version: the newest version in Redis; None: nothing was published.
        freshness: of this process's versions: examples, and p50_s and p99_s from event to servable version;
            events before the run began do not count. {}: not measured.
    """

    examples_trained: int
    steps: int
    seconds: float
    examples_per_second: float
    world: int
    events: int
    dead_letters: int
    published_versions: int
    published_rows: int
    complete: bool = True
    precision: str = "fp32"
    products: str = "torch"
    measured_examples: int | None = None
    auc: float | None = None
    gauc: float | None = None
    logloss: float | None = None
    calibration: float | None = None
    skipped_users: int | None = None
    cold_examples: int | None = None
    cold_auc: float | None = None
    cold_gauc: float | None = None
    cold_users_left_out: int | None = None
    last_20_percent: dict[str, float | None] = field(default_factory=dict)
    prerank: dict[str, Any] = field(default_factory=dict)
    calibrated: dict[str, Any] = field(default_factory=dict)
    heads: dict[str, dict[str, Any]] = field(default_factory=dict)
    targets: dict[str, dict[str, Any]] = field(default_factory=dict)
    value: dict[str, Any] = field(default_factory=dict)
    values: dict[str, dict[str, float | None]] = field(default_factory=dict)
    position_bias: dict[str, dict[str, float]] = field(default_factory=dict)
    hedge: dict[str, float] = field(default_factory=dict)
    segments: dict[str, Any] = field(default_factory=dict)
    contest: dict[str, Any] = field(default_factory=dict)
    challengers: dict[str, dict[str, Any]] = field(default_factory=dict)
    shadows: dict[str, dict[str, Any]] = field(default_factory=dict)
    stream: dict[str, Any] = field(default_factory=dict)
    waiting: dict[str, int] = field(default_factory=dict)
    drift: dict[str, float] = field(default_factory=dict)
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    hints: list[str] = field(default_factory=list)
    table_rows: dict[str, int] = field(default_factory=dict)
    field_keys: dict[str, int] = field(default_factory=dict)
    table_bytes: dict[str, int] = field(default_factory=dict)
    dead_letter_reasons: dict[str, int] = field(default_factory=dict)
    resumed: bool = False
    dead_letter_place: str | None = None
    complete_versions: int = 0
    version: int | None = None
    freshness: dict[str, float] = field(default_factory=dict)

    def whole(self) -> Report:
        """This report, for measures that need the whole run.

        Raises:
            UserError: a signal has ended the run before.
        """
        if not self.complete:
            raise UserError("a signal ended the training before the log's end; nothing was measured")
        return self

    @property
    def refused(self) -> int:
        """Rows among the events that were set aside once they were decoded."""
        return sum(count for reason, count in self.dead_letter_reasons.items() if Reason(reason) in _DECODED)

    def too_many_bad(self, most: float) -> str | None:
        """Sentence about rows of a whole input of which more than a share `most` was set aside, or None.

        Of a run that resumed, rows by topic are of the last process alone; the sum over topics is of all.
        """
        if not self.resumed:
            return too_many(self.rows, most)
        rows = self.events - self.refused + self.dead_letters
        whole = {topic: counts | {"unusable": 0} for topic, counts in self.rows.items()}
        found = [too_many(whole, most)]
        if self.dead_letters > most * rows:
            reason = Counter(self.dead_letter_reasons).most_common(1)[0][0]
            found.insert(0, f"{self.dead_letters:,} of {rows:,} rows set aside, most as {reason}")
        return "; ".join(filter(None, found)) or None

    def write(self, path: Path) -> None:
        """Write the report as JSON."""
        with writing("the report", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(asdict(self), indent=2) + "\n")


def report_of(
    parts: Parts,
    seconds: float,
    published: Mapping[str, Any],
    *,
    complete: bool,
    waiting: Mapping[str, int] = MappingProxyType({}),
) -> Report:
    """Gather the report of a run; ranks other than 0 know no quality. Collective.

    Args:
        parts: of this rank's run.
        seconds: time that the run took.
        published: versions and rows of this process, as nested counters.
        complete: the run came to its end.
        waiting: see `Report`.
    """
    progress, step, stream = parts.progress, parts.step, parts.stream
    stats, tables = asdict(stream.source.stats), step.tables
    own = {
        "stream": {**stats, "bytes_read": stats["bytes_read"] | stream.extraction.examples.bytes_read},
        "counts": summed(
            [
                progress.earlier,
                {**{name: stats[name] for name in OF_PROCESS}, "dead_letters": stream.letters.counts},
                published,
            ]
        ),
        "replaced": stream.extraction.replaced,
        "precision": step.precision,
        "tables": {name: len(table) for name, table in tables.items()},
        "table_bytes": {name: table.nbytes for name, table in tables.items()},
        "field_keys": progress.keys_by_field(),
    }
    shares = parts.control.gather_json(own)
    counts = summed([share["counts"] for share in shares])
    totals = summed([share["stream"] for share in shares]) | {name: counts[name] for name in OF_PROCESS}
    lines = {name: value for part in parts.each for name, value in part.report().items()}
    found = (
        leak_hint(lines.get("auc"), progress.examples),
        short_log(waiting, progress.examples),
        not_finite(sum(share["replaced"] for share in shares)),
    )
    lines["hints"] = [*lines.get("hints", ()), *filter(None, found)]
    return Report(
        examples_trained=progress.examples,
        steps=progress.steps,
        seconds=seconds,
        examples_per_second=(progress.examples - progress.examples_before) / max(seconds, 1e-9),
        world=parts.control.world,
        events=sum(totals.get("events", {}).values()),
        dead_letters=sum(counts["dead_letters"].values()),
        published_versions=counts["published"]["versions"],
        published_rows=counts["published"]["rows"],
        complete_versions=counts["published"].get("complete", 0),
        complete=complete,
        products=step.spec.settings.library,
        precision=", ".join(sorted({share["precision"] for share in shares})),
        stream=totals,
        waiting=dict(waiting),
        table_rows=summed([share["tables"] for share in shares]),
        field_keys=summed([share["field_keys"] for share in shares]),
        table_bytes=summed([share["table_bytes"] for share in shares]),
        dead_letter_reasons=counts["dead_letters"],
        resumed=progress.resumed,
        **lines,
    )


def waiting_of(parts: Parts) -> dict[str, int]:
    """`Report.waiting` of all ranks at the log's end; {}: nothing is left to learn. Collective."""
    view, stats = parts.pipeline.log, parts.stream.source.stats
    if view.clicks is None:
        return {}
    shown, clicks = (stats.unreleased[stream.topic] for stream in (view.impressions, view.clicks))
    pending = stats.pending + sum(counts["pending"] for counts in stats.labels.values())
    own = {
        "impressions": stats.pending + shown,
        "clicks": clicks,
        "left": stats.ready + stats.waiting + pending,
    }
    found = summed(parts.control.gather_json(own))
    if not found.pop("left"):
        return {}
    return {**found, "window_ms": view.window_ms, "learned": int(parts.options.goes_back)}
