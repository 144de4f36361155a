"""Comparison of replies with the reference scorer at the checkpoint of their version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.ingest.extract.worths import WorthExtractor
from livectr.ingest.language.keys import key_of
from livectr.ingest.language.labels import CLICK
from livectr.ingest.pipeline import Pipeline
from livectr.kernels.table.table import MISSING_ROW
from livectr.library.features import extracted
from livectr.library.scoring import PRERANK, CheckpointScorer
from livectr.serving.explore.orders import Explorer
from livectr.trainer.checkpoint.restored import Restored
from livectr.verify.live import LiveInputs, Names, Values
from livectr.verify.requests import Request
from livectr.verify.vectors import ITEMS, Vectors

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
_LOGIT_LIMIT = 1e-12
"""Distance from 0 and 1 at which logits of float32 probabilities are cut off."""


@dataclass(frozen=True)
class Answer:
    """Reply to a request.

    Args:
        names: of the request's live inputs.
        version: that the reply names.
        values: f64[n] in the order of the candidates: pCTR, or the scores of pre-rank. NaN: the reply leaves
            the candidate out, or is no answer to the request.
        targets: f64[T, n], probabilities of the targets in the same order; T is 0 for pre-rank.
        target_values: f64[V, n], expected values of targets that have some.
        worth: f64[n], expected values of the candidates, of rank; None: the pipeline has no value.
    """

    request: Request
    names: Names
    version: int
    values: F64
    targets: F64
    target_values: F64
    worth: F64 | None = None

    @property
    def all(self) -> F64:
        """f64[1 + T + V, n], of the click or pre-rank, then of the targets, then of their values."""
        return np.concatenate([self.values[None], self.targets, self.target_values])

    @property
    def rates(self) -> int:
        """Rows of `all` that are no values."""
        return 1 + len(self.targets)


@dataclass(frozen=True)
class Judgement:
    """Answer beside the checkpoint's values.

    Args:
        expected: f64[n], pCTR or scores by the checkpoint.
        different: bool[n], beyond the tolerance, with the live inputs of either reading.
        open: bool[n], as `different`, but a live input changed meanwhile: nothing can be said.
        difference, logit_difference: largest of the candidates that are not open.
    """

    answer: Answer
    expected: F64
    different: Bools
    open: Bools
    difference: float
    logit_difference: float


def answer_of(request: Request, names: Names, reply: Any, explorer: Explorer | None = None) -> Answer:
    """Answer of a RankResponse or PreRankResponse, whose order must be that of its values.

    Args:
        request: that was sent.
        names: of its live inputs.
        reply: to it.
        explorer: of the server's side; the order and propensities of a reply must be those that it draws for
            the values and the id of the reply. None: the server does not explore.
    """
    found = np.array(reply.score if request.kind == PRERANK else reply.pctr, np.float64)
    keys = found if request.kind == PRERANK else np.array(reply.ecpm, np.float64)
    valued = len(reply.value) == len(found) and len(found) > 0
    if valued:
        keys = np.array(reply.value, np.float64)
    index = np.array(reply.index, np.int64)
    values = np.full(len(request), np.nan)
    whole = len(index) == len(found) == len(keys) and np.array_equal(np.sort(index), np.arange(len(request)))
    ordered = whole and _is_order_of(keys, index, reply, None if request.kind == PRERANK else explorer)
    ordered = ordered and (valued or np.allclose(keys, found))  # without a value every bid is 1
    if ordered:
        values[index] = found
    of = [] if request.kind == PRERANK else reply.targets
    targets = np.full((len(of), len(request)), np.nan)
    with_values = [one for one in of if one.value]
    target_values = np.full((len(with_values), len(request)), np.nan)
    given = [*((row, one.probability) for row, one in zip(targets, of, strict=True))]
    given += [(row, one.value) for row, one in zip(target_values, with_values, strict=True)]
    for row, numbers in given:
        if ordered and len(numbers) == len(index):
            row[index] = numbers
    worth = None
    if valued and request.kind != PRERANK:
        worth = np.full(len(request), np.nan)
        if ordered:
            worth[index] = keys
    return Answer(request, names, reply.version, values, targets, target_values, worth)


def _is_order_of(keys: F64, index: I64, reply: Any, explorer: Explorer | None) -> bool:
    """Tell if candidates of a reply, of values f64[n] in its order, are in the order that they must have."""
    if explorer is None or not reply.request_id:
        return not (np.diff(keys) > 0).any()
    values = np.empty(len(keys))
    values[index] = keys
    drawn, said = explorer.draw(reply.request_id, values), reply.exploration
    same = np.array_equal(drawn.order, index) and drawn.explored == said.explored
    return same and np.array_equal(drawn.propensity, np.array(said.propensity))


class Judge:
    """Recomputes answers from a generation.

    Args:
        vectors: published vectors that are older than their version (livectr.verify.vectors).
        tolerance: largest difference of a pCTR, or of a score of pre-rank relative to scores above 1.

    Attributes:
        keys, known: keys of the features, and those that the checkpoint has a row of.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        restored: Restored,
        folders: Any,
        live: LiveInputs,
        tolerance: float,
        vectors: Mapping[str, Vectors] = MappingProxyType({}),
    ) -> None:
        self._pipeline, self._live, self._tolerance = pipeline, live, tolerance
        content, items = {n: v for n, v in vectors.items() if n != ITEMS}, vectors.get(ITEMS)
        self._scorer = CheckpointScorer(
            pipeline, restored, folders, prerank=True, vectors=content, items=items
        )
        self.keys = self.known = 0
        worths = pipeline.worths
        self._worths = None if worths is None else WorthExtractor(worths, worths.row_plan, worths.labels)

    def judge(self, answers: Sequence[Answer], before: Values, after: Values) -> list[Judgement]:
        """Compare answers, with live inputs as they were before and after them.

        Raises:
            ConfigError: a request cannot be recomputed.
        """
        expected = self._logits(answers, before)
        judged = []
        for answer, logits in zip(answers, expected, strict=True):
            moved = self._live.moved(answer.request, answer.names, (before, after))
            different = self._differs(answer, logits, before)
            if (different & moved).any():
                (later,) = self._logits([answer], after)
                better = different & moved & ~self._differs(answer, later, after)
                logits, different = np.where(better, later, logits), different & ~better
            judged.append(self._judgement(answer, logits, different & ~moved, different & moved))
        return judged

    def _judgement(self, answer: Answer, logits: F64, different: Bools, unsure: Bools) -> Judgement:
        values, seen = self._values(answer, logits), ~unsure
        rates, scores = answer.rates, answer.all
        if answer.request.kind != PRERANK:
            scores = np.concatenate([_logit(scores[:rates]), np.log(scores[rates:])])
        apart = np.abs(np.stack([values - answer.all, logits - scores]))[:, :, seen]
        apart[0, rates:] /= np.maximum(1.0, np.abs(values[rates:, seen]))
        most = apart.max(axis=(1, 2), initial=0.0)  # NaN where a reply was no answer
        return Judgement(answer, values[0], different, unsure, float(most[0]), float(most[1]))

    def _differs(self, answer: Answer, logits: F64, live: Values) -> Bools:
        values = self._values(answer, logits)
        scale = np.maximum(1.0, np.abs(values))  # 1 for a pCTR
        differs: Bools = np.any(~(np.abs(values - answer.all) <= self._tolerance * scale), axis=0)
        if answer.worth is not None:
            worth = self._worth(answer, values, live)
            differs |= ~(np.abs(worth - answer.worth) <= self._tolerance * np.maximum(1.0, np.abs(worth)))
        return differs

    def _worth(self, answer: Answer, values: F64, live: Values) -> F64:
        """Expected values f64[n] of a request's candidates, whose bids are 1 where no row has them."""
        worths = self._pipeline.worths
        assert worths is not None and self._worths is not None
        found = self._worths(self._live.columns(answer.request, answer.names, live)).astype(np.float64)
        if worths.needs_bids:
            found[:, worths.labels.index(worths.value.bid_label)] = 1.0
        labels = [CLICK, *(target.name for target in self._pipeline.targets)]
        terms = found.T * values[[labels.index(label) for label in worths.labels]]
        valued = [target.name for target in self._pipeline.valued]
        for label in worths.value.expected:
            terms[worths.labels.index(label)] *= values[len(labels) + valued.index(label)]
        total: F64 = terms.sum(axis=0)
        return total

    def _values(self, answer: Answer, logits: F64) -> F64:
        if answer.request.kind == PRERANK:
            return logits
        rates = answer.rates
        return np.concatenate([1.0 / (1.0 + np.exp(-logits[:rates])), np.exp(logits[rates:])])

    def _logits(self, answers: Sequence[Answer], values: Values) -> list[F64]:
        """Logits f64[1 + T + V, n] of each answer's request by the checkpoint; of values their logarithms."""
        found: dict[int, F64] = {}
        for kind in {answer.request.kind for answer in answers}:
            places = [i for i, answer in enumerate(answers) if answer.request.kind == kind]
            parts = [
                self._live.columns(answers[i].request, answers[i].names, values)
                for i in places
            ]  # fmt: skip
            ends = np.cumsum([part.num_rows for part in parts])
            keys = None
            if kind == PRERANK:  # the only column of a candidate is its item
                lists = [next(iter(answers[i].request.candidates.values())) for i in places]
                keys = np.concatenate([key_of(pa.array(items)) for items in lists])
            logits = self._score(pa.Table.from_batches(parts), kind, keys)
            found |= dict(zip(places, np.split(logits, ends[:-1], axis=1), strict=True))
        return [found[i] for i in range(len(answers))]

    def _score(self, columns: pa.Table, kind: str, items: I64 | None) -> F64:
        """`_logits` of rows, at least one, of pre-rank with items' keys i64[n]; counts keys."""
        plan, scorer = self._pipeline.plan, self._scorer
        (batch,) = columns.combine_chunks().to_batches()
        parts, done = [], 0
        for features in extracted(plan, batch, scorer.statistics):
            if items is None:
                click = scorer.calibrated(features, scorer.logits(features))
                worths = [np.log(value)[None] for value in scorer.values(features).values()]
                logits = np.concatenate([click[None], scorer.target_logits(features, click), *worths])
            else:
                ranked = scorer.prerank_logits(features, items[done : done + features.rows])
                logits = ranked.astype(np.float64)[None]
            done += features.rows
            parts.append(logits)
            for spec in self._pipeline.fields:
                keys = features.field(spec.index)[1]
                self.keys += len(keys)
                self.known += int(np.count_nonzero(scorer.tables[spec.table].find(keys) != MISSING_ROW))
        return np.concatenate(parts, axis=1)


def _logit(values: F64) -> F64:
    cut = np.clip(values, _LOGIT_LIMIT, 1 - _LOGIT_LIMIT)
    return np.log(cut) - np.log1p(-cut)
