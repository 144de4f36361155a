"""Lessons of labels beside the click that are learned before they are final (`Label(…, delayed=…)`).

    stage of a row, label known of it ─► outcome ─► lesson of the target ─► lesson of its head

Outcomes are those of clicks (`kernels.stream.join`), so that the losses are the same (`models.fnw`,
`models.es_dfm`). Of a target after a click, the loss is that of p(click) · p(target | click), whose lesson
becomes that of the head (`models.esmm.of_whole`).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from livectr.ingest.language.labels import EARLY_LABEL, LATE_LABEL
from livectr.ingest.pipeline import Pipeline
from livectr.kernels.stream.join import FINAL_NEGATIVE, LATE_POSITIVE
from livectr.models.base import ModelConfig
from livectr.models.es_dfm import HEADS, expected_labels
from livectr.models.esmm import of_whole
from livectr.models.fnw import fake_negative_weighted
from livectr.models.losses import Lesson
from livectr.store.targets import after_click
from livectr.trainer.delayed.heads import Heads
from livectr.trainer.des.step import DesStep
from livectr.trainer.stream.feed import Batch


def head_models(pipeline: Pipeline) -> dict[str, ModelConfig]:
    """Name of a head of ES-DFM → its model; {}: a run has none."""
    return {begin + name: model for begin in _labels(pipeline) for name, model in HEADS.items()}


def _labels(pipeline: Pipeline) -> list[str]:
    """Beginnings of the names of each label's heads; that of the click is ""."""
    if pipeline.log.delayed == "es_dfm":
        return [""]
    return [f"{label.name}." for label in pipeline.log.late_labels if label.delayed == "es_dfm"]


def heads_of(pipeline: Pipeline, main: DesStep) -> Heads | None:
    """Heads of ES-DFM of a run, of the click or of labels beside it; None: it has none."""
    labels = _labels(pipeline)
    if labels in ([], [""]):
        return Heads(pipeline, main) if labels else None
    bits = {f"{target.name}.": place for place, target in enumerate(pipeline.targets)}
    places = {label: bits[label] for label in labels}

    def of_batch(batch: Batch) -> Mapping[str, Tensor]:
        assert batch.targets is not None
        stage, targets = torch.from_numpy(batch.outcome).float(), torch.from_numpy(batch.targets)
        return {label: outcomes(stage, targets[:, place]) for label, place in places.items()}

    return Heads(pipeline, main, of_batch, labels)


def outcomes(stage: Tensor, came: Tensor) -> Tensor:
    """Outcomes f32[n].

    Args:
        stage: f32[n], labels of the rows.
        came: f32[n] in {0, 1}; NaN: the row does not know the label, and its outcome is NaN.
    """
    final = FINAL_NEGATIVE + came
    early = torch.where(stage == LATE_LABEL, LATE_POSITIVE + 0 * came, came)
    return torch.where((stage == EARLY_LABEL) | (stage == LATE_LABEL), early, final)


def late_lesson(
    outcome: Tensor, own: Tensor, click: Tensor | None, heads: tuple[Tensor, Tensor] | None
) -> Lesson:
    """Lesson of a head.

    Args:
        outcome: f32[n], of `outcomes`.
        own: logits f32[n] of the head.
        click: logits f32[n] of the click; None: the target comes by itself.
        heads: logits f32[n] of ES-DFM's c and t of the target; None: the loss is fake-negative weighted.
    """
    known = ~outcome.isnan()
    told = outcome.nan_to_num(FINAL_NEGATIVE)
    if heads is None:
        whole = own
        if click is not None:
            whole = torch.from_numpy(after_click(click.numpy(), own.numpy())).float()
        lesson = fake_negative_weighted(whole, told)
    else:
        lesson = expected_labels(told, *heads)
    if click is not None:
        lesson = of_whole(click, own, lesson)
    return lesson._replace(
        weight=lesson.weight.masked_fill(~known, 0.0), sure=known & (told >= FINAL_NEGATIVE)
    )
