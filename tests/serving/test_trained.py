"""From log files to answers: the servers' scores equal those of the trainer's tables and networks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from livectr.client.clients import PreRankClient, RankClient
from livectr.kernels.table.layout import Values
from livectr.serving.app import App
from livectr.trainer.build import build
from livectr.trainer.comm.collectives import connect
from livectr.trainer.options import TrainOptions
from livectr.trainer.run import Training, train
from tests.serving.display_logs import write_logs
from tests.serving.display_pipeline import pipeline
from tests.serving.display_world import NOW_MS, World

SEED = 11


@pytest.mark.parametrize(("values", "continues"), [("fp32", False), ("bf16", False), ("fp32", True)])
def test_what_was_trained_is_served(
    tmp_path: Path,
    redis_url: str,
    world: World,
    serve: Callable[..., App],
    values: Values,
    continues: bool,
) -> None:
    """`continues`: a run without the words of the query, which begin at zero, unseen ones too."""
    served = replace(pipeline, row_values=values)
    clicks = write_logs(tmp_path / "logs", world, 2_000)
    options = TrainOptions(
        f"file:{tmp_path / 'logs'}",
        until_end=True,
        batch_size=64,
        batch_ramp=0,
        seed=SEED,
        publish=redis_url,
        take_over=True,
    )
    if continues:
        fields = {name: field for name, field in served.sparse.items() if name != "words"}
        first = replace(options, publish=None, checkpoint=str(tmp_path / "first"), max_steps=20)
        train(replace(served, sparse=fields), first)
        run = dict(warm_start=first.checkpoint, warm_parts="run", checkpoint=str(tmp_path / "second"))
        options = replace(options, **run)  # type: ignore[arg-type]
    with connect() as collectives, ExitStack() as resources:
        parts, stages = build(served, options, collectives, resources)
        report = Training(parts, stages).run()
        assert report.examples_trained == 2_000
        assert parts.step.from_zero == ({("rank", "words")} if continues else set())
        trained = World(parts.step)
        now_ms = NOW_MS + 3_000_000
        rank, prerank = serve("rank", served), serve("prerank", served)
        assert rank.follower.current.number == report.published_versions  # type: ignore[union-attr]
        ads = [*range(100, 150), 777]  # 777: nobody has seen it
        position = [i % 5 for i in range(len(ads))]
        with RankClient(rank.server.address) as ranks, PreRankClient(prerank.server.address) as towers:
            for user in (1, 7, 19, 555):
                columns = trained.columns(
                    user, ads, position, history=clicks.get(user, [])[-5:], query="blue SHOE", ts=now_ms
                )
                context = {"user_id": user, "ts": now_ms, "query": "blue SHOE", "tags": ["x", "y"]}
                response = ranks.rank(context, {"ad_id": ads, "position": position})
                pctr = 1 / (1 + np.exp(-trained.logits("rank", columns).astype(np.float64)))
                np.testing.assert_allclose(response.pctr, pctr[list(response.index)], atol=1e-6)
                chosen = towers.prerank({"user_id": user, "ts": now_ms}, ads, len(ads))
                logits = trained.logits("prerank", columns)
                np.testing.assert_allclose(chosen.score, logits[list(chosen.index)], atol=1e-5)
                assert chosen.unknown == 1
