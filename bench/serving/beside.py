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
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.environment import python
from bench.rows import bounded, row
from bench.serving import ids_version, open_loop, threads
from bench.serving.alone import percentiles
from bench.serving.cpu import cpu_s
from bench.serving.load import F64, Ask, Load, grpc_client, http_client, line_client, together, told
from bench.serving.process import running, serve_command, started, talking, wait_for_port
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
CALL, RUN = "ours, bytes to bytes", "ONNX Runtime's session.run, arrays ready"
ALONE = f"{WORKLOAD}, no gRPC, rows at hand: bytes to bytes"
CPU_FIGURE = "CPU seconds of 1,000 requests"
GOALS_MS = {50: 1.3, 99: 2.2}
GOAL, GOAL_RATES = 1.5, 2.0
"""Least ratios to the lines with ad rows in process: of latencies, and of requests a second."""
GOAL_RATE = 1_200.0


def result(quick: bool) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """Rows, and tables of CPU time.

    Latency with one client beside each peer, and of the call alone; requests a second and latency with
    several clients; open loop; threads of a worker.
    """
    blocks, block, seconds, rounds = (2, 20, 0.5, 1) if quick else (16, 100, 3.0, 5)
    with contestants() as started:
        addresses, alone = started.addresses, started.alone
        users = sorted({request.context["user_id"] for request in requests((blocks + 1) * block)})
        told(alone, json.dumps({"users": users}))
        turns = in_turns(started.asked, blocks, block, started.servers)
        several = [{n: together(a, CLIENTS, seconds) for n, a in addresses.items()} for _ in range(rounds)]
        opened = open_loop.most({name: addresses[name] for name in ("ours", IN_PROCESS)}, quick)
        of_threads, table = threads.result(alone, started.redis, quick)
    open_rate = row(
        f"most requests a second at p99 ≤ {open_loop.LIMIT_MS:g} ms, open loop", WORKLOAD, "1/s",
        opened["ours"], peer_name=IN_PROCESS, peer=opened[IN_PROCESS], goal=GOAL_RATES,
    )  # fmt: skip
    servers = {name: turns.server_cpu_s[name] for name in started.servers}
    found = [*_latencies(turns.ms), _least_cpu(servers), *_together(several), open_rate, *of_threads]
    lines = [["contestant", "server", "client"]]
    lines += [[name, f"{cpu:.2f}", f"{turns.client_cpu_s[name]:.2f}"] for name, cpu in servers.items()]
    return found, [{"title": f"{CPU_FIGURE}: {WORKLOAD}, one client", "lines": lines}, table]


def _latencies(times: Mapping[str, F64]) -> list[dict[str, object]]:
    """Rows of one client: ours alone, ours beside each peer, and the call without gRPC."""
    found = percentiles(WORKLOAD, times["ours"], GOALS_MS)
    for name in times.keys() - {"ours", CALL, RUN}:
        goal = GOAL if name == IN_PROCESS else None
        found += [
            _beside(
                f"p{percent} latency, one client", WORKLOAD, times["ours"], name, times[name], percent, goal
            )
            for percent in (50, 99)
        ]
    found += [
        _beside(f"p{percent} of the call itself", ALONE, times[CALL], RUN, times[RUN], percent, goal)
        for percent, goal in ((50, GOAL), (99, None))
    ]
    return found


def _beside(
    figure: str, workload: str, ours: F64, name: str, peer: F64, percent: int, goal: float | None = None
) -> dict[str, object]:
    """Row of a percentile of milliseconds."""
    of = [float(np.percentile(times, percent)) for times in (ours, peer)]
    return row(figure, workload, "ms", of[0], peer_name=name, peer=of[1], better="less", goal=goal)


def _least_cpu(servers: Mapping[str, float]) -> dict[str, object]:
    """Row of the server's CPU time, beside the peer that has the least."""
    least = min((name for name in servers if name != "ours"), key=lambda name: servers[name])
    return row(CPU_FIGURE, WORKLOAD, "s", servers["ours"], peer_name=least, peer=servers[least],
               better="less", goal=1.0)  # fmt: skip


def _together(rounds: Sequence[Mapping[str, Load]]) -> list[dict[str, object]]:
    """Rows of several clients."""
    rate = {name: float(np.median([loads[name].rate for loads in rounds])) for name in rounds[0]}
    many = {name: np.concatenate([loads[name].ms for loads in rounds]) for name in rounds[0]}
    figure = f"requests a second, {CLIENTS} clients"
    found = [bounded(figure, WORKLOAD, "1/s", rate["ours"], goal=GOAL_RATE, better="more")]
    for name in LINES:
        goal = GOAL_RATES if name == IN_PROCESS else None
        found.append(row(figure, WORKLOAD, "1/s", rate["ours"], peer_name=name, peer=rate[name], goal=goal))
        found += [
            _beside(
                f"p{percent} latency, {CLIENTS} clients", WORKLOAD, many["ours"], name, many[name], percent
            )
            for percent in (50, 99)
        ]
    return found


@dataclass(frozen=True)
class Turns:
    """Requests of contestants in turn, by contestant.

    Args:
        ms: milliseconds of each request.
        client_cpu_s: CPU seconds of the client for 1,000 requests.
        server_cpu_s: the same of the servers.
    """

    ms: Mapping[str, F64]
    client_cpu_s: Mapping[str, float]
    server_cpu_s: Mapping[str, float]


def in_turns(
    asked: Mapping[str, Ask], blocks: int, block: int, servers: Mapping[str, Sequence[int]]
) -> Turns:
    """Ask each contestant the same requests, after `warm_up` and a block that do not count.

    Args:
        asked: name → client; ours first.
        blocks: number of blocks.
        block: requests of a block.
        servers: name → processes of its servers, those of which CPU time is wanted.

    Raises:
        InternalError: a contestant's scores differ from ours.
    """
    drawn = requests((blocks + 1) * block)
    times: dict[str, list[float]] = {name: [] for name in asked}
    used: dict[str, F64] = {name: np.zeros(2) for name in asked}
    for request, ask in itertools.product(warm_up(), asked.values()):
        ask(request)
    for number in range(blocks + 1):
        part = drawn[number * block : (number + 1) * block]
        ours: list[F64] = []
        for name, ask in asked.items():
            before = _used(servers.get(name, ()))
            for i, request in enumerate(part):
                ms, pctr = ask(request)
                if number:
                    times[name].append(ms)
                if name == "ours":
                    ours.append(pctr)
                elif (difference := float(np.abs(pctr - ours[i]).max())) > TOLERANCE:
                    raise InternalError(f"bench serving: scores of {name} differ from ours by {difference:g}")
            if number:
                used[name] += (_used(servers.get(name, ())) - before) * 1000 / (blocks * block)
    cpu = [{name: float(of[part]) for name, of in used.items()} for part in (0, 1)]
    return Turns({name: np.array(of) for name, of in times.items()}, *cpu)


def _used(servers: Sequence[int]) -> F64:
    """CPU seconds of this process and of servers."""
    return np.array([time.process_time(), cpu_s(servers)])


@dataclass(frozen=True)
class Contestants:
    """Running servers, ours first.

    Args:
        asked: name → client.
        addresses: name → address, of those who answer over gRPC.
        servers: name → processes, of those who are servers or ask a store.
        alone: process of `bench.serving.in_process`.
        redis: URL of ours.
    """

    asked: Mapping[str, Ask]
    addresses: Mapping[str, str]
    servers: Mapping[str, Sequence[int]]
    alone: subprocess.Popen[str]
    redis: str


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

        servers: dict[str, list[int]] = {}

        def serve(name: str, command: Sequence[str], processes: int = 1) -> str:
            opened = [stack.enter_context(started(command)) for _ in range(processes)]
            servers[name] = [process.pid for process, _ in opened]
            return opened[0][1]

        def talk(command: Sequence[str]) -> subprocess.Popen[str]:
            return stack.enter_context(talking(command))

        addresses = {"ours": serve("ours", serve_command("rank", ours, PIPELINE, "--workers", str(WORKERS)))}
        for name, kind in LINES.items():
            command = _peer(beside, "lines", model, peers, str(free_ports(1)), kind)
            addresses[name] = serve(name, command, WORKERS)
        asked = {name: grpc_client(address) for name, address in addresses.items()}
        for name, command in (
            ("LitServe", _peer(lit, "lit", model, peers)),
            ("BentoML", _bentoml(bento, model, peers, folder)),
        ):
            port = free_ports(1)
            process = stack.enter_context(running([*command, str(port)]))
            servers[name] = [process.pid]
            asked[name] = http_client(wait_for_port(process, port))
        compute, alone = talk(_peer(beside, "compute", model)), talk(_ours("in_process", ours))
        asked["ONNX Runtime, in process"] = line_client(compute)
        asked[RUN], asked[CALL] = line_client(compute, "run_ms"), line_client(alone)
        store = talk(_peer(feast, "feast_store", model, f"{server.listen},db=2", f"{folder}/feast"))
        asked["Feast"], servers["Feast"] = line_client(store), [store.pid]
        yield Contestants(asked, addresses, servers, alone, ours)


def _ours(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", f"bench.serving.{name}", *arguments]


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
