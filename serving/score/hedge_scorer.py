"""Score of a version whose ranking model is a hedge: the mixture of its heads (models.hedge)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from livectr.ingest.pipeline import Pipeline
from livectr.kernels.network.forward import Kept
from livectr.kernels.request.score import Mixture
from livectr.models.configs import head_roles
from livectr.models.forward import ItemFeatures
from livectr.serving.score.inputs import FieldVectors, Lists
from livectr.serving.score.plan_stages import FieldOrder
from livectr.serving.score.rank_scorer import RankScorer
from livectr.serving.score.target_scorer import TargetScorer
from livectr.store.hedge import WEIGHTS, mixed, published_weights
from livectr.store.layout import F32


class HedgeScorer(RankScorer):
    """Heads of a version, and their weights. No partial results are kept.

    Attributes:
        heads: role → scorer of the head.
        weights: f64[H].

    Raises:
        MismatchError: the weights are of other heads.
    """

    def __init__(self, pipeline: Pipeline, dense: Mapping[str, Tensor], roles: tuple[str, ...]) -> None:
        super().__init__(pipeline, dense, role=roles[0])
        self.heads = {role: RankScorer(pipeline, dense, role=role) for role in roles}
        arrays = {name: tensor.numpy() for name, tensor in dense.items() if name == WEIGHTS}
        self.weights = published_weights(arrays, len(roles))
        self.in_one_call = all(head.in_one_call for head in self.heads.values())

    def mixture(self, order: FieldOrder) -> Mixture:
        """See `RankScorer.mixture`."""
        _, *others = self.heads.values()
        return Mixture(self.weights, [head.head(order) for head in others])

    def logits(
        self, vectors: FieldVectors, dense: F32, lists: Lists, content: Lists, kept: Kept | None = None
    ) -> F32:
        """Logits f32[B] of the mixture; as `RankScorer.logits`."""
        return mixed(self.of_heads(vectors, dense), self.weights)

    def of_heads(self, vectors: FieldVectors, dense: F32) -> F32:
        """Logits f32[H, B] of the heads; arguments as of `logits`."""
        return np.stack([head.logits(vectors, dense, {}, {}) for head in self.heads.values()])


def scorer_of(
    pipeline: Pipeline, dense: Mapping[str, Tensor], champion: str, items: ItemFeatures
) -> RankScorer:
    """Ranking model of a version; arguments and errors as of `RankScorer`."""
    if pipeline.targets:
        return TargetScorer(pipeline, dense)
    heads = head_roles(pipeline.rank) if champion == "rank" else ()
    return HedgeScorer(pipeline, dense, heads) if heads else RankScorer(pipeline, dense, champion, items)
