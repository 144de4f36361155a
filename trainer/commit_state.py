"""State that a commit takes: of one rank, at a step boundary with no batch in flight."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from livectr.kernels.table.table import DynamicTable
from livectr.trainer.checkpoint.content import CheckpointState
from livectr.trainer.counts import summed
from livectr.trainer.parts import Parts
from livectr.trainer.publish.boundary import Boundary, Left
from livectr.trainer.publish.snapshot import Snapshotter
from livectr.trainer.stream.order_log import ChosenExchange, lines


@dataclass(frozen=True)
class CommitState:
    """State of one rank at a step boundary with no batch in flight.

    Attributes:
        steps, examples: learned by all ranks.
        boundary: marks that divide changes until now from later changes.
        tables: this rank's embedding tables.
        began_s: time.monotonic() when `checkpoint` began to be assembled.
        checkpoint: content of a generation; None if none is due. The committer adds the cursor and the counts
            of publishing.
        champion: role of the ranking model that a version holds.
        snapshots: copies the changes of a version; None if nothing is published.
        held: reason for which no version may be published; "": versions may be published.
        left: expired users and keys.
        ahead: the next checkpoint is copied from this boundary on.
        publish: a version is due; else the commit is for the checkpoint alone.
    """

    steps: int
    examples: int
    boundary: Boundary
    tables: Mapping[str, DynamicTable]
    began_s: float
    checkpoint: CheckpointState | None
    snapshots: Snapshotter | None
    champion: str = "rank"
    held: str = ""
    left: Left = Left()
    ahead: bool = False
    publish: bool = True

    @staticmethod
    def of(parts: Parts, *, checkpoint: bool, ahead: bool = False, publish: bool = True) -> CommitState:
        """Close the generation of changes, and assemble this rank's state. Collective.

        Args:
            parts: of this rank's run.
            checkpoint: with the content of a checkpoint, if the run keeps one.
            ahead: begin to copy the next checkpoint.
            publish: begin a version, if one may be published.
        """
        source, progress, control = parts.stream.source, parts.progress, parts.control
        if (drift := parts.stream.drift) is not None:
            drift.gather()
        boundary = Boundary.mark(parts.step, source, parts.unpublished)
        began_s = time.monotonic()
        wanted = checkpoint and parts.checkpoint is not None
        held = str(control.broadcast_json(parts.holds.reason()))
        champion = "rank"
        if parts.pipeline.challengers:
            champion = control.broadcast_json(parts.evaluation.champion if parts.evaluation else "")
        snapshots = parts.snapshots
        if snapshots is not None:
            statistics, now_ms = parts.stream.feed.statistics, progress.event_ms
            maps = parts.calibrator.maps(champion) if parts.calibrator is not None else None
            weights = parts.hedger.weights if parts.hedger is not None and champion == "rank" else None
            learned = drift.learned() if drift is not None else None
            snapshots = snapshots.at(
                statistics, champion, maps, weights, learned, now_ms=now_ms, first_ms=progress.first_ms
            )
        return CommitState(
            steps=progress.steps,
            examples=progress.examples,
            boundary=boundary,
            tables=parts.tables,
            began_s=began_s,
            checkpoint=_checkpoint_state(parts, boundary, held, _order(parts)) if wanted else None,
            snapshots=snapshots,
            champion=champion,
            held=held,
            left=Left.of(source),
            ahead=ahead,
            publish=publish,
        )


def _order(parts: Parts) -> bytes:
    """Lines of the order log since the last call. Collective; rank 0's are written."""
    decisions = parts.stream.source.take_decisions().items()
    own = {p: [(n, d.as_json()) for n, d in made] for p, made in decisions}
    ranks = parts.control.gather_json(own)
    began, cuts = parts.cuts.take()
    chosen = parts.step.choice.take()
    exchange = None if chosen is None else ChosenExchange(parts.cuts.first_step, parts.control.world, chosen)
    return lines(cuts, ranks, began, exchange) if parts.control.rank == 0 else b""


def _checkpoint_state(parts: Parts, boundary: Boundary, held: str, order: bytes) -> CheckpointState:
    """Content of a generation; dead letters and predictions until here are on disk afterwards."""
    progress, log, source, letters = parts.progress, parts.log, parts.stream.source, parts.stream.letters
    letters.flush()
    own = {**source.counted(), "dead_letters": letters.counts_before(source.positions())}
    cursor = progress.cursor
    if cursor is not None:  # without a publisher nobody lists what Redis lacks
        cursor = replace(cursor, row_set="", served=0, served_row_set="")
    states = {part.kind: part.state() for part in parts.each if part.kind}
    return CheckpointState(
        step=progress.steps,
        examples=progress.examples,
        predictions=log.sync() if log is not None else 0,
        cursor=asdict(cursor) if cursor is not None else None,
        tables=parts.tables,
        marks=boundary.tables,
        dense={name: tensor for learner in parts.learners for name, tensor in learner.dense().items()},
        statistics=parts.stream.feed.statistics.state(),
        parts=states,
        quality=parts.holds.measured(held),
        source=source.snapshot(whole=False).parts(),
        changes=source.changes(),
        history_mark=boundary.histories,
        policies={name: state for learner in parts.learners for name, state in learner.usage().items()},
        tracked={name for learner in parts.learners for name in learner.tracked},
        row=parts.step.spec.layout.describe(),
        field_keys=progress.keys_by_field(),
        counts=summed([progress.earlier, own]),
        predictions_sha256=log.sha256 if log is not None else "",
        began_ms=progress.began_ms,
        products=parts.step.spec.settings.library,
        seen=progress.seen,
        resumes=progress.resumes,
        order=order,
    )
