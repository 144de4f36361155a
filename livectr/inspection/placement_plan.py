"""Placement of fields on N ranks, with their load: `livectr inspect --pipeline … --ranks N`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from livectr.console import make_console
from livectr.ingest.pipeline import Pipeline
from livectr.system.byte_units import show_bytes
from livectr.system.errors import ConfigError


@dataclass(frozen=True)
class Measured:
    """Measured load.

    Args:
        source: origin of the numbers.
        table_rows: rows by table.
        field_keys: keys by field, in all examples.
        examples: number of examples.
    """

    source: str
    table_rows: Mapping[str, int]
    field_keys: Mapping[str, int]
    examples: int


def measured(pipeline: Pipeline, *, checkpoint: Path | None, report: Path | None) -> Measured:
    """Load from a report, else from a checkpoint's newest generation, else one key for every field.

    Raises:
        ConfigError: no report, no checkpoint, or the numbers belong to another pipeline.
    """
    measured = Measured(
        "nothing: one key of every field and no rows; say --report or --checkpoint", {}, {}, 0
    )
    if report is not None:
        try:
            values = json.loads(report.read_text())
            measured = Measured(
                str(report), values["table_rows"], values["field_keys"], values["examples_trained"]
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{report} is no report of `livectr train --report` ({type(error).__name__}: {error})."
            ) from None
    elif checkpoint is not None:
        from livectr.trainer.checkpoint.manifest import newest_manifest

        manifest = newest_manifest(checkpoint)
        if manifest is None:
            raise ConfigError(f"{checkpoint} holds no checkpoint.")
        measured = Measured(str(checkpoint), manifest.table_rows, manifest.field_keys, manifest.examples)
    names = {field.name for field in pipeline.fields}
    if measured.field_keys and measured.field_keys.keys() != names:
        differ = sorted(measured.field_keys.keys() ^ names)
        raise ConfigError(
            f"{measured.source} belongs to another pipeline: it differs in the fields {', '.join(differ)}."
        )
    return measured


def show_placement(
    pipeline: Pipeline,
    numbers: Measured,
    *,
    world: int,
    placement: str,
    rank_memory: int | None,
) -> None:
    """Print a line for each rank: fields, rows, memory, keys an example.

    Raises ConfigError when the ranks cannot hold the tables.
    """
    from livectr.kernels.table.rows import row_layout
    from livectr.models.configs import model_configs
    from livectr.models.roles import row_segments
    from livectr.trainer.options import check_placement
    from livectr.trainer.placement.balance import balance, loads
    from livectr.trainer.placement.measured import row_bytes, stats_of
    from livectr.trainer.placement.placement import place

    check_placement(placement, rank_memory)
    layout = row_layout(row_segments(model_configs(pipeline)), pipeline.row_values)
    each = row_bytes(layout)
    fields = pipeline.fields
    tables = [field.table for field in fields]
    keys = [numbers.field_keys.get(field.name, 1) / max(numbers.examples, 1) for field in fields]
    stats = stats_of(tables, keys, {table: rows * each for table, rows in numbers.table_rows.items()})
    plan = balance(stats, world, rank_bytes=rank_memory) if placement == "balanced" else place(tables, world)
    table = Table(title=f"{world} ranks, placement {placement}", title_justify="left")
    for column in ("rank", "fields", "rows", "memory", "keys an example", "of the mean"):
        table.add_column(column, justify="right")
    table.add_column("holds", overflow="fold")
    rank_loads = loads(plan, stats)
    mean = sum(load.keys for load in rank_loads) / world
    for rank, load in enumerate(rank_loads):
        names = [fields[f].name for f in plan.fields_of(rank)]
        names += ["dense features"] if rank == plan.dense_owner and pipeline.plan.dense_names else []
        table.add_row(
            str(rank),
            str(load.fields),
            f"{load.bytes / each:,.0f}",
            show_bytes(round(load.bytes)),
            f"{load.keys:.4g}",
            f"{load.keys / mean:.2f}" if mean else "–",
            ", ".join(names),
        )
    console = make_console()
    console.print(table)
    console.print(f"measured  {numbers.source}", highlight=False, markup=False, soft_wrap=True)
    if plan.split:
        console.print(f"split by key over all ranks  {', '.join(sorted(plan.split))}", highlight=False)
