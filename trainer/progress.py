"""Progress of a run: steps, examples and keys that were learned, by earlier processes of the run too."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from livectr.ingest.common_features import Common
from livectr.ingest.pipeline import Pipeline
from livectr.trainer.checkpoint.manifest import Manifest
from livectr.trainer.placement.measured import field_keys
from livectr.trainer.publish.succession import Cursor
from livectr.trainer.stream.feed import Batch

I64 = NDArray[np.int64]


class Progress:
    """Counters of one rank, resumed from those of a checkpoint.

    Args:
        manifest: of the checkpoint; None in a new run.

    Attributes:
        steps, examples: learned by all ranks; late positives are no examples.
        seen: examples and late positives of all batches; the batch ramp resumes from here.
        field_keys: int64[F], keys of each field in this rank's examples. Rank 0 has those of earlier
            processes too.
        earlier: nested counts of earlier processes; rank 0 alone has them.
        cursor: the point that an earlier process had reached in publishing.
        examples_before: examples that earlier processes have learned.
        resumed: the run resumes from a checkpoint.
        resumes: generation from which the next run resumes, once this one has learned impressions that wait
            for their labels; 0: the newest.
        event_ms: event time of the newest step: the median of its examples', which never goes back; 0 before
            this process's first step.
        first_ms: earliest event time of this process's first step; 0 before it.
        began_ms: time at which the run's first process began, ms since 1970. Events before it are backfill.
    """

    def __init__(self, pipeline: Pipeline, rank: int, manifest: Manifest | None) -> None:
        self.fields = tuple(field.name for field in pipeline.fields)
        self.field_keys = np.zeros(len(self.fields), np.int64)
        self.steps = self.examples = self.seen = self.event_ms = self.first_ms = 0
        self.earlier: dict[str, Any] = {}
        self.cursor: Cursor | None = None
        self._common = Common.of(pipeline)
        self.began_ms = _now_ms()
        if manifest is not None:
            self.began_ms = manifest.began_ms or self.began_ms
            self.steps, self.examples = manifest.step, manifest.examples
            self.seen = manifest.ramped
            if manifest.cursor is not None:
                self.cursor = Cursor(**manifest.cursor)
            if rank == 0:
                self.field_keys[:] = [manifest.field_keys[name] for name in self.fields]
                self.earlier = manifest.counts
        self.resumed, self.resumes = manifest is not None, 0
        self.examples_before = self.examples

    def add(self, batch: Batch) -> None:
        """Count a batch, or the batches of a block, that were learned."""
        bounds = np.array([0, len(batch.time_ms)]) if batch.bounds is None else batch.bounds
        self.steps += len(bounds) - 1
        self.examples += batch.examples
        self.seen += int(batch.cut.sum())
        if len(batch.time_ms):
            medians = _medians(batch.time_ms, bounds)
            self.first_ms = self.first_ms or int(batch.time_ms[: bounds[bounds > 0][0]].min())
            self.event_ms = max(self.event_ms, int(medians.max()))
        self.field_keys += field_keys(batch.features, self._common, len(self.field_keys))

    def count_versions(self, flipped: int) -> None:
        """Count versions that an earlier process has published since its checkpoint."""
        if self.earlier:
            self.earlier["published"]["versions"] += flipped

    def keys_by_field(self) -> dict[str, int]:
        """Field → keys of this rank's examples."""
        return dict(zip(self.fields, self.field_keys.tolist(), strict=True))


def _medians(time_ms: I64, bounds: I64) -> I64:
    """Median, the lower of two, of the event times of each of P batches that has examples.

    Args:
        time_ms: int64[B].
        bounds: int64[P + 1].
    """
    sizes = np.diff(bounds)
    middle = (bounds[:-1] + (sizes - 1) // 2)[sizes > 0]
    if len(middle) == 1:
        ordered = np.partition(time_ms, middle)
    else:
        ordered = time_ms[np.lexsort((time_ms, np.repeat(np.arange(len(sizes)), sizes)))]
    found: I64 = ordered[middle]
    return found


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
