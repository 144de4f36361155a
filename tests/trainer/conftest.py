"""An empty Redis, and trainers that end with the test."""

from collections.abc import Iterator

import pytest
import redis

from livectr.trainer.stream import batcher
from tests.redis_cluster import Cluster
from tests.redis_servers import ClusterClient
from tests.trainer.publishing import Trainer


@pytest.fixture
def redis_url(request: pytest.FixtureRequest, redis_url: str) -> str:
    """URL of the session's server; of its cluster, for the parameter "cluster"."""
    if getattr(request, "param", "server") == "server":
        return redis_url
    cluster: Cluster = request.getfixturevalue("redis_cluster")
    return cluster.url


@pytest.fixture
def client(request: pytest.FixtureRequest, redis_url: str) -> Iterator[redis.Redis | ClusterClient]:
    """Client of the session's server or cluster, which is empty."""
    if redis_url.startswith("redis+cluster"):
        cluster: Cluster = request.getfixturevalue("redis_cluster")
        cluster.empty()
        with ClusterClient("127.0.0.1", cluster.ports[0]) as connected:
            yield connected
    else:
        with redis.Redis.from_url(redis_url) as client:
            client.flushall()
            yield client


@pytest.fixture
def trainers(client: redis.Redis) -> Iterator[list[Trainer]]:
    """Trainers that a test appends are closed after it."""
    made: list[Trainer] = []
    yield made
    for trainer in made:
        trainer.publisher.close()


@pytest.fixture
def batches_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches in no block: a boundary, at which a test acts or a commit is made, follows each of them."""
    monkeypatch.setattr(batcher, "BLOCK", 1)
