"""Published part of a pipeline's models: layout of the rows, weights, running statistics, content."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import TypeVar

from torch import Tensor

from livectr.ingest.extract.statistics import Statistics
from livectr.ingest.pipeline import Pipeline
from livectr.kernels.table.layout import RowLayout, Values
from livectr.kernels.table.rows import values_only
from livectr.models.base import CTRModel, ModelConfig
from livectr.models.configs import model_configs
from livectr.models.roles import role_slices, row_segments, served_roles
from livectr.models.weights import loaded
from livectr.store.layout import FEATURES

Model = TypeVar("Model", bound=CTRModel)


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
    served = served_roles(champion)
    return role_slices({role: config for role, config in configs.items() if role.partition(".")[0] in served})


def published_statistics(pipeline: Pipeline, dense: Mapping[str, Tensor]) -> Statistics:
    """Running statistics of a version's features.

    Raises:
        MismatchError: they belong to another pipeline.
    """
    state = {n.removeprefix(FEATURES): t.numpy() for n, t in dense.items() if n.startswith(FEATURES)}
    return Statistics(pipeline.plan).load(state)


def loaded_role(model: Model, dense: Mapping[str, Tensor], role: str) -> Model:
    """Give a role's model the weights of a version.

    Raises:
        MismatchError: they are of another model.
    """
    return loaded(model, dense, f"{role}.", f"the published {role} model")
