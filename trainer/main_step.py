"""Step of a run's main model: its tables, placement and arithmetic, by the settings and the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from livectr.ingest.content.store import ContentStore
from livectr.trainer.checkpoint.arithmetic import settled, tell
from livectr.trainer.checkpoint.placing import measured_placement
from livectr.trainer.checkpoint.restored import Restored
from livectr.trainer.des.step import DesStep
from livectr.trainer.setup import Setup
from livectr.trainer.tables.gpu_tables import gpu_tables
from livectr.trainer.tables.rank_tables import tier_of
from livectr.trainer.tables.tiers import Tiers


def open_tiers(setup: Setup) -> Tiers | None:
    """Tables on SSD; None: all rows are in memory."""
    options = setup.options
    if options.spill is None or options.dram_bytes is None:
        return None
    return setup.closed(Tiers(Path(options.spill), options.dram_bytes, setup.rank))


def main_step(
    setup: Setup, tiers: Tiers | None, restored: Restored | None, stores: Mapping[str, ContentStore]
) -> DesStep:
    """Make the step, with empty tables. Collective.

    Args:
        setup: of this rank.
        tiers: SSD below DRAM; None: no SSD.
        restored: the checkpoint, whose measures decide the placement; None in a new run.
        stores: content → features of this rank.

    Raises:
        ConfigError: the ranks cannot hold the tables; or see `DesStep`.
    """
    pipeline, options, placement = setup.pipeline, setup.options, None  # round-robin
    if options.placement == "balanced":
        placement = measured_placement(
            pipeline, setup.rank, setup.world, restored, rank_bytes=options.rank_memory
        )
    step = DesStep(
        pipeline,
        seed=options.seed,
        collectives=setup.collectives,
        settings=settled(options, setup.control, restored),
        tier=tier_of(tiers, gpu_tables(options)),
        placement=placement,
        content=stores,
    )
    tell(step, options)
    return step
