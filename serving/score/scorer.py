"""A version's models, with its weights loaded, as a server runs them.

A server holds all fields, so ⊕ is the identity; see `models.base`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from livectr.ingest.extract.statistics import Statistics
from livectr.ingest.pipeline import Pipeline
from livectr.kernels.errors import ConfigError, MismatchError
from livectr.kernels.table.layout import SGD, RowLayout, Segment, Values
from livectr.models.base import CTRModel, Gathered, ModelConfig, Ragged, role_slices, row_segments
from livectr.models.two_tower import TwoTower, TwoTowerModel, is_named
from livectr.protos.manifest import VersionManifest
from livectr.protos.store import F32, FEATURES
from livectr.serving.version.near_cache import List, NearCache

_WRITTEN_OUT_BYTES = 8 << 20
"""Of a list that all rows of a request share, in front of the model; more rows go through it in parts."""
_SIDES: tuple[Literal["user", "item"], ...] = ("user", "item")


def model_configs(pipeline: Pipeline) -> dict[str, ModelConfig]:
    """Role → configuration, of the models that the pipeline has. Raises ConfigError for what is none."""
    configs = {}
    for role, config in (("rank", pipeline.rank), ("prerank", pipeline.prerank)):
        if isinstance(config, ModelConfig):
            configs[role] = config
        elif config is not None:
            raise ConfigError(
                f"Pipeline: {role}= must be a model such as livectr.models.DeepFM(), not {config!r}"
            )
    return configs


def sequence_fields(pipeline: Pipeline) -> tuple[str, ...]:
    """The fields whose every key's vector the ranking model needs."""
    return model_configs(pipeline)["rank"].gathers(pipeline.plan.fields).sequences


def content_fields(pipeline: Pipeline, role: str) -> tuple[str, ...]:
    """The fields of which a role's model wants content; none where the pipeline has no such model."""
    config = model_configs(pipeline).get(role)
    return () if config is None else config.gathers(pipeline.plan.fields).content


def value_layout(configs: Mapping[str, ModelConfig], values: Values = "fp32") -> RowLayout:
    """The values of a published row: the trainer's segments without their optimisers' state. They are stored
    as the trainer stores them, so that rows that nobody has stored begin alike."""
    made = tuple(Segment(s.name, s.dim, SGD(), s.init_scale) for s in row_segments(configs))
    return RowLayout(made, values)


def near_cache(pipeline: Pipeline, fields: Sequence[str], manifest: VersionManifest, rows: int) -> NearCache:
    """An empty near-cache for the tables of these fields.

    Raises MismatchError when the published rows are laid out differently.
    """
    layout = value_layout(model_configs(pipeline), pipeline.row_values)
    published = tuple(manifest.segments)
    if published != tuple((s.name, s.dim) for s in layout.segments):
        raise MismatchError(f"version {manifest.version} has rows of {published}: another pipeline's")
    tables = {spec.table for spec in pipeline.fields if spec.name in fields}
    return NearCache(sorted(tables), layout, seed=manifest.seed, max_rows=rows)


def published_statistics(pipeline: Pipeline, dense: Mapping[str, Tensor]) -> Statistics:
    """The running statistics of a version's features. Raises MismatchError for another pipeline's."""
    state = {n.removeprefix(FEATURES): t.numpy() for n, t in dense.items() if n.startswith(FEATURES)}
    return Statistics(pipeline.plan).load(state)


class RankScorer:
    """The ranking model of one version, and the running statistics that its features come with."""

    def __init__(self, pipeline: Pipeline, dense: Mapping[str, Tensor]) -> None:
        configs = model_configs(pipeline)
        plan = pipeline.plan
        self._slice = role_slices(configs)["rank"]
        self._gathers = configs["rank"].gathers(plan.fields)
        self._pooled = [plan.fields.index(name) for name in self._gathers.pooled]
        model = configs["rank"].build(plan.fields, plan.fields, plan.dense_names, True, 0)
        self._model = _loaded(model, dense, "rank")
        self.statistics = published_statistics(pipeline, dense)

    @torch.inference_mode()
    def logits(self, vectors: F32, dense: F32, lists: Mapping[str, List], content: Mapping[str, List]) -> F32:
        """vectors f32[B, F, D], dense f32[B, Dd], lists of `sequence_fields`, vectors of the content of
        `content_fields` → f32[B]. Lists that all rows share are written out for some rows at a time."""
        rows = len(vectors)
        shared = [one for one in (*lists.values(), *content.values()) if one.same]
        row_bytes = max((one.values.nbytes for one in shared), default=0)
        step = rows if row_bytes * rows <= _WRITTEN_OUT_BYTES else max(1, _WRITTEN_OUT_BYTES // row_bytes)
        parts = [
            self._logits(vectors, dense, lists, content, first, min(first + step, rows))
            for first in range(0, rows, step)
        ]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _logits(
        self,
        vectors: F32,
        dense: F32,
        lists: Mapping[str, List],
        content: Mapping[str, List],
        first: int,
        last: int,
    ) -> F32:
        """The same of the rows `first` to `last`."""
        values = torch.from_numpy(vectors)[first:last, ..., self._slice]
        numbers = torch.from_numpy(dense)[first:last]
        lists, content = (
            {
                name: one.part(first, last) if one.same or last - first < len(vectors) else one
                for name, one in of.items()
            }
            for of in (lists, content)
        )
        gathered = self._gathered(values, numbers, lists, content)
        out: F32 = self._model(values, numbers, gathered).numpy()
        return out

    def _gathered(
        self, values: Tensor, dense: Tensor, lists: Mapping[str, List], content: Mapping[str, List]
    ) -> Gathered | None:
        """What the model needs whole; a server holds every field, so nothing is sent."""
        wanted = self._gathers
        if not wanted:
            return None
        sequences = {name: _ragged(lists[name], self._slice) for name in wanted.sequences}
        looked_at = {name: _ragged(content[name]) for name in wanted.content}
        return Gathered(values[:, self._pooled], sequences, dense if wanted.dense else None, looked_at)


@dataclass(frozen=True)
class TowerFeatures:
    """Names of the features of one tower, in the pipeline's order."""

    fields: tuple[str, ...]
    dense: tuple[str, ...]
    images: tuple[str, ...]
    """Fields whose content the tower sums."""


def tower_features(pipeline: Pipeline, side: Literal["user", "item"]) -> TowerFeatures:
    """The features of a tower. Raises ConfigError when the pipeline has no pre-rank model."""
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
    """The two towers of one version, each over its own features, and these features' running statistics."""

    def __init__(self, pipeline: Pipeline, dense: Mapping[str, Tensor]) -> None:
        configs = model_configs(pipeline)
        self._slice = role_slices(configs)["prerank"]
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

    @property
    def bias(self) -> float:
        return float(self._models["user"].bias)

    @torch.inference_mode()
    def user(self, vectors: F32, dense: F32, content: Mapping[str, List]) -> F32:
        """f32[B, F_user, D], f32[B, Dd_user] and images of the user's features → f32[B, out].

        logit = ⟨user, item⟩ + bias.
        """
        model = self._models["user"]
        partial = model.user.partial(*self._inputs("user", vectors, dense))
        images = model.user.pooled_images(_content(content))
        out: F32 = (model.gamma * model.user.vector(partial, images)).numpy()
        return out

    @torch.inference_mode()
    def items(self, vectors: F32, dense: F32, content: Mapping[str, List]) -> F32:
        """f32[n, F_item, D], f32[n, Dd_item] and images of the items' features → unit vectors f32[n, out]."""
        model = self._models["item"]
        partial = model.item.partial(*self._inputs("item", vectors, dense))
        out: F32 = model.item.vector(partial, model.item.pooled_images(_content(content))).numpy()
        return out

    def _inputs(self, side: str, vectors: F32, dense: F32) -> tuple[Tensor, Tensor]:
        """A tower picks its dense features out of all of them: those of the other tower are zero."""
        wide = torch.zeros(len(dense), self._width)
        wide[:, self._columns[side]] = torch.from_numpy(dense)
        return torch.from_numpy(vectors)[..., self._slice], wide


def _content(lists: Mapping[str, List]) -> Gathered:
    """Lists of vectors of content as a model sees them."""
    found = {name: _ragged(one) for name, one in lists.items()}
    return Gathered(torch.empty(0), {}, None, found)


def _ragged(one: List, columns: slice = slice(None)) -> Ragged:
    """Some columns of lists of vectors, as a model sees them."""
    return Ragged(torch.from_numpy(one.values)[:, columns], torch.from_numpy(one.offsets), bool(one.same))


def _loaded(model: CTRModel, dense: Mapping[str, Tensor], role: str) -> CTRModel:
    prefix = f"{role}."
    state = {name.removeprefix(prefix): t for name, t in dense.items() if name.startswith(prefix)}
    try:
        model.load(state)
    except (KeyError, ValueError) as error:
        raise MismatchError(f"the published {role} model belongs to another pipeline: {error}") from error
    return model.eval().requires_grad_(False)
