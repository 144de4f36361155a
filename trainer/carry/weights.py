"""Weights of a checkpoint for a changed pipeline: those of the same name and shape stay, with moments.

A part of the network that belongs to a feature is found by the feature's name. What is new begins so that
every logit is at first what it was, as far as the model allows:

    new sparse field, table of its own    its rows begin at zero (kernels.table.from_zero), its weights as new
    new sparse field, table of another    its weights are zero: its rows are not
    new dense feature                     its weights are zero
    new content                           the weights of its fields are zero
    new model                             its bias is that of another one, all else as in a new run

A product with zero is zero, and the factor that is not zero gives the other a gradient. Attention is no such
product: a softmax over one field more moves the logits of models that attend to all fields.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import torch
from torch import Tensor

from livectr.ingest.language.content import Content
from livectr.ingest.pipeline import Pipeline
from livectr.kernels.table.from_zero import FromZero
from livectr.models.base import FeatureAxes, ModelConfig
from livectr.models.embedding import SubModel
from livectr.trainer.content.ams import PREFIX
from livectr.trainer.des.dense import CENTRE, MOMENTS, SIZES_KEY


@dataclass
class CarriedWeights:
    """State of a step for a changed pipeline.

    Attributes:
        state: parameters and moments by name.
        kept: parameters of the checkpoint that were kept, by our name.
        new: parameters that the checkpoint lacks, or has in another shape.
        dropped: parameters of the checkpoint that the pipeline lacks, by their name.
        from_zero: (role, table) whose new rows begin at zero.
    """

    state: dict[str, Tensor] = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    from_zero: set[FromZero] = field(default_factory=set)


def carried_weights(
    theirs: Mapping[str, Tensor],
    pipeline: Pipeline,
    configs: Mapping[str, ModelConfig],
    seed: int,
    *,
    before: Features,
    new_tables: frozenset[str],
    content: Mapping[str, Tensor] = MappingProxyType({}),
) -> CarriedWeights:
    """Fit the state of a step (`DesStep.state_dense`) to a pipeline.

    Args:
        theirs: state of the checkpoint.
        pipeline: its features.
        configs: role → model.
        seed: of new parameters.
        before: features of the checkpoint's pipeline.
        new_tables: embedding tables that the checkpoint lacks.
        content: parameters of new sub-models (`fresh_content`).
    """
    found = CarriedWeights()
    fresh = _Fresh.of(pipeline, configs, seed)
    values = {**fresh.values, **content}
    after = Features(pipeline.plan.fields, pipeline.plan.dense_names, pipeline.renamed)
    old = {name for name in theirs if not name.startswith(("adam.", "des."))}
    names = {name: after.before(name, fresh.owner.get(name)) for name in values}
    carried = {n for n, name in names.items() if name in old and theirs[name].shape == values[n].shape}
    grown = {n for n in fresh.axes if n not in carried and names[n] in old}
    learned = {n.partition(".")[0] for n in carried}  # roles, and content
    table_of = {spec.name: spec.table for spec in pipeline.fields}
    of_content = {name for content in pipeline.content.values() for name in content.fields}
    stacks = {_stack(name) for name in carried}
    for name, value in values.items():
        role, feature, was = name.partition(".")[0], fresh.owner.get(name), names[name]
        moments = {f"adam.{m}.{name}": f"adam.{m}.{was}" for m in MOMENTS}
        (found.kept if name in carried or name in grown else found.new).append(name)
        if name in carried:
            found.state[name] = theirs[was].clone()
            found.state |= {ours: theirs[other].clone() for ours, other in moments.items()}
            if (centre := theirs.get(f"adam.{CENTRE}.{was}")) is not None:
                found.state[f"adam.{CENTRE}.{name}"] = centre.clone()
            continue
        found.state[name] = value
        found.state |= {ours: torch.zeros_like(value) for ours in moments}
        if name in grown:
            axes = fresh.axes[name]
            begin = torch.zeros_like(value) if axes.from_zero else value
            found.state[name] = _grown(begin, theirs[was], axes, before, after)
            for ours, other in moments.items():
                found.state[ours] = _grown(found.state[ours], theirs[other], axes, before, after)
        elif feature is not None and role in learned:
            if table_of.get(feature) in new_tables and feature not in of_content:
                found.from_zero.add((role, table_of[feature]))
            elif _stack(name) in stacks:
                found.state[name] = torch.zeros_like(value)
    for role in configs.keys() - learned:  # a new model knows at least the click rate
        biases = (theirs[f"{other}.bias"] for other in configs if f"{other}.bias" in theirs)
        found.state[f"{role}.bias"] = next(biases, found.state[f"{role}.bias"]).clone()
    found.state |= {name: theirs[name].clone() for name in ("adam.step", SIZES_KEY) if name in theirs}
    found.dropped = sorted(old - {names[n] for n in carried | grown})
    return found


@dataclass(frozen=True)
class Features:
    """Features of a pipeline, in order.

    Attributes:
        fields: sparse fields.
        dense: dense features.
        was: field → its name in the pipeline before, where it had another.
    """

    fields: tuple[str, ...]
    dense: tuple[str, ...]
    was: Mapping[str, str] = field(default_factory=dict)

    def along(self, axis: str) -> list[str]:
        """Features along an axis of `FeatureAxes`, by their names in the pipeline before."""
        fields = [self.was.get(name, name) for name in self.fields]
        return {"fields": fields, "dense": [*self.dense], "features": [*fields, *self.dense]}[axis]

    def before(self, name: str, feature: str | None) -> str:
        """Name of a parameter in the pipeline before; `feature`: to which it belongs."""
        was = None if feature is None else self.was.get(feature)
        return name if was is None else f"{_stack(name)}/{was}"


def _grown(value: Tensor, theirs: Tensor, axes: FeatureAxes, before: Features, after: Features) -> Tensor:
    """`value` with the entries of the features that both pipelines have; `value` where widths differ."""
    shapes, places = [], []
    for features in (before, after):
        shapes.append([axis if isinstance(axis, int) else len(features.along(axis)) for axis in axes.axes])
    if math.prod(shapes[0]) != theirs.numel() or math.prod(shapes[1]) != value.numel():
        return value
    for axis in axes.axes:
        if isinstance(axis, int):
            places.append(([*range(axis)], [*range(axis)]))
            continue
        names = before.along(axis), after.along(axis)
        both = [name for name in names[1] if name in names[0]]
        places.append(([names[0].index(n) for n in both], [names[1].index(n) for n in both]))
    of_theirs, of_ours = (_grid([place[side] for place in places]) for side in (0, 1))
    grown = value.clone().view(shapes[1])
    grown[of_ours] = theirs.view(shapes[0])[of_theirs]
    return grown.view(value.shape)


def _grid(places: Sequence[list[int]]) -> tuple[Tensor, ...]:
    return torch.meshgrid(*(torch.tensor(place, dtype=torch.long) for place in places), indexing="ij")


@dataclass(frozen=True)
class _Fresh:
    """Parameters of new networks.

    Attributes:
        values: by "<role>.<name>".
        owner: field-local parameter → its feature.
        axes: shared parameter → its axes over features.
    """

    values: dict[str, Tensor]
    owner: dict[str, str]
    axes: dict[str, FeatureAxes]

    @staticmethod
    def of(pipeline: Pipeline, configs: Mapping[str, ModelConfig], seed: int) -> _Fresh:
        fields, dense_names = pipeline.plan.fields, pipeline.plan.dense_names
        fresh = _Fresh({}, {}, {})
        for role, config in configs.items():
            model = config.build(fields, fields, dense_names, True, seed)
            local = {f"{role}.{name}": tensor.clone() for name, tensor in model.local_state().items()}
            shared = {f"{role}.{name}": tensor.clone() for name, tensor in model.shared_state().items()}
            fresh.values.update(local | shared)
            fresh.owner.update({name: name.partition("/")[2] for name in local})
            fresh.axes.update({f"{role}.{name}": axes for name, axes in model.feature_axes.items()})
        return fresh


def fresh_content(pipeline: Pipeline, seed: int) -> dict[str, Tensor]:
    """Parameters of new sub-models of the pipeline's content by name."""
    return {
        f"{PREFIX}.{name}.{parameter}": tensor.detach().clone()
        for name, content in pipeline.content.items()
        for parameter, tensor in _sub_model(content).network(f"{PREFIX}.{name}", seed).named_parameters()
    }


def _sub_model(content: Content) -> SubModel:
    assert isinstance(content.model, SubModel), content  # checked with the pipeline
    return content.model


def _stack(name: str) -> str:
    return name.partition("/")[0]
