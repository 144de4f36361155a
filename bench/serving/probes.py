"""Limits of a rank request on this machine, each by a small probe: medians in µs.

    python -m bench.serving.probes REPLY_BYTES

is a gRPC server that answers every request with so many bytes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import redis

from bench.serving.process import ready
from bench.serving.requests import CANDIDATES, Request
from bench.serving.sizes import AD, USER, VISIT
from livectr.protos import livectr_pb2 as pb

METHOD = "/bench.Echo/Echo"
FLOATS, HIDDEN, DIM = 17, (256, 128), 16
OWN, SHARED = len(AD), len(USER) + len(VISIT)
PARTIAL = 288
"""Floats of an ad's partial result: of the first layer, the first order and FM's sums, in whole vectors."""


def median_us(work: Callable[[], object], times: int) -> float:
    """Median µs of a call, after a tenth as many that do not count."""
    found = []
    for i in range(-times // 10, times):
        started = time.perf_counter()
        work()
        if i >= 0:
            found.append((time.perf_counter() - started) * 1e6)
    return float(np.median(found))


def grpc_echo(request: bytes, reply_bytes: int, times: int) -> float:
    """Round trip of messages of these sizes over gRPC, in another process on loopback."""
    command = [sys.executable, "-m", "bench.serving.probes", str(reply_bytes)]
    with ready(command) as address, grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(METHOD)
        return median_us(lambda: call(request), times)


def redis_rows(url: str, times: int) -> dict[str, float]:
    """Round trip of one row, and of a user's row with those of all candidates, 340 bytes each."""
    rows = {f"probe{i}": bytes(4 * FLOATS * OWN) for i in range(CANDIDATES + 1)}
    with redis.Redis.from_url(url) as client:
        client.mset(dict(rows))
        names = list(rows)
        one = median_us(lambda: client.mget(names[:1]), times)
        return {"one": one, "all": median_us(lambda: client.mget(names), times)}


def messages(request: Request, reply: Any, times: int) -> dict[str, float]:
    """Messages: read and written by the server, made by the client; columns as arrays; sort of the reply."""
    raw, ecpm = request.message().SerializeToString(), np.array(reply.ecpm)
    parsed = pb.RankRequest.FromString(raw)
    ids = parsed.candidates[0].ints.values
    order = np.random.default_rng(0).permutation(len(ecpm))

    def sort() -> object:
        best = np.argsort(-ecpm[order], kind="stable")
        return pb.RankResponse(index=best.tolist(), pctr=ecpm[best].tolist(), ecpm=ecpm[best].tolist())

    return {
        "message": median_us(lambda: pb.RankRequest.FromString(raw), times)
        + median_us(reply.SerializeToString, times),
        "pack": median_us(request.message, times),
        "columns": median_us(lambda: (np.array(ids, np.int64), np.array(parsed.bids)), times),
        "sort": median_us(sort, times),
    }


def memory(times: int) -> dict[str, float]:
    """Copy of a context's keys, and gather of the candidates' partial results from those of 20,000 ads."""
    rng = np.random.default_rng(0)
    keys = rng.integers(0, 1 << 62, SHARED)
    table = rng.standard_normal((AD["ad_id"], PARTIAL), np.float32)
    rows = rng.integers(0, len(table), CANDIDATES)
    out = np.empty((len(rows), PARTIAL), np.float32)
    return {
        "keys": median_us(keys.copy, times),
        "gather": median_us(lambda: np.take(table, rows, axis=0, out=out, mode="clip"), times),
    }


def flops() -> dict[str, float]:
    """Floating-point operations of a request's network: all, and with the ads' first layer at hand."""
    first, second = HIDDEN
    shared = 2.0 * SHARED * DIM * first
    rest = 2.0 * CANDIDATES * (first * second + second)
    return {"all": shared + 2.0 * CANDIDATES * OWN * DIM * first + rest, "at hand": shared + rest}


def products(times: int) -> dict[str, float]:
    """Measured peak of a core in GFLOP/s (a product of 1024³, fp32), and µs of the request's products."""
    import torch

    torch.set_num_threads(1)
    a, b = torch.rand(1024, 1024), torch.rand(1024, 1024)
    own, first = torch.rand(CANDIDATES, OWN * DIM), torch.rand(OWN * DIM, HIDDEN[0])
    hidden, second = torch.rand(CANDIDATES, HIDDEN[0]), torch.rand(*HIDDEN)
    best = min(_cpu_us(lambda: torch.mm(a, b)) for _ in range(100))
    with torch.inference_mode():
        measured = median_us(lambda: (own @ first, hidden @ second), times)
    return {"peak": 2 * 1024**3 / best / 1e3, "products": measured}


def _cpu_us(work: Callable[[], object]) -> float:
    """CPU time of this thread: other programs may take the core meanwhile."""
    started = time.thread_time()
    work()
    return (time.thread_time() - started) * 1e6


def all_probes(url: str, request: Request, reply: Any, times: int) -> Mapping[str, float]:
    """Every probe by its name; `peak` in GFLOP/s, the others in µs."""
    raw = request.message().SerializeToString()
    computed, rows = products(times), redis_rows(url, times)
    return {
        "echo": grpc_echo(raw, len(reply.SerializeToString()), times),
        "one row": rows["one"],
        "all rows": rows["all"],
        **messages(request, reply, times),
        **memory(times),
        **computed,
        "score": flops()["all"] / computed["peak"] / 1e3,
        "score at hand": flops()["at hand"] / computed["peak"] / 1e3,
    }


def _echo(reply_bytes: int) -> None:
    reply = bytes(reply_bytes)
    service, method = METHOD[1:].split("/")
    handler = grpc.unary_unary_rpc_method_handler(lambda request, context: reply)
    server = grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(f"ready on 127.0.0.1:{port}", flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    _echo(int(sys.argv[1]))
