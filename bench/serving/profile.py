"""Profile of a rank request: time by stage beside the limits of this machine, and a flame graph under load.

    python -m bench.serving.profile [--quick]

writes bench/results/serving-profile.json and docs/serving-flame.svg; `python -m bench.serving.page` shows
them. The workload is that of the contest with peers (`bench.serving.beside`), one worker, one client for the
stages and four for the flame graph.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from bench.flames import flame
from bench.machine import commit, hardware
from bench.sections import RESULTS, ROOT
from bench.serving import ids_version, probes
from bench.serving.beside import CLIENTS, PIPELINE, WORKLOAD
from bench.serving.load import grpc_client, together
from bench.serving.process import started
from bench.serving.requests import requests, warm_up
from livectr.local.ports import free_ports
from livectr.local.scrape import Samples, scrape, value
from livectr.local.valkey import LocalRedis
from livectr.protos import livectr_pb2_grpc as rpc
from livectr.serving.metrics import STAGES
from livectr.system.errors import InternalError

RESULT = RESULTS / "serving-profile.json"
PICTURE = ROOT / "docs" / "serving-flame.svg"
ENTRY = "_unary_response_in_pool"
"""gRPC's function that answers a request."""
BLOCK = 100
FLAME_S, LEAD_S = 10.0, 5.0
"""Seconds of samples; seconds more that clients ask, while py-spy starts."""
ANSWERED = {"role": "rank", "side": "stable", "code": "OK"}
"""Labels of answered requests."""


def measure(quick: bool) -> tuple[dict[str, Any], str]:
    """Result, and the flame graph as SVG."""
    blocks, times, seconds = (2, 200, 2.0) if quick else (30, 2_000, FLAME_S)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="livectr-bench-"))
        server = stack.enter_context(LocalRedis(f"127.0.0.1:{free_ports(1)}"))
        url, port = f"{server.url}/0", free_ports(1)
        ids_version.publish(url, f"{server.url}/1", Path(folder, "model.npz"))
        command = [sys.executable, "-m", "livectr", "serve", "rank", "--pipeline", PIPELINE]
        options = ["--redis", url, "--listen", "127.0.0.1:0", "--set", f"metrics_port={port}"]
        with started([*command, *options]) as (process, address):
            stages = _stages(address, port, blocks)
            folded = _under_load(address, port, seconds, lambda: flame.record(process.pid, seconds))
            request = requests(1)[0]
            with grpc.insecure_channel(address) as channel:
                reply = rpc.RankStub(channel).Rank(request.message())  # type: ignore[no-untyped-call]
        limits = probes.all_probes(f"{server.url}/1", request, reply, times)
    result = {
        "name": "serving-profile",
        "commit": commit(),
        "hardware": hardware(),
        "settings": {"quick": quick},
        "workload": WORKLOAD,
        "stages_us": stages,
        "probes": dict(limits),
        "bytes": {"request": request.message().ByteSize(), "reply": reply.ByteSize()},
        "flops": probes.flops(),
    }
    return result, flame.svg(flame.tree(folded, ENTRY), f"{WORKLOAD}, {CLIENTS} clients")


def _stages(address: str, port: int, blocks: int) -> dict[str, float]:
    """µs of each stage, of protobuf in the server, and of gRPC with the client: medians of blocks' means."""
    ask = grpc_client(address)
    for request in warm_up():
        ask(request)
    found: list[dict[str, float]] = []
    for number in range(blocks):
        drawn, before = requests(BLOCK, seed=number), scrape(port)
        client_us = 1e3 * float(np.mean([ask(request)[0] for request in drawn]))
        mean_us = partial(_mean_us, (before, scrape(port)))
        stages = {
            s: mean_us("livectr_request_stage_seconds", role="rank", side="stable", stage=s) for s in STAGES
        }
        server_us = mean_us("livectr_request_seconds", **ANSWERED)
        rest = {"protobuf": server_us - sum(stages.values()), "gRPC, client": client_us - server_us}
        found.append(stages | rest)
    return {name: float(np.median([block[name] for block in found])) for name in found[0]}


def _mean_us(samples: Sequence[Samples | None], name: str, **labels: str) -> float:
    """Mean of a histogram of seconds between two scrapes, in µs."""
    sums, counts = ([_read(s, f"{name}_{part}", labels) for s in samples] for part in ("sum", "count"))
    return 1e6 * (sums[1] - sums[0]) / (counts[1] - counts[0])


def _read(samples: Samples | None, name: str, labels: dict[str, str]) -> float:
    found = value(samples, name, **labels)
    if found is None:
        raise InternalError(f"bench serving: the server has no metric {name} of {labels}")
    return found


def _under_load(address: str, port: int, seconds: float, work: Callable[[], str]) -> str:
    """Do some work while clients ask."""

    def count() -> float:
        return _read(scrape(port), "livectr_request_seconds_count", ANSWERED)

    first = count()
    load = threading.Thread(target=together, args=(address, CLIENTS, seconds + LEAD_S))
    load.start()
    try:
        while load.is_alive() and count() < first + 50 * CLIENTS:
            time.sleep(0.1)
        return work()
    finally:
        load.join()


def main() -> None:
    parser = argparse.ArgumentParser(description="Profile a rank request.")
    parser.add_argument("--quick", action="store_true", help="few requests; no figures to quote")
    result, picture = measure(parser.parse_args().quick)
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    PICTURE.write_text(picture)
    print(f"wrote {RESULT.relative_to(ROOT)} and {PICTURE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
