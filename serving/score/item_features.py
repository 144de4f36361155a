"""Features of a ranking model that depend on the item alone, so that their partial result may be kept."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from livectr.ingest.language.expr import width_of
from livectr.ingest.language.roots import roots_of
from livectr.ingest.pipeline import Pipeline
from livectr.ingest.plan.dag import FeaturePlan
from livectr.models.base import ModelConfig
from livectr.models.configs import head_roles
from livectr.models.forward import ItemFeatures, LayeredModel


@dataclass(frozen=True)
class PlanPart:
    """Part of a pipeline's features.

    Args:
        plan: of these features.
        fields: numbers in the pipeline of the plan's fields whose rows are looked up. They are the plan's
            first; of its other fields the content alone is read.
    """

    plan: FeaturePlan
    fields: tuple[int, ...]


@dataclass(frozen=True)
class SplitPlan:
    """Feature plan of a pipeline, split.

    Args:
        column: column of the impression stream that names the item.
        items: features whose partial results may be kept.
        rest: the other features.
        features: numbers of the items' features in the pipeline.
    """

    column: str
    items: PlanPart
    rest: PlanPart
    features: ItemFeatures


def split_plan(pipeline: Pipeline) -> SplitPlan | None:
    """Split a pipeline's plan, for any of its contenders; None: no partial result may be kept.

    Vectors that a model reads apart from its first layer, for attention, are not in a partial result: their
    fields are in the rest, and so is the field of the calibration's segments. A model that only torch
    computes keeps none, nor does a hedge or one with targets.
    """
    column, plan = pipeline.item_column, pipeline.plan
    configs = [config for config in pipeline.contenders.values() if isinstance(config, ModelConfig)]
    if (
        column is None
        or pipeline.targets
        or head_roles(pipeline.rank)
        or not all(_compiled(pipeline, config) for config in configs)
    ):
        return None
    known = {root.name for root in pipeline.item_roots}
    gathers = [config.gathers(plan.fields) for config in configs]
    apart = set(chain.from_iterable((*g.pooled, *g.sequences, *g.content) for g in gathers))
    segment = None if pipeline.segment_field is None else plan.fields[pipeline.segment_field]
    items = [spec.name for spec in pipeline.item_fields if spec.name not in apart and spec.name != segment]
    rest = [name for name in plan.fields if name not in items]
    if not items or not rest:
        return None
    numbers = {
        name: not any(g.dense for g in gathers)
        and bool(roots := {root.name for root in roots_of(node)})
        and roots <= known
        for name, node in plan.dense.items()
    }
    of_items = chain.from_iterable([numbers[name]] * width_of(node) for name, node in plan.dense.items())

    def part(fields: list[str], *, of_item: bool) -> PlanPart:
        dense = {name: node for name, node in plan.dense.items() if numbers[name] is of_item}
        places = tuple(plan.fields.index(name) for name in fields)
        return PlanPart(FeaturePlan({name: plan.sparse[name] for name in fields}, dense), places)

    own = part(items, of_item=True)
    features = ItemFeatures(own.fields, tuple(i for i, is_own in enumerate(of_items) if is_own))
    return SplitPlan(column, own, part(rest, of_item=False), features)


def _compiled(pipeline: Pipeline, config: ModelConfig) -> bool:
    """Return true if a compiled function computes a model."""
    plan = pipeline.plan
    model = config.build(plan.fields, plan.fields, plan.dense_names, True, 0)
    return isinstance(model, LayeredModel) and model.forward_layers() is not None


def item_features(pipeline: Pipeline) -> ItemFeatures:
    """Features of a pipeline's ranking models whose partial results may be kept."""
    split = split_plan(pipeline)
    return ItemFeatures() if split is None else split.features
