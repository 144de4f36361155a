"""Explanation of scores: contribution of each feature, by leaving it out.

    contribution of x = logit − logit without x

A field is left out as if its list of keys were empty, with its content; a dense feature as if it were 0.
Features of a network act together, so contributions need not sum to the logit; those of LR and the bias do.

A candidate of F fields and Dd dense features is scored F + Dd + 1 times. So a request may ask for MOST
candidates at most, and a server explains one request at a time: the others are shed, not queued.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from livectr.ingest.extract.sharing import SharedFeatures
from livectr.ingest.language.expr import width_of
from livectr.ingest.pipeline import Pipeline
from livectr.protos import livectr_pb2 as pb
from livectr.serving import metrics
from livectr.serving.errors import OverloadError, RequestError
from livectr.serving.score.head_scorers import HedgeScorer
from livectr.serving.score.inputs import FieldVectors, ModelInputs
from livectr.serving.score.look_up import VersionLookup
from livectr.serving.score.rank_scorer import RankScorer
from livectr.serving.version.batch import RaggedVectors
from livectr.store.layout import F32, I64

MOST = 8
"""Most candidates of a request whose scores are explained."""


class Explainer:
    """Explains scores of a pipeline's ranking model. Thread-safe."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._tables = [spec.table for spec in pipeline.fields]
        self._fields = tuple(pipeline.plan.fields)
        self._position = "" if pipeline.shown is None else str(pipeline.shown.expr)
        self._columns: dict[str, slice] = {}
        start = 0
        for name, node in pipeline.plan.dense.items():
            self._columns[name] = slice(start, start + width_of(node))
            start += width_of(node)
        self._one = threading.Lock()

    @contextmanager
    def place(self) -> Iterator[None]:
        """Hold the only place of a request that is explained.

        Raises:
            OverloadError: at once, while another request is explained.
        """
        if not self._one.acquire(blocking=False):
            raise OverloadError("another request is being explained, and a server explains one at a time")
        try:
            yield
        finally:
            self._one.release()

    def explain(
        self,
        lookup: VersionLookup,
        scorer: RankScorer,
        inputs: ModelInputs,
        scores: tuple[F32, tuple[F32, F32] | None],
        rows: Sequence[int],
    ) -> Any:
        """Explain the scores of some candidates; Explanations.

        Args:
            lookup: version that gave the scores.
            scorer: of this version.
            inputs: of all n candidates.
            scores: logits f32[n] of all candidates, and scale and shift f32[n] of their calibration.
            rows: places of the candidates to explain.
        """
        logits, (scale, shift) = scores[0], scores[1] or (None, None)
        keys = [self._keys(inputs.features, row) for row in rows]
        cold = self._cold(lookup, keys)
        metrics.EXPLAINED.inc(len(rows))
        heads = scorer if isinstance(scorer, HedgeScorer) else None
        return pb.Explanations(
            heads=[] if heads is None else [role.removeprefix("rank.") for role in heads.roles],
            weights=[] if heads is None else heads.weights.tolist(),
            features=[*self._fields, *self._columns],
            fields=len(self._fields),
            position=self._position,
            candidates=[
                pb.Explanation(
                    index=row,
                    logit=logits[row],
                    contributions=self._contributions(scorer, inputs, row).tolist(),
                    keys=[len(of_field) for of_field in own],
                    cold_keys=[]
                    if cold is None
                    else [int(cold_in(c, k)) for c, k in zip(cold, own, strict=True)],
                    head_logits=[] if heads is None else _of_heads(heads, inputs, row),
                    scale=None if scale is None else scale[row],
                    shift=None if shift is None else shift[row],
                )
                for row, own in zip(rows, keys, strict=True)
            ],
        )

    def _contributions(self, scorer: RankScorer, inputs: ModelInputs, row: int) -> F32:
        """Contributions f32[F + features of dense numbers] to the logit of a candidate."""
        fields, dense = len(self._fields), list(self._columns.values())
        times = 1 + fields + len(dense)  # first the candidate as it is
        vectors = np.repeat(_whole(inputs.vectors, row), times, axis=0)
        numbers = np.repeat(inputs.dense[row : row + 1], times, axis=0)
        for field in range(fields):
            vectors[1 + field, field] = 0
        for number, columns in enumerate(dense):
            numbers[1 + fields + number, columns] = 0
        lists, content = (
            {name: _without(part, row, times, 1 + self._fields.index(name)) for name, part in named.items()}
            for named in (inputs.lists, inputs.content)
        )
        logits = scorer.logits(FieldVectors.of(vectors), numbers, lists, content)
        out: F32 = logits[0] - logits[1:]
        return out

    def _keys(self, features: SharedFeatures, row: int) -> list[I64]:
        """Keys of a candidate, i64 arrays in field order."""
        found: dict[int, I64] = {}
        for part, numbers, at in (
            (features.shared, features.shared_fields, 0),
            (features.own, features.own_fields, row),
        ):
            for place, number in enumerate(numbers):
                offsets, keys = part.field(place)
                found[number] = keys[offsets[at] : offsets[at + 1]]
        return [found[number] for number in range(len(self._fields))]

    def _cold(self, lookup: VersionLookup, keys: Sequence[Sequence[I64]]) -> list[I64] | None:
        """Keys without a row at the version, sorted, for each field; None: Redis cannot be read."""
        by_table: dict[str, list[I64]] = {}
        for own in keys:
            for table, of_field in zip(self._tables, own, strict=True):
                by_table.setdefault(table, []).append(of_field)
        absent = lookup.absent({table: np.unique(np.concatenate(parts)) for table, parts in by_table.items()})
        return None if absent is None else [absent[table] for table in self._tables]


def _of_heads(scorer: HedgeScorer, inputs: ModelInputs, row: int) -> list[float]:
    """Logits of the heads for a row."""
    vectors = FieldVectors.of(_whole(inputs.vectors, row))
    of_heads: list[float] = scorer.of_heads(vectors, inputs.dense[row : row + 1])[:, 0].tolist()
    return of_heads


def check_explain(count: int) -> None:
    """Raise RequestError if too many candidates are to be explained."""
    if count > MOST:
        raise RequestError("explain", f"is {count}, but may be at most {MOST}")


def cold_in(cold: I64, keys: I64) -> np.intp:
    """Number of keys that are cold."""
    return np.count_nonzero(np.isin(keys, cold))


def _whole(vectors: FieldVectors, row: int) -> F32:
    """Vectors f32[1, F, D] of a row's fields, shared ones included."""
    out = np.empty(
        (1, len(vectors.own_fields) + len(vectors.shared_fields), vectors.own.shape[2]), np.float32
    )
    out[0, list(vectors.own_fields)] = vectors.own[row]
    out[0, list(vectors.shared_fields)] = vectors.shared[0]
    return out


def _without(part: RaggedVectors, row: int, times: int, empty: int) -> RaggedVectors:
    """List of a row, `times` times, but for one that is empty."""
    start, end = (0, part.offsets[1]) if part.shared_by else part.offsets[row : row + 2]
    lengths: npt.NDArray[np.int64] = np.full(times, end - start, np.int64)
    lengths[empty] = 0
    values = np.tile(part.values[start:end], (times - 1, 1))
    return RaggedVectors(values, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))
