"""`livectr.score` gives what a rank server gives for the same version."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import livectr
from livectr.kernels.table.layout import Values
from livectr.serving.app import App
from tests.serving.display_logs import write_logs
from tests.serving.display_pipeline import pipeline
from tests.serving.display_world import NOW_MS, World


@pytest.mark.parametrize("values", ["fp32", "bf16"])
def test_scores_are_those_of_the_rank_server(
    tmp_path: Path, redis_url: str, world: World, serve: Callable[..., App], values: Values
) -> None:
    served = replace(pipeline, row_values=values)
    clicks = write_logs(tmp_path / "logs", world, 1_000)
    trained = livectr.train(
        served,
        source=f"file:{tmp_path / 'logs'}",
        checkpoint=tmp_path / "checkpoint",
        publish=redis_url,
        take_over=True,
        batch_size=64,
        batch_ramp=0,
        threads=1,
    )
    server = serve("rank", served)
    now_ms, ads = NOW_MS + 3_000_000, [*range(100, 150), 777]  # 777: nobody has seen it
    position = [i % 5 for i in range(len(ads))]
    (history,) = (root.name for root in served.history_roots)
    tables = {
        "users": [dict(zip(("user_id", "age", "city"), row, strict=True)) for row in world.users.values()],
        "ads": [dict(zip(("ad_id", "category", "price"), row, strict=True)) for row in world.ads.values()],
    }
    with livectr.RankClient(server.server.address) as client:
        for user in (1, 7, 555):
            context: dict[str, Any] = {
                "user_id": user,
                "ts": now_ms,
                "query": "blue SHOE",
                "tags": ["x", "y"],
            }
            response = client.rank(context, {"ad_id": ads, "position": position})
            context[history] = clicks.get(user, [])[-5:]
            rows = [{**context, "ad_id": ad, "position": at} for ad, at in zip(ads, position, strict=True)]
            pctr = livectr.score(served, trained.checkpoint, rows, tables=tables)
            np.testing.assert_allclose(pctr[list(response.index)], response.pctr, rtol=0, atol=1e-7)
