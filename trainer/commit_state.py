"""State that a commit takes: of one rank, at a step boundary with no batch in flight."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from livectr.kernels.table.table import DynamicTable
from livectr.trainer.checkpoint.content import CheckpointState
from livectr.trainer.counts import summed
from livectr.trainer.parts import Parts
from livectr.trainer.publish.boundary import Boundary, Left
from livectr.trainer.publish.items import ItemCopier
from livectr.trainer.publish.snapshot import Snapshotter
from livectr.trainer.publish.values import ValueCopier
from livectr.trainer.quality.gate import PublishGate
from livectr.trainer.stream.order_log import ChosenExchange, lines

if TYPE_CHECKING:
    from livectr.trainer.publish.publisher import Publisher


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
            checkpoint: with the content of a checkpoint, if the run keeps one.
            ahead: begin to copy the next checkpoint.
            publish: begin a version, if one may be published.
        """
        others = parts.heads.tables if parts.heads is not None else {}
        boundary = Boundary.mark(parts.step, parts.source, others)
        began_s = time.monotonic()
        wanted = checkpoint and parts.checkpoint is not None
        held = str(parts.control.broadcast_json(held_by(parts.publisher, parts.gate)))
        champion = "rank"
        if parts.pipeline.challengers:
            champion = parts.control.broadcast_json(parts.contest.champion if parts.contest else "")
        return CommitState(
            steps=parts.progress.steps,
            examples=parts.progress.examples,
            boundary=boundary,
            tables={**parts.step.tables, **others},
            began_s=began_s,
            checkpoint=_checkpoint_state(parts, boundary, held, _order(parts)) if wanted else None,
            snapshots=_snapshotter(parts, champion),
            champion=champion,
            held=held,
            left=Left.of(parts.source),
            ahead=ahead,
            publish=publish,
        )


def held_by(publisher: Publisher | None, gate: PublishGate | None) -> str:
    """Reason for which no version may be published; "": versions may be published. Rank 0 knows it."""
    if publisher is None:
        return ""
    if publisher.released() and gate is not None:
        gate.accept()
    if publisher.hold is not None:
        return f"operator: {publisher.hold.reason}"
    return f"publish gate: {' and '.join(gate.held)}" if gate is not None and gate.held else ""


def _order(parts: Parts) -> bytes:
    """Lines of the order log since the last call. Collective; rank 0's are written."""
    own = {p: [(n, d.as_json()) for n, d in made] for p, made in parts.source.take_decisions().items()}
    ranks = parts.control.gather_json(own)
    began, cuts = parts.cuts.take()
    chosen = parts.step.choice.take()
    exchange = None if chosen is None else ChosenExchange(parts.cuts.first_step, parts.control.world, chosen)
    return lines(cuts, ranks, began, exchange) if parts.control.rank == 0 else b""


def _checkpoint_state(parts: Parts, boundary: Boundary, held: str, order: bytes) -> CheckpointState:
    """Content of a generation; dead letters and predictions until here are on disk afterwards."""
    parts.dead_letters.flush()
    progress, log, source, heads = parts.progress, parts.log, parts.source, parts.heads
    letters = parts.dead_letters.counts_before(source.positions())
    own = {**source.counted(), "dead_letters": letters}
    cursor = progress.cursor
    if cursor is not None:  # without a publisher nobody lists what Redis lacks
        cursor = replace(cursor, row_set="", served=0, served_row_set="")
    return CheckpointState(
        step=progress.steps,
        examples=progress.examples,
        predictions=log.sync() if log is not None else 0,
        cursor=asdict(cursor) if cursor is not None else None,
        tables={**parts.step.tables, **(heads.tables if heads is not None else {})},
        marks=boundary.tables,
        dense=parts.step.state_dense() | (heads.state_dense() if heads is not None else {}),
        statistics=parts.feed.statistics.state(),
        items=parts.items.state() if parts.items is not None else {},
        scores=parts.labels.state() if parts.labels is not None else {},
        contest=parts.contest.state() if parts.contest is not None else {},
        gate=parts.gate.state() if parts.gate is not None else {},
        record=parts.record.state() if parts.record is not None else {},
        quality=parts.gate.report() | {"held": held} if parts.gate is not None else {},
        source=source.snapshot(whole=False).parts(),
        changes=source.changes(),
        history_mark=boundary.histories,
        policies=parts.policies.state() | (heads.policies() if heads is not None else {}),
        tracked=parts.policies.tracked | (heads.tracked if heads is not None else set()),
        row=parts.step.spec.layout.describe(),
        field_keys=progress.keys_by_field(),
        counts=summed([progress.earlier, own]),
        predictions_sha256=log.sha256 if log is not None else "",
        began_ms=progress.began_ms,
        products=parts.step.spec.settings.library,
        seen=progress.seen,
        order=order,
    )


def _snapshotter(parts: Parts, champion: str) -> Snapshotter | None:
    """Copies the changes of a version; None if nothing is published."""
    if parts.publisher is None:
        return None
    step, source, statistics, control = parts.step, parts.source, parts.feed.statistics, parts.control
    items = ItemCopier(
        step,
        source,
        parts.extraction.extract,
        statistics,
        control,
        refresh=parts.item_refresh,
        now_ms=parts.progress.event_ms,
        first_ms=parts.progress.first_ms,
    )
    return Snapshotter(
        parts.pipeline,
        step,
        control,
        statistics,
        ValueCopier(source, control, parts.publisher.store.space),
        items,
        champion,
        refreshes=parts.refreshes,
        now_ms=parts.progress.event_ms,
        first_ms=parts.progress.first_ms,
    )
