"""Model of a plan: fields, table row and network. Flags make a DeepFM, a pipeline file has its own models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from livectr.kernels.table.layout import RowLayout
from livectr.system.errors import ConfigError

if TYPE_CHECKING:
    from livectr.ingest.pipeline import Pipeline
    from livectr.models.base import ModelConfig

INDEX_BYTES = 37
"""Most bytes of a key in a table's index (kernels/table/table.hpp): 16 a slot at the least load, 0.44."""
HEADER_BYTES = 16
SERVED = ("rank", "prerank")


@dataclass(frozen=True)
class Model:
    """Sizes of a model.

    Attributes:
        name: for a person.
        fields: F.
        tables: embedding tables.
        keys: of an example, over all fields.
        row: layout of a table row.
        served: D, values of a published row (rank and pre-rank model).
        partial: S, numbers of an example's partial results, all models together.
        field_parameters: of the networks, that belong to a field; summed over all fields.
        parameters: of the networks, in all; an example takes about a multiplication for each.
        lacks: parts of the models that the plan leaves out.
    """

    name: str
    fields: int
    tables: int
    keys: float
    row: RowLayout
    served: int
    partial: int
    field_parameters: int
    parameters: int
    lacks: tuple[str, ...] = ()

    @property
    def row_bytes(self) -> int:
        """Most bytes of a row in a rank's memory."""
        return table_row_bytes(self.row)

    @property
    def file_bytes(self) -> int:
        """Bytes of a row in a checkpoint: its key, and all numbers as float32."""
        return 8 + 4 * self.row.stride


def table_row_bytes(row: RowLayout) -> int:
    """Most bytes of a row in a table, as DynamicTable.row_bytes: header, values, state, part of the index."""
    return -(-(HEADER_BYTES + row.stored_bytes) // 8) * 8 + INDEX_BYTES


@dataclass(frozen=True)
class Shape:
    """Sizes of a DeepFM; see `deepfm`."""

    fields: int = 39
    dense: int = 0
    dim: int = 16
    hidden: tuple[int, ...] = (256, 128)
    optimizer: str = "adagrad"
    keys: float | None = None


def deepfm(shape: Shape) -> Model:
    """DeepFM with the default first order; the optimizer is that of the vectors."""
    from livectr.models import DeepFM, learning

    spec = getattr(learning, shape.optimizer)()
    config = DeepFM(dim=shape.dim, hidden=shape.hidden, optimiser=spec)
    names = [f"field{i}" for i in range(shape.fields)]
    model = _model({"rank": config}, names, [f"dense{i}" for i in range(shape.dense)], "fp32")
    widths = "-".join(map(str, shape.hidden))
    return replace(
        model,
        name=f"DeepFM, {shape.fields} fields, K = {shape.dim}, {widths}, {shape.optimizer}",
        keys=float(shape.fields) if shape.keys is None else shape.keys,
    )


def of_pipeline(pipeline: Pipeline, keys: float | None = None) -> Model:
    """Models of a pipeline.

    Args:
        pipeline: its models, fields and tables.
        keys: of an example; None: one for each field.

    Raises:
        ConfigError: a model is no model.
    """
    from livectr.models.configs import model_configs

    configs = model_configs(pipeline)
    names = list(pipeline.plan.fields)
    model = _model(configs, names, list(pipeline.plan.dense_names), pipeline.row_values)
    roles = ", ".join(f"{role} {type(config).__name__}" for role, config in configs.items())
    lacks = [] if not pipeline.content else ["content vectors (images, texts)"]
    if any(config.gathers(names) for config in configs.values()):
        lacks.append("vectors that a model gathers for its attention")
    return replace(
        model,
        name=f"{roles}, {len(names)} fields",
        tables=len({field.table for field in pipeline.fields}),
        keys=float(len(names)) if keys is None else keys,
        lacks=tuple(lacks),
    )


def _model(
    configs: Mapping[str, ModelConfig], fields: Sequence[str], dense: Sequence[str], values: str
) -> Model:
    from livectr.kernels.table.rows import row_layout
    from livectr.models.roles import row_segments

    try:
        networks = [config.build(fields, fields, dense, True, 0) for config in configs.values()]
    except ValueError as error:
        raise ConfigError(f"the model cannot be built: {error}") from None
    local = [tensors for network in networks for tensors in network.local_state().items()]
    wanted = set(fields)
    return Model(
        name="",
        fields=len(fields),
        tables=len(fields),
        keys=float(len(fields)),
        row=row_layout(row_segments(configs, len(fields) + len(dense)), values),  # type: ignore[arg-type]
        served=sum(config.width for role, config in configs.items() if role in SERVED),
        partial=sum(network.partial_size for network in networks),
        field_parameters=sum(t.numel() for name, t in local if name.partition("/")[2] in wanted),
        parameters=sum(p.numel() for network in networks for p in network.parameters()),
    )
