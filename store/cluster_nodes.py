"""Nodes of a Redis Cluster, as redis-py's client keeps them."""

from __future__ import annotations

from collections.abc import Sequence

from redis.cluster import ClusterNode, RedisCluster


def given(nodes: Sequence[tuple[str, int]]) -> list[ClusterNode]:
    """Nodes of a URL."""
    return [ClusterNode(host, port) for host, port in nodes]  # type: ignore[no-untyped-call]


def remember(cluster: RedisCluster, nodes: Sequence[tuple[str, int]]) -> None:
    """Ask the nodes that are known and the nodes of the URL when nodes are looked up again."""
    manager = cluster.nodes_manager
    manager.startup_nodes = {node.name: node for node in given(nodes)} | manager.nodes_cache


def look_up(cluster: RedisCluster, nodes: Sequence[tuple[str, int]]) -> None:
    """Ask the cluster for its nodes and their slots."""
    cluster.nodes_manager.initialize()
    remember(cluster, nodes)


def primaries(cluster: RedisCluster) -> list[ClusterNode]:
    """Primaries of all slots."""
    found: list[ClusterNode] = cluster.get_primaries()  # type: ignore[no-untyped-call]
    return found
