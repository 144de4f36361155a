"""Edges between pods: exactly those that are listed here are allowed, in both directions."""

from __future__ import annotations

from typing import Any

import pytest

from tests.k8s_static.rendering import OVERLAYS, Manifest, containers, matches, of_kind, pods

KAFKA, REDIS = 9092, 6379
EDGES = {
    ("trainer", "trainer", 29400),
    ("trainer", "trainer", 8081),  # of all ports from 1024 on: Gloo picks them
    ("trainer", "trainer", 9100),
    ("trainer", "kafka", KAFKA),
    ("trainer", "redis", REDIS),
    ("rank", "redis", REDIS),
    ("prerank", "redis", REDIS),
    ("redis", "valkey", REDIS),
    ("redis", "sentinel", 26379),
    ("valkey", "valkey", REDIS),
    ("valkey", "sentinel", 26379),
    ("sentinel", "valkey", REDIS),
    ("sentinel", "sentinel", 26379),
    ("simulator", "kafka", KAFKA),
    ("client", "rank", 50051),
    ("client", "prerank", 50051),
    ("prometheus", "trainer", 9100),
    ("prometheus", "rank", 9100),
    ("prometheus", "prerank", 9100),
    ("prometheus", "redis", 8404),
}
"""Source, target, port in overlays/local."""
HERE = {"kubernetes.io/metadata.name": "livectr"}

Peer = tuple[dict[str, str], dict[str, str]]
"""Labels of a pod, labels of its namespace."""


def admits(policies: list[Manifest], way: str, pod: Peer, other: Peer, port: int) -> bool:
    """True when policies let the pod receive from (Ingress) or send to (Egress) the other."""
    key, word = ("ingress", "from") if way == "Ingress" else ("egress", "to")
    mine = [
        policy["spec"]
        for policy in policies
        if way in policy["spec"]["policyTypes"] and matches(policy["spec"]["podSelector"], pod[0])
    ]
    return not mine or any(
        _peer(rule.get(word), pod, other) and _port(rule.get("ports"), port)
        for policy in mine
        for rule in policy.get(key) or []
    )


def _peer(peers: list[dict[str, Any]] | None, pod: Peer, other: Peer) -> bool:
    return peers is None or any(
        "ipBlock" not in peer
        and matches(peer.get("podSelector", {}), other[0])
        and (
            matches(peer["namespaceSelector"], other[1])
            if "namespaceSelector" in peer
            else pod[1] == other[1]
        )
        for peer in peers
    )


def _port(ports: list[dict[str, Any]] | None, port: int) -> bool:
    return ports is None or any(
        p.get("protocol", "TCP") == "TCP" and p["port"] <= port <= p.get("endPort", p["port"]) for p in ports
    )


def labels(name: str) -> dict[str, dict[str, str]]:
    """Labels of an overlay's pods, by their app.kubernetes.io/name."""
    return {
        (own := template["metadata"]["labels"])["app.kubernetes.io/name"]: own for _, template in pods(name)
    }


def open_ports(name: str) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for _, template in pods(name):
        own = found.setdefault(template["metadata"]["labels"]["app.kubernetes.io/name"], set())
        own |= {port["containerPort"] for c in containers(template) for port in c.get("ports", [])}
    return found


def edges(name: str) -> set[tuple[str, str, int]]:
    """Connections to a declared port that both ends allow."""
    policies, known = of_kind(name, "NetworkPolicy"), labels(name)
    return {
        (source, target, port)
        for source, from_labels in known.items()
        for target, to_labels in known.items()
        for port in open_ports(name)[target]
        if admits(policies, "Egress", (from_labels, HERE), (to_labels, HERE), port)
        and admits(policies, "Ingress", (to_labels, HERE), (from_labels, HERE), port)
    }


def test_these_edges_and_no_others() -> None:
    assert edges("local") == EDGES


@pytest.mark.parametrize("name", OVERLAYS)
def test_everything_else_is_denied(name: str) -> None:
    """A pod without a role can neither be reached nor reach anybody, but for DNS."""
    policies, stranger = of_kind(name, "NetworkPolicy"), ({"app.kubernetes.io/name": "stranger"}, HERE)
    if name == "canary":  # it is applied beside the stable track, whose policies hold for its pods
        assert not policies
        return
    for target, own in labels(name).items():
        for port in open_ports(name)[target]:
            assert not admits(policies, "Egress", stranger, (own, HERE), port), target
            assert not admits(policies, "Ingress", (own, HERE), stranger, port), target
    for source, own in labels(name).items():
        assert not admits(policies, "Egress", (own, HERE), ({}, {"team": "other"}), 443), source


def test_pods_of_another_namespace_need_both_labels() -> None:
    policies, rank = of_kind("local", "NetworkPolicy"), (labels("local")["rank"], HERE)
    client, there = {"livectr.dev/client": "true"}, {"kubernetes.io/metadata.name": "shop"}
    assert not admits(policies, "Ingress", rank, (client, there), 50051)
    assert not admits(policies, "Ingress", rank, ({}, there | client), 50051)
    assert admits(policies, "Ingress", rank, (client, there | client), 50051)
    assert not admits(policies, "Ingress", rank, (client, there | client), 9100)


def test_production_names_the_ways_out() -> None:
    out = {p["metadata"]["name"]: p["spec"] for p in of_kind("production", "NetworkPolicy")}
    for name, port in (("trainer-to-kafka", KAFKA), ("producer-to-kafka", KAFKA), ("to-redis", REDIS)):
        (rule,) = out[name]["egress"]
        assert all(peer["ipBlock"]["cidr"] not in ("0.0.0.0/0", "::/0") for peer in rule["to"])
        assert [p["port"] for p in rule["ports"]] == [port]


def test_a_recommend_server_has_the_edges_of_a_rank_server_and_both_log_what_they_serve() -> None:
    found = edges("recommend")
    assert ("recommend", "redis", REDIS) in found and ("prometheus", "recommend", 9100) in found
    ours = {
        role: {
            tuple(each.replace(role, "ROLE") if isinstance(each, str) else each for each in edge)
            for edge in found
            if role in edge
        }
        for role in ("rank", "recommend")
    }
    assert ours["rank"] == ours["recommend"]
    kafka = {source for source, target, _ in found if target == "kafka"}
    assert kafka == {"trainer", "rank", "recommend", "offline"}


def test_offline_work_reaches_kafka_alone() -> None:
    work = {source: (target, port) for source, target, port in edges("queue") if source == "offline"}
    assert work == {"offline": ("kafka", KAFKA)}
