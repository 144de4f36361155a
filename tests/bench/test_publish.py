"""Publish benchmark: both sides write all rows, to a server and to a cluster; rows of the table."""

from __future__ import annotations

import numpy as np
import pytest
import redis

from bench.publish import (
    CHANGED,
    COMPLETE,
    COPY,
    GOAL_ROWS_S,
    LAYOUT,
    SETUPS,
    measure,
    publish,
    rows_of,
)
from bench.run import _complete
from livectr.store.layout import slot_bytes
from livectr.store.manifest import VersionManifest
from livectr.system.errors import InternalError
from livectr.trainer.comm.control import Control
from livectr.trainer.publish.redis_store import RedisStore
from tests.redis_cluster import Cluster
from tests.redis_values import values
from tests.trainer.publishing import Trainer, snapshot

COUNT = 300


@pytest.mark.parametrize("clustered", [False, True])
def test_both_sides_write_all_rows(redis_url: str, redis_cluster: Cluster, clustered: bool) -> None:
    servers = redis_cluster.clients() if clustered else [redis.Redis.from_url(redis_url)]
    found = measure(Control(), redis_cluster.url if clustered else redis_url, COUNT, rounds=2)
    assert found.keys() == {CHANGED, COMPLETE, COPY, f"{CHANGED}, peer", f"{COMPLETE}, peer"}
    assert all(np.shape(costs) == (1 if name == COPY else 3,) for name, costs in found.items())
    assert all(cost > 0 for costs in found.values() for cost in costs)
    texts = [text for server in servers if (text := _get(server, "{bench}:manifest")) is not None]
    (manifest,) = map(VersionManifest.from_json, texts)
    assert (manifest.version, manifest.tables) == (3, {"bench": COUNT}), "complete, changed twice; one round"
    for pattern, slots in ((f"bench:{{*}}:{manifest.row_set}:bench:*", 2), ("peer:{*}:1-0:bench:*", 1)):
        sizes = [server.strlen(name) for server in servers for name in server.scan_iter(pattern, count=1000)]
        assert sizes == [slots * slot_bytes(LAYOUT.dim)] * COUNT, pattern
        assert all(any(server.scan_iter(pattern)) for server in servers), "every node has rows"


def _get(server: redis.Redis, name: str) -> bytes | None:
    """Value of a key; None, too, on a node that does not hold it."""
    try:
        (held,) = values(server, [name])
    except redis.exceptions.MovedError:
        return None
    return held


def test_a_version_that_is_not_flipped_has_no_figure(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    redis.Redis.from_url(redis_url).flushall()
    trainer = Trainer(redis_url)

    def flip(*_: object, **__: object) -> None:
        raise redis.ConnectionError("refused by a test")

    monkeypatch.setattr(RedisStore, "flip", flip)
    with pytest.raises(InternalError, match="was not published"):
        publish(trainer.publisher, snapshot(1, np.arange(10)))
    trainer.publisher.close()


def test_rows_of_every_setup() -> None:
    ours, peer = (0.5, 0.2, 0.4), (1.0, 0.8, 0.3)
    found: dict[str, tuple[float, ...]] = {COPY: (0.01,)}
    for figure in (CHANGED, COMPLETE):
        found |= {figure: ours, f"{figure}, peer": peer}
    every = [
        _complete("publish", row) for nodes, world in SETUPS for row in rows_of(found, 100_000, nodes, world)
    ]
    assert len({(row["figure"], row["workload"]) for row in every}) == len(every) == 20
    first = every[0]
    assert first["figure"] == "changed rows of a version, to the flip", "livectr plan takes the first row"
    assert first["workload"] == "100,000 rows of D = 17 float32, one rank, server on this machine"
    assert (first["ours"], first["peer"], first["ratio"], first["met"]) == (200_000, 100_000, 2.0, True)
    cpu = {row["figure"]: (row["ours"], row["ratio"]) for row in every if row["unit"] == "µs/row"}
    assert cpu[f"CPU of the ranks, {COMPLETE}"] == (pytest.approx(2), pytest.approx(4))
    assert cpu[f"CPU of the servers, {COMPLETE}"] == (pytest.approx(4), pytest.approx(0.75))
    (goal,) = (row for row in every if row["goal"] == GOAL_ROWS_S)
    assert "2 ranks, cluster of 2 nodes" in goal["workload"] and goal["met"] is False
