"""Stage 5, score: the two towers of a version with their weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from livectr.ingest.extract.statistics import Statistics
from livectr.ingest.pipeline import Pipeline
from livectr.ingest.plan.dag import FeaturePlan
from livectr.kernels.network.pooling import Channel, Pool, Pooling, VectorList
from livectr.kernels.network.tower import Tower
from livectr.kernels.request.select import Selector
from livectr.models.configs import model_configs
from livectr.models.two_tower import SOFT_NORM, TwoTower, TwoTowerModel, is_named
from livectr.serving.score.inputs import Lists, gathered_content
from livectr.serving.score.item_features import PlanPart
from livectr.serving.score.plan_stages import FieldOrder
from livectr.serving.score.published import loaded_role, published_statistics, served_slices
from livectr.serving.score.snapshots import Snapshots, pooled_reads
from livectr.serving.version.id_vectors import IdVectors
from livectr.serving.version.loader import ModelVersion
from livectr.serving.version.near_cache import NearCache
from livectr.store.layout import F32
from livectr.system.errors import ConfigError

Side = Literal["user", "item"]
SIDES: tuple[Side, ...] = ("user", "item")


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


def tower_features(pipeline: Pipeline, side: Side) -> TowerFeatures:
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


def tower_part(pipeline: Pipeline, side: Side) -> PlanPart:
    """Part of a pipeline's features that a tower reads. Raises ConfigError, as `tower_features`."""
    own, plan = tower_features(pipeline, side), pipeline.plan
    content_only = tuple(name for name in own.images if name not in own.fields)
    sparse = {name: plan.sparse[name] for name in (*own.fields, *content_only)}
    dense = {name: plan.dense[name] for name in own.dense}
    return PlanPart(FeaturePlan(sparse, dense), tuple(plan.fields.index(name) for name in own.fields))


@dataclass(frozen=True)
class TowerReads:
    """Inputs of a tower beside pooled vectors; see `plan_stages.ReadingModel`."""

    statistics: Statistics
    content: tuple[str, ...]
    sequences: tuple[str, ...] = ()


class TowerScorer(Snapshots[Selector]):
    """Two towers of a version, each over its own features, and the running statistics of the features.

    Args:
        champion: role of the version's ranking model, whose values are in its rows too.

    Attributes:
        reads: what each tower reads, by side.
        lists: images of the user tower, whose means a compiled call reads.
    """

    def __init__(self, pipeline: Pipeline, dense: Mapping[str, Tensor], champion: str = "rank") -> None:
        super().__init__()
        configs = model_configs(pipeline)
        self._slice = served_slices(configs, champion)["prerank"]
        plan = pipeline.plan
        self._models: dict[str, TwoTowerModel] = {}
        self._columns: dict[str, list[int]] = {}
        self._width = len(plan.dense_names)
        self.reads: dict[Side, TowerReads] = {}
        statistics = published_statistics(pipeline, dense)
        for side in SIDES:
            own = tower_features(pipeline, side)
            model = configs["prerank"].build(plan.fields, own.fields, plan.dense_names, True, 0)
            assert isinstance(model, TwoTowerModel)
            self._models[side] = loaded_role(model, dense, "prerank")
            self.reads[side] = TowerReads(statistics, own.images)
            self._columns[side] = [plan.dense_names.index(name) for name in own.dense]
        self._valued = pipeline.worths is not None and pipeline.worths.published
        self._user = user_tower(self._models["user"])
        images, config = self.reads["user"].content, configs["prerank"]
        assert isinstance(config, TwoTower)
        self.lists = tuple(VectorList(name, config.image_dim, content=True) for name in images)
        self._pooling = Pooling([Channel(Pool.MEAN, each) for each in self.lists]) if images else None

    @torch.inference_mode()
    def items(self, vectors: F32, dense: F32, content: Lists) -> F32:
        """Item vectors f32[n, out], unit vectors.

        Args:
            vectors: f32[n, F_item, D].
            dense: f32[n, Dd_item].
            content: content vectors of the items' images, by field.
        """
        model = self._models["item"]
        wide = torch.zeros(len(dense), self._width)  # zeros for the other tower
        wide[:, self._columns["item"]] = torch.from_numpy(dense)
        partial = model.item.partial(torch.from_numpy(vectors)[..., self._slice], wide)
        out: F32 = model.item.vector(partial, model.item.pooled_images(gathered_content(content))).numpy()
        return out

    def make_snapshot(self, version: ModelVersion, cache: NearCache, order: FieldOrder) -> Selector:
        """See `Snapshots.make_snapshot`."""
        fields = (*order.shared, *order.own)
        items = version.items or IdVectors.empty(self._user.outputs, worths=self._valued)
        return Selector(
            cache.lock,
            version.number,
            cache.field_tables(order.fields, (), len(order.shared)),
            len(order.shared),
            self._slice.start,
            self._slice.stop - self._slice.start,
            [fields.index(number) for number in sorted(fields)],
            self._user,
            float(self._models["user"].bias),
            items.matrix,
            None if self._pooling is None else pooled_reads(self._pooling, version, order),
        )


def user_tower(model: TwoTowerModel) -> Tower:
    """User tower of a model that holds the user's features alone, for compiled calls.

    Its inputs are the fields' vectors in their order, symlog of dense features, and means of images.

    Args:
        model: its weights are copied.
    """
    tower = model.user
    first, mlp = tower.first, tower.mlp
    blocks = [block for block in (first.dense, tower.images) if block is not None]
    weights = torch.cat([first.weight.flatten(0, 1), *blocks]), *mlp.weights
    layers = zip(weights, (mlp.first_bias, *mlp.biases), strict=True)
    return Tower(
        [(weight.detach().numpy(), bias.detach().numpy()) for weight, bias in layers],
        model.gamma.item(),
        SOFT_NORM,
    )


def tower_scorer(version: ModelVersion) -> TowerScorer:
    """Two towers of a version."""
    scorer = version.scorers["prerank"]
    assert isinstance(scorer, TowerScorer)
    return scorer
