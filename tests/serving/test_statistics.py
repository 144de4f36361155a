"""Features with running statistics: a server uses the statistics of the version that it serves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import numpy as np
import pyarrow as pa
import pytest
import torch

from livectr.client.clients import PreRankClient, RankClient
from livectr.ingest.language import dtypes
from livectr.serving import metrics
from livectr.serving.app import App
from livectr.serving.score.rank_scorer import RankScorer
from livectr.store.layout import FEATURES
from livectr.system.errors import MismatchError
from livectr.trainer.build import build
from livectr.trainer.comm.collectives import connect
from livectr.trainer.options import TrainOptions
from livectr.trainer.parts import Parts
from livectr.trainer.run import Training
from tests.trainer.ad_logs import ADS, START_MS, TOO_MANY_TAGS, ad_pipeline, write_files

PIPELINE = ad_pipeline()
NOW_MS = START_MS + 10_000_000  # every history is older than its hour
CONTEXT = {"user_id": 7, "ts": NOW_MS}


@contextmanager
def trained(source: str, redis_url: str, steps: int | None = None) -> Iterator[Parts]:
    options = TrainOptions(
        source,
        until_end=True,
        batch_size=64,
        batch_ramp=0,
        publish=redis_url,
        max_steps=steps,
        min_examples=0,
        take_over=True,
    )
    with connect() as collectives, ExitStack() as resources:
        parts, stages = build(ad_pipeline(), options, collectives, resources)
        Training(parts, stages).run()
        yield parts


def columns(ads: list[int], tags: list[int]) -> pa.RecordBatch:
    values = {
        "impressions.user_id": [7] * len(ads),
        "impressions.ad_id": ads,
        "impressions.ts": [NOW_MS] * len(ads),
        "impressions.tags": [tags] * len(ads),
        "users.age": [15 + 7] * len(ads),
        "ads.category": [f"c{a % 5}" if a < ADS else None for a in ads],
        "ads.price": [a / 10 if a < ADS else None for a in ads],
        "recent(clicks.ad_id,5,3600000)": [[]] * len(ads),
    }
    roots = PIPELINE.plan.roots
    arrays = [pa.array(values[r.name], dtypes.arrow_type(r.dtype)) for r in roots]
    return pa.RecordBatch.from_arrays(arrays, names=[r.name for r in roots])


@torch.no_grad()
def logits(parts: Parts, role: str, batch: pa.RecordBatch) -> np.ndarray:
    """Logits of the trained model, with the statistics after its last step."""
    extract = parts.stream.extraction.compiled(parts.pipeline.plan)
    features = extract(batch, parts.stream.feed.statistics)
    assert np.abs(features.dense[:, 1:]).min(axis=0).max() > 0, "the statistics must matter"
    step = parts.step
    (values,) = step.front.infer(features.offsets, features.keys, features.rows)
    part = torch.from_numpy(values)[..., step.spec.slices[role]]
    out: np.ndarray = step.models[role](part, torch.from_numpy(features.dense)).numpy()
    return out


def test_served_probabilities_are_the_trained_models(
    tmp_path: Path, redis_url: str, serve: Callable[..., App]
) -> None:
    with trained(write_files(tmp_path, 1_500), redis_url) as parts:
        ads = [*range(ADS), 777]  # 777: in no table
        batch = columns(ads, [1, 2])
        with RankClient(serve("rank", PIPELINE).server.address) as client:
            response = client.rank({**CONTEXT, "tags": [1, 2]}, {"ad_id": ads})
            pctr = 1 / (1 + np.exp(-logits(parts, "rank", batch).astype(np.float64)))
            np.testing.assert_allclose(response.pctr, pctr[list(response.index)], atol=1e-6)
        with PreRankClient(serve("prerank", PIPELINE).server.address) as client:
            chosen = client.prerank(CONTEXT, ads, len(ads))
            want = logits(parts, "prerank", batch)
            np.testing.assert_allclose(chosen.score, want[list(chosen.index)], atol=1e-5)
            assert chosen.unknown == 1


def test_each_version_brings_its_statistics(
    tmp_path: Path, redis_url: str, serve: Callable[..., App], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that moves to the next version scores with its statistics."""
    # The log is years old; other tests look at this process's freshness.
    monkeypatch.setattr(metrics.FRESHNESS, "observe", lambda *_: None)
    source, ads = write_files(tmp_path, 1_500), list(range(ADS))
    with trained(source, redis_url, steps=3):
        app = serve("rank", PIPELINE)
        before = app.follower.current
    with trained(source, redis_url) as parts, RankClient(app.server.address) as client:
        assert before is not None
        app.follower.wait_newer(before.number, None)
        response = client.rank({**CONTEXT, "tags": []}, {"ad_id": ads})
        assert response.version > before.number
        pctr = 1 / (1 + np.exp(-logits(parts, "rank", columns(ads, [])).astype(np.float64)))
        np.testing.assert_allclose(response.pctr, pctr[list(response.index)], atol=1e-6)
        first, second = before.scorers["rank"], app.follower.current.scorers["rank"]  # type: ignore[union-attr]
        assert isinstance(first, RankScorer) and isinstance(second, RankScorer)
        counts = [sum(s.statistics.state()[name]) for s in (first, second) for name in names("frequency")]
        assert counts == [3 * 64 * 4, 1_500 * 4]


def names(op: str) -> list[str]:
    return [node.op + "-" + node.meaning[:16] for node in PIPELINE.plan.statistics if node.op == op]


def test_a_version_without_them_is_another_pipelines(tmp_path: Path, redis_url: str) -> None:
    with trained(write_files(tmp_path, 200), redis_url) as parts:
        dense = parts.step.weights()
        state = parts.stream.feed.statistics.state()
    complete = {**dense, **{FEATURES + name: torch.from_numpy(array.copy()) for name, array in state.items()}}
    assert RankScorer(PIPELINE, complete).statistics.arrays[0].tolist() == next(iter(state.values())).tolist()
    with pytest.raises(MismatchError, match="another pipeline"):
        RankScorer(PIPELINE, dense)


def test_a_candidate_that_cannot_be_extracted_is_named(
    tmp_path: Path, redis_url: str, serve: Callable[..., App]
) -> None:
    with (
        trained(write_files(tmp_path, 200), redis_url),
        RankClient(serve("rank", PIPELINE).server.address) as client,
    ):
        tags = [[1], [2], list(range(TOO_MANY_TAGS)), [3]]
        with pytest.raises(grpc.RpcError) as failure:
            client.rank(CONTEXT, {"ad_id": [1, 2, 3, 4], "tags": tags})
        assert failure.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert failure.value.details().startswith("candidates[2]: cannot be scored")
        assert len(client.rank(CONTEXT, {"ad_id": [1, 2, 4], "tags": [[1], [2], [3]]}).pctr) == 3
