"""Labels beside the click that are learned before their windows have passed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import livectr
from livectr.ingest.language.delays import Delayed
from livectr.ingest.language.labels import EARLY_LABEL, LATE_LABEL
from livectr.ingest.language.streams import Label
from livectr.kernels.stream.join import FINAL_NEGATIVE, FINAL_POSITIVE, LATE_POSITIVE, NEGATIVE, POSITIVE
from livectr.models.esmm import of_whole
from livectr.models.losses import Lesson, weighted_cross_entropy
from livectr.system.errors import ConfigError
from livectr.trainer.delayed.labels import outcomes
from livectr.trainer.quality.predictions import UNKNOWN, read_predictions, read_records
from livectr.trainer.stages import Stages
from livectr.trainer.stream import batcher
from livectr.trainer.stream.cut import Cut
from tests.trainer.label_kinds_once import WINDOWS, shop, shop_log

ROWS = 1_500


@pytest.mark.parametrize("late", ["fnw", "es_dfm"])
def test_a_late_label_is_learned_early_and_measured_when_it_is_final(
    late: Delayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measures are of the score when the impression left; blocks have the bits of batches alone."""
    log, cuts = shop_log(ROWS), []
    advance = Stages.advance

    def noting(self: Stages, cut: Cut | None) -> None:
        cuts.append(0 if cut is None else cut.parts)
        advance(self, cut)

    monkeypatch.setattr(Stages, "advance", noting)
    run = livectr.train(shop(late=late), log, seed=1, threads=1, batch_size=32)
    assert max(cuts) > 2
    root = Path(run.checkpoint)
    found, records = read_predictions(root / "predictions"), read_records(root / "predictions")
    assert run.report.examples_trained == len(found) == ROWS and len(records) == 3 * ROWS
    came = np.zeros(ROWS, np.uint8)
    came[[row["id"] for row in log["orders"]]] = 1
    assert (found["rank.order.label"] == came[found["instance"]]).all()
    of_orders = records[records["rank.order.label"] != UNKNOWN]
    assert len(of_orders) == ROWS  # once each, by the end of its window
    assert (np.diff(of_orders["time_ms"]) >= 0).all() and WINDOWS["order"] > WINDOWS["click"]
    monkeypatch.setattr(batcher, "BLOCK", 1)
    cuts.clear()
    alone = livectr.train(shop(late=late), log, seed=1, threads=1, batch_size=32)
    assert set(cuts) == {0, 1}
    assert (Path(alone.checkpoint) / "predictions").read_bytes() == (root / "predictions").read_bytes()


def test_outcomes_are_those_of_clicks() -> None:
    stage = torch.tensor([EARLY_LABEL, EARLY_LABEL, LATE_LABEL, FINAL_NEGATIVE, FINAL_NEGATIVE, 1]).float()
    came = torch.tensor([0.0, 1, 1, 0, 1, float("nan")])
    want = [NEGATIVE, POSITIVE, LATE_POSITIVE, FINAL_NEGATIVE, FINAL_POSITIVE]
    assert outcomes(stage, came)[:5].tolist() == want and bool(outcomes(stage, came)[5].isnan())


def test_a_lesson_of_the_product_is_one_of_the_head() -> None:
    rng = np.random.default_rng(0)
    click, given = (torch.tensor(rng.normal(0, 2, 40), dtype=torch.float32) for _ in range(2))
    lesson = Lesson(torch.tensor(rng.random(40)).float(), torch.tensor(rng.random(40)).float())
    given.requires_grad_()
    product = (click.double().sigmoid() * given.double().sigmoid()).logit()
    whole = torch.nn.functional.binary_cross_entropy_with_logits(
        product, lesson.target.double(), lesson.weight.double(), reduction="sum"
    )
    whole.backward()  # type: ignore[no-untyped-call]
    own = given.detach().clone().requires_grad_()
    weighted_cross_entropy(own, of_whole(click, own.detach(), lesson)).backward()  # type: ignore[no-untyped-call]
    assert own.grad is not None and given.grad is not None
    np.testing.assert_allclose(own.grad.numpy(), given.grad.numpy(), rtol=1e-4, atol=1e-6)


def test_what_does_not_go_with_late_labels_is_refused() -> None:
    whole = shop()
    orders = whole.streams[3]
    given: dict[str, Any] = dict(window="10m")
    with pytest.raises(ConfigError, match="Label 'order': delayed=\"es_dfm\" needs a wait"):
        Label("order", orders, delayed="es_dfm", **given)
    with pytest.raises(ConfigError, match="Label 'order': with delayed=\"wait\" an impression waits"):
        Label("order", orders, wait="1m", **given)
    with pytest.raises(ConfigError, match="the wait of 600 s must be shorter than the window of 600 s"):
        Label("order", orders, wait="10m", delayed="fnw", **given)
    with pytest.raises(ConfigError, match='delayed="vanilla" is of clicks alone'):
        Label("order", orders, wait="1m", delayed="vanilla", **given)
    cart, order = whole.log.more_labels
    late = replace(whole.log, more_labels=(replace(cart, wait="1s", delayed="fnw"), order))
    with pytest.raises(ConfigError, match="position_bias does not go with the late label 'cart'"):
        replace(whole, log=late, position_bias=whole.log.place)
