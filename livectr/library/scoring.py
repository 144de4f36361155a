"""`livectr.score`: click probabilities of rows by a checkpoint, as a rank server gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from livectr.ingest.extract.statistics import Statistics
from livectr.ingest.language.content import content_of
from livectr.ingest.pipeline import Pipeline
from livectr.ingest.plan.features import Features
from livectr.kernels.errors import ConfigError
from livectr.kernels.table.table import DynamicTable
from livectr.library.checkpoints import open_checkpoint
from livectr.library.features import extracted
from livectr.library.tables import root_columns, to_pipeline
from livectr.models.embedding import SubModel, SubNetwork
from livectr.protos.store import CONTENT, FEATURES
from livectr.serving.score.inputs import FieldVectors
from livectr.serving.score.scorer import (
    RankScorer,
    model_configs,
    value_layout,
)
from livectr.serving.version.content import RawFeatures
from livectr.serving.version.near_cache import Batch, NearCache, RaggedVectors
from livectr.trainer.checkpoint.restored import Restored
from livectr.trainer.content.contents import FOLDER
from livectr.trainer.quality.champion import champion_of

I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
ROLE = "rank"


def score(
    pipeline: Pipeline | str | Path,
    checkpoint: str | Path,
    rows: Any,
    *,
    tables: Mapping[str, Any] | None = None,
    content: Mapping[str, str | Path] | None = None,
) -> F64:
    """Predict the click probability of rows with the ranking model (the champion) of a checkpoint.

    It computes what a rank server of the same version computes. The servers take look-up rows and histories
    from Redis; here they are in `tables` and `rows`.

    Args:
        pipeline: the pipeline that the checkpoint belongs to, or the path of its file.
        checkpoint: the folder that training wrote.
        rows, tables: as of `livectr.features`.
        content: name of a content → folder of its features; by default the folder beside the checkpoint. Ids
            that are in none get the learned "absent" vector.

    Returns:
        float64[n] in the order of the rows, between 0 and 1.

    Raises:
        ConfigError: a column is missing, a value does not fit, or the folder holds no checkpoint.
        MismatchError: the checkpoint belongs to another pipeline.

    Example:
        >>> livectr.score(pipeline, "checkpoint", [{"user_id": 7, "ad_id": 3}])
    """
    pipeline = to_pipeline(pipeline)
    columns = root_columns(pipeline, rows, tables)
    with open_checkpoint(checkpoint, pipeline) as restored:
        scorer = CheckpointScorer(
            pipeline, restored, {name: Path(path) for name, path in (content or {}).items()}
        )
    return scorer.pctr(columns)


class CheckpointScorer:
    """The ranking model, rows and content of a checkpoint, computed by the parts of a rank server."""

    def __init__(self, pipeline: Pipeline, restored: Restored, folders: Mapping[str, Path]) -> None:
        self._plan = pipeline.plan
        self._fields = tuple((spec.name, spec.table) for spec in pipeline.fields)
        champion = champion_of(restored.contest())
        layout = value_layout(model_configs(pipeline), pipeline.row_values, champion)
        tables = sorted({table for _, table in self._fields})
        self._rows = NearCache(tables, layout, seed=restored.manifest.identity["seed"], max_rows=1 << 62)
        restored.load_tables(cast(Any, {name: _Values(table) for name, table in self._rows.tables.items()}))
        dense = restored.dense()
        statistics = {FEATURES + name: torch.from_numpy(a) for name, a in restored.statistics().items()}
        self._model = RankScorer(pipeline, dense | statistics, champion)
        self._sequences = tuple(
            i for i, (name, _) in enumerate(self._fields) if name in self._model.sequences
        )
        self._contents = _contents(pipeline, self._model.content, restored.root, folders)
        self._networks = {
            name: _network(name, source.model, dense) for name, source in self._contents.items()
        }

    def pctr(self, columns: pa.RecordBatch) -> F64:
        """Click probabilities float64[n] of rows of the plan's roots."""
        parts = [
            self.logits(features).astype(np.float64)
            for features in extracted(self._plan, columns, self._model.statistics)
            if features.rows
        ]
        logits = np.concatenate([*parts, np.empty(0)])
        pctr: F64 = 1.0 / (1.0 + np.exp(-logits))
        return pctr

    @property
    def statistics(self) -> Statistics:
        """Running statistics of the features."""
        return self._model.statistics

    def logits(self, features: Features) -> F32:
        """Logits f32[B] of B rows, at least one."""
        batch = Batch(self._fields, features.offsets, features.keys, features.rows, self._sequences)
        vectors = self._rows.infer_cold(batch)
        names = [self._fields[i][0] for i in self._sequences]
        content = {field: self._embedded(name, *features.field(self._plan.fields.index(field)))
                   for name, source in self._contents.items() for field in source.fields}  # fmt: skip
        lists = dict(zip(names, vectors.lists, strict=True))
        return self._model.logits(FieldVectors.of(vectors.pooled), features.dense, lists, content)

    @torch.inference_mode()
    def _embedded(self, name: str, offsets: npt.NDArray[np.int32], ids: I64) -> RaggedVectors:
        """Vectors of the content of a field's ids."""
        unique, place = np.unique(ids, return_inverse=True)
        rows, known = self._contents[name].read(unique)
        vectors = self._networks[name](torch.from_numpy(rows), torch.from_numpy(known)).numpy()
        return RaggedVectors(vectors[place], offsets.astype(np.int64))


class _Values:
    """Fills a table of values from rows of values and optimizers' state."""

    tracks = False

    def __init__(self, table: DynamicTable) -> None:
        self._table = table

    def assign(self, keys: I64, rows: F32) -> None:
        layout = self._table.layout
        # The champion's segments, at their places in the trainer's row.
        columns = [s.place + i for s in layout.segments if s.place is not None for i in range(s.dim)]
        values = np.ascontiguousarray(rows[:, columns])
        # Rows of 16-bit values count their updates in the last column; here there are none.
        self._table.assign(keys, np.pad(values, ((0, 0), (0, layout.stride - layout.dim))))

    def erase(self, keys: I64) -> None:
        self._table.erase(keys)


def _contents(
    pipeline: Pipeline, wanted: Sequence[str], root: Path, folders: Mapping[str, Path]
) -> dict[str, RawFeatures]:
    """The content that the ranking model looks at, with the folder of its features."""
    if unknown := sorted(folders.keys() - pipeline.content.keys()):
        raise ConfigError(
            f"content names {unknown[0]!r}, but the content of the pipeline is "
            f"{', '.join(pipeline.content) or 'none'}"
        )
    raw = {}
    for name in content_of(pipeline.content, wanted):
        content = pipeline.content[name]
        own = root / FOLDER / name
        folder = folders.get(name, own if own.is_dir() else None)
        fields = [field for field in content.fields if field in wanted]
        raw[name] = RawFeatures(name, cast(SubModel, content.model), fields, folder)
    return raw


def _network(name: str, model: SubModel, dense: Mapping[str, torch.Tensor]) -> SubNetwork:
    """The sub-model of a content, with the checkpoint's weights."""
    prefix = f"{CONTENT}{name}."
    network = model.network(f"{CONTENT}{name}", 0)
    network.load({key.removeprefix(prefix): t for key, t in dense.items() if key.startswith(prefix)})
    return network.eval().requires_grad_(False)
