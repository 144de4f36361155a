"""Clients of the contest: one that asks in turn, and several at once (closed loop).

    python -m bench.serving.load ADDRESS SEED SECONDS

is a client of its own: it waits for a line, asks until its time is over, and prints its milliseconds and its
CPU seconds as JSON.
The clock starts when a client packs a request and stops when it has the parsed reply.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from http.client import HTTPConnection
from typing import Any, NamedTuple

import grpc
import numpy as np
from numpy.typing import NDArray

from bench.serving.process import ROOT
from bench.serving.requests import CANDIDATES, Request, requests
from livectr.protos import livectr_pb2_grpc as rpc

IDLE_S = 1.0
"""Idle time after which a connection is not used again; uvicorn closes it after five seconds."""
WARM_UPS = 20
"""Requests of a client before its time begins."""
F64 = NDArray[np.float64]
Ask = Callable[[Request], tuple[float, F64]]
"""Milliseconds of a request, and probabilities f64[n] in the order of its ads."""


def grpc_client(address: str) -> Ask:
    """Client of a server that answers RankRequest."""
    channel = grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])
    stub = rpc.RankStub(channel)  # type: ignore[no-untyped-call]

    def ask(request: Request) -> tuple[float, F64]:
        started = time.perf_counter()
        reply = stub.Rank(request.message(), timeout=5.0)
        ms = (time.perf_counter() - started) * 1000
        return ms, _in_order(reply.index, reply.pctr)

    return ask


def http_client(address: str) -> Ask:
    """Client of a server that takes JSON by POST /predict, on one connection.

    Servers close a connection that was idle for some seconds, as it is on a slow machine while others are
    asked. So it is made again before, and not on the clock.
    """
    connection, used = HTTPConnection(address, timeout=5.0), -IDLE_S

    def ask(request: Request) -> tuple[float, F64]:
        nonlocal used
        if time.monotonic() - used > IDLE_S:
            connection.close()
            connection.connect()
        used = time.monotonic()
        started = time.perf_counter()
        connection.request("POST", "/predict", request.json(), {"Content-Type": "application/json"})
        reply = json.loads(connection.getresponse().read())
        ms = (time.perf_counter() - started) * 1000
        return ms, _in_order(reply["index"], reply["pctr"])

    return ask


def line_client(process: subprocess.Popen[str], time_name: str = "ms") -> Ask:
    """Client of a process that takes JSON lines and measures itself; its replies have the time by a name."""

    def ask(request: Request) -> tuple[float, F64]:
        reply = told(process, request.json().decode())
        return reply[time_name], _in_order(reply["index"], reply["pctr"])

    return ask


def told(process: subprocess.Popen[str], line: str) -> Any:
    """Reply of a process to a line."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


class Load(NamedTuple):
    """Requests of several clients at once.

    Args:
        rate: requests a second.
        ms: of each request.
        cpu_s: CPU seconds of all clients.
    """

    rate: float
    ms: F64
    cpu_s: float


def together(address: str, clients: int, seconds: float) -> Load:
    """Ask from several clients at once, each a process."""
    command = [sys.executable, "-m", "bench.serving.load", address]
    started = [
        subprocess.Popen(
            [*command, str(seed), str(seconds)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True,
        )
        for seed in range(clients)
    ]  # fmt: skip
    for process in started:
        assert process.stdout is not None
        process.stdout.readline()  # it is ready
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    found = [json.loads(process.communicate()[0]) for process in started]
    ms = np.concatenate([np.array(client["ms"]) for client in found])
    return Load(len(ms) / seconds, ms, sum(client["cpu_s"] for client in found))


def _in_order(index: Sequence[int], pctr: Sequence[float]) -> F64:
    out = np.empty(CANDIDATES)
    out[np.asarray(index)] = pctr
    return out


def _client(address: str, seed: int, seconds: float) -> dict[str, Any]:
    ask, drawn = grpc_client(address), requests(200, seed + 100)
    for request in drawn[:WARM_UPS]:
        ask(request)
    print("ready", flush=True)
    sys.stdin.readline()
    times: list[float] = []
    cpu_s = time.process_time()
    end, i = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        times.append(ask(drawn[i % len(drawn)])[0])
        i += 1
    return {"ms": times, "cpu_s": time.process_time() - cpu_s}


def _main(address: str, seed: str, seconds: str) -> None:
    print(json.dumps(_client(address, int(seed), float(seconds))))


if __name__ == "__main__":
    _main(*sys.argv[1:])
