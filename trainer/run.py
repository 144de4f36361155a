"""Training from a log stream: restore, then cut, score, learn and commit until the end.

    source ─poll─► batcher ─cut─► feed: take ─► features ─► step ─► predictions, window, metrics
                      │ the header's flags: stop, quiet, due, push
                      └─► commit ─► checkpoint ─► publish          (trainer.commits)

The features of a batch are extracted while the one before is learned (trainer.stream.feed); with tables on
SSD, it waits for one step more, while its rows are read (trainer.tables.tiers).

A process that dies anywhere leaves a whole checkpoint and a whole version. The run that follows reads the log
again from the checkpoint's positions, and since batches are a function of the log, it learns the same model.
"""

import logging
import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from livectr.ingest.common_features import Common, sharing
from livectr.ingest.dead_letters.letters import SPOOL, DeadLetters
from livectr.ingest.dead_letters.usable import TopicRows
from livectr.ingest.extract.device_extractor import compiler
from livectr.ingest.extract.statistics import Statistics
from livectr.ingest.join.examples import ExampleSource, ReadOptions
from livectr.ingest.join.state import SourceState
from livectr.ingest.join.stats import OF_PROCESS
from livectr.ingest.materialized.features import ExampleFeatures
from livectr.ingest.pipeline import Pipeline
from livectr.kernels.errors import InternalError
from livectr.kernels.process.heap import tune_malloc
from livectr.kernels.process.threads import watched_threads
from livectr.protos.store import Keyspace
from livectr.trainer import telemetry
from livectr.trainer.checkpoint.checkpoint import Checkpointer, CheckpointState, Restored
from livectr.trainer.checkpoint.manifest import identity_of
from livectr.trainer.checkpoint.placing import measured_placement
from livectr.trainer.checkpoint.warm_start import WarmStart
from livectr.trainer.comm.collectives import Collectives, connect
from livectr.trainer.comm.control import Control
from livectr.trainer.commits import Committer, Due
from livectr.trainer.content.contents import Contents
from livectr.trainer.des.batch import PreparedBatch
from livectr.trainer.des.step import DesStep
from livectr.trainer.options import QUALITY, Report, TrainOptions, summed
from livectr.trainer.placement.measured import field_keys
from livectr.trainer.process import metrics_server, stop_signals
from livectr.trainer.publish.publisher import Publisher
from livectr.trainer.publish.redis_store import RedisStore
from livectr.trainer.publish.snapshot import Boundary, Snapshotter, overgrown, served_segments
from livectr.trainer.publish.succession import Cursor
from livectr.trainer.quality.monitor import Monitor
from livectr.trainer.quality.predictions import PredictionLog, records, wrong_predictions
from livectr.trainer.quality.seen import NOT_COUNTED, ItemCounts, is_cold
from livectr.trainer.stream.batcher import Batcher, Cut, Flags, Round
from livectr.trainer.stream.data_watch import DataWatch
from livectr.trainer.stream.feed import Batch, Feed
from livectr.trainer.tables.gpu_tables import gpu_tables
from livectr.trainer.tables.policies import Policies
from livectr.trainer.tables.rank_tables import only_tier
from livectr.trainer.tables.tiers import Tiers

__all__ = ["Report", "TrainOptions", "train"]

LOG = logging.getLogger(__name__)


def train(pipeline: Pipeline, options: TrainOptions) -> Report:
    """Train until the options, a signal or the log's end say stop; under torchrun as one of its ranks.

    SIGTERM and SIGINT on any rank let every rank finish its step, commit and return.

    Raises:
        DataError: too few rows of the log are usable; nothing more is committed.
        UserError: before any state was touched; or FencedError, when another trainer has taken over.
        CheckpointError: no generation of the checkpoint is whole.
        InternalError: a thread died; what was learned until then is committed.
    """
    threads = options.threads_here()
    os.environ.setdefault("LIVECTR_THREADS", str(threads))
    torch.set_num_threads(threads)
    tune_malloc()
    with (
        connect(wire=options.wire) as collectives,
        stop_signals() as stop,
        watched_threads() as deaths,
        ExitStack() as resources,
        collectives.abort.guard(),  # before resources are closed, which may take long
    ):
        options.check_files()
        training = Training(pipeline, options, collectives, lambda: stop() or bool(deaths), resources)
        report = training.run()
        if deaths:
            raise InternalError(f"{deaths[0]}; the last step was committed, start the trainer again")
        if options.report is not None and collectives.rank == 0:
            report.write(Path(options.report))
        return report


class Training:
    """One rank of a training run."""

    def __init__(
        self,
        pipeline: Pipeline,
        options: TrainOptions,
        collectives: Collectives,
        stop: Callable[[], bool],
        resources: ExitStack,
    ) -> None:
        self.pipeline = pipeline
        self.options = options
        self.stop = stop
        rank, world = collectives.rank, collectives.world
        self.rank = rank
        self.control = control = Control(rank, world)
        if options.metrics_port:
            resources.enter_context(metrics_server(options.metrics_port + rank, options.metrics_listen))
        store = None
        if options.publish is not None:
            store = RedisStore(options.publish, options.namespace)
            resources.callback(store.close)
        self.tiers: Tiers | None = None
        if options.spill is not None and options.dram_bytes is not None:
            self.tiers = Tiers(Path(options.spill), options.dram_bytes, rank)
            resources.callback(self.tiers.close)
        compile_plan = compiler(options.device, budget_bytes=options.gpu_budget, rows=options.batch_size)
        self.extract = compile_plan(pipeline.plan)
        self.track = ExampleFeatures.open(pipeline, options.materialized, compile_plan)
        resources.callback(self.track.close)
        self.checkpoint: Checkpointer | None = None
        restored: Restored | None = None
        if options.checkpoint is not None:
            identity = identity_of(pipeline, options.seed)
            self.checkpoint = Checkpointer(
                Path(options.checkpoint), control, identity, predictions=_wrong_predictions(options)
            )
            resources.callback(self.checkpoint.close)
            restored = self.checkpoint.restore()
        warm = WarmStart.of(options, control, resumed=restored is not None)
        placement = None
        if options.placement == "balanced":
            placement = measured_placement(pipeline, rank, world, restored, rank_bytes=options.rank_memory)
        self.contents = Contents(
            pipeline.content,
            options.content_folders,
            checkpoint=Path(options.checkpoint) if options.checkpoint is not None else None,
            rank=rank,
            world=world,
        )
        resources.callback(self.contents.close)
        self.step = DesStep(
            pipeline,
            seed=options.seed,
            collectives=collectives,
            settings=options.step_settings,
            tier=only_tier(self.tiers, gpu_tables(options)),
            placement=placement,
            content=self.contents.stores,
        )
        LOG.info("networks multiply in %s", self.step.precision)
        if options.precision != self.step.precision == "fp32":
            LOG.warning(
                "precision is %s, but this CPU has no products of bf16 (AMX or AVX512-BF16): "
                "networks multiply in fp32, no faster than with precision fp32",
                options.precision,
            )
        split = self.step.placement.split
        timed = pipeline.log.impressions.time is not None
        self.policies = Policies(
            self.step.tables,
            pipeline.table_policies,
            timed=timed,
            erase=self.step.erase,
            rank=rank,
            parts=dict.fromkeys(split, world),
        )
        self._held: tuple[Batch, PreparedBatch] | None = None
        """A batch that waits for its rows from SSD while the one before is learned; none without tiers."""
        state, statistics = None, Statistics(pipeline.plan)
        if restored is not None:
            state = SourceState.merge(SourceState.from_parts(parts) for parts in restored.sources())
            statistics = statistics.load(restored.statistics())
        elif warm is not None:
            statistics = warm.statistics(statistics)
        self.dead_letters = DeadLetters.for_source(
            options.source,
            options.dead_letters,
            writer=rank,
            writers=world,
            spool=Path(options.checkpoint) / SPOOL if options.checkpoint is not None else None,
            spool_bytes=options.dead_letter_spool_bytes,
        )
        resources.callback(self.dead_letters.close)
        if self.checkpoint is not None:
            self.dead_letters.track_positions()
        self.source = ExampleSource(
            self.track.pipeline,
            options.source,
            ReadOptions(
                until_end=options.until_end,
                until_idle_s=options.until_idle_s,
                idle_partition_s=options.idle_partition_s,
                full_tables=store is not None,
                limits=options.limits,
                min_usable=options.min_usable,
            ),
            rank=rank,
            world=world,
            dead_letters=self.dead_letters,
            state=state,
        )
        resources.callback(self.source.close)
        self.watch = DataWatch(
            self.track.pipeline,
            self.source,
            self.dead_letters,
            control,
            min_usable=options.min_usable,
            resumed=restored is not None,
        )
        self.contents.start(
            options.source,
            until_end=options.until_end,
            letters=self.dead_letters if rank == 0 else DeadLetters(None),
            own_letters=self.dead_letters,
            limits=options.limits,
        )
        shared = sharing(pipeline, self.track, self.extract, compile_plan)
        features = shared if options.common_features else self.track.features
        self.feed = Feed(
            self.source, features, control, statistics=statistics, dead_letters=self.dead_letters
        )
        resources.callback(self.feed.close)
        self.log: PredictionLog | None = None
        if rank == 0 and options.logged:
            self.log = resources.enter_context(PredictionLog(options.prediction_file, self.step.models))
        self.items: ItemCounts | None = None
        """Of rank 0, where the pipeline has items."""
        if rank == 0 and pipeline.items is not None:
            self.items = ItemCounts()
        self.steps = 0
        self.examples = 0
        self._before: dict[str, Any] = {}
        """Counts of this run's earlier processes; rank 0's."""
        self._common = Common.of(pipeline)
        self._keys = np.zeros(len(pipeline.fields), np.int64)
        """Keys of each field that this rank's examples had; rank 0 goes on from a checkpoint's."""
        self._cursor = self._restore(restored)
        """Where an earlier process of this run stood with publishing, for one that does not publish."""
        warmed = 0
        if warm is not None:
            warm.load(self.step, self.policies)
            warmed = warm.examples
        self.publisher: Publisher | None = None
        if store is not None:
            self.publisher = Publisher(
                store,
                control,
                fingerprint=pipeline.fingerprint,
                segments=served_segments(self.step.layout.segments),
                seed=options.seed,
                min_examples=max(0, options.min_examples - warmed),
            )
            resources.callback(self.publisher.close)
            self.publisher.start(self._cursor, learned=self.examples, take_over=options.take_over)
            if self._before and self.publisher.last is not None:  # flipped after that checkpoint
                self._before["published"]["versions"] += 1
        self.batcher = Batcher(
            self.source, control, batch_size=options.batch_size, interval_ms=options.batch_interval_ms
        )
        roles = self.step.models if rank == 0 else ()
        self.monitor = Monitor(self.step.tables, roles, int(options.metrics_window_s * 1000))
        self.commits = Committer(
            self,
            control,
            self.checkpoint,
            self.publisher,
            publish_interval_s=options.publish_interval_s,
            checkpoint_interval_s=options.checkpoint_interval_s,
        )
        self._fed = restored is not None
        self._started_with = self.examples

    # ── the loop ──

    def run(self) -> Report:
        self.contents.wait(self.control, self.stop)
        started = time.monotonic()
        with self.monitor:
            while True:
                round_ = self.batcher.round(self._flags())
                self.watch.check(round_.flags)
                self.commits.observe([flags.publish for flags in round_.flags])
                self.contents.follow()
                self.commits.dirty |= round_.moved
                if self._ends(round_):
                    break
                if round_.flags[0].due and self.commits.dirty:
                    self.commits.commit(checkpoint=round_.flags[0].due == Due.ALL)
                self._go_on(round_.cut)
                version = self.publisher.last if self.publisher else None
                self.monitor.show(self.examples, version, self.watch.line())
            rows = self.watch.finish()
            self.commits.finish(stopped=any(flags.stop for flags in round_.flags))
            self.monitor.gauges()
        return self._report(time.monotonic() - started, rows)

    def _flags(self) -> Flags:
        self._fed = self._fed or any(self.source.stats.events.values())
        rows, unusable = self.watch.totals
        return Flags(
            rows=rows,
            unusable=unusable,
            suspect=self.watch.suspect,
            stop=self.stop(),
            quiet=self.source.quiet and (self._fed or self.control.world > 1),
            due=self.commits.due if self.rank == 0 else Due.NOTHING,
            publish=self.commits.push,
        )

    def _ends(self, round_: Round) -> bool:
        """Whether to leave the loop; decided alike on every rank."""
        begun = self.steps + self.feed.in_flight + (self._held is not None)
        if any(flags.stop for flags in round_.flags):
            LOG.info("asked to stop after step %d", begun)
            return True
        if self.options.max_steps is not None and begun >= self.options.max_steps:
            return True
        # A rank may own no partition with events; examples are counted over all ranks.
        fed = self.control.world == 1 or self.examples > 0
        if fed and all(flags.quiet for flags in round_.flags):
            self.source.finish()
        return round_.ended

    def _go_on(self, cut: Cut | None) -> None:
        """Begin a batch, if there is one, and learn the one that was in flight meanwhile: with tiers, the one
        before that, while rows of the other are read. Collective."""
        batch = self.feed.settle()
        if cut is not None:
            self.feed.begin(cut)
            self.commits.dirty = True
        started = time.perf_counter()
        next_ = None if batch is None else (batch, self.step.prepare(batch.features, batch.label))
        if self.tiers is not None:
            next_, self._held = self._held, next_
        if next_ is not None:
            self._learn(*next_, started)

    def drain(self) -> None:
        """Learn all that is in flight. Collective."""
        self._go_on(None)
        if self._held is not None:
            self._go_on(None)

    def _learn(self, batch: Batch, taken: PreparedBatch, started: float) -> None:
        """Score a batch, then learn it."""
        self.policies.before(batch.time_ms)
        result = self.step.learn(taken)
        self.policies.after()
        telemetry.STEP_SECONDS.observe(time.perf_counter() - started)
        self.steps += 1
        self.examples += len(batch)
        self._keys += field_keys(batch.features, self._common, len(self._keys))
        if self.rank != 0:
            return
        logits = {role: z[batch.sequence] for role, z in result.logits.items()}
        label = result.label[batch.sequence]
        seen = np.full(len(batch), NOT_COUNTED, np.uint32)
        if self.items is not None:
            seen = self.items.seen(batch.item)
        if self.log is not None:
            named = dict(instance=batch.instance, user=batch.user, item=batch.item, time_ms=batch.time_ms)
            self.log.append(records(**named, seen=seen, logits=logits, label=label))
        self.monitor.add(batch.time_ms, batch.user, logits, label, is_cold(seen))
        if self.publisher is not None:
            self.publisher.trained(batch.time_ms)

    # ── what is committed: see trainer.commits.Committed ──

    def mark(self) -> Boundary:
        """The boundary between what changed until now and what changes from here on."""
        return Boundary.mark(self.step, self.source)

    def state(self, boundary: Boundary, cursor: Cursor | None) -> CheckpointState:
        """What a checkpoint holds; dead letters and predictions until here are on disk."""
        self.dead_letters.flush()
        if cursor is None and self._cursor is not None:
            cursor = replace(self._cursor, ns="")
        return CheckpointState(
            step=self.steps,
            examples=self.examples,
            predictions=self.log.sync() if self.log is not None else 0,
            cursor=asdict(cursor) if cursor is not None else None,
            tables=self.step.tables,
            marks=boundary.tables,
            dense=self.step.state_dense(),
            statistics=self.feed.statistics.state(),
            items=self.items.state() if self.items is not None else {},
            source=self.source.snapshot().parts(),
            policies=self.policies.state(),
            tracked=self.policies.tracked,
            row=self.step.layout.describe(),
            field_keys=self._field_keys(),
            counts=self._counts(
                self.source.counted(), self.dead_letters.counts_before(self.source.positions())
            ),
            predictions_sha256=self.log.sha256 if self.log is not None else "",
        )

    def _counts(self, stream: Mapping[str, Any], letters: Mapping[str, int]) -> dict[str, Any]:
        """This rank's share of the run's counts, those of earlier processes included; `stream` has this
        process's."""
        own = {**{name: stream[name] for name in OF_PROCESS}, "dead_letters": letters}
        if self.rank == 0:
            own |= {"published": {"versions": self.commits.versions, "rows": self.commits.rows}}
        return summed([self._before, own])

    def snapshots(self, space: Keyspace) -> Snapshotter:
        """What copies a version's changes."""
        statistics = self.feed.statistics
        return Snapshotter(
            self.pipeline, self.step, self.source, self.extract, statistics, self.control, space
        )

    def forget(self, needed: list[Boundary]) -> None:
        """Free change lists from before all of these boundaries."""
        for name, table in self.step.tables.items():
            if needed:
                table.forget(min(boundary.tables[name] for boundary in needed))

    @property
    def overgrown(self) -> bool:
        """Whether this rank's lists of changes are longer than its tables."""
        return overgrown(self.step.tables.values())

    def _field_keys(self) -> dict[str, int]:
        """Field → keys of this rank's examples."""
        return dict(zip((f.name for f in self.pipeline.fields), self._keys.tolist(), strict=True))

    # ── restore and report ──

    def _restore(self, restored: Restored | None) -> Cursor | None:
        """Go on where a checkpoint ends; returns what Redis held with it."""
        if restored is None:
            if self.log is not None:
                self.log.truncate(0)
            return None
        manifest = restored.manifest
        split, world = self.step.placement.split, self.control.world
        restored.load_tables(self.step.tables, split, rank=self.rank, world=world)
        self.step.drop()
        self.policies.load(restored.policies())
        self.step.load_dense(restored.dense())
        self.steps, self.examples = manifest.step, manifest.examples
        if self.rank == 0:
            self._keys[:] = [manifest.field_keys[f.name] for f in self.pipeline.fields]
            self._before = manifest.counts
        if self.items is not None:
            self.items.load(restored.items())
        if self.log is not None:
            self.log.truncate(manifest.predictions)
        LOG.info("resumed after step %d, %d examples", self.steps, self.examples)
        return Cursor(**manifest.cursor) if manifest.cursor is not None else None

    def _report(self, seconds: float, rows: dict[str, TopicRows]) -> Report:
        """The report; the same on every rank but for what only rank 0 knows. Collective."""
        stats = asdict(self.source.stats)
        own = {
            "stream": {**stats, "bytes_read": stats["bytes_read"] | self.track.bytes_read},
            "counts": self._counts(stats, self.dead_letters.counts),
            "precision": self.step.precision,
            "tables": {name: len(table) for name, table in self.step.tables.items()},
            "field_keys": self._field_keys(),
        }
        shares = self.control.gather_json(own)
        counts = summed([share["counts"] for share in shares])
        stream = summed([share["stream"] for share in shares]) | {name: counts[name] for name in OF_PROCESS}
        quality = {role: self.log.report(role) for role in self.step.models} if self.log is not None else {}
        roles = {
            role: {**found["all"].as_dict(), "last_20_percent": found["last"].as_dict()}
            for role, found in quality.items()
        }
        rank: dict[str, Any] = roles.get("rank", {})
        return Report(
            examples_trained=self.examples,
            steps=self.steps,
            seconds=seconds,
            examples_per_second=(self.examples - self._started_with) / max(seconds, 1e-9),
            world=self.control.world,
            events=sum(stream.get("events", {}).values()),
            dead_letters=sum(counts["dead_letters"].values()),
            published_versions=counts["published"]["versions"],
            published_rows=counts["published"]["rows"],
            precision=", ".join(sorted({share["precision"] for share in shares})),
            **{name: rank[name] for name in QUALITY if name in rank},
            last_20_percent=rank.get("last_20_percent", {}),
            prerank=roles.get("prerank", {}),
            shadows={role: found for role, found in roles.items() if role in self.pipeline.shadows},
            stream=stream,
            rows={topic: found.as_json() for topic, found in rows.items()},
            hints=self.watch.hints(),
            table_rows=summed([share["tables"] for share in shares]),
            field_keys=summed([share["field_keys"] for share in shares]),
        )


def _wrong_predictions(options: TrainOptions) -> Callable[[int, str], str] | None:
    """Check of the log that a checkpoint names; None where none is kept."""
    path = options.prediction_file if options.logged else None
    return partial(wrong_predictions, path) if path is not None else None
