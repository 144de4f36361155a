"""Assembly of one rank of a training run: every part from the options and the pipeline; nothing moves yet.

    options, pipeline ─► Redis, tiers ─► features ─► checkpoint ─► step, policies ─► source ─► feed
                                                          └─► load ─► publisher ─► stages, commits

The order is that in which settings are checked: what is wrong is found before any state is touched. The loop
that moves the parts is trainer.run.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from livectr.ingest.dead_letters.letters import DeadLetters
from livectr.ingest.pipeline import Pipeline
from livectr.models.configs import head_roles
from livectr.system.metrics_server import metrics_server
from livectr.trainer.carry.carry import EarlierRun, carry_once
from livectr.trainer.checkpoint.checkpoint import Checkpointer
from livectr.trainer.checkpoint.manifest import identity_of
from livectr.trainer.checkpoint.stored import Stored
from livectr.trainer.checkpoint.warm_start import WarmStart
from livectr.trainer.comm.collectives import Collectives
from livectr.trainer.comm.control import Control
from livectr.trainer.commits import Committer
from livectr.trainer.content.contents import Contents
from livectr.trainer.content.item_refresh import item_refresh_of
from livectr.trainer.content.refresh import refreshes_of
from livectr.trainer.delayed.labels import heads_of
from livectr.trainer.des.exchange_choice import named_exchange
from livectr.trainer.des.skipped import Skipped
from livectr.trainer.des.small_batch import is_compiled
from livectr.trainer.des.step import DesStep
from livectr.trainer.holds import Holds
from livectr.trainer.learner import Learner
from livectr.trainer.main_step import main_step, open_tiers
from livectr.trainer.options import TrainOptions
from livectr.trainer.part import Part
from livectr.trainer.parts import Parts
from livectr.trainer.position_bias import PositionBias
from livectr.trainer.process import local_rank
from livectr.trainer.progress import Progress
from livectr.trainer.publish.boundary import Boundary, Left
from livectr.trainer.publish.items import ItemCopier
from livectr.trainer.publish.snapshot import Snapshotter
from livectr.trainer.publish.values import ValueCopier
from livectr.trainer.quality.calibrator import Calibrator
from livectr.trainer.quality.contest import Contest
from livectr.trainer.quality.evaluation import Evaluation
from livectr.trainer.quality.final_labels import FinalLabels
from livectr.trainer.quality.gate import PublishGate
from livectr.trainer.quality.hedger import Hedger
from livectr.trainer.quality.late_labels import LateLabels
from livectr.trainer.quality.monitor import Monitor
from livectr.trainer.quality.predictions import CALIBRATED, wrong_predictions
from livectr.trainer.quality.run_quality import RunQuality
from livectr.trainer.quality.run_record import RunRecord
from livectr.trainer.quality.scales import Scales
from livectr.trainer.quality.seen import ItemCounts
from livectr.trainer.quality.value import ValueTotals
from livectr.trainer.quality.values import ValueQuality
from livectr.trainer.schedule import Schedule
from livectr.trainer.setup import Setup
from livectr.trainer.stages import ExchangeStage, FetchStage, LearnStage, ReportStage, Stages
from livectr.trainer.stream.batcher import Batcher, Times
from livectr.trainer.stream.counters import CountersPart
from livectr.trainer.stream.extraction import Extraction
from livectr.trainer.stream.rank_stream import RankStream
from livectr.trainer.tables.gpu_memory import share_of_memory, with_gpu_budgets
from livectr.trainer.telemetry import leave_to_rank_0

LOG = logging.getLogger(__name__)


def build(
    pipeline: Pipeline, options: TrainOptions, collectives: Collectives, resources: ExitStack
) -> tuple[Parts, Stages]:
    """Make all parts of this rank's run and its stages; restore them from the run's checkpoint. Collective.

    Args:
        pipeline: what the run reads and learns.
        options: settings of the run.
        collectives: of this rank.
        resources: closes the parts when the run ends.

    Raises:
        UserError: an option cannot be used; no state was touched.
        CheckpointError: no generation of the checkpoint is whole.
    """
    setup = Setup(pipeline, options, collectives, Control(collectives.rank, collectives.world), resources)
    rank, control = setup.rank, setup.control
    _serve_metrics(setup)
    store, publisher = None, None
    if options.publish is not None:
        from livectr.trainer.publish.log.missed import catch_up
        from livectr.trainer.publish.opening import open_publisher, open_store  # imports redis

        store = open_store(setup, options.publish)
    on_gpu = collectives.device.type != "cpu"
    # Features and tables on a GPU have budgets; records of the run keep the options as they were given.
    share = partial(share_of_memory, collectives.sharers, control)
    placed = replace(setup, options=with_gpu_budgets(options, pipeline, share, on_gpu=on_gpu))
    tiers, extraction = open_tiers(setup), Extraction.open(placed)
    checkpoint = _checkpoint(setup)
    restored = checkpoint.restore() if checkpoint is not None else None
    warm = WarmStart.of(options, control, resumed=restored is not None)
    if warm is not None:
        setup.closed(warm)
    contents = setup.closed(
        Contents(
            pipeline.content,
            options.content_folders,
            checkpoint=options.checkpoint_folder,
            rank=rank,
            world=setup.world,
        )
    )
    refreshes = refreshes_of(pipeline, contents.stores, control, options.content_rule)
    step = main_step(placed, tiers, restored, contents.stores)
    heads = heads_of(pipeline, step)
    main = Learner.of(pipeline, step)
    learners = [main] if heads is None else [main, heads.learner]
    stream = RankStream.open(setup, extraction, restored, warm)
    contents.start(
        options.source,
        until_end=options.until_end,
        letters=stream.letters if rank == 0 else DeadLetters(None),  # of rows that all ranks read
        own_letters=stream.letters,
        limits=options.limits,
    )
    progress = Progress(pipeline, rank, restored.manifest if restored is not None else None)

    # parts that hang on the stages, in the order in which examples meet them
    calibrator = Calibrator.of(setup)
    hedger = Hedger.of(setup)
    of_values = {role for target in pipeline.targets for role in target.value_roles}
    roles = (
        *(["rank"] if head_roles(pipeline.rank) else []),
        *(role for role in step.models if role not in of_values),
        *([CALIBRATED] if pipeline.calibration is not None else []),
    )
    scales = Scales.of(setup)
    items, labels, contest = ItemCounts.of(setup), FinalLabels.of(setup, roles), Contest.of(setup)
    quality, gate = RunQuality.of(setup, roles), PublishGate.of(setup)
    record = RunRecord.of(setup, roles, progress.began_ms)
    if record is not None:
        setup.closed(record)
    tables = {name: table for learner in learners for name, table in learner.tables.items()}
    monitor = Monitor.of(setup, tables, roles)
    bias = PositionBias.of(setup, step.models)
    values, late_labels = ValueQuality.of(setup), LateLabels.of(setup, roles)
    judges = items, labels, scales, quality, monitor, hedger, calibrator, contest, gate, record
    some: list[Part | None] = [*judges, bias, values, late_labels, stream.watch, stream.drift]
    parts = [part for part in some if part is not None]
    if pipeline.worths is not None:
        parts.append(ValueTotals())
    if stream.source.counters:
        parts.append(CountersPart(stream.source.counters, rank))

    if restored is not None:
        for learner in learners:
            learner.load(restored)
        step.skipped = Skipped(**restored.manifest.quality.get("skipped", {}))
        for part in parts:
            if part.kind and (state := restored.state(part.kind)):
                part.load(state)
        LOG.info("resumed after step %d, %d examples", progress.steps, progress.examples)
    if quality is not None:
        quality.log.truncate(restored.manifest.predictions if restored is not None else 0)
    if warm is not None:
        warm.load(step, main.policies)
        progress.seen = warm.seen
        warm.close()
    if stream.follows is not None:
        exchange = stream.follows.exchange(progress.steps, setup.world)
        step.choice.prescribed = named_exchange(exchange, step.spec.fields)
    snapshots = None
    if store is not None:
        warmed = warm.examples if warm is not None else 0
        publisher = open_publisher(
            setup, store, step, progress.cursor, learned=progress.examples, warmed=warmed
        )
        progress.count_versions(publisher.flipped)
        parts.append(publisher)
        source, statistics = stream.source, stream.feed.statistics
        refresh = item_refresh_of(pipeline, options.content_rule)
        snapshots = Snapshotter(
            pipeline,
            step,
            control,
            statistics,
            ValueCopier(source, control, store.space),
            ItemCopier(
                pipeline,
                step,
                source,
                extraction.compiled(pipeline.plan),
                statistics,
                control,
                refresh=refresh,
            ),
            refreshes=refreshes,
        )
    evaluation = None
    if rank == 0:
        worths = pipeline.worths
        rules = items, labels, contest, hedger, calibrator, scales
        evaluation = Evaluation(
            parts, *rules, pipeline.targets, pipeline.log.leaves_ms, worths, values, late_labels
        )
    holds = Holds(publisher, gate, step)
    assembled = Parts(
        pipeline=pipeline,
        options=options,
        control=control,
        contents=contents,
        stream=stream,
        cuts=_batcher(setup, stream, progress, step),
        learners=learners,
        progress=progress,
        each=parts,
        evaluation=evaluation,
        log=quality.log if quality is not None else None,
        record=record,
        monitor=monitor,
        calibrator=calibrator,
        hedger=hedger,
        holds=holds,
        checkpoint=checkpoint,
        publisher=publisher,
        snapshots=snapshots,
    )
    stages = Stages(
        cut=assembled.cuts,
        extract=stream.feed,
        exchange=setup.closed(ExchangeStage(step, heads, ahead=setup.world > 1 and tiers is None)),
        fetch=FetchStage(step),
        learn=LearnStage(
            main,
            heads,
            weighted=pipeline.log.delayed == "fnw",
            targets=pipeline.targets,
            bias=bias,
            late=[label.name for label in pipeline.log.late_labels],
        ),
        report=ReportStage(progress, evaluation, publisher),
        commits=_commits(assembled),
        push=publisher.push if publisher is not None else None,
    )
    if publisher is not None and publisher.resumption is not None:
        catch_up(publisher, step, stream.source, restored)
    return assembled, stages


def _serve_metrics(setup: Setup) -> None:
    """Serve this rank's metrics, if they have a port."""
    options = setup.options
    if setup.rank != 0:
        leave_to_rank_0()
    port = options.metrics_port and options.metrics_port + local_rank()
    setup.resources.enter_context(metrics_server(port, options.metrics_listen, options.metrics_tls))


def _checkpoint(setup: Setup) -> Checkpointer | None:
    options, root = setup.options, setup.options.checkpoint_folder
    if root is None:
        return None
    path = options.prediction_file if options.logged else None
    # A bounded log is written anew now and then: what an object store has of it would be of no use.
    stored = Stored.at(options.checkpoint, root, log=None if options.kept_predictions else path)
    if options.continues:
        old = EarlierRun(str(options.warm_start), options.source, options.relearn_ms)
        carry_once(old, setup.pipeline, options.seed, root, setup.control, stored)
    return setup.closed(
        Checkpointer(
            root,
            setup.control,
            identity_of(setup.pipeline, options.seed),
            predictions=partial(wrong_predictions, path) if path is not None else None,
            keep=options.keep_rule,
            stored=stored,
            source=options.source,
        )
    )


def _batcher(setup: Setup, stream: RankStream, progress: Progress, step: DesStep) -> Batcher:
    options = setup.options
    blocks = stream.extraction.on_host and not step.storage.tiered
    return Batcher(
        stream.source,
        setup.control,
        ramp=options.ramp(compiled=all(map(is_compiled, step.models.values()))),
        seen=progress.seen,
        steps=progress.steps,
        finals=setup.pipeline.log.leaves_again,
        times=Times(options.batch_interval_ms, options.longest_wait_s),
        follows=stream.follows,
        recorded=options.checkpoint_folder is not None,
        together=(lambda: min(stream.feed.together(), step.together)) if blocks else None,
        until=options.max_steps,
    )


def _commits(parts: Parts) -> Committer:
    """Committer from this step boundary on, at which the parts are restored. Collective."""
    checkpoint, publisher, source = parts.checkpoint, parts.publisher, parts.stream.source
    wanted = checkpoint is not None or publisher is not None
    Left.of(source).track(saved=wanted, published=publisher is not None)
    first = Boundary({}, 0, 0)
    if wanted:
        first = Boundary.mark(parts.step, source, parts.unpublished)
    if checkpoint is not None:
        checkpoint.resume(parts.tables, first.tables)
    return Committer(
        parts.control,
        checkpoint,
        publisher,
        first,
        Schedule(
            publish_interval_s=parts.options.publish_interval_s,
            checkpoint_interval_s=parts.options.checkpoint_interval_s,
        ),
        held=parts.holds.reason,
    )
