"""An empty Redis, and trainers that end with the test."""

from collections.abc import Iterator

import pytest
import redis

from tests.trainer.publishing import Trainer


@pytest.fixture
def client(redis_url: str) -> redis.Redis:
    """Client of the session's Redis, which is empty."""
    client = redis.Redis.from_url(redis_url)
    client.flushall()
    return client


@pytest.fixture
def trainers(client: redis.Redis) -> Iterator[list[Trainer]]:
    """Trainers that a test appends are closed after it."""
    made: list[Trainer] = []
    yield made
    for trainer in made:
        trainer.publisher.close()
