"""A version's models, with its weights loaded, as a server runs them.

A server holds all fields, so ⊕ is the identity; see `models.base`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ingest.pipeline import Pipeline
from kernels.errors import ConfigError, MismatchError
from kernels.layout import SGD, RowLayout, Segment
from models.base import CTRModel, ModelConfig, role_slices, row_segments
from models.two_tower import TwoTower, TwoTowerModel
from protos.store import F32, VersionManifest
from serving.nearcache import NearCache


def model_configs(pipeline: Pipeline) -> dict[str, ModelConfig]:
    """Role → configuration, of the models that the pipeline has. Raises ConfigError for what is none."""
    configs = {}
    for role, config in (("rank", pipeline.rank), ("prerank", pipeline.prerank)):
        if isinstance(config, ModelConfig):
            configs[role] = config
        elif config is not None:
            raise ConfigError(f"Pipeline: {role}= must be a model such as models.DeepFM(), not {config!r}")
    return configs


def value_layout(configs: Mapping[str, ModelConfig]) -> RowLayout:
    """The values of a published row: the trainer's segments without their optimisers' state."""
    return RowLayout(tuple(Segment(s.name, s.dim, SGD(), s.init_scale) for s in row_segments(configs)))


def near_cache(pipeline: Pipeline, fields: Sequence[str], manifest: VersionManifest, rows: int) -> NearCache:
    """An empty near-cache for the tables of these fields.

    Raises MismatchError when the published rows are laid out differently.
    """
    layout = value_layout(model_configs(pipeline))
    published = tuple(manifest.segments)
    if published != tuple((s.name, s.dim) for s in layout.segments):
        raise MismatchError(f"version {manifest.version} has rows of {published}: another pipeline's")
    tables = {spec.table for spec in pipeline.fields if spec.name in fields}
    return NearCache(sorted(tables), layout, seed=manifest.seed, max_rows=rows)


class RankScorer:
    """The ranking model of one version."""

    def __init__(self, pipeline: Pipeline, dense: Mapping[str, Tensor]) -> None:
        configs = model_configs(pipeline)
        plan = pipeline.plan
        self._slice = role_slices(configs)["rank"]
        model = configs["rank"].build(plan.fields, plan.fields, plan.dense_names, True, 0)
        self._model = _loaded(model, dense, "rank")

    @torch.inference_mode()
    def logits(self, vectors: F32, dense: F32) -> F32:
        """vectors f32[B, F, D], dense f32[B, Dd] → f32[B]."""
        values = torch.from_numpy(vectors)[..., self._slice]
        out: F32 = self._model(values, torch.from_numpy(dense)).numpy()
        return out


class TowerScorer:
    """The two towers of one version, each over its own fields."""

    def __init__(self, pipeline: Pipeline, dense: Mapping[str, Tensor]) -> None:
        configs = model_configs(pipeline)
        config = configs["prerank"]
        self._slice = role_slices(configs)["prerank"]
        self._user = self._tower(pipeline, config, user_fields(pipeline), dense)
        self._item = self._tower(pipeline, config, item_fields(pipeline), dense)

    @property
    def bias(self) -> float:
        return float(self._user.bias)

    @torch.inference_mode()
    def user(self, vectors: F32) -> F32:
        """Vectors f32[B, F_user, D] of the user's fields → f32[B, out]; logit = ⟨user, item⟩ + bias."""
        partial = self._user.user.partial(torch.from_numpy(vectors)[..., self._slice], None)
        out: F32 = (self._user.gamma * self._user.user.vector(partial)).numpy()
        return out

    @torch.inference_mode()
    def items(self, vectors: F32) -> F32:
        """Vectors f32[n, F_item, D] of the items' fields → unit vectors f32[n, out]."""
        partial = self._item.item.partial(torch.from_numpy(vectors)[..., self._slice], None)
        out: F32 = self._item.item.vector(partial).numpy()
        return out

    @staticmethod
    def _tower(
        pipeline: Pipeline, config: ModelConfig, fields: Sequence[str], dense: Mapping[str, Tensor]
    ) -> TwoTowerModel:
        model = config.build(pipeline.plan.fields, fields, pipeline.plan.dense_names, False, 0)
        assert isinstance(model, TwoTowerModel)
        _loaded(model, dense, "prerank")
        return model


def two_tower(pipeline: Pipeline) -> TwoTower:
    """The pre-rank model's configuration. Raises ConfigError when the pipeline has none."""
    config = model_configs(pipeline).get("prerank")
    if not isinstance(config, TwoTower):
        raise ConfigError("this pipeline has no pre-rank model: give it prerank=TwoTower(...)")
    return config


def user_fields(pipeline: Pipeline) -> tuple[str, ...]:
    """Fields of the user tower, in field order."""
    return tuple(name for name in pipeline.plan.fields if name in two_tower(pipeline).user)


def item_fields(pipeline: Pipeline) -> tuple[str, ...]:
    """Fields of the item tower, in field order."""
    return tuple(name for name in pipeline.plan.fields if name in two_tower(pipeline).item)


def _loaded(model: CTRModel, dense: Mapping[str, Tensor], role: str) -> CTRModel:
    prefix = f"{role}."
    state = {name.removeprefix(prefix): t for name, t in dense.items() if name.startswith(prefix)}
    try:
        model.load(state)
    except (KeyError, ValueError) as error:
        raise MismatchError(f"the published {role} model belongs to another pipeline: {error}") from error
    return model.eval().requires_grad_(False)
