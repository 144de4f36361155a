"""A scorer outside the server: plain torch over the rows, weights and statistics of a checkpoint.

It reads no Redis. A reply of version v is recomputed from the generation that was committed at the step of v.
Embeddings are summed key by key, so logits may differ from the server's in their last bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor

from livectr.ingest.content.store import ContentStore
from livectr.ingest.extract.extractor import Extractor
from livectr.ingest.extract.statistics import Statistics
from livectr.ingest.pipeline import Pipeline
from livectr.kernels.table.rows import row_layout
from livectr.kernels.table.table import DynamicTable
from livectr.models.base import Gathered, Ragged, role_slices, row_segments
from livectr.protos.store import CONTENT
from livectr.trainer.checkpoint.manifest import Manifest
from livectr.trainer.checkpoint.restored import Restored
from livectr.trainer.configs import model_configs

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]


class Reference:
    """The rank model of one generation.

    root: the checkpoint, or a copy of it. stores: name → the raw features of that content.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        root: Path,
        manifest: Manifest,
        seed: int,
        stores: Mapping[str, ContentStore],
    ) -> None:
        plan, configs = pipeline.plan, model_configs(pipeline)
        restored = Restored(root, manifest)
        layout = row_layout(row_segments(configs), pipeline.row_values)
        self._fields = [(spec.name, spec.table) for spec in pipeline.fields]
        self._tables = {t: DynamicTable(layout, name=t, seed=seed) for _, t in self._fields}
        restored.load_tables(self._tables)
        dense = restored.dense()
        self._slice = role_slices(configs)["rank"]
        self._gathers = configs["rank"].gathers(plan.fields)
        self._model = configs["rank"].build(plan.fields, plan.fields, plan.dense_names, True, 0)
        self._model.load(_under("rank.", dense))
        self._model.eval()
        self._extract = Extractor(plan)
        self._statistics = Statistics(plan).load(restored.statistics())
        self._plan, self._stores = plan, stores
        self._content_of = {f: name for name, content in pipeline.content.items() for f in content.fields}
        self._networks = {}
        for name, content in pipeline.content.items():
            network = content.model.network(f"{CONTENT}{name}", 0)
            network.load(_under(f"{CONTENT}{name}.", dense))
            self._networks[name] = network.eval()

    @torch.inference_mode()
    def pctr(self, batch: pa.RecordBatch) -> F64:
        """Click probabilities f64[n] of the n rows of the plan's roots."""
        features = self._extract(batch, self._statistics)
        rows = batch.num_rows
        lists = {name: features.field(i) for i, (name, _) in enumerate(self._fields)}
        vectors = {
            name: torch.from_numpy(self._tables[table].lookup(lists[name][1])[:, self._slice])
            for name, table in self._fields
        }
        pooled = torch.stack([_sums(vectors[name], lists[name][0]) for name, _ in self._fields], dim=1)
        numbers = torch.from_numpy(features.dense)
        wanted, gathered = self._gathers, None
        if wanted:
            columns = [self._plan.fields.index(name) for name in wanted.pooled]
            sequences = {n: Ragged(vectors[n], _offsets(lists[n][0])) for n in wanted.sequences}
            content = {n: self._content(n, *lists[n]) for n in wanted.content}
            gathered = Gathered(pooled[:, columns], sequences, numbers if wanted.dense else None, content)
        logits = self._model(pooled, numbers, gathered).numpy().astype(np.float64)
        assert logits.shape == (rows,)
        return 1.0 / (1.0 + np.exp(-logits))

    def _content(self, field: str, offsets: npt.NDArray[np.int32], ids: I64) -> Ragged:
        name = self._content_of[field]
        rows, known = self._stores[name].read(ids)
        vectors: Tensor = self._networks[name](torch.from_numpy(rows), torch.from_numpy(known))
        return Ragged(vectors, _offsets(offsets))


def _under(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def _offsets(offsets: npt.NDArray[np.int32]) -> Tensor:
    return torch.from_numpy(offsets.astype(np.int64))


def _sums(vectors: Tensor, offsets: npt.NDArray[np.int32]) -> Tensor:
    """Sums f32[n, D] of consecutive vectors f32[nnz, D], by offsets i32[n + 1]."""
    owner = torch.from_numpy(np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)))
    return torch.zeros(len(offsets) - 1, vectors.shape[1]).index_add_(0, owner, vectors)
