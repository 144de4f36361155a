"""Training-serving skew: features of served candidates against the trainer's features of their impressions.

Both sides run the same compiled operators, so a feature differs only if its inputs do. `INPUTS` says why
inputs of a kind may differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from livectr.ingest.language.counts import CountedRef
from livectr.ingest.language.expr import Expr, RecentRef, is_vector, width_of
from livectr.ingest.language.roots import needs_statistics, roots_of
from livectr.ingest.pipeline import Pipeline
from livectr.serving.served.record import F32, U32

INPUTS = {
    "impression": "the request and the impression log say different things: mend the sender of one of them",
    "time": "a request without a time column is scored at the time of the server's clock",
    "look-up": "the server read the row of that moment; here it is the newest row of the table",
    "history": "the server knows the clicks that were published before the request; here they are all clicks "
    "before the impression",
    "counters": "the server has what its version had counted; here it is what was known at the time of the "
    "impression",
    "statistics": "the server has the running statistics of its version; here they are of all examples "
    "before the impression, from the start of the log",
}
"""Kind of an input, steady kinds first → reason why a feature may differ by it."""


@dataclass(frozen=True)
class FeatureSkew:
    """Comparison of a feature.

    Args:
        feature: name.
        reads: kinds of its inputs, of `INPUTS`.
        compared, differ: impressions.
        largest: largest difference of a dense feature; None: it is a sparse field.
    """

    feature: str
    reads: tuple[str, ...]
    compared: int
    differ: int
    largest: float | None

    @property
    def share(self) -> float:
        """Share of the impressions that differ; NaN without any."""
        return self.differ / self.compared if self.compared else float("nan")


def skew(pipeline: Pipeline, served: tuple[U32, F32], trained: tuple[U32, F32]) -> Iterator[FeatureSkew]:
    """Compare features of n impressions, in the order of the plan.

    Args:
        pipeline: names of the fields and dense features.
        served: digests u32[n, F] and dense numbers f32[n, Dd].
        trained: digests u32[n, F] and dense numbers f32[n, Dd].
    """
    plan = pipeline.plan
    rows = len(served[0])
    fields: npt.NDArray[np.bool_] = served[0] != trained[0]
    for column, (name, node) in enumerate(plan.sparse.items()):
        yield FeatureSkew(
            name, inputs_of(pipeline, node), rows, int(np.count_nonzero(fields[:, column])), None
        )
    start = 0
    for name, node in plan.dense.items():
        end = start + (width_of(node) if is_vector(node) else 1)
        apart = np.abs(served[1][:, start:end].astype(np.float64) - trained[1][:, start:end]).max(
            axis=1, initial=0.0
        )
        yield FeatureSkew(
            name,
            inputs_of(pipeline, node),
            rows,
            int(np.count_nonzero(apart)),
            float(apart.max(initial=0.0)),
        )
        start = end


def inputs_of(pipeline: Pipeline, node: Expr) -> tuple[str, ...]:
    """Kinds of the inputs of a feature, in the order of `INPUTS`."""
    found = {"statistics"} if needs_statistics(node) else set()
    stream = pipeline.log.impressions
    for root in roots_of(node):
        ref = root.ref
        if isinstance(ref, RecentRef):
            found.add("history")
        elif isinstance(ref, CountedRef):
            found.add("counters")
        elif ref.table:
            found.add("look-up")
        else:
            found.add("time" if ref.column == stream.time else "impression")
    return tuple(name for name in INPUTS if name in found)
