"""Score of a version whose ranking model has targets beside the click (models.esmm)."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from livectr.ingest.pipeline import Pipeline
from livectr.kernels.network.forward import Kept
from livectr.serving.score.inputs import FieldVectors, Lists, ModelInputs
from livectr.serving.score.rank_scorer import RankScorer
from livectr.store.layout import F32
from livectr.store.targets import F64, probability


class TargetScorer(RankScorer):
    """Click model and heads of a version. It computes in stages; no partial results are kept."""

    def __init__(self, pipeline: Pipeline, dense: Mapping[str, Tensor]) -> None:
        super().__init__(pipeline, dense)
        self._click = RankScorer(pipeline, dense)
        self._heads = {t: RankScorer(pipeline, dense, role=t.role) for t in pipeline.targets}
        self.in_one_call = False

    def logits(
        self, vectors: FieldVectors, dense: F32, lists: Lists, content: Lists, kept: Kept | None = None
    ) -> F32:
        """Logits f32[B] of the click; as `RankScorer.logits`."""
        return self._click.logits(vectors, dense, lists, content)

    def targets(self, inputs: ModelInputs, click: F32, lines: tuple[F32, F32] | None) -> dict[str, F64]:
        """Name of a target → probabilities f64[B].

        Args:
            inputs: of B rows.
            click: logits f32[B] of `logits`.
            lines: scale and shift f32[B] of their calibration; None: they are not calibrated.
        """
        found = {}
        for target, head in self._heads.items():
            own = head.logits(inputs.vectors, inputs.dense, inputs.lists, inputs.content)
            found[target.name] = probability(own, click, lines, after=target.after is not None)
        return found
