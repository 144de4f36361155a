"""Items with string keys: requests and replies hold names, vectors are found by the names' keys."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from livectr.client.clients import PreRankClient
from livectr.ingest.language.keys import hash_strings
from livectr.serving.app import App
from livectr.store.layout import Keyspace
from tests.serving.named_songs import NAMES, pipeline, published


@pytest.mark.parametrize("with_vectors", [True, False])
def test_names_go_in_and_come_out(redis_url: str, serve: Callable[..., App], with_vectors: bool) -> None:
    published(redis_url, with_vectors=with_vectors)
    with PreRankClient(serve("prerank", pipeline).server.address) as client:
        assert [c.name for c in client.describe().columns] == ["user"]
        some = client.prerank({"user": "anna"}, [*NAMES[:2], "unheard"], 3)
        everything = client.prerank({"user": "anna"}, None, 10)
    assert sorted(some.names.values) == sorted([*NAMES[:2], "unheard"])
    assert [[*NAMES[:2], "unheard"][i] for i in some.index] == list(some.names.values)
    assert some.unknown == (1 if with_vectors else 3)
    assert sorted(everything.names.values) == (sorted(NAMES) if with_vectors else [])


def test_names_that_redis_lost_are_marked(redis_url: str, serve: Callable[..., App]) -> None:
    """The server holds the vectors of the catalogue; only Redis holds the names."""
    published(redis_url, with_vectors=True)
    app = serve("prerank", pipeline, lookup_ttl_s=0.0)
    redis.Redis.from_url(redis_url).unlink(*Keyspace("livectr").lookup_rows("songs", hash_strings(NAMES)))
    client = redis.Redis.from_url(redis_url)
    with PreRankClient(app.server.address) as towers:
        assert not towers.prerank({"user": "anna"}, None, 4).degraded  # removed by the trainer: they are gone
        client.flushall()
        assert towers.prerank({"user": "anna"}, None, 4).degraded
