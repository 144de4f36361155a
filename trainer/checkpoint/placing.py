"""Balanced placement of a run that resumes from a checkpoint, by the keys and rows that this has measured."""

from __future__ import annotations

import logging

from livectr.ingest.pipeline import Pipeline
from livectr.kernels.table.rows import row_layout
from livectr.models.configs import model_configs
from livectr.models.roles import row_segments
from livectr.trainer.checkpoint.restored import Restored
from livectr.trainer.placement.balance import balance, loads
from livectr.trainer.placement.measured import row_bytes, stats_of
from livectr.trainer.placement.placement import FieldPlacement

LOG = logging.getLogger(__name__)


def measured_placement(
    pipeline: Pipeline, rank: int, world: int, restored: Restored | None, *, rank_bytes: int | None
) -> FieldPlacement | None:
    """Balance the keys and rows that a checkpoint has measured; the same on every rank.

    Args:
        pipeline: its fields and their tables.
        rank: this rank, for the log.
        world: N ranks.
        restored: the checkpoint; None in a first run.
        rank_bytes: most bytes of tables on a rank; None: no limit.

    Returns:
        The placement; None if nothing is measured yet, so that tables are assigned round-robin.

    Raises:
        ConfigError: the ranks cannot hold the tables.
    """
    say = logging.INFO if rank == 0 else logging.DEBUG
    keys = restored.manifest.field_keys if restored is not None else {}
    if restored is None or not any(keys.values()):
        LOG.log(
            say, "placement balanced: nothing is measured yet, so fields are dealt in turn until a restart"
        )
        return None
    each = row_bytes(row_layout(row_segments(model_configs(pipeline)), pipeline.row_values))
    size = {table: float(rows * each) for table, rows in restored.manifest.table_rows.items()}
    fields = pipeline.fields
    stats = stats_of([f.table for f in fields], [keys[f.name] for f in fields], size)
    placement = balance(stats, world, rank_bytes=rank_bytes)
    rank_loads = loads(placement, stats)
    mean = sum(load.keys for load in rank_loads) / world
    LOG.log(
        say,
        "placement balanced: the rank with most keys has %.2f of the mean%s",
        max(load.keys for load in rank_loads) / mean,
        f"; split by key: {', '.join(sorted(placement.split))}" if placement.split else "",
    )
    return placement
