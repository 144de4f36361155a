"""From logs to answers with images: a version holds what was trained, for the served models only."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import redis
import torch
from safetensors.torch import load as load_tensors

from livectr.client.clients import PreRankClient, RankClient
from livectr.models import DNN
from livectr.models.embedding import EmbeddingModel
from livectr.serving.app import App
from livectr.store.vectors import decode_vectors
from livectr.trainer.build import build
from livectr.trainer.comm.collectives import connect
from livectr.trainer.options import TrainOptions
from livectr.trainer.run import Training
from tests.redis_values import value
from tests.serving.content_logs import write_logs
from tests.serving.content_world import ADS, NOW_MS, SEED, SEGMENTS, World, make_store, pipeline


def test_what_was_trained_is_served(tmp_path: Path, redis_url: str, serve: Callable[..., App]) -> None:
    clicks = write_logs(tmp_path / "logs", 600)
    make_store(tmp_path / "images")
    options = TrainOptions(
        f"file:{tmp_path / 'logs'}",
        until_end=True,
        batch_size=64,
        batch_ramp=0,
        seed=SEED,
        publish=redis_url,
        min_examples=0,
        take_over=True,
        content=f"images={tmp_path / 'images'}",
    )
    with connect() as collectives, ExitStack() as resources:
        parts, stages = build(pipeline, options, collectives, resources)
        assert Training(parts, stages).run().examples_trained == 600
        store = make_store(tmp_path / "same")
        trained = World(store, parts.step)
        rank, prerank = serve("rank", pipeline), serve("prerank", pipeline)
        manifest = rank.follower.current.manifest  # type: ignore[union-attr]

        # the shadow model is not in the version
        assert "ids" in parts.step.models and parts.step.spec.layout.dim > manifest.dim
        assert manifest.segments == SEGMENTS
        client = redis.Redis.from_url(redis_url)
        dense: dict[str, torch.Tensor] = {}
        for name in manifest.dense:
            dense |= load_tensors(client.get(name))
        assert {name.partition(".")[0] for name in dense} == {"rank", "prerank", "content"}

        # published vectors = recomputed vectors
        network = EmbeddingModel(width=16, hidden=(10, 8), out=4).network("any", 0)
        prefix = "content.images."
        network.load({n.removeprefix(prefix): t for n, t in dense.items() if n.startswith(prefix)})
        published = [decode_vectors(value(client, name)) for name in manifest.content["images"]]
        ids, vectors = (np.concatenate([part[i] for part in published]) for i in (0, 1))
        assert sorted(ids.tolist()) == sorted(store.ids.tolist())
        rows, known = store.read(ids)
        with torch.no_grad():
            again = network(torch.from_numpy(rows), torch.from_numpy(known)).numpy()
        np.testing.assert_allclose(vectors, again, rtol=1e-5, atol=1e-6)
        client.close()

        # replies = the trainer's logits
        now_ms, shown = NOW_MS + 700_000, [*ADS, 777]
        with RankClient(rank.server.address) as ranks, PreRankClient(prerank.server.address) as towers:
            for user in (1, 7, 555):
                columns = trained.columns(user, shown, clicks.get(user, [])[-6:])
                response = ranks.rank({"user_id": user, "ts": now_ms}, {"ad_id": shown})
                pctr = 1 / (1 + np.exp(-trained.logits("rank", columns).astype(np.float64)))
                np.testing.assert_allclose(response.pctr, pctr[list(response.index)], atol=1e-6)
                chosen = towers.prerank({"user_id": user, "ts": now_ms}, shown, len(shown))
                logits = trained.logits("prerank", columns)
                np.testing.assert_allclose(chosen.score, logits[list(chosen.index)], atol=1e-5)


@pytest.mark.parametrize("champion", ["rank", "pictured"])
def test_a_challenger_may_look_at_pictures(
    tmp_path: Path, redis_url: str, serve: Callable[..., App], champion: str
) -> None:
    """Vectors are published for all contenders, and looked at only by the champion that reads them."""
    clicks = write_logs(tmp_path / "logs", 300)
    make_store(tmp_path / "images")
    contested = replace(
        pipeline, rank=DNN(dim=3, hidden=(8,)), challengers={"pictured": pipeline.rank}, shadows={}
    )
    options = TrainOptions(
        f"file:{tmp_path / 'logs'}",
        until_end=True,
        batch_size=64,
        batch_ramp=0,
        seed=SEED,
        publish=redis_url,
        min_examples=0,
        content=f"images={tmp_path / 'images'}",
    )
    with connect() as collectives, ExitStack() as resources:
        parts, stages = build(contested, options, collectives, resources)
        contest = parts.evaluation.contest if parts.evaluation is not None else None
        assert contest is not None
        contest.policy.champion = champion  # as a checkpoint would have it; the window is not full
        assert Training(parts, stages).run().contest["champion"] == champion
        trained = World(make_store(tmp_path / "same"), parts.step)
        rank = serve("rank", contested)
        manifest = rank.follower.current.manifest  # type: ignore[union-attr]
        assert manifest.champion == champion and manifest.content["images"]
        assert {name.partition(".")[0] for name, _ in manifest.segments} == {champion, "prerank"}
        shown, user = [*ADS, 777], 7
        with RankClient(rank.server.address) as ranks:
            columns = trained.columns(user, shown, clicks.get(user, [])[-6:])
            response = ranks.rank({"user_id": user, "ts": NOW_MS + 700_000}, {"ad_id": shown})
            pctr = 1 / (1 + np.exp(-trained.logits(champion, columns).astype(np.float64)))
            np.testing.assert_allclose(response.pctr, pctr[list(response.index)], atol=1e-6)
