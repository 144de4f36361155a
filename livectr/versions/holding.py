"""Hold and release of a namespace: keys in Redis that its trainer obeys (store.hold)."""

from __future__ import annotations

from livectr.store.hold import Hold
from livectr.store.layout import Keyspace
from livectr.store.redis_client import connected
from livectr.system.errors import ConfigError

RELEASE_LASTS_S = 60
"""Time for which a trainer may find an operator's release; a trainer that starts later has not been asked."""


def hold(url: str, namespace: str, reason: str) -> str:
    """Hold a namespace: from here on no trainer flips a version, until `release`.

    Returns:
        Sentence on what holds.

    Raises:
        ConfigError: nothing is published, so that there is nothing to hold.
        ConnectError: Redis does not answer.
    """
    keys = Keyspace(namespace)
    with connected(url) as client:
        client.set(keys.hold, Hold.at_once(reason).to_json())
        # After the hold: this version stays.
        text = client.get(keys.manifest)
        if text is None:
            client.delete(keys.hold)
    if text is None:
        raise ConfigError(f"nothing is published under the namespace {namespace!r}; there is nothing to hold")
    return f"held: servers stay with version {served(text)}, and the trainer continues learning"


def release(url: str, namespace: str) -> str:
    """Release a namespace, and let the trainer's publish gate accept its newest window.

    Returns:
        Sentence on what was released.

    Raises:
        ConnectError: Redis does not answer.
    """
    keys = Keyspace(namespace)
    with connected(url) as client:
        held = Hold.of(client.get(keys.hold))
        client.set(keys.release, b"1", ex=RELEASE_LASTS_S)
        client.delete(keys.hold)
    before = f"the hold is gone ({held.reason})" if held is not None else "there was no hold"
    return f"{before}; a publish gate that holds versions accepts its newest window; a trainer publishes soon"


def served(text: bytes | str) -> int:
    """Number of the version of a manifest's text."""
    from livectr.store.manifest import VersionManifest

    return VersionManifest.from_json(text).version
