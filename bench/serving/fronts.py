"""Native front beside Python's server: plain requests of the contest, in turn (A B A B)."""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from bench.rows import row
from bench.serving import ids_version
from bench.serving.load import grpc_client, together
from bench.serving.process import started
from bench.serving.requests import CANDIDATES, requests, warm_up
from livectr.local.ports import free_ports
from livectr.local.valkey import LocalRedis
from livectr.serving.native.build import front_library

PIPELINE = "bench/serving/ids.py"
CLIENTS, VISITS = 4, 60
WORKLOAD = f"plain rank {CANDIDATES} of 20,000 ads, 16 ids, DeepFM 256-128, native front"


def rows(quick: bool) -> list[dict[str, object]]:
    """Latency of one client, and requests a second of several with CPU time of the server; one worker each.

    There are none where the native front is not built.
    """
    if isinstance(front_library(), str):
        return []
    rounds, repeats, seconds = (1, 2, 0.5) if quick else (6, 5, 2.0)
    times: dict[str, list[float]] = {"native": [], "python": []}
    rates: dict[str, list[float]] = {name: [] for name in times}
    costs: dict[str, list[float]] = {name: [] for name in times}
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="livectr-bench-"))
        server = stack.enter_context(LocalRedis(f"127.0.0.1:{free_ports(1)}"))
        url = f"{server.url}/0"
        ids_version.publish(url, f"{server.url}/1", Path(folder, "model.npz"))
        command = [sys.executable, "-m", "livectr", "serve", "rank", "--pipeline", PIPELINE, "--redis", url]
        processes = {
            name: stack.enter_context(started([*command, "--listen", "127.0.0.1:0"], {"LIVECTR_FRONT": name}))
            for name in times
        }
        asked = {name: grpc_client(address) for name, (_, address) in processes.items()}
        drawn = requests(VISITS, seed=9)  # asked for again and again: nothing of them is read from Redis
        for request, ask in itertools.product([*warm_up(), *drawn], asked.values()):
            ask(request)
        for number in range(rounds):
            names = list(times) if number % 2 == 0 else list(times)[::-1]
            for name in names:
                times[name] += [asked[name](request)[0] for request in drawn * repeats]
            for name in names:
                process, address = processes[name]
                before = _cpu_s(process.pid)
                rate, found, _ = together(address, CLIENTS, seconds)
                rates[name].append(rate)
                costs[name].append((_cpu_s(process.pid) - before) / len(found) * 1e6)
    peer = "Python's server"
    found_rows = [
        row(
            f"p{percent} latency, one client",
            WORKLOAD,
            "ms",
            ours,
            peer_name=peer,
            peer=theirs,
            better="less",
        )
        for percent in (50, 99)
        for ours, theirs in [[float(np.percentile(of, percent)) for of in times.values()]]
    ]
    figure = f"requests a second, {CLIENTS} clients"
    ours, theirs = (float(np.median(values)) for values in rates.values())
    found_rows.append(row(figure, WORKLOAD, "1/s", ours, peer_name=peer, peer=theirs))
    figure = f"CPU time of the server a request, {CLIENTS} clients"
    ours, theirs = (float(np.median(values)) for values in costs.values())
    found_rows.append(row(figure, WORKLOAD, "µs", ours, peer_name=peer, peer=theirs, better="less"))
    return found_rows


def _cpu_s(pid: int) -> float:
    """Seconds of a core that a process has taken."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
