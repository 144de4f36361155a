"""Models of a pipeline, by role."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from livectr.models.base import ModelConfig
from livectr.models.hedge import Hedge
from livectr.models.lognormal import LOSSES
from livectr.system.errors import ConfigError


class _Content(Protocol):
    @property
    def fields(self) -> Sequence[str]: ...
    @property
    def model(self) -> object: ...


class _Plan(Protocol):
    @property
    def fields(self) -> tuple[str, ...]: ...


class _Target(Protocol):
    @property
    def roles(self) -> Sequence[str]: ...
    @property
    def value_roles(self) -> Sequence[str]: ...


class _Pipeline(Protocol):
    """Part of a pipeline that says which models it has, and which content they read.

    Attributes:
        models: role → configuration, or None for a role without a model.
        content: name → content, whose vectors a sub-model makes.
        targets: beside the click; each has heads with the ranking model's configuration.
    """

    @property
    def models(self) -> Mapping[str, object]: ...
    @property
    def content(self) -> Mapping[str, _Content]: ...
    @property
    def plan(self) -> _Plan: ...
    @property
    def targets(self) -> Sequence[_Target]: ...


def head_roles(model: object) -> tuple[str, ...]:
    """Roles of the heads of a ranking model that is a hedge; (): it is another model.

    Names of their segments and tensors begin with "rank." as those of another ranking model do.
    """
    return tuple(f"rank.{name}" for name in model.names) if isinstance(model, Hedge) else ()


def regressions(pipeline: _Pipeline) -> dict[str, str]:
    """Role → head of values that is no probability, a name of `models.lognormal.LOSSES`."""
    roles = (role for target in pipeline.targets for role in target.value_roles)
    return {role: head for role in roles if (head := role.rpartition(".")[2]) in LOSSES}


def model_configs(pipeline: _Pipeline) -> dict[str, ModelConfig]:
    """Configurations of a pipeline's models, by role, in the order of their values in a table row.

    A hedge has a role for each head.

    Raises:
        ConfigError: one is no model, or expects other content vectors than its sub-model makes.
    """
    configs: dict[str, ModelConfig] = {}
    for role, config in pipeline.models.items():
        if isinstance(config, ModelConfig):
            targets = pipeline.targets if role == "rank" else ()
            configs |= config.of_roles([role, *(each for target in targets for each in target.roles)])
        elif isinstance(config, Hedge) and role == "rank":
            configs |= dict(zip(head_roles(config), config.heads, strict=True))
        elif config is not None or role == "rank":
            raise ConfigError(
                f"Pipeline: {role}= must be a model such as livectr.models.DeepFM(), not {config!r}"
            )
    _check_content(pipeline, configs)
    return configs


def _check_content(pipeline: _Pipeline, configs: Mapping[str, ModelConfig]) -> None:
    """Raises ConfigError where a model expects other vectors than its content's sub-model makes."""
    of = {field: name for name, content in pipeline.content.items() for field in content.fields}
    for role, config in configs.items():
        for field in config.gathers(pipeline.plan.fields).content:
            wanted, made = (
                getattr(config, "image_dim", None),
                getattr(pipeline.content[of[field]].model, "out", None),
            )
            if wanted != made and wanted is not None:
                raise ConfigError(
                    f"{role}: image_dim is {wanted}, but the sub-model of content {of[field]!r} makes "
                    f"vectors of {made} numbers; set one to the other"
                )
