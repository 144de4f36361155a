"""Calibrated versions: replies are the model's logits, mapped by the segment of each candidate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from livectr.client.clients import RankClient, RecommendClient, RecommendItems
from livectr.ingest.language.calibration import Calibration
from livectr.ingest.plan.segments import NO_SEGMENT, segments
from livectr.serving.app import App
from livectr.serving.score.rank_scorer import RankScorer
from livectr.store.calibration import PREFIX, SegmentMaps
from livectr.system.errors import MismatchError
from tests.serving.display_pipeline import pipeline
from tests.serving.display_requests import ADS, CONTEXT, POSITIONS, in_request_order, sigmoid
from tests.serving.display_world import HISTORY, NOW_MS, SEED, SEGMENTS, World
from tests.serving.publication import Publication

SEEN = [101, 102, 103]
CANDIDATES = {"ad_id": ADS, "position": POSITIONS}


@pytest.mark.parametrize("by", ["category", "position", "city", None])
def test_replies_are_mapped_by_segment(
    redis_url: str, world: World, serve: Callable[..., App], by: str | None
) -> None:
    """By a field of the item (whose partial result is kept), of the candidate, of the user, and by none."""
    served = replace(pipeline, calibration=Calibration(by))
    columns = world.columns(3, ADS, POSITIONS, history=SEEN)
    features, logits = world.extract(columns), world.logits("rank", columns)
    field = served.segment_field
    keys = np.full(len(ADS), NO_SEGMENT) if field is None else segments(features, field)
    maps = lines(keys)
    trainer = Publication(redis_url, served.fingerprint, SEGMENTS, seed=SEED)
    trainer.history(HISTORY, 3, SEEN, [NOW_MS - 5000, NOW_MS - 3000, NOW_MS - 1000])
    world.publish(trainer, more=tensors_of(maps))
    expected = sigmoid(maps(logits, keys))
    assert np.abs(expected - sigmoid(logits)).max() > 0.1
    app = serve("recommend", served)
    with RankClient(app.server.address) as client, RecommendClient(app.server.address) as recommends:
        for _ in range(2):  # items' partial results are computed, then kept
            reply = client.rank(CONTEXT, CANDIDATES, request_id="r1")
            np.testing.assert_allclose(in_request_order(reply), expected, atol=1e-6)
        assert list(reply.pctr) == sorted(reply.pctr, reverse=True)
        explained = client.explain(CONTEXT, CANDIDATES, best=3)
        np.testing.assert_allclose(in_request_order(explained), expected, atol=1e-6)
        for one in explained.explanations.candidates:
            assert one.logit == pytest.approx(logits[one.index], abs=1e-5)
            assert (one.scale, one.shift) == tuple(each[one.index] for each in maps.of(keys))
        page = CONTEXT | {"position": 2}
        best = recommends.recommend(page, 5, 12, items=RecommendItems(ADS))
        ranked = client.rank(page, {"ad_id": list(best.ids.values)})
        assert list(best.pctr) == list(ranked.pctr) and list(ranked.index) == [0, 1, 2, 3, 4]


def tensors_of(maps: SegmentMaps) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array) for name, array in maps.arrays().items()}


def lines(keys: np.ndarray) -> SegmentMaps:
    """Maps of all segments but the last, and of the others."""
    known = np.unique(keys)
    known = known[:-1] if len(known) > 1 else known[known != NO_SEGMENT]
    scale = np.linspace(0.6, 1.4, len(known) + 1).astype(np.float32)
    return SegmentMaps(known, scale, np.linspace(-2, 1, len(known) + 1).astype(np.float32) - 0.5)


def test_tensors_that_are_no_maps_are_refused(world: World) -> None:
    served, weights = replace(pipeline, calibration=Calibration("city")), world.step.weights()
    tensors = tensors_of(SegmentMaps.identity())
    assert RankScorer(served, {**weights, **tensors}).maps is not None
    assert RankScorer(served, weights).maps is None
    for name, tensor in (
        ("keys", torch.arange(3)),
        ("scale", torch.ones(1, dtype=torch.float64)),
        ("shift", torch.ones(2)),
    ):
        with pytest.raises(MismatchError, match="the published calibration"):
            RankScorer(served, {**weights, **tensors, PREFIX + name: tensor})
    del tensors[PREFIX + "shift"]
    with pytest.raises(MismatchError, match=r"lacks 'calibration\.shift'"):
        RankScorer(served, {**weights, **tensors})
