"""Items of a version: the vectors that it computes, their blobs, and copies of what they depend on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import safetensors.numpy
import torch

from livectr.ingest.extract.extractor import Extract
from livectr.ingest.extract.statistics import Statistics
from livectr.ingest.extract.worths import WorthExtractor
from livectr.ingest.join.examples import ExampleSource
from livectr.ingest.join.lookup import LookupTable
from livectr.ingest.pipeline import Pipeline
from livectr.ingest.plan.features import Features
from livectr.ingest.plan.worths import Worths
from livectr.store.vectors import blob_count, blob_rows
from livectr.system.tensors import packed
from livectr.trainer import telemetry
from livectr.trainer.comm.control import Control
from livectr.trainer.content.item_refresh import ItemRefresh
from livectr.trainer.des.item_vectors import ItemCopy
from livectr.trainer.des.step import DesStep
from livectr.trainer.publish.boundary import Boundary

I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class ItemBlobs:
    """Blobs of item vectors that a version writes.

    Attributes:
        tags: last parts of their names.
        sizes: items of each blob; `left` has a blob behind them.
        whole: no blob of the version before stays.
        left: items of blobs that stay, which have left: i64[m]; None: there is no such blob.
        published: notes that the version is served.
    """

    tags: Sequence[str]
    sizes: Sequence[int]
    whole: bool = True
    left: I64 | None = None
    published: Callable[[], None] = lambda: None

    @staticmethod
    def of_all(n: int, dim: int) -> ItemBlobs:
        """Blobs of all n items with vectors of `dim` numbers."""
        rows, count = blob_rows(dim), blob_count(n, dim)
        sizes = [min(rows, n - rows * number) for number in range(count)]
        return ItemBlobs([str(number) for number in range(count)], sizes)


@dataclass(frozen=True)
class Items:
    """Items whose vectors a version computes.

    Attributes:
        ids: i64[n], in the order of the blobs.
        dim: numbers of a vector.
        compute: computes the vectors f32[n, dim], from a thread beside the training. Collective by the
            Control that it is given.
        blobs: what is written.
    """

    ids: I64
    dim: int
    compute: Callable[[Control], F32]
    blobs: ItemBlobs

    @staticmethod
    def of(ids: I64, vectors: F32) -> Items:
        """Items whose vectors f32[n, dim] are there."""
        dim = vectors.shape[1]
        return Items(ids, dim, lambda _: vectors, ItemBlobs.of_all(len(ids), dim))

    def parts(self, vectors: F32) -> Iterator[tuple[I64, F32]]:
        """Ids and vectors of each blob."""
        ends = np.cumsum(self.blobs.sizes)[:-1]
        yield from zip(np.split(self.ids, ends), np.split(vectors, ends), strict=True)
        if self.blobs.left is not None:
            yield self.blobs.left, np.empty((len(self.blobs.left), 0), np.float32)


def _sum(control: Control, part: torch.Tensor) -> torch.Tensor:
    """Sum over all ranks, from the publisher's thread."""
    telemetry.COLLECTIVE_BYTES.labels("items").inc(2 * (control.world - 1) * part.nbytes // control.world)
    return control.all_reduce(part)


def _vectors(copied: ItemCopy, control: Control) -> F32:
    """Vectors f32[n, out] of copied items. Collective."""
    return copied.vectors(partial(_sum, control))


def _with_worths(copied: ItemCopy, worths: F32, control: Control) -> F32:
    """Vectors f32[n, out + 1] of copied items, with their worths behind. Collective."""
    return np.concatenate([_vectors(copied, control), worths], axis=1)


@dataclass(frozen=True)
class ItemCopier:
    """Copies what the vectors of a version's items depend on.

    Args:
        pipeline: the whole pipeline; that of the source may lack features, which are read.
        extract: its plan.
        statistics: running statistics at this step boundary.
        refresh: computes only some of the vectors; None: all are computed.
        now_ms: event time of this step boundary.
        first_ms: event time of this process's first example; 0 before it.
    """

    pipeline: Pipeline
    step: DesStep
    source: ExampleSource
    extract: Extract
    statistics: Statistics
    control: Control
    refresh: ItemRefresh | None = None
    now_ms: int = 0
    first_ms: int = 0

    def take(self, since: Boundary | None) -> Items | None:
        """Items that rank 0 knows, all or only the planned items; None without a pre-rank model. Collective.

        They come with a copy of what their vectors depend on.
        """
        if self.pipeline.prerank is None or self.pipeline.items is None:
            return None
        refresh, plan, sample = self.refresh, None, None
        table = self.source.tables[self.pipeline.items.topic] if self.control.rank == 0 else None
        generation = since.lookup_rows if since is not None else 0
        if refresh is not None and refresh.drift is not None:
            drawn = refresh.drift.sample(table, generation) if table is not None else None
            drawn, _, copied = self._copied(table, drawn)
            sample = drawn, _vectors(copied, self.control)
        if table is not None and refresh is not None:
            plan = refresh.plan(
                table, generation, self.now_ms, whole=since is None, sample=sample, first_ms=self.first_ms
            )
        ids, failed, copied = self._copied(table, plan.ids if plan is not None else None)
        compute, out = partial(_vectors, copied), copied.out
        worths = self.pipeline.worths
        if worths is not None and worths.published:
            compute, out = partial(_with_worths, copied, self._worths(worths, table, ids)), out + 1
        if refresh is None:
            return Items(ids, out, compute, ItemBlobs.of_all(len(ids), out))
        if plan is not None:
            plan = plan.without(failed)
        told = self.control.broadcast_json([plan.tags, plan.whole] if plan is not None else [])
        if plan is None:
            return Items(ids, out, compute, ItemBlobs(told[0], (), told[1]))
        blobs = ItemBlobs(plan.tags, plan.sizes, plan.whole, plan.left, plan.published)
        return Items(ids, out, compute, blobs)

    def _worths(self, worths: Worths, table: LookupTable | None, ids: I64) -> F32:
        """Bids f32[n, 1] of items, of their rows; 0 on other ranks than 0, which write no vectors."""
        if table is None:
            return np.zeros((len(ids), 1), np.float32)
        rows = table.take(ids)
        extract = WorthExtractor(worths, worths.row_plan, (worths.value.bid_label,))
        columns = {root.name: rows.column(root.ref.column) for root in extract.roots}
        return extract(pa.RecordBatch.from_pydict(columns) if columns else rows)

    def _copied(self, table: LookupTable | None, ids: I64 | None) -> tuple[I64, Bools, ItemCopy]:
        """Copy what the vectors of some of rank 0's items depend on. Collective.

        Args:
            table: of the items; None on the other ranks.
            ids: i64[n]; of rank 0. None: all.

        Returns:
            Ids without those that cannot be extracted, which servers report as unknown; bool[n], which are
            these; the copy.
        """
        sent, failed = b"", np.empty(0, bool)
        if table is not None:
            ids, rows = table.rows() if ids is None else (ids, table.take(ids))
            features = self.extract(self.pipeline.item_columns(rows), self.statistics)
            failed = features.failed
            if failed.any():
                ids, features = ids[~failed], features.take(np.flatnonzero(~failed))
            sent = packed(
                {"ids": ids, "offsets": features.offsets, "keys": features.keys, "dense": features.dense}
            )
        items = safetensors.numpy.load(self.control.broadcast_bytes(sent))
        features = Features(len(items["ids"]), items["offsets"], items["keys"], items["dense"])
        return items["ids"], failed, ItemCopy.of(self.step, features)
