"""Specification of a rank's step: models, fields, rows and settings, whatever the field exchange."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from livectr.ingest.common_features import Common
from livectr.ingest.pipeline import Pipeline
from livectr.kernels.table.layout import RowLayout
from livectr.kernels.table.rows import row_layout
from livectr.models.base import ModelConfig
from livectr.models.configs import regressions
from livectr.models.inputs import Gathers
from livectr.models.roles import role_slices, row_segments
from livectr.trainer.placement.placement import FieldPlacement, place
from livectr.trainer.step_settings import StepSettings


@dataclass(frozen=True)
class StepSpec:
    """Specification of a step.

    Attributes:
        configs: role → configuration of its model.
        fields: names of the F fields.
        table_of: table of each field.
        dense_names: dense features.
        common: features that the examples of a group share.
        layout: of a table row.
        placement: rank of each field.
        settings: how a step is run.
        seed: of initial rows and parameters.
        rank: this rank.
        values: role → head of values that is no probability (models.lognormal).
    """

    configs: Mapping[str, ModelConfig]
    fields: tuple[str, ...]
    table_of: tuple[str, ...]
    dense_names: tuple[str, ...]
    common: Common
    layout: RowLayout
    placement: FieldPlacement
    settings: StepSettings
    seed: int
    rank: int
    values: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of(
        pipeline: Pipeline,
        configs: Mapping[str, ModelConfig],
        placement: FieldPlacement | None,
        settings: StepSettings,
        *,
        seed: int,
        rank: int,
        world: int,
    ) -> StepSpec:
        """Specification by a pipeline.

        Args:
            pipeline: its fields, their tables and its dense features.
            configs: role → configuration of its model.
            placement: None: tables round-robin.
            settings: how a step is run.
            seed: of initial rows and parameters.
            rank: this rank.
            world: N ranks.
        """
        fields = tuple(each.name for each in pipeline.fields)
        table_of = tuple(each.table for each in pipeline.fields)
        return StepSpec(
            configs=configs,
            fields=fields,
            table_of=table_of,
            dense_names=tuple(pipeline.plan.dense_names),
            common=Common.of(pipeline),
            layout=row_layout(row_segments(configs, pipeline.features), pipeline.row_values),
            placement=placement or place(table_of, world),
            settings=settings,
            seed=seed,
            rank=rank,
            values={role: head for role, head in regressions(pipeline).items() if role in configs},
        )

    @cached_property
    def held(self) -> tuple[int, ...]:
        """Fields whose rows, or some of them, are on this rank."""
        return tuple(self.placement.held(self.table_of, self.rank))

    @cached_property
    def slices(self) -> dict[str, slice]:
        """Role → its values in a row."""
        return role_slices(self.configs)

    @cached_property
    def gathers(self) -> dict[str, Gathers]:
        """Role → inputs that its model gathers. Raises ValueError: it names another field."""
        return {role: config.gathers(self.fields) for role, config in self.configs.items()}
