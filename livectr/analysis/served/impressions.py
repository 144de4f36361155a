"""Impressions of served requests, with final labels and the trainer's features.

The examples of the log are read as training reads them: label join, look-ups and histories are the trainer's
own code. An impression belongs to the candidate of a served request that has its request id and its item.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.ingest.dead_letters.letters import DeadLetters
from livectr.ingest.extract.extractor import Extractor
from livectr.ingest.extract.statistics import Statistics
from livectr.ingest.extract.weights import WeightExtractor, counts_of
from livectr.ingest.join.example_columns import Examples
from livectr.ingest.join.examples import ExampleSource, ReadOptions
from livectr.ingest.materialized.writer import until_end
from livectr.ingest.pipeline import Pipeline
from livectr.ingest.plan.dag import FeaturePlan
from livectr.serving.served.record import F32, U32, digests
from livectr.system.errors import ConfigError
from livectr.trainer.quality.final_labels import with_final_labels
from livectr.trainer.quality.predictions import Records, layout, records
from livectr.trainer.quality.seen import NOT_COUNTED

ROLE = "rank"


@dataclass(frozen=True)
class JoinColumns:
    """Columns of the impression stream that name the served candidate.

    Args:
        request: holds the id of the request.
        item: tells the candidates of a request apart.
    """

    request: str
    item: str

    @staticmethod
    def of(pipeline: Pipeline, request: str | None, item: str | None) -> JoinColumns:
        """Columns that a user names; None: the first column of the label join, and the items' column.

        Raises:
            ConfigError: a column cannot be guessed, or the stream has none of that name and a fitting type.
        """
        log = pipeline.log
        request = request or (log.on[0] if log.on else None)
        item = item or pipeline.item_column
        for flag, name in (("--request-column", request), ("--item-column", item)):
            kinds = ("int64", "int32", "string")
            known = [column for column, dtype in log.impressions.columns.items() if dtype in kinds]
            if name not in known:
                wrong = f"{name!r} is no column of" if name else "say which column to join by, of"
                raise ConfigError(f"{flag}: {wrong} {log.impressions.topic}; it has {', '.join(known)}")
        assert request is not None and item is not None
        return JoinColumns(request, item)


@dataclass(frozen=True)
class Impressions:
    """Impressions of n served requests, in training order.

    Args:
        held: records[n] with final labels; their logits are not set.
        request, item: n texts.
        digests: u32[n, F], of the trainer's keys.
        dense: f32[n, Dd].
        all: impressions of the log, served or not.
        unusable: rows of the log that could not be used.
        example: request id of an impression of the log; empty: not known.
    """

    held: Records
    request: list[str]
    item: list[str]
    digests: U32
    dense: F32
    all: int
    unusable: int
    example: str

    def __len__(self) -> int:
        return len(self.held)


def read_impressions(pipeline: Pipeline, source: str, join: JoinColumns, ids: Collection[str]) -> Impressions:
    """Read a log to its end, and keep the impressions of some requests.

    Args:
        pipeline: its joins and columns.
        source: `kafka://…` or `file:…`.
        join: columns that name request and item.
        ids: of the requests.

    Raises:
        ConfigError, ConnectError, DataError: the log cannot be read.
    """
    letters = DeadLetters(None)  # training keeps the letters of its log
    options = ReadOptions(until_end=True, full_tables=False)
    examples = ExampleSource(_reading(pipeline, join), source, options, rank=0, world=1, dead_letters=letters)
    found = _Found(pipeline, join, ids)
    try:
        for batch in until_end(examples):
            found.add(batch)
    finally:
        examples.close()
    return found.result(letters.counts.total())


def nothing_joined(
    served: str, source: str, join: JoinColumns, ids: Collection[str], found: Impressions
) -> str:
    """Sentence about a served log and impressions that have no candidate in common."""
    if not found.all:
        return f"{source} holds no impressions."
    if len(found):
        return (
            f"impressions have the request ids of {served}, but items that were no candidates, such as "
            f"{join.item} {found.item[0]!r}; name the column that tells candidates apart by --item-column."
        )
    return (
        f"no impression has the id of a served request in its column {join.request!r}. Served ids look like "
        f"{min(ids)!r}, those of the log like {found.example!r}: send the id that you log as request_id of "
        "the request, or name its column by --request-column."
    )


class _Found:
    """Impressions of served requests, in memory: about 4 bytes a field, and 200 an impression."""

    def __init__(self, pipeline: Pipeline, join: JoinColumns, ids: Collection[str]) -> None:
        plan, stream = pipeline.plan, pipeline.log.impressions
        self._extract, self._statistics = Extractor(plan), Statistics(plan)
        weights = pipeline.example_weights
        self._weights = None if weights is None else WeightExtractor(weights)
        self._names = stream[join.request].name, stream[join.item].name
        self._ids = ids
        self._held: list[Records] = [np.empty(0, layout([ROLE], weighted=weights is not None))]
        self._late: list[npt.NDArray[np.bool_]] = [np.empty(0, np.bool_)]
        self._digests: list[U32] = [np.empty((0, len(plan.fields)), np.uint32)]
        self._dense: list[F32] = [np.empty((0, len(plan.dense_names)), np.float32)]
        self._texts: tuple[list[str], list[str]] = [], []
        self._all = self._failed = 0
        self._example = ""

    def add(self, batch: Examples) -> None:
        """Keep the impressions of a batch that were served."""
        request, item = (_texts(batch.columns.column(name)) for name in self._names)
        first = ~batch.late & ~batch.final
        self._all += int(np.count_nonzero(first))
        if request:
            self._example = request[0]
        served = np.array([id in self._ids for id in request], bool) & ~batch.final
        rows = np.flatnonzero(served)
        if len(self._statistics):  # they have seen all examples before, as in training
            features = self._extract(batch.columns, self._statistics)
            self._statistics = self._statistics.update(features.observed[:, first & ~features.failed])
            features = features.take(rows)
        elif len(rows):
            features = self._extract(batch.columns.take(pa.array(rows)))
        if not len(rows):
            return
        failed, weights = features.failed, None
        if self._weights is not None:
            weights = self._weights(batch.columns.take(pa.array(rows)))
            failed = failed | weights.failed
        good = np.flatnonzero(~failed)
        self._failed += len(rows) - len(good)
        rows, features = rows[good], features.take(good)
        self._held.append(
            records(
                instance=batch.instance[rows],
                user=batch.user[rows],
                item=batch.item[rows],
                time_ms=batch.time_ms[rows],
                seen=np.full(len(rows), NOT_COUNTED, np.uint32),
                logits={ROLE: np.full(len(rows), np.nan, np.float32)},
                label=batch.label[rows],
                weight=None if weights is None else counts_of(weights.values[good], batch.label[rows]),
            )
        )
        self._late.append(batch.late[rows])
        self._digests.append(digests(features).reshape(len(rows), -1))
        self._dense.append(features.dense.copy())
        for kept, texts in zip(self._texts, (request, item), strict=True):
            kept += [texts[row] for row in rows.tolist()]

    def result(self, unusable: int) -> Impressions:
        """All of them, with final labels; a late positive is its impression's label, and no row."""
        held, late = np.concatenate(self._held), np.concatenate(self._late)
        kept = np.flatnonzero(with_final_labels(held, late))
        request, item = ([texts[row] for row in kept.tolist()] for texts in self._texts)
        return Impressions(
            held[kept],
            request,
            item,
            np.concatenate(self._digests)[kept],
            np.concatenate(self._dense)[kept],
            self._all,
            unusable + self._failed,
            self._example,
        )


def _reading(pipeline: Pipeline, join: JoinColumns) -> Pipeline:
    """Copy of a pipeline whose source also reads the columns of the join."""
    plan, stream = pipeline.learned.plan, pipeline.log.impressions
    more = {f"join by {name}": stream[name] for name in dict.fromkeys((join.request, join.item))}
    part = copy.copy(pipeline)
    for name in ("request_roots", "lookup_roots"):
        vars(part).pop(name, None)
    vars(part).update(
        plan=FeaturePlan({**plan.sparse, **more}, plan.dense),
        fingerprint=pipeline.fingerprint,
        history_roots=pipeline.history_roots,
    )
    return part


def _texts(column: pa.Array) -> list[str]:
    return [text or "" for text in column.cast(pa.string()).to_pylist()]
