"""Ours beside what a user would write or install instead: equal weights, ids, requests and scores.

    ONNX Runtime       the network alone, vectors in process: no server, no Redis
    lines, Redis       a user's own gRPC server: user and ad rows by MGET, ONNX Runtime
    lines, in process  the same, ad rows in process
    Feast              its online store on Redis, ONNX Runtime: no server
    LitServe, BentoML  JSON over HTTP, user row from Redis, ad rows in process, ONNX Runtime

One client asks the contestants in turn (A B A B), blocks of requests each. Every reply is compared with ours.
Servers have run for a while: each ad was asked for ten times, each value of a visit once. Most users are new.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.environment import python
from bench.rows import bounded, row
from bench.serving import ids_version, open_loop
from bench.serving.alone import percentiles
from bench.serving.load import F64, Ask, grpc_client, http_client, line_client, together
from bench.serving.process import ready, running, serving, talking, wait_for_port
from bench.serving.requests import CANDIDATES, requests, warm_up
from livectr.local.ports import free_ports
from livectr.local.valkey import LocalRedis
from livectr.system.errors import InternalError

PEERS = Path(__file__).parent / "peers"
PIPELINE = "bench/serving/ids.py"
TOLERANCE = 1e-5
CLIENTS, WORKERS = 4, 2
WORKLOAD = f"rank {CANDIDATES} of 20,000 ads, 16 ids, DeepFM 256-128"
IN_PROCESS = "lines, ad rows in process"
LINES = {IN_PROCESS: "process", "lines, all rows in Redis": "redis"}
GOALS_MS = {50: 1.3, 99: 2.2}
GOAL_RATE = 1_200.0


def rows(quick: bool) -> list[dict[str, object]]:
    """Latency with one client beside each peer; requests a second and latency with several; open loop."""
    blocks, block, seconds, rounds = (2, 20, 0.5, 1) if quick else (20, 100, 3.0, 7)
    with contestants() as started:
        addresses = started.addresses
        times = in_turns(started.asked, blocks, block)
        found = percentiles(WORKLOAD, times["ours"], GOALS_MS)
        found += [
            row(f"p{percent} latency, one client", WORKLOAD, "ms", ours, peer_name=name, peer=peer,
                better="less")
            for name, of in times.items() if name != "ours"
            for percent in (50, 99)
            for ours, peer in [(float(np.percentile(t, percent)) for t in (times["ours"], of))]
        ]  # fmt: skip
        several = [{n: together(a, CLIENTS, seconds) for n, a in addresses.items()} for _ in range(rounds)]
        opened = open_loop.most({name: addresses[name] for name in ("ours", IN_PROCESS)}, quick)
    rate = {n: float(np.median([r[n][0] for r in several])) for n in addresses}
    many = {n: np.concatenate([r[n][1] for r in several]) for n in addresses}
    figure = f"requests a second, {CLIENTS} clients"
    found.append(bounded(figure, WORKLOAD, "1/s", rate["ours"], goal=GOAL_RATE, better="more"))
    for name in LINES:
        found.append(
            row(figure, WORKLOAD, "1/s", rate["ours"], peer_name=name, peer=rate[name])
        )  # fmt: skip
        for percent in (50, 99):
            ours, peer = (float(np.percentile(many[n], percent)) for n in ("ours", name))
            found.append(
                row(f"p{percent} latency, {CLIENTS} clients", WORKLOAD, "ms", ours, peer_name=name, peer=peer,
                    better="less")
            )  # fmt: skip
    found.append(
        row(f"most requests a second at p99 ≤ {open_loop.LIMIT_MS:g} ms, open loop", WORKLOAD, "1/s",
            opened["ours"], peer_name=IN_PROCESS, peer=opened[IN_PROCESS])
    )  # fmt: skip
    return found


def in_turns(asked: Mapping[str, Ask], blocks: int, block: int) -> dict[str, F64]:
    """Milliseconds of each contestant's requests, after `warm_up` and a block that do not count.

    Raises:
        InternalError: a contestant's scores differ from ours.
    """
    drawn = requests((blocks + 1) * block)
    times: dict[str, list[float]] = {name: [] for name in asked}
    for request, ask in itertools.product(warm_up(), asked.values()):
        ask(request)
    for number in range(blocks + 1):
        part = drawn[number * block : (number + 1) * block]
        ours: list[F64] = []
        for name, ask in asked.items():
            for i, request in enumerate(part):
                ms, pctr = ask(request)
                if number:
                    times[name].append(ms)
                if name == "ours":
                    ours.append(pctr)
                elif (difference := float(np.abs(pctr - ours[i]).max())) > TOLERANCE:
                    raise InternalError(f"bench serving: scores of {name} differ from ours by {difference:g}")
    return {name: np.array(of) for name, of in times.items()}


@dataclass(frozen=True)
class Contestants:
    """Running servers, ours first.

    Args:
        asked: name → client.
        addresses: name → address, of those who answer over gRPC.
    """

    asked: Mapping[str, Ask]
    addresses: Mapping[str, str]


@contextmanager
def contestants() -> Iterator[Contestants]:
    """Publish the version and start every contestant. Raises ConfigError: the peers cannot be installed."""
    beside = str(python(PEERS / "packages.txt", program="bench serving", beside_ours=True))
    lit, bento, feast = (
        str(python(PEERS / f"{name}.txt", program="bench serving"))
        for name in ("litserve", "bentoml", "feast")
    )
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="livectr-bench-"))
        server = stack.enter_context(LocalRedis(f"127.0.0.1:{free_ports(1)}"))
        model = f"{folder}/model.npz"
        ours, peers = f"{server.url}/0", f"{server.url}/1"
        ids_version.publish(ours, peers, Path(model))

        def lines(kind: str) -> str:
            command = _peer(beside, "lines", model, peers, str(free_ports(1)), kind)
            first, _ = (stack.enter_context(ready(command)) for _ in range(WORKERS))
            return first

        def asked_by_lines(command: Sequence[str]) -> Ask:
            return line_client(stack.enter_context(talking(command)))

        addresses = {"ours": stack.enter_context(serving("rank", ours, PIPELINE, "--workers", str(WORKERS)))}
        addresses |= {name: lines(kind) for name, kind in LINES.items()}
        asked = {name: grpc_client(address) for name, address in addresses.items()}
        for name, command in (
            ("LitServe", _peer(lit, "lit", model, peers)),
            ("BentoML", _bentoml(bento, model, peers, folder)),
        ):
            port = free_ports(1)
            process = stack.enter_context(running([*command, str(port)]))
            asked[name] = http_client(wait_for_port(process, port))
        asked["ONNX Runtime, in process"] = asked_by_lines(_peer(beside, "compute", model))
        store = f"{folder}/feast"
        asked["Feast"] = asked_by_lines(_peer(feast, "feast_store", model, f"{server.listen},db=2", store))
        yield Contestants(asked, addresses)


def _peer(python: str, name: str, *arguments: str) -> list[str]:
    return [python, "-m", f"bench.serving.peers.{name}", *arguments]


def _bentoml(python: str, model: str, url: str, folder: str) -> list[str]:
    """Command that lacks its last word, the port."""
    settings = [
        f"MODEL={model}",
        f"REDIS={url}",
        f"BENTOML_HOME={folder}/bentoml",
        "BENTOML_DO_NOT_TRACK=True",
    ]
    serve = ["serve", "bench.serving.peers.bento:Ranker", "--host", "127.0.0.1", "--port"]
    return ["env", *settings, python, "-m", "bentoml", *serve]
