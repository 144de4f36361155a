"""Stage 5, score: the ranking model of a version with its weights.

A server holds all fields, so ⊕ is the identity; see `models.base`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from livectr.ingest.drift.learned import PREFIX as DRIFT
from livectr.ingest.drift.learned import Learned
from livectr.ingest.extract.sharing import SharedFeatures
from livectr.ingest.pipeline import Pipeline
from livectr.ingest.plan.segments import NO_SEGMENT, segments
from livectr.kernels.network.forward import ForwardNetwork
from livectr.kernels.network.pooling import VectorList
from livectr.kernels.request.score import Heads, Lines, Reads, Snapshot
from livectr.models.configs import model_configs
from livectr.models.forward import ItemFeatures, compiled_forward
from livectr.models.inputs import Columns, Gathered
from livectr.models.multi_task import TaskModel, WholeTask, role_of_row
from livectr.serving.deadlines import CALL
from livectr.serving.score.inputs import FieldVectors, Lists, ModelInputs, ragged, slices
from livectr.serving.score.plan_stages import FieldOrder
from livectr.serving.score.published import loaded_role, published_statistics, served_slices
from livectr.serving.score.snapshots import Snapshots, pooled_reads
from livectr.serving.version.batch import RaggedVectors
from livectr.serving.version.loader import ModelVersion
from livectr.serving.version.near_cache import NearCache
from livectr.store.calibration import PREFIX, SegmentMaps
from livectr.store.layout import F32
from livectr.store.targets import F64
from livectr.system.errors import MismatchError

log = logging.getLogger(__name__)

_COPIED_BYTES = 8 << 20
"""Most bytes of the copies of a shared list in a call of the model; more rows take several calls."""
_BLOCK_ROWS = 16
"""Rows of a block of a matrix product. Those of an incomplete block are added in another order, so that equal
candidates would differ in the last bit."""


class RankScorer(Snapshots[Snapshot]):
    """Ranking model of a version, and the running statistics of its features.

    Args:
        champion: role of the version's ranking model.
        items: features whose partial results may be kept.
        role: of the model; None: the champion's, else a head of the champion.

    Attributes:
        name: its class and the pipeline's fingerprint; the role of a challenger stands before it.
        sequences: fields of which the model reads the vector of each key.
        content: fields of which the model reads the content.
        in_one_call: a compiled call computes the whole model.
        other_count: T, heads of targets.
        maps: calibration of its logits; None: the version is not calibrated.

    Raises:
        MismatchError: the pipeline has no such contender, or the weights are of another model.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        dense: Mapping[str, Tensor],
        champion: str = "rank",
        items: ItemFeatures = ItemFeatures(),  # noqa: B008
        role: str | None = None,
    ) -> None:
        super().__init__()
        self.other_count = 0
        if champion not in pipeline.contenders:
            raise MismatchError(
                f"the published version is of {champion!r}, which is no model of the pipeline"
            )
        configs, role = model_configs(pipeline), role or champion
        plan = pipeline.plan
        of_challenger = "" if champion == "rank" else f"{champion}:"
        self.name = (
            f"{of_challenger}{type(pipeline.contenders[champion]).__name__}/{pipeline.fingerprint[:12]}"
        )
        row = role_of_row(configs[role], role)
        self._slice = served_slices(configs, champion)[row]
        self._gathers = configs[role].gathers(plan.fields)
        self.sequences, self.content = self._gathers.sequences, self._gathers.content
        self._pooled = [plan.fields.index(name) for name in self._gathers.pooled]
        model = configs[role].build(plan.fields, plan.fields, plan.dense_names, True, 0)
        self._model = loaded_role(model, dense, role)
        if isinstance(self._model, TaskModel):
            trunk = configs[row].build(plan.fields, plan.fields, plan.dense_names, True, 0)
            self._model = WholeTask(loaded_role(trunk, dense, row), self._model)
        self._forward = compiled_forward(self._model, len(plan.fields), len(plan.dense_names), items)
        self._pooling = None if self._forward is None else self._forward.pooling
        self.in_one_call = self._forward is not None and (not self._gathers or self._pooling is not None)
        self.statistics = published_statistics(pipeline, dense)
        self.maps = SegmentMaps.from_arrays({n: t.numpy() for n, t in dense.items() if n.startswith(PREFIX)})
        self.learned = _learned(dense, len(plan.fields), len(plan.dense_names))
        self._segment = pipeline.segment_field

    def others_of(self, inputs: ModelInputs) -> F32:
        """Logits f32[T, B] of the T heads of targets."""
        return np.empty((0, len(inputs.dense)), np.float32)

    def targets(self, others: F32, click: F32, lines: tuple[F32, F32] | None) -> dict[str, F64]:
        """Name of a target → probabilities f64[B] of B rows; a model without targets has none.

        Args:
            others: logits f32[T, B] of the targets' heads.
            click: logits f32[B] of `logits`.
            lines: scale and shift f32[B] of their calibration; None: they are not calibrated.
        """
        return {}

    def values(self, others: F32) -> dict[str, F64]:
        """Name of a target with values → expected values f64[B] of B rows, given that it comes.

        Args:
            others: logits f32[T, B] of the targets' heads.
        """
        return {}

    @property
    def partial_size(self) -> int:
        """S, numbers of an item's partial result. There are items."""
        assert self._forward is not None
        return self._forward.partial_size

    def make_snapshot(self, version: ModelVersion, cache: NearCache, order: FieldOrder) -> Snapshot:
        """See `Snapshots.make_snapshot`."""
        pooling, (network, reads) = self._pooling, self.head(order)
        return Snapshot(
            cache.lock,
            version.number,
            cache.field_tables(order.fields, order.sequences, len(order.shared)),
            len(order.shared),
            network,
            reads,
            None if self.maps is None else self._lines(self.maps, order),
            None if pooling is None else pooled_reads(pooling, version, order),
            self.heads(order),
        )

    def head(self, order: FieldOrder) -> tuple[ForwardNetwork, Reads]:
        """Compiled network, and its inputs of batches with fields in an order."""
        assert self._forward is not None  # the model is computed in one call
        return self._forward.network, self._forward.reads(order.own, order.shared, self._slice.start)

    def heads(self, order: FieldOrder) -> Heads | None:
        """Networks beside this one; None: there are none."""
        return None

    @property
    def lists(self) -> tuple[VectorList, ...]:
        """Lists that a compiled call pools."""
        return () if self._pooling is None else self._pooling.lists

    def sequence_vectors(self, order: FieldOrder, rows: Sequence[RaggedVectors]) -> list[F32 | None]:
        """Vectors of `lists` that are sequences, out of the rows of all sequences; None of the others.

        Args:
            order: of the batch's fields.
            rows: of each sequence.
        """
        names = [order.fields[place][0] for place in order.sequences]
        values = {name: part.values[:, self._slice] for name, part in zip(names, rows, strict=True)}
        return [
            None if each.content else np.ascontiguousarray(values[each.field][:, -each.width :])
            for each in self.lists
        ]

    def _lines(self, maps: SegmentMaps, order: FieldOrder) -> Lines:
        """Calibration of batches with fields in an order."""
        shared = self._segment in order.shared
        fields = order.shared if shared else order.own
        place = None if self._segment is None else fields.index(self._segment)
        return Lines(place, shared, maps.keys, maps.scale, maps.shift)

    def lines(self, order: FieldOrder, features: SharedFeatures) -> tuple[F32, F32] | None:
        """Scale and shift f32[n] of the rows' calibration; None: the version is not calibrated.

        Args:
            order: of the features' fields.
            features: of n rows.
        """
        if self.maps is None:
            return None
        rows, of = features.own.rows, self._lines(self.maps, order)
        if of.place is None:
            segment = np.full(1, NO_SEGMENT)
        else:
            segment = segments(features.shared if of.shared else features.own, of.place)
        scale, shift = self.maps.of(segment if len(segment) == rows else np.repeat(segment, rows))
        return scale, shift

    def item_partials(self, vectors: FieldVectors, dense: F32) -> F32:
        """Partial results f32[m, S] of m items (DES's M_j). There are items.

        Args:
            vectors: of the items' fields.
            dense: the items' dense features, f32[m, Dd_items].
        """
        assert self._forward is not None
        return self._forward.partials(vectors.parts[0], dense, self._slice.start)

    def logits(self, vectors: FieldVectors, dense: F32, lists: Lists, content: Lists) -> F32:
        """Logits f32[B].

        The partial result of the fields that all rows share is computed once and added to the others'. Lists
        that all rows share are copied for a part of the rows at a time.

        Args:
            vectors: of all F fields, f32[B, F, D].
            dense: f32[B, Dd].
            lists: vectors of each key, for `sequences`.
            content: content vectors, for the attribute `content`.

        Raises:
            DeadlineError, CancelledError: the deadline of the thread's call passed, or its client cancelled.
        """
        if self.in_one_call and not self._gathers:  # nothing is torch's, and nothing is copied
            assert self._forward is not None
            return self._forward.logits(*vectors.parts, dense, None, self._slice.start)
        with torch.inference_mode():
            rows = len(vectors)
            shared = [part for part in (*lists.values(), *content.values()) if part.shared_by]
            row_bytes = max((part.values.nbytes for part in shared), default=0)
            step = rows if row_bytes * rows <= _COPIED_BYTES else max(1, _COPIED_BYTES // row_bytes)
            once = self._shared_partial(vectors)
            parts: list[F32] = []
            for first in range(0, rows, step):
                if parts:
                    CALL.get().check("score")
                last = min(first + step, rows)
                of_rows = vectors.rows(first, last), dense[first:last]
                listed = slices(lists, first, last, rows), slices(content, first, last, rows)
                parts.append(self._logits(once, *of_rows, *listed))
            return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _logits(
        self, once: Tensor | None, vectors: FieldVectors, dense: F32, lists: Lists, content: Lists
    ) -> F32:
        """Logits of some rows; what torch multiplies is padded to whole blocks.

        Args:
            once: partial result f32[1, S] of the shared fields; None: no shared fields.
            vectors: of the rows; as in `logits`.
            dense: likewise.
            lists: likewise.
            content: likewise.
        """
        rows, (own, shared) = len(vectors), vectors.parts
        numbers = torch.from_numpy(dense)
        if more := -rows % _BLOCK_ROWS:
            vectors, numbers = vectors.padded(more), pad(numbers, (0, 0, 0, more))
            lists, content = (
                {name: part.padded(more) for name, part in named.items()} for named in (lists, content)
            )
        gathered = self._gathered(vectors, numbers, lists, content)
        if self._forward is not None:
            return self._forward.logits(own, shared, dense, gathered, self._slice.start)
        values = torch.from_numpy(vectors.own)[..., self._slice]
        if once is None:
            aggregated = self._model.partial(values, numbers)
        else:
            columns = Columns(vectors.own_fields, tuple(range(numbers.shape[1])))
            aggregated = self._model.partial(values, numbers, columns) + once
        logits: F32 = self._model.finish(aggregated, gathered).numpy()
        return logits[:rows]

    def _shared_partial(self, vectors: FieldVectors) -> Tensor | None:
        """Partial result f32[1, S] of the fields that all rows share; None: they share none."""
        if self._forward is not None or not vectors.shared_fields:
            return None
        values = torch.from_numpy(vectors.shared)[..., self._slice]
        return self._model.partial(values, torch.empty(1, 0), Columns(vectors.shared_fields, ()))

    def _gathered(
        self, vectors: FieldVectors, dense: Tensor, lists: Lists, content: Lists
    ) -> Gathered | None:
        """Inputs that the model needs of all fields; a server holds them all, so nothing is exchanged."""
        gathers = self._gathers
        if not gathers:
            return None
        pooled = vectors.fields(self._pooled, self._slice)
        sequences = {name: ragged(lists[name], self._slice) for name in gathers.sequences}
        ragged_content = {name: ragged(content[name]) for name in gathers.content}
        return Gathered(pooled, sequences, dense if gathers.dense else None, ragged_content)


def _learned(dense: Mapping[str, Tensor], fields: int, numbers: int) -> Learned | None:
    """Distributions of a version's features; damaged ones are left, for no reply depends on them."""
    arrays = {name: tensor.numpy() for name, tensor in dense.items() if name.startswith(DRIFT)}
    try:
        return Learned.from_arrays(arrays, fields, fields + numbers)
    except MismatchError as error:
        log.warning("%s: the skew of features is not measured at this version", error)
        return None


def rank_scorer(version: ModelVersion) -> RankScorer:
    """Ranking model of a version."""
    scorer = version.scorers["rank"]
    assert isinstance(scorer, RankScorer)
    return scorer
