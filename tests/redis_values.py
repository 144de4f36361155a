"""Values in Redis as tests read them: bytes, as no test asks for decoded answers."""

from __future__ import annotations

from collections.abc import Sequence

import redis

from livectr.store.layout import Keyspace
from livectr.store.manifest import VersionManifest
from tests.redis_servers import ClusterClient


def value(client: redis.Redis | ClusterClient, name: str | bytes) -> bytes:
    """Value of a key that is there."""
    found = client.get(name)
    assert isinstance(found, bytes), f"{name!r} is not in Redis"
    return found


def values(client: redis.Redis | ClusterClient, names: Sequence[str | bytes]) -> list[bytes | None]:
    """Values of keys; None: the key is not there."""
    found: list[bytes | None] = []
    for one in client.mget(names):
        assert not isinstance(one, str)
        found.append(one)
    return found


def manifest_in(client: redis.Redis | ClusterClient, namespace: str = "livectr") -> VersionManifest:
    """Manifest of the version that is served."""
    return VersionManifest.from_json(value(client, Keyspace(namespace).manifest))
