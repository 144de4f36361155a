"""Heads of ES-DFM: a second step beside the main model's, with tables of its own (models.es_dfm).

    batch, with its finals ─┬─► heads: score, then learn ─► logits ─► lessons ─┐
                            └─► main model: score, then learn ◄────────────────┘

The heads' rows are in tables of their own: a version, which is made of the main model's tables and networks,
holds nothing of the heads. Checkpoints hold them under names that begin with `PREFIX`. The heads' rows are in
host memory, with the policies of the main tables: a budget of rows or bytes counts for each of the two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from livectr.ingest.pipeline import Pipeline
from livectr.models.es_dfm import HEADS, expected_labels, lessons_of_heads
from livectr.models.losses import Lesson
from livectr.trainer.des.batch import PreparedBatch
from livectr.trainer.des.step import DesStep
from livectr.trainer.learner import Learner
from livectr.trainer.stream.feed import Batch

I64 = NDArray[np.int64]

PREFIX = "es_dfm."
"""Begin of the heads' names in a checkpoint."""


Outcomes = Callable[[Batch], Mapping[str, torch.Tensor]]
"""Function of a batch: beginning of the names of a label's heads → its outcomes f32[B], NaN where unknown."""


class Heads:
    """Heads of one rank: of the click, or of labels beside it.

    Args:
        pipeline: fields and table policies.
        main: step of the main model, whose seed, ranks, settings and placement the heads share.
        outcomes: of a batch, by label; None: of the click, whose name is "".
        labels: beginnings of the names of the heads of each label.

    Attributes:
        step: of the heads alone.
        learner: of this step, under names with `PREFIX`.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        main: DesStep,
        outcomes: Outcomes | None = None,
        labels: Sequence[str] = ("",),
    ) -> None:
        self._outcomes, self._labels = outcomes or _of_click, tuple(labels)
        self.step = DesStep(
            pipeline,
            seed=main.spec.seed,
            collectives=main.collectives,
            settings=main.spec.settings,
            placement=main.spec.placement,
            models={label + name: model for label in labels for name, model in HEADS.items()},
        )
        self.learner = Learner.of(pipeline, self.step, PREFIX)

    def prepare(self, batch: Batch) -> PreparedBatch:
        """Send keys of a batch, its finals too, to their ranks. Collective."""
        return self.step.prepare(batch.features, batch.clicked, batch.sequence)

    def score(self, prepared: PreparedBatch, batch: Batch) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """Score a batch, and then learn it. Collective.

        Returns:
            Label → logits f32[B] of c and t, of all ranks' rows, rank-major, from before.
        """
        outcomes = self._outcomes(batch)
        every = slice(None)
        logits = self.learner.learn(prepared, batch.time_ms, lambda _: self._lessons(outcomes, every)).logits
        return {label: self._pair(logits, label) for label in self._labels}

    def learn(self, prepared: PreparedBatch, batch: Batch) -> Lesson:
        """`score`, of the click.

        Returns:
            Lesson of the batch for the main model, of all ranks' rows, rank-major.
        """
        (heads,) = self.score(prepared, batch).values()
        return expected_labels(_outcome(batch), *heads)

    @staticmethod
    def _lessons(outcomes: Mapping[str, torch.Tensor], rows: slice) -> dict[str, Lesson]:
        found = {}
        for label, of_all in outcomes.items():
            outcome = of_all[rows]
            for name, lesson in lessons_of_heads(outcome.nan_to_num(0.0)).items():
                weight = lesson.weight.masked_fill(outcome.isnan(), 0.0)
                found[label + name] = lesson._replace(weight=weight)
        return found

    @staticmethod
    def _pair(logits: Mapping[str, NDArray[np.float32]], label: str) -> tuple[torch.Tensor, torch.Tensor]:
        clicked, in_time = (torch.from_numpy(logits[label + name]) for name in ("clicked", "in_time"))
        return clicked, in_time

    def learn_block(self, batch: Batch, bounds: I64) -> Callable[[slice], Lesson]:
        """`learn` of the batches of a block, which the learner takes.

        Args:
            batch: the block.
            bounds: of its batches.

        Returns:
            Function of the slice of a batch's rows, which gives the lesson for the main model.
        """
        outcome, heads = _outcome(batch), self.score_block(batch, bounds)[""]
        return lambda rows: expected_labels(outcome[rows], *(logit[rows] for logit in heads))

    def score_block(self, batch: Batch, bounds: I64) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """`score` of the batches of a block, which the learner takes; see `learn_block`."""
        outcomes = self._outcomes(batch)
        result = self.learner.learn_block(
            batch.features, batch.clicked, bounds, lambda _, rows: self._lessons(outcomes, rows)
        )
        assert result is not None, "the learner takes it"
        return {label: self._pair(result.logits, label) for label in self._labels}


def _of_click(batch: Batch) -> dict[str, torch.Tensor]:
    return {"": _outcome(batch)}


def _outcome(batch: Batch) -> torch.Tensor:
    return torch.from_numpy(batch.outcome.astype(np.float32))
