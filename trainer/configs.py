"""The models of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping

from livectr.ingest.pipeline import Pipeline
from livectr.models.base import ModelConfig
from livectr.system.errors import ConfigError


def model_configs(pipeline: Pipeline) -> dict[str, ModelConfig]:
    """Role → configuration, of the models that a pipeline has: rank, prerank, challengers, shadows. A table
    row has their values in this order.

    Raises:
        ConfigError: one is no model.
    """
    by_role = {
        "rank": pipeline.rank,
        "prerank": pipeline.prerank,
        **pipeline.challengers,
        **pipeline.shadows,
    }
    configs: dict[str, ModelConfig] = {}
    for role, config in by_role.items():
        if isinstance(config, ModelConfig):
            configs[role] = config
        elif config is not None or role == "rank":
            raise ConfigError(
                f"Pipeline: {role}= must be a model such as livectr.models.DeepFM(), not {config!r}"
            )
    _check_content(pipeline, configs)
    return configs


def _check_content(pipeline: Pipeline, configs: Mapping[str, ModelConfig]) -> None:
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
