"""One worker with one thread and with two: the same requests in turn (A B A B).

The goal is about threads that answer bytes in one process: no client takes a core from them. Over gRPC,
clients share the cores with the worker, so their CPU time is told apart.
"""

from __future__ import annotations

import json
import subprocess
from contextlib import ExitStack

import numpy as np

from bench.rows import row
from bench.serving.cpu import cpu_s
from bench.serving.load import F64, WARM_UPS, together, told
from bench.serving.process import serve_command, started

THREADS = (1, 2)
CLIENTS = 4
GOAL = 1.7
PIPELINE = "bench/serving/ids.py"


def result(
    alone: subprocess.Popen[str], redis: str, quick: bool
) -> tuple[list[dict[str, object]], dict[str, object]]:
    """Rows, and a table of CPU time.

    Args:
        alone: process of `bench.serving.in_process`.
        redis: URL with the version.
        quick: few requests.
    """
    seconds, rounds = (0.5, 1) if quick else (2.0, 3)
    inside = np.zeros((rounds, 2, 2))
    for number in range(rounds):
        for place, threads in enumerate(THREADS):
            found = told(alone, json.dumps({"threads": threads, "seconds": seconds}))
            inside[number, place] = found["rate"], found["cpu_s"]
    over = _over_grpc(redis, rounds, seconds)
    (one, two), (slow, fast) = np.median(inside, axis=0), np.median(over, axis=0)
    lines = [["threads", "clients", "requests/s", "worker's CPU µs of a request", "clients'"]]
    for name, measured in (("none: bytes in process", (one, two)), (f"{CLIENTS}, gRPC", (slow, fast))):
        for threads, (rate, *cpu) in zip(THREADS, measured, strict=True):
            lines.append([str(threads), name, f"{rate:,.0f}", *(f"{1e6 * each:,.0f}" for each in cpu)])
    lines = [[*words, *["–"] * (len(lines[0]) - len(words))] for words in lines]
    rows = [
        row("requests a second, two threads of a worker", workload, "1/s", ours, peer_name="one thread",
            peer=peer, goal=goal)
        for workload, ours, peer, goal in (
            ("rank 400, 16 ids, bytes to bytes in process", two[0], one[0], GOAL),
            (f"rank 400, 16 ids, gRPC, {CLIENTS} clients on the same cores", fast[0], slow[0], None),
        )
    ]  # fmt: skip
    return rows, {"title": "One worker with one thread and with two", "lines": lines}


def _over_grpc(redis: str, rounds: int, seconds: float) -> F64:
    """f64[rounds, 2, 3]: requests a second, and CPU seconds of a request, the worker's and the clients'."""
    found = np.zeros((rounds, len(THREADS), 3))
    with ExitStack() as stack:
        workers = []
        for threads in THREADS:
            command = serve_command("rank", redis, PIPELINE, "--set", f"max_active={threads}")
            workers.append(stack.enter_context(started(command)))
        for number in range(-1, rounds):  # the first round warms up
            for place, (process, address) in enumerate(workers):
                before = cpu_s([process.pid])
                load = together(address, CLIENTS, seconds)
                used = (cpu_s([process.pid]) - before) / (len(load.ms) + CLIENTS * WARM_UPS)
                if number >= 0:
                    found[number, place] = load.rate, used, load.cpu_s / len(load.ms)
    return found
