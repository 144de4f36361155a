"""Stage 5, score: a version's models with their weights.

A server holds all fields, so ⊕ is the identity; see `models.base`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from livectr.ingest.extract.statistics import Statistics
from livectr.ingest.pipeline import Pipeline
from livectr.kernels.network.forward import Kept
from livectr.kernels.table.layout import RowLayout, Values
from livectr.kernels.table.rows import values_only
from livectr.models.base import (
    Columns,
    CTRModel,
    Gathered,
    ModelConfig,
    role_slices,
    row_segments,
    served_roles,
)
from livectr.models.forward import ItemFeatures, compiled_forward
from livectr.models.two_tower import TwoTower, TwoTowerModel, is_named
from livectr.serving import metrics
from livectr.serving.deadlines import current_call
from livectr.serving.score.inputs import FieldVectors, Lists, gathered_content, ragged, slices
from livectr.serving.score.user_tower import UserTower
from livectr.serving.version.loader import ModelVersion
from livectr.serving.version.near_cache import NearCache
from livectr.store.layout import F32, FEATURES
from livectr.store.manifest import VersionManifest
from livectr.system.errors import ConfigError, MismatchError

_COPIED_BYTES = 8 << 20
"""Most bytes of the copies of a shared list in a call of the model; more rows take several calls."""
_BLOCK_ROWS = 16
"""Rows of a block of a matrix product. Those of an incomplete block are added in another order, so that equal
candidates would differ in the last bit."""
_SIDES: tuple[Literal["user", "item"], ...] = ("user", "item")


def model_configs(pipeline: Pipeline) -> dict[str, ModelConfig]:
    """Configurations of the models that may be served, by role, in the order of their values in a table row.

    Raises:
        ConfigError: one is not a model.
    """
    configs = {}
    by_role = {"rank": pipeline.rank, "prerank": pipeline.prerank, **pipeline.challengers}
    for role, config in by_role.items():
        if isinstance(config, ModelConfig):
            configs[role] = config
        elif config is not None:
            raise ConfigError(
                f"Pipeline: {role}= must be a model such as livectr.models.DeepFM(), not {config!r}"
            )
    return configs


def content_fields(pipeline: Pipeline, role: str) -> tuple[str, ...]:
    """Fields of which a role's model reads the content, or for "rank" any contender; () without a model."""
    configs = model_configs(pipeline)
    roles = pipeline.contenders if role == "rank" else [role]
    read = [configs[name].gathers(pipeline.plan.fields).content for name in roles if name in configs]
    return tuple(dict.fromkeys(chain.from_iterable(read)))


def value_layout(
    configs: Mapping[str, ModelConfig], values: Values = "fp32", champion: str = "rank"
) -> RowLayout:
    """Layout of a published row: the trainer's segments of served models, without optimiser state."""
    return values_only(row_segments(configs), served_roles(champion), values)


def served_slices(configs: Mapping[str, ModelConfig], champion: str) -> dict[str, slice]:
    """Slice of each served role's values on the axis of a published row."""
    return role_slices({role: config for role, config in configs.items() if role in served_roles(champion)})


def near_cache(pipeline: Pipeline, fields: Sequence[str], manifest: VersionManifest, rows: int) -> NearCache:
    """Make an empty near-cache for the tables of some fields.

    Args:
        rows: bound over all tables.

    Raises:
        MismatchError: the published rows have another layout.
    """
    layout = value_layout(model_configs(pipeline), pipeline.row_values, manifest.champion)
    published = tuple(manifest.segments)
    if published != tuple((s.name, s.dim) for s in layout.segments):
        raise MismatchError(f"version {manifest.version} has rows of {published}: another pipeline's")
    metrics.begin_fields(fields)
    tables = {spec.table for spec in pipeline.fields if spec.name in fields}
    return NearCache(sorted(tables), layout, seed=manifest.seed, max_rows=rows, version=manifest.version)


def published_statistics(pipeline: Pipeline, dense: Mapping[str, Tensor]) -> Statistics:
    """Running statistics of a version's features.

    Raises:
        MismatchError: they belong to another pipeline.
    """
    state = {n.removeprefix(FEATURES): t.numpy() for n, t in dense.items() if n.startswith(FEATURES)}
    return Statistics(pipeline.plan).load(state)


class RankScorer:
    """Ranking model of a version, and the running statistics of its features.

    Args:
        champion: role of the version's ranking model.
        items: features whose partial results may be kept.

    Attributes:
        model: name of the model's class.
        sequences: fields of which the model reads the vector of each key.
        content: fields of which the model reads the content.

    Raises:
        MismatchError: the pipeline has no such contender, or the weights are of another model.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        dense: Mapping[str, Tensor],
        champion: str = "rank",
        items: ItemFeatures = ItemFeatures(),  # noqa: B008
    ) -> None:
        if champion not in pipeline.contenders:
            raise MismatchError(
                f"the published version is of {champion!r}, which is no model of the pipeline"
            )
        configs = model_configs(pipeline)
        plan = pipeline.plan
        self.model = type(configs[champion]).__name__
        self._slice = served_slices(configs, champion)[champion]
        self._gathers = configs[champion].gathers(plan.fields)
        self.sequences, self.content = self._gathers.sequences, self._gathers.content
        self._pooled = [plan.fields.index(name) for name in self._gathers.pooled]
        model = configs[champion].build(plan.fields, plan.fields, plan.dense_names, True, 0)
        self._model = _loaded(model, dense, champion)
        self._forward = compiled_forward(self._model, len(plan.fields), len(plan.dense_names), items)
        self.statistics = published_statistics(pipeline, dense)

    @property
    def partial_size(self) -> int:
        """S, numbers of an item's partial result. There are items."""
        assert self._forward is not None
        return self._forward.partial_size

    def item_partials(self, vectors: FieldVectors, dense: F32) -> F32:
        """Partial results f32[m, S] of m items (DES's M_j). There are items.

        Args:
            vectors: of the items' fields.
            dense: the items' dense features, f32[m, Dd_items].
        """
        assert self._forward is not None
        return self._forward.partials(vectors.parts[0], dense, self._slice.start)

    def logits(
        self, vectors: FieldVectors, dense: F32, lists: Lists, content: Lists, kept: Kept | None = None
    ) -> F32:
        """Logits f32[B].

        The partial result of the fields that all rows share is computed once and added to the others'. Lists
        that all rows share are copied for a part of the rows at a time.

        Args:
            vectors: of all F fields, f32[B, F, D]; with `kept` without the items'.
            dense: f32[B, Dd]; with `kept` without the items'.
            lists: vectors of each key, for `sequences`.
            content: content vectors, for the attribute `content`.
            kept: partial results of the rows' items; None: they are computed.

        Raises:
            DeadlineError, CancelledError: the deadline of the thread's call passed, or its client cancelled.
        """
        if self._forward is not None and not self._gathers:  # nothing is torch's, and nothing is copied
            return self._forward.logits(*vectors.parts, dense, None, self._slice.start, kept)
        with torch.inference_mode():
            return self._in_parts(vectors, dense, lists, content, kept)

    def _in_parts(
        self, vectors: FieldVectors, dense: F32, lists: Lists, content: Lists, kept: Kept | None
    ) -> F32:
        """Logits f32[B]; arguments as in `logits`."""
        rows = len(vectors)
        shared = [part for part in (*lists.values(), *content.values()) if part.shared_by]
        row_bytes = max((part.values.nbytes for part in shared), default=0)
        step = rows if row_bytes * rows <= _COPIED_BYTES else max(1, _COPIED_BYTES // row_bytes)
        once = self._shared_partial(vectors)
        parts: list[F32] = []
        for first in range(0, rows, step):
            if parts:
                current_call().check("score")
            last = min(first + step, rows)
            of_rows = vectors.rows(first, first + step), dense[first : first + step]
            listed = slices(lists, first, last, rows), slices(content, first, last, rows)
            parts.append(self._logits(once, of_rows, *listed, kept and kept.rows(first, last)))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _logits(
        self,
        once: Tensor | None,
        of_rows: tuple[FieldVectors, F32],
        lists: Lists,
        content: Lists,
        kept: Kept | None,
    ) -> F32:
        """Logits of some rows; what torch multiplies is padded to whole blocks.

        Args:
            once: partial result f32[1, S] of the shared fields; None: no shared fields.
            of_rows: vectors and dense features.
            lists, content, kept: of the rows, as in `logits`.
        """
        vectors, dense = of_rows
        rows, (own, shared) = len(vectors), vectors.parts
        numbers = torch.from_numpy(dense)
        if more := -rows % _BLOCK_ROWS:
            vectors, numbers = vectors.padded(more), pad(numbers, (0, 0, 0, more))
            lists, content = (
                {name: part.padded(more) for name, part in named.items()} for named in (lists, content)
            )
        gathered = self._gathered(vectors, numbers, lists, content)
        if self._forward is not None:
            return self._forward.logits(own, shared, dense, gathered, self._slice.start, kept)
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


@dataclass(frozen=True)
class TowerFeatures:
    """Names of the features of a tower, in the pipeline's order.

    Args:
        fields: sparse fields.
        dense: dense features.
        images: fields whose content vectors the tower sums.
    """

    fields: tuple[str, ...]
    dense: tuple[str, ...]
    images: tuple[str, ...]


def tower_features(pipeline: Pipeline, side: Literal["user", "item"]) -> TowerFeatures:
    """Features of a tower.

    Raises:
        ConfigError: the pipeline has no pre-rank model.
    """
    config = model_configs(pipeline).get("prerank")
    if not isinstance(config, TwoTower):
        raise ConfigError("this pipeline has no pre-rank model: give it prerank=TwoTower(...)")
    names = config.user if side == "user" else config.item
    images = config.user_images if side == "user" else config.item_images
    plan = pipeline.plan
    return TowerFeatures(
        tuple(name for name in plan.fields if name in names),
        tuple(name for name in plan.dense_names if is_named(name, names)),
        images,
    )


class TowerScorer:
    """Two towers of a version, each over its own features, and the running statistics of the features.

    Args:
        champion: role of the version's ranking model, whose values are in its rows too.

    Attributes:
        bias: of the logit.
    """

    def __init__(self, pipeline: Pipeline, dense: Mapping[str, Tensor], champion: str = "rank") -> None:
        configs = model_configs(pipeline)
        self._slice = served_slices(configs, champion)["prerank"]
        plan = pipeline.plan
        self._models: dict[str, TwoTowerModel] = {}
        self._columns: dict[str, list[int]] = {}
        self._width = len(plan.dense_names)
        self.statistics = published_statistics(pipeline, dense)
        for side in _SIDES:
            own = tower_features(pipeline, side)
            model = configs["prerank"].build(plan.fields, own.fields, plan.dense_names, True, 0)
            assert isinstance(model, TwoTowerModel)
            _loaded(model, dense, "prerank")
            self._models[side] = model
            self._columns[side] = [plan.dense_names.index(name) for name in own.dense]
        self._user = UserTower(self._models["user"])
        self.bias = float(self._models["user"].bias)

    @torch.inference_mode()
    def user(self, vectors: F32, dense: F32, content: Lists) -> F32:
        """User vectors f32[B, out]; logit = ⟨user, item⟩ + bias.

        Args:
            vectors: f32[B, F_user, D].
            dense: f32[B, Dd_user].
            content: content vectors of the user's images, by field.
        """
        return self._user.vectors(vectors[..., self._slice], dense, content)

    @torch.inference_mode()
    def items(self, vectors: F32, dense: F32, content: Lists) -> F32:
        """Item vectors f32[n, out], unit vectors; arguments as in `user`."""
        model = self._models["item"]
        wide = torch.zeros(len(dense), self._width)  # zeros for the other tower
        wide[:, self._columns["item"]] = torch.from_numpy(dense)
        partial = model.item.partial(torch.from_numpy(vectors)[..., self._slice], wide)
        out: F32 = model.item.vector(partial, model.item.pooled_images(gathered_content(content))).numpy()
        return out


@dataclass(frozen=True)
class FunnelScorer:
    """Both models of a version."""

    towers: TowerScorer
    rank: RankScorer


def rank_scorer(version: ModelVersion) -> RankScorer:
    """Ranking model of a version."""
    scorer = version.scorer.rank if isinstance(version.scorer, FunnelScorer) else version.scorer
    assert isinstance(scorer, RankScorer)
    return scorer


def tower_scorer(version: ModelVersion) -> TowerScorer:
    """Two towers of a version."""
    scorer = version.scorer.towers if isinstance(version.scorer, FunnelScorer) else version.scorer
    assert isinstance(scorer, TowerScorer)
    return scorer


def _loaded(model: CTRModel, dense: Mapping[str, Tensor], role: str) -> CTRModel:
    prefix = f"{role}."
    state = {name.removeprefix(prefix): t for name, t in dense.items() if name.startswith(prefix)}
    try:
        model.load(state)
    except (KeyError, ValueError) as error:
        raise MismatchError(f"the published {role} model belongs to another pipeline: {error}") from error
    return model.eval().requires_grad_(False)
