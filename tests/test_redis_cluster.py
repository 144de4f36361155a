"""The cluster of Redis servers that tests and benchmarks start comes up on a starved machine."""

from __future__ import annotations

import pytest

from tests import redis_cluster
from tests.redis_cluster import Cluster, ask


def test_nodes_whose_handshake_was_forgotten_are_introduced_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node forgets a handshake that takes longer than its time-out, and never tries it again."""
    introduce, calls = Cluster._introduce, []

    def forgotten(self: Cluster, clients: object) -> None:
        calls.append(clients)
        if len(calls) > 1:
            introduce(self, clients)  # type: ignore[arg-type]

    monkeypatch.setattr(Cluster, "_introduce", forgotten)
    monkeypatch.setattr(redis_cluster, "HANDSHAKE_POLLS", 5)
    with Cluster() as cluster:
        for client in cluster.clients():
            assert ask(client, "CLUSTER INFO")["cluster_state"] == "ok"
            client.close()
    assert len(calls) > 1
