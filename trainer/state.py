"""State of a rank at a step boundary, as a commit takes it."""

import time
from dataclasses import asdict, replace

from livectr.trainer.checkpoint.content import CheckpointState
from livectr.trainer.commits import CommitState
from livectr.trainer.counts import summed
from livectr.trainer.parts import Parts
from livectr.trainer.publish.snapshot import Boundary, Snapshotter


def commit_state(parts: Parts, *, checkpoint: bool) -> CommitState:
    """Assemble this rank's state, with no batch in flight.

    Args:
        checkpoint: with the content of a checkpoint, if the run keeps one.
    """
    boundary = Boundary.mark(parts.step, parts.source)
    began_s = time.monotonic()
    wanted = checkpoint and parts.checkpoint is not None
    return CommitState(
        steps=parts.progress.steps,
        examples=parts.progress.examples,
        boundary=boundary,
        tables=parts.step.tables,
        began_s=began_s,
        checkpoint=checkpoint_state(parts, boundary) if wanted else None,
        snapshots=snapshotter(parts),
    )


def checkpoint_state(parts: Parts, boundary: Boundary) -> CheckpointState:
    """Content of a generation; dead letters and predictions until here are on disk afterwards."""
    parts.dead_letters.flush()
    progress, log, source = parts.progress, parts.log, parts.source
    letters = parts.dead_letters.counts_before(source.positions())
    own = {**source.counted(), "dead_letters": letters}
    cursor = replace(progress.cursor, ns="") if progress.cursor is not None else None
    return CheckpointState(
        step=progress.steps,
        examples=progress.examples,
        predictions=log.sync() if log is not None else 0,
        cursor=asdict(cursor) if cursor is not None else None,
        tables=parts.step.tables,
        marks=boundary.tables,
        dense=parts.step.state_dense(),
        statistics=parts.feed.statistics.state(),
        items=parts.items.state() if parts.items is not None else {},
        source=source.snapshot().parts(),
        policies=parts.policies.state(),
        tracked=parts.policies.tracked,
        row=parts.step.layout.describe(),
        field_keys=progress.keys_by_field(),
        counts=summed([progress.earlier, own]),
        predictions_sha256=log.sha256 if log is not None else "",
    )


def snapshotter(parts: Parts) -> Snapshotter | None:
    """Copies the changes of a version; None if nothing is published."""
    if parts.publisher is None:
        return None
    return Snapshotter(
        parts.pipeline,
        parts.step,
        parts.source,
        parts.extraction.extract,
        parts.feed.statistics,
        parts.control,
        parts.publisher.store.space,
    )
