"""Stream of one rank: its share of the logs, from the rows that are read to the features of a batch.

source ─► examples ─► feed        letters: rows that cannot be used
  └─ watch: are the rows usable   follows: order log of another run
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial

from livectr.ingest.common_features import Common, segments_of
from livectr.ingest.dead_letters.letters import SPOOL, DeadLetters
from livectr.ingest.extract.position import PlaceExtractor
from livectr.ingest.extract.statistics import Statistics
from livectr.ingest.extract.targets import TargetExtractor
from livectr.ingest.extract.values import ValueExtractor
from livectr.ingest.extract.weights import WeightExtractor
from livectr.ingest.extract.worths import WorthExtractor
from livectr.ingest.join.examples import ExampleSource, ReadOptions
from livectr.ingest.join.state import SourceState
from livectr.system.errors import ConfigError
from livectr.trainer.checkpoint.lease import hold_newest
from livectr.trainer.checkpoint.order_parts import ORDER, lines_of
from livectr.trainer.checkpoint.restored import Restored
from livectr.trainer.checkpoint.warm_start import WarmStart
from livectr.trainer.drift.feature_drift import FeatureDrift
from livectr.trainer.setup import Setup
from livectr.trainer.stream.data_watch import DataWatch
from livectr.trainer.stream.extraction import Extraction
from livectr.trainer.stream.feed import Feed
from livectr.trainer.stream.order_log import OrderLog

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class RankStream:
    """Stream of one rank.

    Attributes:
        follows: order log that decides the batches; None: the clock decides.
        drift: of the features; None: it is not measured.
    """

    extraction: Extraction
    letters: DeadLetters
    follows: OrderLog | None
    source: ExampleSource
    watch: DataWatch
    feed: Feed
    drift: FeatureDrift | None

    @staticmethod
    def open(
        setup: Setup, extraction: Extraction, restored: Restored | None, warm: WarmStart | None
    ) -> RankStream:
        """Open the source where the checkpoint's steps ended, or at the log's start. Collective.

        Args:
            setup: of this rank.
            extraction: features of the run.
            restored: the checkpoint; None in a new run.
            warm: run whose statistics a new run begins with.

        Raises:
            ConfigError: the source, or the order log that is to be followed, cannot be used.
            CheckpointError: a part of the order log is not what was written.
            MismatchError: the statistics are of other features.
        """
        options, state, statistics = setup.options, None, Statistics(setup.pipeline.plan)
        if restored is not None:
            state, statistics = restored.source(), statistics.load(restored.statistics())
        elif warm is not None:
            statistics = warm.statistics(statistics)
        letters = setup.closed(_dead_letters(setup))
        follows = _order(setup)
        source = setup.closed(_source(setup, extraction, letters, state, follows))
        watch = DataWatch(
            source.pipeline,
            source,
            letters,
            setup.control,
            min_usable=options.min_usable,
            resumed=restored is not None,
        )
        features, control = extraction.features, setup.control
        depth = extraction.depth
        field, weights = setup.pipeline.segment_field, setup.pipeline.example_weights
        worths = setup.pipeline.worths
        drift = FeatureDrift.of(setup)
        feed = Feed(
            source,
            features,
            control,
            statistics=statistics,
            dead_letters=letters,
            drift=drift,
            depth=depth,
            plain=extraction.examples.features,
            segments=partial(segments_of, field, Common.of(setup.pipeline)) if field is not None else None,
            weights=WeightExtractor(weights) if weights is not None else None,
            places=PlaceExtractor(setup.pipeline.shown) if setup.pipeline.shown is not None else None,
            values=ValueExtractor(setup.pipeline.targets) if setup.pipeline.valued else None,
            targets=TargetExtractor(setup.pipeline.targets) if setup.pipeline.targets else None,
            worths=WorthExtractor(worths, worths.plan, worths.labels) if worths is not None else None,
        )
        return RankStream(extraction, letters, follows, source, watch, setup.closed(feed), drift)


def _dead_letters(setup: Setup) -> DeadLetters:
    options, root = setup.options, setup.options.checkpoint_folder
    letters = DeadLetters.for_source(
        options.source,
        options.dead_letters,
        writer=setup.rank,
        writers=setup.world,
        spool=root / SPOOL if root is not None else None,
        spool_bytes=options.dead_letter_spool_bytes,
    )
    if root is not None:
        letters.track_positions()
    return letters


def _order(setup: Setup) -> OrderLog | None:
    """Order log that this run follows. Collective; see `RankStream.open`."""
    if setup.options.order_of is None:
        return None
    address = setup.options.order_of
    # Its run may continue meanwhile: all ranks read the same generation.
    held = hold_newest(address, "name another run's --checkpoint", setup.control, kinds=(ORDER,))
    if held is None:
        raise ConfigError(f"order_of: {address} holds no checkpoint; name another run's --checkpoint")
    with held:
        LOG.info("batches are those of %s up to step %d", held.name, held.manifest.step)
        return OrderLog.parse(lines_of(held.restored), held.manifest.step, held.name)


def _source(
    setup: Setup,
    extraction: Extraction,
    letters: DeadLetters,
    state: SourceState | None,
    follows: OrderLog | None,
) -> ExampleSource:
    options = setup.options
    return ExampleSource(
        extraction.examples.pipeline.learned,
        options.source,
        ReadOptions(
            until_end=options.until_end,
            keeps=options.keeps_waiting,
            pauses=options.goes_back,
            until_idle_s=options.until_idle_s,
            idle_partition_s=options.idle_partition_s,
            full_tables=options.publish is not None,
            limits=options.limits,
            min_usable=options.min_usable,
        ),
        rank=setup.rank,
        world=setup.world,
        dead_letters=letters,
        state=state,
        recorded=options.checkpoint_folder is not None,
        follows=follows.decisions if follows is not None else None,
    )
