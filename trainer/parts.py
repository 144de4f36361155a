"""Parts of one rank of a training run, as trainer.build assembles them; trainer.stages moves batches through
them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from livectr.ingest.common_features import CommonFeatures
from livectr.ingest.dead_letters.letters import DeadLetters
from livectr.ingest.extract.extractor import Extract
from livectr.ingest.extract.statistics import Statistics
from livectr.ingest.join.example_columns import Examples
from livectr.ingest.join.examples import ExampleSource
from livectr.ingest.materialized.features import ExampleFeatures
from livectr.ingest.pipeline import Pipeline
from livectr.ingest.plan.features import Features
from livectr.trainer.checkpoint.checkpoint import Checkpointer
from livectr.trainer.comm.control import Control
from livectr.trainer.content.contents import Contents
from livectr.trainer.content.item_refresh import ItemRefresh
from livectr.trainer.content.refresh import ContentRefresh
from livectr.trainer.delayed.heads import Heads
from livectr.trainer.des.step import DesStep
from livectr.trainer.options import TrainOptions
from livectr.trainer.progress import Progress
from livectr.trainer.quality.contest import Contest
from livectr.trainer.quality.final_labels import FinalLabels
from livectr.trainer.quality.gate import PublishGate
from livectr.trainer.quality.monitor import Monitor
from livectr.trainer.quality.predictions import PredictionLog
from livectr.trainer.quality.run_record import RunRecord
from livectr.trainer.quality.seen import ItemCounts
from livectr.trainer.stream.batcher import Batcher
from livectr.trainer.stream.data_watch import DataWatch
from livectr.trainer.stream.feed import Feed
from livectr.trainer.tables.policies import Policies

if TYPE_CHECKING:
    from livectr.trainer.publish.publisher import Publisher


class Closable(Protocol):
    """Part that has to be closed."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class Extraction:
    """Features of a run.

    Attributes:
        extract: the pipeline's whole plan.
        examples: reads materialized features and computes the others.
        features: features of a batch's examples, common features shared if the options say so.
    """

    extract: Extract
    examples: ExampleFeatures
    features: Callable[[Examples, Statistics], Features | CommonFeatures]


@dataclass(frozen=True)
class Parts:
    """Parts of one rank's run, in the order in which an example meets them.

    Attributes:
        heads: of ES-DFM; None if the pipeline's loss has none.
        log: predictions; of rank 0, if they are kept.
        items: examples of each item; of rank 0, if the pipeline has items.
        labels: scores that wait for final labels; of rank 0, if the pipeline has provisional negatives.
        contest: champion and challengers; of rank 0, if the pipeline has challengers.
        gate: holds versions of a model failing the gate; of rank 0, if versions are published.
        record: writes the run log; of rank 0, if there is one.
        checkpoint, publisher: None if the run has no place for them.
        refreshes: content → its refresh, with `content_refresh_s`.
        item_refresh: of the item vectors, with `content_refresh_s`.
    """

    pipeline: Pipeline
    options: TrainOptions
    control: Control
    contents: Contents
    dead_letters: DeadLetters
    source: ExampleSource
    watch: DataWatch
    extraction: Extraction
    cuts: Batcher
    feed: Feed
    step: DesStep
    heads: Heads | None
    policies: Policies
    log: PredictionLog | None
    items: ItemCounts | None
    labels: FinalLabels | None
    contest: Contest | None
    gate: PublishGate | None
    record: RunRecord | None
    monitor: Monitor
    checkpoint: Checkpointer | None
    publisher: Publisher | None
    progress: Progress
    refreshes: Mapping[str, ContentRefresh]
    item_refresh: ItemRefresh | None
