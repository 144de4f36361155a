#!/usr/bin/env python3
"""Enforce NetworkPolicies on one node: poll the API server, write one nftables table.

The bridge plugin of CNI enforces none, and the enforcers in use (Calico, Cilium, kube-router) come as images.
This is an aid for tests: it polls once a second, and a new pod is open until the next poll.
"""

from __future__ import annotations

import argparse
import ipaddress
import json
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any

Object = Mapping[str, Any]
"""Object of the API, as JSON."""


@dataclass(frozen=True)
class State:
    """Objects that decide who may reach whom.

    Attributes:
        namespaces: labels by name.
        pods: pods with an address of their own.
        policies: all NetworkPolicies.
    """

    namespaces: Mapping[str, Mapping[str, str]]
    pods: Sequence[Object]
    policies: Sequence[Object]


@dataclass(frozen=True)
class Direction:
    """Ingress or egress, and the words for it in the API and in nftables."""

    kind: str
    rules: str
    peers: str
    own_address: str
    peer_address: str


DIRECTIONS = (
    Direction("Ingress", "ingress", "from", own_address="daddr", peer_address="saddr"),
    Direction("Egress", "egress", "to", own_address="saddr", peer_address="daddr"),
)


def render(state: State) -> str:
    """Text for `nft -f`: a chain for each pod and direction that a policy selects.

    A packet of a selected pod must match a rule of any of its policies, else it is dropped. Replies to
    accepted connections pass. Packets of the node itself (probes) never come here.
    """
    chains: list[str] = []
    jumps: list[str] = []
    for direction in DIRECTIONS:
        for pod in state.pods:
            policies = [policy for policy in state.policies if _selects(policy, pod, direction)]
            if policies:
                name = f"{direction.rules}_{pod['metadata']['uid'].replace('-', '_')}"
                body = [line for policy in policies for line in _accepting(policy, pod, direction, state)]
                chains += [f"  chain {name} {{", *(f"    {line}" for line in body), "    counter drop", "  }"]
                jumps.append(f"    ip {direction.own_address} {pod['status']['podIP']} jump {name}")
    return "\n".join(
        [
            # Created first, so that deleting never fails; all of it is one transaction.
            *("table ip netpol", "delete table ip netpol", "table ip netpol {"),
            *chains,
            "  chain forward {",
            "    type filter hook forward priority 10; policy accept;",
            "    ct state established,related accept",
            *jumps,
            *("  }", "}", ""),
        ]
    )


def matches(selector: Object | None, labels: Mapping[str, str]) -> bool:
    """True if a label selector selects these labels; None selects nothing, an empty one everything."""
    if selector is None:
        return False
    wanted = selector.get("matchLabels") or {}
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        _expression(expression, labels) for expression in selector.get("matchExpressions") or []
    )


def _expression(expression: Object, labels: Mapping[str, str]) -> bool:
    key, values = expression["key"], expression.get("values") or []
    match expression["operator"]:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
        case other:
            raise ValueError(f"operator {other!r} of a label selector")


def _labels(pod: Object) -> Mapping[str, str]:
    found: Mapping[str, str] = pod["metadata"].get("labels", {})
    return found


def _selects(policy: Object, pod: Object, direction: Direction) -> bool:
    spec = policy["spec"]
    return (
        policy["metadata"]["namespace"] == pod["metadata"]["namespace"]
        and direction.kind in spec.get("policyTypes", ["Ingress"])
        and matches(spec.get("podSelector", {}), _labels(pod))
    )


def _accepting(policy: Object, pod: Object, direction: Direction, state: State) -> Iterator[str]:
    """Lines that let packets of the policy's rules return to the forward chain, which accepts them."""
    for rule in policy["spec"].get(direction.rules) or []:
        peers = _peers(rule.get(direction.peers), policy["metadata"]["namespace"], state)
        if peers is not None and not peers:
            continue
        address = "" if peers is None else f"ip {direction.peer_address} {{ {', '.join(sorted(peers))} }} "
        # A named port belongs to the pod that is reached.
        reached = [pod] if direction.kind == "Ingress" else state.pods
        for port in _ports(rule.get("ports"), reached):
            yield f"{address}{port}return"


def _peers(peers: Sequence[Object] | None, namespace: str, state: State) -> set[str] | None:
    """Addresses and networks of a rule; None is everybody."""
    if not peers:
        return None
    found: set[str] = set()
    for peer in peers:
        if "ipBlock" in peer:
            found |= set(map(str, _networks(peer["ipBlock"])))
            continue
        for pod in state.pods:
            home = pod["metadata"]["namespace"]
            if "namespaceSelector" in peer:
                inside = matches(peer["namespaceSelector"], state.namespaces.get(home, {}))
            else:
                inside = home == namespace
            if inside and matches(peer.get("podSelector", {}), _labels(pod)):
                found.add(pod["status"]["podIP"])
    return found


def _networks(block: Object) -> list[ipaddress.IPv4Network]:
    networks = [ipaddress.IPv4Network(block["cidr"])]
    for text in block.get("except", []):
        hole = ipaddress.IPv4Network(text)
        networks = [
            part
            for network in networks
            for part in (network.address_exclude(hole) if hole.subnet_of(network) else [network])
        ]
    return networks


def _ports(ports: Sequence[Object] | None, reached: Sequence[Object]) -> Iterator[str]:
    if not ports:
        yield ""
    for port in ports or []:
        protocol, number = port.get("protocol", "TCP").lower(), port.get("port")
        if number is None:
            yield f"meta l4proto {protocol} "
        elif isinstance(number, int):
            yield f"{protocol} dport {number}{'-{}'.format(port['endPort']) if 'endPort' in port else ''} "
        else:
            for named in sorted(set(_named(number, reached))):
                yield f"{protocol} dport {named} "


def _named(name: str, pods: Sequence[Object]) -> Iterator[int]:
    for pod in pods:
        for container in pod["spec"]["containers"]:
            for port in container.get("ports", []):
                if port.get("name") == name:
                    yield port["containerPort"]


class Api:
    """Connection to the API server, kept open: a `kubectl` a second for each kind would take half a core.

    Args:
        server: host:port.
        pki: folder of the certificates.
    """

    def __init__(self, server: str, pki: Path) -> None:
        context = ssl.create_default_context(cafile=pki / "ca.crt")
        context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
        self._connection = HTTPSConnection(server, context=context, timeout=10)

    def state(self) -> State:
        """Objects of the moment. Raises OSError or HTTPException when the server does not answer."""
        spaces, pods = self._items("/api/v1/namespaces"), self._items("/api/v1/pods")
        return State(
            {space["metadata"]["name"]: space["metadata"].get("labels", {}) for space in spaces},
            [pod for pod in pods if _has_address(pod)],
            self._items("/apis/networking.k8s.io/v1/networkpolicies"),
        )

    def _items(self, path: str) -> list[Object]:
        try:
            self._connection.request("GET", path)
            response = self._connection.getresponse()
            body = response.read()
        except (OSError, HTTPException):
            self._connection.close()  # the next request opens another
            raise
        if response.status != HTTPStatus.OK:
            raise HTTPException(f"{path}: {response.status} {response.reason}")
        found: list[Object] = json.loads(body)["items"]
        return found


def _has_address(pod: Object) -> bool:
    status = pod["status"]
    own = not pod["spec"].get("hostNetwork")
    return bool(status.get("podIP")) and own and status.get("phase") in ("Running", "Pending")


def main() -> None:
    """Follow the API server until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", required=True)
    parser.add_argument("--pki", required=True, type=Path)
    given = parser.parse_args()
    api, written = Api(given.server, given.pki), ""
    while True:
        try:
            text = render(api.state())
            if text != written:
                subprocess.run(["nft", "-f", "-"], input=text, text=True, capture_output=True, check=True)
                written = text
                print(f"{text.count(' jump ')} selected pods", flush=True)
        except (OSError, HTTPException) as error:
            print(f"the API server does not answer: {error}", file=sys.stderr, flush=True)
        except subprocess.CalledProcessError as error:
            print(error.stderr, file=sys.stderr, flush=True)
        time.sleep(1)


if __name__ == "__main__":
    main()
