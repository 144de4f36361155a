"""`livectr.score`: click probabilities of rows by a checkpoint, as a rank server gives them.

The scorer is a second implementation of what a server computes: rows of the checkpoint, plain torch and the
networks of `models`. It has no near-cache and no compiled forward pass, and imports nothing of `serving`. So
`livectr query verify` may judge a server by it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from livectr.ingest.content.store import ContentStore
from livectr.ingest.extract.statistics import Statistics
from livectr.ingest.extract.worths import WorthExtractor
from livectr.ingest.language.content import content_of
from livectr.ingest.language.labels import CLICK
from livectr.ingest.pipeline import Pipeline
from livectr.ingest.plan.features import Features
from livectr.ingest.plan.segments import NO_SEGMENT, segments
from livectr.kernels.table.from_zero import start_at_zero
from livectr.kernels.table.rows import values_only
from livectr.kernels.table.table import DynamicTable
from livectr.library.checkpoints import open_checkpoint
from livectr.library.counted_rows import counted_rows
from livectr.library.features import extracted
from livectr.library.tables import root_columns, to_pipeline
from livectr.models.base import CTRModel
from livectr.models.configs import head_roles, model_configs
from livectr.models.embedding import SubModel, SubNetwork
from livectr.models.inputs import Gathered, Gathers, Ragged
from livectr.models.lognormal import expected
from livectr.models.multi_task import TaskModel, WholeTask, role_of_row
from livectr.models.roles import role_slices, row_segments
from livectr.models.two_tower import TwoTowerModel
from livectr.models.weights import loaded
from livectr.store.calibration import SegmentMaps
from livectr.store.hedge import mixed
from livectr.store.layout import CONTENT
from livectr.store.targets import after_click
from livectr.system.errors import ConfigError
from livectr.trainer.checkpoint.restored import Restored
from livectr.trainer.content.contents import FOLDER
from livectr.trainer.des.from_zero import saved_from_zero
from livectr.trainer.quality.calibrator import Calibrator, saved_maps
from livectr.trainer.quality.champion import CONTEST, champion_of
from livectr.trainer.quality.hedger import Hedger, weights_of

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
ROLE = "rank"
PRERANK = "prerank"


def score(
    pipeline: Pipeline | str | Path,
    checkpoint: str | Path,
    rows: Any,
    *,
    tables: Mapping[str, Any] | None = None,
    content: Mapping[str, str | Path] | None = None,
    target: str | None = None,
    value: bool = False,
) -> F64:
    """Predict the click probability of rows with the ranking model (the champion) of a checkpoint.

    It computes what a rank server of the same version computes. The servers take look-up rows and histories
    from Redis; here they are in `tables` and `rows`, and counters are the checkpoint's.

    Args:
        pipeline: the pipeline that the checkpoint belongs to, or the path of its file.
        checkpoint: the folder that training wrote, or its s3:// address.
        rows: as of `livectr.features`.
        tables: as of `livectr.features`.
        content: name of a content → folder of its features; by default the folder beside the checkpoint. Ids
            that are in none get the learned "absent" vector.
        target: name of a target, whose probability is predicted in place of the click's.
        value: predict the expected value in place of the probability: of an impression, by the pipeline's
            `value`, whose columns the rows have; with a target, what it is worth, given that it comes.

    Returns:
        float64[n] in the order of the rows: probabilities between 0 and 1, or values.

    Raises:
        ConfigError: a column is missing, a value does not fit, or the folder holds no checkpoint.
        MismatchError: the checkpoint belongs to another pipeline.

    Example:
        >>> livectr.score(pipeline, "checkpoint", [{"user_id": 7, "ad_id": 3}])
    """
    pipeline = to_pipeline(pipeline)
    names = [each.name for each in pipeline.targets]
    if target is not None and target not in names:
        raise ConfigError(
            f"score: {target!r} is no target of the pipeline; it has {', '.join(names) or 'none'}"
        )
    valued = [each.name for each in pipeline.valued]
    if value and target is None and pipeline.worths is None:
        raise ConfigError("score: the pipeline has no value; leave value= out")
    if value and target is not None and target not in valued:
        raise ConfigError(
            f"score: value=True is for a target with values, not {target!r}; the pipeline has "
            f"{', '.join(valued) or 'none'}"
        )
    with open_checkpoint(checkpoint, pipeline) as restored:
        read = pipeline.priced if value else pipeline
        columns = root_columns(read, rows, {**counted_rows(pipeline, restored), **(tables or {})})
        scorer = CheckpointScorer(
            pipeline, restored, {name: Path(path) for name, path in (content or {}).items()}
        )
    if target is None:
        return scorer.value(columns) if value else scorer.pctr(columns)
    return scorer.expected(columns, target) if value else scorer.probability(columns, target)


class CheckpointScorer:
    """The ranking model of a checkpoint, with its rows and content; if asked for, the two towers, too.

    Args:
        folders: name of a content → folder of its features; by default the folder beside the checkpoint.
        prerank: load the pre-rank model, too.
        vectors: name of a content → ids i64[n] and vectors f32[n, out] that count more than its sub-model.
            The item tower's images have none: item vectors are made by the sub-model of their version.
        items: keys i64[n] of items and their pre-rank vectors f32[n, out], which count more than the tower.

    Attributes:
        champion: role of the ranking model.
        tables: name → embedding table, values without optimiser state.
        statistics: running statistics of the features.
        targets: of the pipeline.

    Raises:
        ConfigError: a folder belongs to no content of the pipeline.
        MismatchError: the weights belong to another pipeline.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        restored: Restored,
        folders: Mapping[str, Path],
        *,
        prerank: bool = False,
        vectors: Mapping[str, tuple[I64, F32]] = MappingProxyType({}),
        items: tuple[I64, F32] | None = None,
    ) -> None:
        self._plan = pipeline.plan
        self._fields = tuple((spec.name, spec.table) for spec in pipeline.fields)
        self.champion = champion_of(restored.state(CONTEST))
        configs = model_configs(pipeline)
        self._heads = head_roles(pipeline.rank) if self.champion == ROLE else ()
        roles = self._heads or (self.champion,)
        self.targets, self._worths = pipeline.targets, pipeline.worths
        roles += tuple(role for target in self.targets for role in target.roles)
        roles += (PRERANK,) if prerank and PRERANK in configs else ()
        kept = {role.partition(".")[0] for role in roles}
        layout = values_only(row_segments(configs), kept, pipeline.row_values)
        seed = restored.manifest.identity["seed"]
        self.tables = {table: DynamicTable(layout, name=table, seed=seed) for _, table in self._fields}
        restored.load_tables(cast(Any, {name: _Values(table) for name, table in self.tables.items()}))
        dense = restored.dense()
        start_at_zero(self.tables, saved_from_zero(dense))
        slices = role_slices({role: config for role, config in configs.items() if role in roles})
        self._models: dict[str, _Model] = {}
        for role in roles:
            model = configs[role].build(pipeline.plan.fields, pipeline.plan.fields, pipeline.plan.dense_names,
                                        True, 0)  # fmt: skip
            gathers = configs[role].gathers(pipeline.plan.fields)
            model = loaded(model, dense, f"{role}.", f"the checkpoint's {role} model")
            row = role_of_row(configs[role], role)
            if isinstance(model, TaskModel):
                model = WholeTask(self._models[row].network, model)
            self._models[role] = _Model(model, slices[row], gathers)
        self.statistics = Statistics(pipeline.plan).load(restored.statistics())
        if self._heads:
            losses = restored.state(Hedger.kind).get("closed", np.zeros(len(self._heads)))
            self._weights = weights_of(losses)
        self._segment, self._maps = pipeline.segment_field, None
        if pipeline.calibration is not None:
            self._maps = saved_maps(restored.state(Calibrator.kind), self.champion) or SegmentMaps.identity()
        wanted = [field for model in self._models.values() for field in model.gathers.content]
        self._contents = _contents(pipeline, wanted, restored.checkpoint, folders, dense)
        self._vectors = {name: _Vectors.of(*given) for name, given in vectors.items()}
        self._items = _Vectors.of(*items) if items is not None else None
        self._item_images = getattr(configs.get(PRERANK), "item_images", ())
        self._content_of = {field: name for name, content in pipeline.content.items()
                            for field in content.fields}  # fmt: skip

    def pctr(self, columns: pa.RecordBatch) -> F64:
        """Click probabilities float64[n] of rows of the plan's roots."""
        logits = self.column_logits(columns)
        with np.errstate(over="ignore"):  # of a logit below -709: the probability is 0
            pctr: F64 = 1.0 / (1.0 + np.exp(-logits))
        return pctr

    def probability(self, columns: pa.RecordBatch, target: str) -> F64:
        """Probabilities float64[n] of a target of rows of the plan's roots."""
        place = [each.name for each in self.targets].index(target)
        parts = [
            self.target_logits(features, self.calibrated(features, self.logits(features)))[place]
            for features in extracted(self._plan, columns, self.statistics)
            if features.rows
        ]
        logits = np.concatenate([*parts, np.empty(0)])
        found: F64 = 1.0 / (1.0 + np.exp(-np.clip(logits, -700, 700)))
        return found

    def value(self, columns: pa.RecordBatch) -> F64:
        """Expected values float64[n] of rows of the plan's roots, and of those of the pipeline's worths."""
        worths = self._worths
        assert worths is not None
        found = WorthExtractor(worths, worths.plan, worths.labels)(columns)
        total = np.zeros(columns.num_rows)
        for place, label in enumerate(worths.labels):
            likely = self.pctr(columns) if label == CLICK else self.probability(columns, label)
            term = found[:, place] * likely
            total += term * self.expected(columns, label) if label in worths.value.expected else term
        return total

    def target_logits(self, features: Features, click: F64) -> F64:
        """Logits f64[T, B] of the probabilities of all targets.

        Args:
            features: of B rows, at least one.
            click: logits f64[B] of the click, calibrated.
        """
        found = np.empty((len(self.targets), len(click)))
        for place, target in enumerate(self.targets):
            own = self.logits(features, target.role)
            found[place] = own if target.after is None else after_click(click, own)
        return found

    def values(self, features: Features) -> dict[str, F64]:
        """Name of a target with values → expected values f64[B] of B rows, given that it comes."""
        found: dict[str, F64] = {}
        for target in self.targets:
            if target.value_roles:
                heads = [torch.from_numpy(self.logits(features, role)) for role in target.value_roles]
                found[target.name] = expected(*heads).numpy()
        return found

    def expected(self, columns: pa.RecordBatch, target: str) -> F64:
        """Expected values float64[n] of a target, given that it comes, of rows of the plan's roots."""
        parts = [
            self.values(features)[target]
            for features in extracted(self._plan, columns, self.statistics)
            if features.rows
        ]
        return np.concatenate([*parts, np.empty(0)])

    def column_logits(self, columns: pa.RecordBatch) -> F64:
        """Calibrated logits float64[n] of rows of the plan's roots; see `logits`."""
        parts = [
            self.calibrated(features, self.logits(features))
            for features in extracted(self._plan, columns, self.statistics)
            if features.rows
        ]
        return np.concatenate([*parts, np.empty(0)])

    def calibrated(self, features: Features, logits: F32) -> F64:
        """Logits float64[B] of the served probabilities: logits f32[B] of the ranking model, calibrated."""
        if self._maps is None:
            return logits.astype(np.float64)
        return self._maps(logits, self.segments(features))

    def segments(self, features: Features) -> I64:
        """Calibration segments i64[B] of B rows."""
        if self._segment is None:
            return np.full(features.rows, NO_SEGMENT, np.int64)
        return segments(features, self._segment)

    @torch.inference_mode()
    def logits(self, features: Features, role: str | None = None) -> F32:
        """Logits f32[B] of B rows, at least one.

        Args:
            features: of B rows, with the plan's fields and dense features.
            role: "prerank" for the two towers, or a head of a hedge; None: the ranking model.
        """
        if role is None and self._heads:
            of_heads = np.stack([self.logits(features, head) for head in self._heads])
            return mixed(of_heads, self._weights)
        network, *inputs = self._inputs(features, role or self.champion)
        logits: F32 = network(*inputs).numpy()
        return logits

    @torch.inference_mode()
    def prerank_logits(self, features: Features, keys: I64) -> F32:
        """Logits f32[B] of the two towers for B rows, at least one, with the given item vectors.

        Args:
            features: of B rows, with the plan's fields and dense features.
            keys: i64[B], of the rows' items.
        """
        if self._items is None:
            return self.logits(features, PRERANK)
        network, values, dense, gathered = self._inputs(features, PRERANK)
        assert isinstance(network, TwoTowerModel)
        sums = network.partial(values, dense)
        user = network.user_vector(sums, network.user.pooled_images(gathered))
        item = network.item_vector(sums, network.item.pooled_images(gathered))
        logits: F32 = ((user * self._items.over(item, keys)).sum(dim=1) + network.bias).numpy()
        return logits

    def _inputs(self, features: Features, role: str) -> tuple[CTRModel, Tensor, Tensor, Gathered | None]:
        """Network of a role and its inputs."""
        model = self._models[role]
        lists = {name: features.field(i) for i, (name, _) in enumerate(self._fields)}
        vectors = {
            name: torch.from_numpy(self.tables[table].lookup(lists[name][1])[:, model.values])
            for name, table in self._fields
        }
        pooled = torch.stack([_sums(vectors[name], lists[name][0]) for name, _ in self._fields], dim=1)
        numbers, gathered, wanted = torch.from_numpy(features.dense), None, model.gathers
        if wanted:
            columns = [self._plan.fields.index(name) for name in wanted.pooled]
            sequences = {n: Ragged(vectors[n], _offsets(lists[n][0])) for n in wanted.sequences}
            items = self._item_images if role == PRERANK else ()
            content = {n: self._content(n, *lists[n], given=n not in items) for n in wanted.content}
            gathered = Gathered(pooled[:, columns], sequences, numbers if wanted.dense else None, content)
        return model.network, pooled, numbers, gathered

    def _content(self, field: str, offsets: I32, ids: I64, *, given: bool) -> Ragged:
        """Vectors of the content of a field's ids: given ones, or the sub-model's."""
        unique, place = np.unique(ids, return_inverse=True)
        name = self._content_of[field]
        vectors = self._contents[name].embed(unique)
        if given and name in self._vectors:
            vectors = self._vectors[name].over(vectors, unique)
        return Ragged(vectors[torch.from_numpy(place)], _offsets(offsets))


@dataclass(frozen=True)
class _Model:
    """Network of a role, the slice of its values in a row, and the inputs that it needs of all fields."""

    network: CTRModel
    values: slice
    gathers: Gathers


@dataclass(frozen=True)
class _Content:
    """Raw features of a content, or None, and its sub-model."""

    store: ContentStore | None
    network: SubNetwork

    def embed(self, ids: I64) -> Tensor:
        """Vectors f32[n, out] of ids i64[n]; an id without features has the learned "absent" vector."""
        if self.store is None:
            rows, known = np.zeros((len(ids), self.network.width), np.float16), np.zeros(len(ids), bool)
        else:
            rows, known = self.store.read(ids)
        vectors: Tensor = self.network(torch.from_numpy(rows), torch.from_numpy(known))
        return vectors


@dataclass(frozen=True)
class _Vectors:
    """Given vectors f32[n, out] of ids i64[n], ascending."""

    ids: I64
    vectors: F32

    @staticmethod
    def of(ids: I64, vectors: F32) -> _Vectors:
        """Take vectors by id; the last one of a repeated id counts."""
        order = np.argsort(ids, kind="stable")
        last = np.append(ids[order][1:] != ids[order][:-1], True)[: len(ids)]
        return _Vectors(ids[order[last]], vectors[order[last]])

    def over(self, vectors: Tensor, ids: I64) -> Tensor:
        """Put the given vectors over those of ids i64[m]."""
        if not len(self.ids):
            return vectors
        place = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        known = self.ids[place] == ids
        over = vectors.clone()
        over[torch.from_numpy(known)] = torch.from_numpy(self.vectors[place[known]])
        return over


class _Values:
    """Fills a table of values from rows of values and optimizers' state."""

    tracks = False

    def __init__(self, table: DynamicTable) -> None:
        self._table = table

    def assign(self, keys: I64, rows: F32) -> None:
        layout = self._table.layout
        # The models' segments, at their places in the trainer's row.
        columns = [s.place + i for s in layout.segments if s.place is not None for i in range(s.dim)]
        values = np.ascontiguousarray(rows[:, columns])
        # Rows of 16-bit values count their updates in the last column; here there are none.
        self._table.assign(keys, np.pad(values, ((0, 0), (0, layout.stride - layout.dim))))

    def erase(self, keys: I64) -> None:
        self._table.erase(keys)


def _sums(vectors: Tensor, offsets: I32) -> Tensor:
    """Sums f32[n, D] of consecutive vectors f32[nnz, D], by offsets i32[n + 1]."""
    if not len(vectors):
        return torch.zeros(len(offsets) - 1, vectors.shape[1])
    return embedding_bag(
        torch.arange(len(vectors)), vectors, _offsets(offsets), mode="sum", include_last_offset=True
    )


def _offsets(offsets: I32) -> Tensor:
    """Offsets i64[n + 1] from 0."""
    return torch.from_numpy((offsets - offsets[0]).astype(np.int64))


def _contents(
    pipeline: Pipeline,
    wanted: Sequence[str],
    root: Path,
    folders: Mapping[str, Path],
    dense: Mapping[str, Tensor],
) -> dict[str, _Content]:
    """The content that the models look at."""
    if unknown := sorted(folders.keys() - pipeline.content.keys()):
        raise ConfigError(
            f"content names {unknown[0]!r}, but the content of the pipeline is "
            f"{', '.join(pipeline.content) or 'none'}"
        )
    contents = {}
    for name in content_of(pipeline.content, wanted):
        model = cast(SubModel, pipeline.content[name].model)
        own = root / FOLDER / name
        folder = folders.get(name, own if own.is_dir() else None)
        store = None if folder is None else ContentStore.open(folder)
        if store is not None and store.width != model.width:
            raise ConfigError(
                f"content {name!r}: {folder} has rows of {store.width} numbers, the sub-model takes "
                f"{model.width}; name the folder that it was trained with"
            )
        network = model.network(f"{CONTENT}{name}", 0)
        about = f"the checkpoint's sub-model of content {name!r}"
        contents[name] = _Content(store, loaded(network, dense, f"{CONTENT}{name}.", about))
    return contents
