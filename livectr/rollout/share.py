"""Live share of the canary in Redis (`store.live_share`), as `livectr rollout` sets it.

While a rollout compares, the share is a lease: it expires unless the rollout renews it. So a rollout that is
killed gives its share back, and the old side answers. Promotion and `rollout share` set it for good.
"""

from __future__ import annotations

from livectr.store.layout import Keyspace
from livectr.store.live_share import LiveShare
from livectr.store.manifest import VersionManifest
from livectr.store.redis_client import connected

LEASE_S = 30
TAKEN_S = 2.0
"""Time after which servers have taken a share: they look every half second, a slow look included."""


def set_share(url: str, stable: str, canary: str, share: float, *, lease: bool) -> None:
    """Give the canary a share of the requests.

    Args:
        url: Redis.
        stable: namespace of the servers' stable side.
        canary: namespace of their canary.
        share: 0 to 1.
        lease: it expires after LEASE_S.

    Raises:
        ConnectError: Redis does not answer.
    """
    with connected(url) as client:
        client.set(Keyspace(stable).canary, LiveShare(canary, share).to_json(), ex=LEASE_S if lease else None)


def share_of(url: str, stable: str, canary: str) -> float | None:
    """Live share of a canary; None: there is none. Raises ConnectError."""
    with connected(url) as client:
        found = LiveShare.of(client.get(Keyspace(stable).canary))
    return found.share if found is not None and found.ns == canary else None


def take_share(url: str, stable: str, canary: str) -> None:
    """Remove the live share of a canary; that of another one stays. Raises ConnectError."""
    with connected(url) as client:
        found = LiveShare.of(client.get(Keyspace(stable).canary))
        if found is not None and found.ns == canary:
            client.delete(Keyspace(stable).canary)


def published(url: str, namespace: str) -> int:
    """Newest version of a namespace; 0: none. Raises ConnectError."""
    with connected(url) as client:
        text = client.get(Keyspace(namespace).manifest)
    return VersionManifest.from_json(text).version if text is not None else 0
