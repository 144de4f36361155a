"""Scores of a version whose ranking model has several heads: of a hedge, or of targets (models.esmm)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from livectr.ingest.pipeline import Pipeline
from livectr.kernels.request.score import Heads
from livectr.models.configs import head_roles
from livectr.models.forward import ItemFeatures
from livectr.models.lognormal import expected
from livectr.serving.score.inputs import FieldVectors, Lists, ModelInputs
from livectr.serving.score.plan_stages import FieldOrder
from livectr.serving.score.rank_scorer import RankScorer
from livectr.store.hedge import WEIGHTS, mixed, published_weights
from livectr.store.layout import F32
from livectr.store.targets import F64, probability


class HeadScorer(RankScorer):
    """Head of a version and others beside it. No partial results are kept.

    Args:
        role: of the head.
        others: roles of the others.
    """

    weights: F64 | None = None
    """Weights of a mixture of all heads; None: each has logits of its own."""

    def __init__(
        self, pipeline: Pipeline, dense: Mapping[str, Tensor], role: str, others: Sequence[str]
    ) -> None:
        super().__init__(pipeline, dense, role=role)
        self._others = [RankScorer(pipeline, dense, role=other) for other in others]
        heads = [self, *self._others]
        self.in_one_call = all(h.in_one_call and not h.lists for h in heads)

    def heads(self, order: FieldOrder) -> Heads:
        """See `RankScorer.heads`."""
        return Heads([other.head(order) for other in self._others], self.weights)

    def others(self, vectors: FieldVectors, dense: F32, lists: Lists, content: Lists) -> F32:
        """Logits f32[H, B] of the other heads; arguments as of `logits`."""
        return np.stack([other.logits(vectors, dense, lists, content) for other in self._others])


class HedgeScorer(HeadScorer):
    """Heads of a hedge, and their weights.

    Attributes:
        roles: of the heads.
        weights: f64[H].

    Raises:
        MismatchError: the weights are of other heads.
    """

    weights: F64

    def __init__(self, pipeline: Pipeline, dense: Mapping[str, Tensor], roles: tuple[str, ...]) -> None:
        super().__init__(pipeline, dense, roles[0], roles[1:])
        self.roles = roles
        arrays = {name: tensor.numpy() for name, tensor in dense.items() if name == WEIGHTS}
        self.weights = published_weights(arrays, len(roles))

    def logits(self, vectors: FieldVectors, dense: F32, lists: Lists, content: Lists) -> F32:
        """Logits f32[B] of the mixture; as `RankScorer.logits`."""
        return mixed(self.of_heads(vectors, dense), self.weights)

    def of_heads(self, vectors: FieldVectors, dense: F32) -> F32:
        """Logits f32[H, B] of the heads; arguments as of `logits`."""
        first = super().logits(vectors, dense, {}, {})
        return np.concatenate([first[None], self.others(vectors, dense, {}, {})])


class TargetScorer(HeadScorer):
    """Click model of a version, and heads of targets beside the click."""

    def __init__(self, pipeline: Pipeline, dense: Mapping[str, Tensor]) -> None:
        roles = [role for target in pipeline.targets for role in target.roles]
        super().__init__(pipeline, dense, "rank", roles)
        self._targets, self.other_count = pipeline.targets, len(roles)
        self._place = {role: place for place, role in enumerate(roles)}

    def others_of(self, inputs: ModelInputs) -> F32:
        """See `RankScorer.others_of`."""
        return self.others(inputs.vectors, inputs.dense, inputs.lists, inputs.content)

    def targets(self, others: F32, click: F32, lines: tuple[F32, F32] | None) -> dict[str, F64]:
        """See `RankScorer.targets`."""
        return {
            target.name: probability(
                others[self._place[target.role]], click, lines, after=target.after is not None
            )
            for target in self._targets
        }

    def values(self, others: F32) -> dict[str, F64]:
        """See `RankScorer.values`."""
        found: dict[str, F64] = {}
        for target in self._targets:
            if target.value_roles:
                location, spread, *paid = (
                    torch.from_numpy(others[self._place[role]]) for role in target.value_roles
                )
                found[target.name] = expected(location, spread, *paid).numpy()
        return found


def scorer_of(
    pipeline: Pipeline, dense: Mapping[str, Tensor], champion: str, items: ItemFeatures
) -> RankScorer:
    """Ranking model of a version; arguments and errors as of `RankScorer`."""
    if pipeline.targets:
        return TargetScorer(pipeline, dense)
    heads = head_roles(pipeline.rank) if champion == "rank" else ()
    return HedgeScorer(pipeline, dense, heads) if heads else RankScorer(pipeline, dense, champion, items)
