"""Event time of a log, and its division in an ablation.

    start ──── earlier share ────► split ──────────── training ──────────► test ── last fifth ──► end
               only warm-up                every variant: score each example, then learn it
               has seen it                                                 in the tables

Without warm-up variants there is no earlier share: split is the start. Users' histories are made of the whole
log in every part.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from livectr.ingest.dead_letters.letters import DeadLetters
from livectr.ingest.join.examples import ExampleSource, ReadOptions
from livectr.ingest.language.event_times import EventTime
from livectr.ingest.language.expr import Expr
from livectr.ingest.language.streams import Stream
from livectr.ingest.pipeline import Pipeline
from livectr.system.errors import ConfigError

TEST = 0.2
EARLIER = 0.4
AT_ONCE = 1 << 16


@dataclass(frozen=True)
class Span:
    """Epoch milliseconds: the first and the last example's, and where the parts begin. examples: in all."""

    start_ms: int
    end_ms: int
    split_ms: int
    test_ms: int
    examples: int

    @property
    def divided(self) -> bool:
        """There is an earlier part, for warm-up."""
        return self.split_ms > self.start_ms


def span_of(pipeline: Pipeline, source: str, *, divided: bool) -> Span:
    """Read a log once, without features. Raises ConfigError for a log without examples or event time."""
    if pipeline.log.impressions.time is None:
        raise ConfigError(
            f"an ablation tests on the last part of the event time, but {pipeline.log.impressions.topic} has "
            "no time column; name it in the Stream."
        )
    narrow = pipeline.select([pipeline.fields[0].name])
    letters = DeadLetters(None)  # training reports them
    log = ExampleSource(
        narrow, source, ReadOptions(until_end=True, full_tables=False), rank=0, world=1, dead_letters=letters
    )
    first, last, examples = 2**63 - 1, -(2**63), 0
    try:
        while not log.ended or len(log.orders(1)[0]):
            log.poll(0.1)
            while ready := len(log.orders(AT_ONCE)[0]):
                times = log.pop(ready).time_ms
                first, last = min(first, int(times.min())), max(last, int(times.max()))
                examples += ready
    finally:
        log.close()
    if not examples:
        raise ConfigError(f"{source} has no examples to train on.")
    length = last - first
    split = first + round(EARLIER * length) if divided else first
    return Span(first, last, split, first + round((1 - TEST) * length), examples)


def only(pipeline: Pipeline, part: Literal["earlier", "later"], split_ms: int) -> Pipeline:
    """Pipeline on the examples of a part of the log; histories are still made of all clicks."""
    impressions = pipeline.log.impressions
    before, column = impressions.where, impressions.time
    assert column is not None  # `span_of` has refused a log without

    def where(stream: Stream) -> Expr:
        time = stream[column]
        kept = time < split_ms if part == "earlier" else time >= split_ms
        return kept if before is None else before(stream) & kept

    some = Stream(
        impressions.topic,
        columns=impressions.columns,
        key=impressions.key,
        time=EventTime(
            column,
            impressions.time_unit,
            max_ahead=impressions.max_ahead_ms,
            max_disorder=impressions.max_disorder_ms,
        ),
        json_fields=impressions.json_fields,
        fill=impressions.fill,
        where=where,
    )
    return replace(pipeline, log=replace(pipeline.log, impressions=some))
