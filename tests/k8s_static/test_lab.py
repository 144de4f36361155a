"""Parts of the lab that need no cluster: the rules of its enforcer of NetworkPolicies, and its programs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import k8s.lab
from k8s.lab.netpol import State, matches, render


def pod(name: str, ip: str, namespace: str = "a", **labels: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}", "labels": labels},
        "spec": {"containers": [{"ports": [{"name": "grpc", "containerPort": 50051}]}]},
        "status": {"podIP": ip, "phase": "Running"},
    }


def policy(spec: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"namespace": "a"}, "spec": spec}


PODS = [
    pod("server", "10.0.0.1", app="server"),
    pod("friend", "10.0.0.2", app="friend"),
    pod("stranger", "10.0.0.3", app="stranger"),
    pod("guest", "10.0.0.4", namespace="b", app="friend"),
]
NAMESPACES = {"a": {"name": "a"}, "b": {"name": "b"}}


def chains(*policies: dict[str, Any]) -> dict[str, list[str]]:
    """Chain → its lines."""
    found: dict[str, list[str]] = {}
    for line in render(State(NAMESPACES, PODS, policies)).splitlines():
        words = line.split()
        if words[:1] == ["chain"]:
            lines = found.setdefault(words[1], [])
        elif line.startswith("    "):
            lines.append(line.strip())
    return found


def test_without_a_policy_everything_passes() -> None:
    assert list(chains()) == ["forward"]


def test_default_deny_drops_both_directions_of_every_pod_of_its_namespace() -> None:
    found = chains(policy({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}))
    assert len(found) == 1 + 2 * 3
    assert found["ingress_uid_server"] == found["egress_uid_server"] == ["counter drop"]
    assert "ip daddr 10.0.0.1 jump ingress_uid_server" in found["forward"]
    assert "ip saddr 10.0.0.1 jump egress_uid_server" in found["forward"]
    assert not [line for line in found["forward"] if "10.0.0.4" in line]


def test_rules_name_peers_and_ports() -> None:
    friends = {"podSelector": {"matchLabels": {"app": "friend"}}}
    ingress = [{"from": [friends], "ports": [{"port": "grpc"}, {"port": 9100, "endPort": 9115}]}]
    found = chains(policy({"podSelector": {"matchLabels": {"app": "server"}}, "ingress": ingress}))
    assert found["ingress_uid_server"] == [
        "ip saddr { 10.0.0.2 } tcp dport 50051 return",
        "ip saddr { 10.0.0.2 } tcp dport 9100-9115 return",
        "counter drop",
    ]


def test_a_namespace_selector_reaches_other_namespaces() -> None:
    peer = {
        "namespaceSelector": {"matchLabels": {"name": "b"}},
        "podSelector": {"matchLabels": {"app": "friend"}},
    }
    found = chains(policy({"podSelector": {}, "policyTypes": ["Egress"], "egress": [{"to": [peer]}]}))
    assert found["egress_uid_friend"] == ["ip daddr { 10.0.0.4 } return", "counter drop"]


def test_blocks_have_holes() -> None:
    block = {"ipBlock": {"cidr": "10.1.0.0/30", "except": ["10.1.0.1/32"]}}
    spec = {"podSelector": {}, "ingress": [{"from": [block], "ports": [{"protocol": "UDP", "port": 53}]}]}
    found = chains(policy(spec))
    assert found["ingress_uid_server"][0] == "ip saddr { 10.1.0.0/32, 10.1.0.2/31 } udp dport 53 return"


def test_a_rule_whose_peers_are_not_there_lets_nobody_in() -> None:
    nobody = {"podSelector": {"matchLabels": {"app": "nobody"}}}
    found = chains(policy({"podSelector": {}, "ingress": [{"from": [nobody]}]}))
    assert found["ingress_uid_server"] == ["counter drop"]
    assert chains(policy({"podSelector": {}, "ingress": [{}]}))["ingress_uid_server"] == [
        "return",
        "counter drop",
    ]


def test_selectors_select() -> None:
    labels = {"app": "rank", "track": "stable"}
    assert matches({}, labels) and not matches(None, labels)
    for operator, values, selects in [
        ("In", ["rank"], True), ("NotIn", ["rank"], False), ("Exists", [], True), ("DoesNotExist", [], False),
    ]:  # fmt: skip
        selector = {"matchExpressions": [{"key": "app", "operator": operator, "values": values}]}
        assert matches(selector, labels) is selects


def test_a_kubectl_that_is_gone_is_linked_again(tmp_path: Path) -> None:
    """It was that of a checkout's virtual environment."""
    own, kept = tmp_path / "kubectl", tmp_path / "bin"
    own.touch(0o755)
    kept.mkdir()
    (kept / "kubectl").symlink_to(tmp_path / "gone")
    link = "import binaries, pathlib, sys; binaries.BIN = pathlib.Path(sys.argv[1]); binaries._kubectl()"
    (lab,) = k8s.lab.__path__  # its programs import each other by their bare names
    command = [sys.executable, "-c", link, str(kept)]
    subprocess.run(command, cwd=lab, env={"PATH": str(tmp_path)}, check=True)
    assert (kept / "kubectl").resolve() == own
