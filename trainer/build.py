"""Assembly of one rank of a training run: every part from the options and the pipeline; nothing moves yet.

    options, pipeline ─► Redis, tiers ─► features ─► checkpoint ─► step, policies ─► source ─► feed
                                                          └─► load ─► publisher ─► stages, commits

The loop that moves them is trainer.run.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from livectr.ingest.common_features import sharing
from livectr.ingest.dead_letters.letters import SPOOL, DeadLetters
from livectr.ingest.extract.device_extractor import compiler
from livectr.ingest.extract.statistics import Statistics
from livectr.ingest.join.examples import ExampleSource, ReadOptions
from livectr.ingest.join.state import SourceState
from livectr.ingest.materialized.features import ExampleFeatures
from livectr.ingest.pipeline import Pipeline
from livectr.system.errors import ConfigError
from livectr.system.metrics_server import metrics_server
from livectr.trainer.checkpoint.arithmetic import settled, tell
from livectr.trainer.checkpoint.checkpoint import Checkpointer
from livectr.trainer.checkpoint.keeping import KeepRule
from livectr.trainer.checkpoint.manifest import identity_of, newest_manifest
from livectr.trainer.checkpoint.order_parts import lines_of
from livectr.trainer.checkpoint.placing import measured_placement
from livectr.trainer.checkpoint.restored import Restored
from livectr.trainer.checkpoint.stored import Stored, placed
from livectr.trainer.checkpoint.warm_start import WarmStart
from livectr.trainer.comm.collectives import Collectives
from livectr.trainer.comm.control import Control
from livectr.trainer.commits import Committer
from livectr.trainer.content.contents import Contents
from livectr.trainer.content.item_refresh import item_refresh_of
from livectr.trainer.content.refresh import refreshes_of
from livectr.trainer.delayed.heads import Heads
from livectr.trainer.des.exchange_choice import named_exchange
from livectr.trainer.des.step import DesStep
from livectr.trainer.options import TrainOptions
from livectr.trainer.parts import Closable, Extraction, Parts
from livectr.trainer.placement.placement import FieldPlacement
from livectr.trainer.process import local_rank
from livectr.trainer.progress import Progress
from livectr.trainer.publish.boundary import Boundary, Left
from livectr.trainer.publish.version import PublishedModel
from livectr.trainer.quality.contest import Contest
from livectr.trainer.quality.final_labels import FinalLabels
from livectr.trainer.quality.gate import PublishGate
from livectr.trainer.quality.monitor import Monitor
from livectr.trainer.quality.predictions import PredictionLog, wrong_predictions
from livectr.trainer.quality.run_record import RunRecord
from livectr.trainer.quality.seen import ItemCounts
from livectr.trainer.stages import ExchangeStage, FetchStage, LearnStage, ReportStage, Stages
from livectr.trainer.step_settings import StepSettings
from livectr.trainer.stream.batcher import Batcher, Times
from livectr.trainer.stream.data_watch import DataWatch
from livectr.trainer.stream.feed import Feed
from livectr.trainer.stream.order_log import OrderLog
from livectr.trainer.tables.gpu_tables import gpu_tables
from livectr.trainer.tables.policies import Policies
from livectr.trainer.tables.rank_tables import tier_of
from livectr.trainer.tables.tiers import Tiers
from livectr.trainer.telemetry import leave_to_rank_0

if TYPE_CHECKING:  # redis is imported where something is published
    from livectr.trainer.publish.publisher import Publisher
    from livectr.trainer.publish.redis_store import RedisStore

LOG = logging.getLogger(__name__)


def build(
    pipeline: Pipeline, options: TrainOptions, collectives: Collectives, resources: ExitStack
) -> tuple[Parts, Stages]:
    """Make all parts of this rank's run and the stages that move them; restore them from its checkpoint.
    Collective.

    Args:
        resources: closes the parts when the run ends.

    Raises:
        UserError: an option cannot be used; no state was touched.
        CheckpointError: no generation of the checkpoint is whole.
    """
    rank, control = collectives.rank, Control(collectives.rank, collectives.world)
    make = Builder(pipeline, options, collectives, control, resources)
    make.metrics()
    store, tiers, extraction = make.store(), make.tiers(), make.extraction()
    checkpoint = make.checkpoint()
    restored = checkpoint.restore() if checkpoint is not None else None
    warm = WarmStart.of(options, control, resumed=restored is not None)
    placement = make.placement(restored)
    contents = make.contents()
    refreshes = refreshes_of(pipeline, contents.stores, control, options.content_rule)
    step = make.step(tiers, placement, contents, settled(options, control, restored))
    heads = Heads(pipeline, step) if pipeline.log.finals else None
    policies = make.policies(step)
    state, statistics = make.stream_state(restored, warm)
    letters = make.dead_letters()
    follows = make.order()
    source = make.source(extraction, letters, state, follows)
    watch = make.watch(source, letters, resumed=restored is not None)
    make.start(contents, letters)
    feed = make.closed(
        Feed(source, extraction.features, control, statistics=statistics, dead_letters=letters)
    )
    log, items, labels = make.log(step), make.items(), make.labels(step)
    contest = Contest.of(pipeline, restored.contest() if restored is not None else {}, rank)
    gate = PublishGate.of(options, restored.gate() if restored is not None else {}, rank)
    progress = Progress(pipeline, rank, restored.manifest if restored is not None else None)
    kept = restored.record() if restored is not None else {}
    record = RunRecord.of(pipeline, options, step.models if rank == 0 else (), progress.began_ms, kept)
    if record is not None:
        resources.callback(record.close)
    if restored is not None:
        restored.load(step, policies)
        if heads is not None:
            heads.load(restored)
        if items is not None:
            items.load(restored.items())
        if labels is not None:
            labels.load(restored.scores())
        LOG.info("resumed after step %d, %d examples", progress.steps, progress.examples)
    if log is not None:
        log.truncate(restored.manifest.predictions if restored is not None else 0)
    if warm is not None:
        warm.load(step, policies)
        progress.seen = warm.seen
    if follows is not None:
        step.choice.prescribed = named_exchange(
            follows.exchange(progress.steps, collectives.world), step.spec.fields
        )
    publisher = None
    if store is not None:
        publisher = make.publisher(store, step, progress, warmed=warm.examples if warm is not None else 0)
    times, finals = Times(options.batch_interval_ms, options.longest_wait_s), heads is not None
    batcher = Batcher(
        source,
        control,
        ramp=options.ramp,
        seen=progress.seen,
        steps=progress.steps,
        finals=finals,
        times=times,
        follows=follows,
        recorded=checkpoint is not None,
    )
    monitor = make.monitor(step, heads)
    stages = Stages(
        cut=batcher,
        extract=feed,
        exchange=make.closed(ExchangeStage(step, heads, ahead=collectives.world > 1 and tiers is None)),
        fetch=FetchStage(depth=int(tiers is not None)),
        learn=LearnStage(step, policies, heads),
        report=ReportStage(rank, progress, monitor, log, items, publisher, labels, contest, gate, record),
        commits=make.commits(step, source, heads, checkpoint, publisher, gate),
        push=publisher.push if publisher is not None else None,
    )
    if publisher is not None and publisher.resumption is not None:
        from livectr.trainer.publish.log.missed import catch_up

        catch_up(publisher, step, source, restored)
    parts = Parts(
        pipeline=pipeline,
        options=options,
        control=control,
        contents=contents,
        dead_letters=letters,
        source=source,
        watch=watch,
        extraction=extraction,
        cuts=batcher,
        feed=feed,
        step=step,
        heads=heads,
        policies=policies,
        log=log,
        items=items,
        labels=labels,
        contest=contest,
        gate=gate,
        record=record,
        monitor=monitor,
        checkpoint=checkpoint,
        publisher=publisher,
        progress=progress,
        refreshes=refreshes,
        item_refresh=item_refresh_of(pipeline, options.content_rule),
    )
    return parts, stages


T = TypeVar("T", bound=Closable)


@dataclass(frozen=True)
class Builder:
    """Makes the parts of a run. `build` knows their order, in which they are also checked."""

    pipeline: Pipeline
    options: TrainOptions
    collectives: Collectives
    control: Control
    resources: ExitStack

    def closed(self, part: T) -> T:
        """Close the part with the run."""
        self.resources.callback(part.close)
        return part

    @property
    def root(self) -> Path | None:
        """Folder of the checkpoint, or of its working copy."""
        return self.options.checkpoint_folder

    def metrics(self) -> None:
        """Serve this rank's metrics, if they have a port."""
        options = self.options
        if self.control.rank != 0:
            leave_to_rank_0()
        port = options.metrics_port and options.metrics_port + local_rank()
        self.resources.enter_context(metrics_server(port, options.metrics_listen, options.metrics_tls))

    def store(self) -> RedisStore | None:
        options, rate = self.options, self.options.publish_rate / self.collectives.world
        if options.publish is None:
            return None
        from livectr.trainer.publish.redis_store import RedisStore

        return self.closed(RedisStore(options.publish, options.namespace, full_rate=rate))

    def tiers(self) -> Tiers | None:
        options = self.options
        if options.spill is None or options.dram_bytes is None:
            return None
        return self.closed(Tiers(Path(options.spill), options.dram_bytes, self.control.rank))

    def extraction(self) -> Extraction:
        pipeline, options = self.pipeline, self.options
        compile_plan = compiler(options.device, budget_bytes=options.gpu_budget, rows=options.batch_size)
        extract = compile_plan(pipeline.plan)
        examples = self.closed(ExampleFeatures.open(pipeline, options.materialized, compile_plan))
        shared = sharing(pipeline, examples, extract, compile_plan)
        return Extraction(extract, examples, shared if options.common_features else examples.features)

    def checkpoint(self) -> Checkpointer | None:
        if self.root is None:
            return None
        path = self.options.prediction_file if self.options.logged else None
        check = partial(wrong_predictions, path) if path is not None else None
        make = partial(Checkpointer, self.root, self.control, identity_of(self.pipeline, self.options.seed))
        keep = KeepRule(self.options.keep_versions, self.options.keep_every_s)
        stored = Stored.at(self.options.checkpoint, self.root, log=path)
        return self.closed(make(predictions=check, keep=keep, stored=stored))

    def placement(self, restored: Restored | None) -> FieldPlacement | None:
        """Placement by measured loads; None: round-robin."""
        if self.options.placement != "balanced":
            return None
        rank, world, rank_bytes = self.control.rank, self.control.world, self.options.rank_memory
        return measured_placement(self.pipeline, rank, world, restored, rank_bytes=rank_bytes)

    def contents(self) -> Contents:
        given, control = (self.pipeline.content, self.options.content_folders), self.control
        made = Contents(*given, checkpoint=self.root, rank=control.rank, world=control.world)
        return self.closed(made)

    def step(
        self, tiers: Tiers | None, placement: FieldPlacement | None, contents: Contents, steps: StepSettings
    ) -> DesStep:
        options = self.options
        step = DesStep(
            self.pipeline,
            seed=options.seed,
            collectives=self.collectives,
            settings=steps,
            tier=tier_of(tiers, gpu_tables(options)),
            placement=placement,
            content=contents.stores,
        )
        tell(step, options)
        return step

    def policies(self, step: DesStep) -> Policies:
        return Policies(
            step.tables,
            self.pipeline.table_policies,
            timed=self.pipeline.log.impressions.time is not None,
            erase=step.storage.erase,
            rank=self.control.rank,
            parts=dict.fromkeys(step.spec.placement.split, self.control.world),
        )

    def stream_state(
        self, restored: Restored | None, warm: WarmStart | None
    ) -> tuple[SourceState | None, Statistics]:
        """State of the source (None: from the log's start) and of the running statistics."""
        statistics = Statistics(self.pipeline.plan)
        if restored is not None:
            state = restored.source()
            return state, statistics.load(restored.statistics())
        return None, warm.statistics(statistics) if warm is not None else statistics

    def dead_letters(self) -> DeadLetters:
        letters = DeadLetters.for_source(
            self.options.source,
            self.options.dead_letters,
            writer=self.control.rank,
            writers=self.control.world,
            spool=self.root / SPOOL if self.root is not None else None,
            spool_bytes=self.options.dead_letter_spool_bytes,
        )
        self.closed(letters)
        if self.root is not None:
            letters.track_positions()
        return letters

    def order(self) -> OrderLog | None:
        """Order log that this run follows; None: the clock decides. Collective.

        Raises:
            ConfigError: there is no checkpoint, or its order log does not begin with its run.
            CheckpointError: a part of the order log is not what was written.
        """
        if self.options.order_of is None:
            return None
        place = placed(self.options.order_of)
        newest = newest_manifest(place) if self.control.rank == 0 else None
        # Its run may continue meanwhile: all ranks read the same generation.
        generation = int(self.control.broadcast_json(0 if newest is None else newest.generation))
        if not generation:
            raise ConfigError(f"order_of: {place.name} holds no checkpoint; name another run's --checkpoint")
        manifest = place.manifest(generation)
        LOG.info("batches are those of %s up to step %d", place.name, manifest.step)
        return OrderLog.parse(lines_of(place, manifest), manifest.step, place.name)

    def source(
        self,
        extraction: Extraction,
        letters: DeadLetters,
        state: SourceState | None,
        follows: OrderLog | None,
    ) -> ExampleSource:
        options = self.options
        return self.closed(
            ExampleSource(
                extraction.examples.pipeline,
                options.source,
                ReadOptions(
                    until_end=options.until_end,
                    until_idle_s=options.until_idle_s,
                    idle_partition_s=options.idle_partition_s,
                    full_tables=options.publish is not None,
                    limits=options.limits,
                    min_usable=options.min_usable,
                ),
                rank=self.control.rank,
                world=self.control.world,
                dead_letters=letters,
                state=state,
                recorded=self.root is not None,
                follows=follows.decisions if follows is not None else None,
            )
        )

    def watch(self, source: ExampleSource, letters: DeadLetters, *, resumed: bool) -> DataWatch:
        parts = source.pipeline, source, letters, self.control
        return DataWatch(*parts, min_usable=self.options.min_usable, resumed=resumed)

    def start(self, contents: Contents, letters: DeadLetters) -> None:
        """Begin to encode content that arrives; rank 0 writes the letters of rows that all ranks read."""
        contents.start(
            self.options.source,
            until_end=self.options.until_end,
            letters=letters if self.control.rank == 0 else DeadLetters(None),
            own_letters=letters,
            limits=self.options.limits,
        )

    def log(self, step: DesStep) -> PredictionLog | None:
        if self.control.rank != 0 or not self.options.logged:
            return None
        return self.resources.enter_context(PredictionLog(self.options.prediction_file, step.models))

    def items(self) -> ItemCounts | None:
        return ItemCounts() if self.control.rank == 0 and self.pipeline.items is not None else None

    def labels(self, step: DesStep) -> FinalLabels | None:
        view = self.pipeline.log
        if self.control.rank != 0 or not view.provisional:
            return None
        return FinalLabels(view.window_ms, step.models)

    def publisher(self, store: RedisStore, step: DesStep, progress: Progress, *, warmed: int) -> Publisher:
        """Publisher that has taken over its namespace. Collective.

        Args:
            warmed: examples of the run whose parts this run began with.
        """
        from livectr.trainer.publish.publisher import Publisher

        segments = [(s.name, s.dim) for s in step.spec.layout.segments]
        model = PublishedModel(self.pipeline.fingerprint, segments, self.options.seed)
        publisher = Publisher(store, self.control, model, min_examples=self.options.min_examples - warmed)
        self.closed(publisher)
        publisher.start(progress.cursor, learned=progress.examples, take_over=self.options.take_over)
        progress.count_versions(publisher.flipped)
        return publisher

    def monitor(self, step: DesStep, heads: Heads | None) -> Monitor:
        """Gauges, and on rank 0 the quality of all models."""
        roles = step.models if self.control.rank == 0 else ()
        named = {"checkpoint": self.root, "spill": self.options.spill}
        folders = {name: Path(folder) for name, folder in named.items() if folder is not None}
        tables = {**step.tables, **(heads.tables if heads is not None else {})}
        return Monitor(tables, roles, int(self.options.metrics_window_s * 1000), folders)

    def commits(
        self,
        step: DesStep,
        source: ExampleSource,
        heads: Heads | None,
        checkpoint: Checkpointer | None,
        publisher: Publisher | None,
        gate: PublishGate | None,
    ) -> Committer:
        wanted = checkpoint is not None or publisher is not None
        others = heads.tables if heads is not None else {}
        Left.of(source).track(saved=wanted, published=publisher is not None)
        first = Boundary.mark(step, source, others) if wanted else Boundary({}, 0, 0)
        if checkpoint is not None:
            checkpoint.resume({**step.tables, **others}, first.tables)
        publish_s, checkpoint_s = self.options.publish_interval_s, self.options.checkpoint_interval_s
        every = dict(publish_interval_s=publish_s, checkpoint_interval_s=checkpoint_s)
        return Committer(self.control, checkpoint, publisher, first, gate=gate, **every)
