"""Rank while a version swaps every two seconds, beside the same server in quiet.

    python -m bench.serving.swaps URL USERS ADS

is a publisher: it publishes a version, waits for a line with a number, and publishes as many more, each with
1 % of the rows, look-up rows and histories. It runs at the lowest priority: in production it has a machine of
its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import safetensors.torch

from bench.rows import row
from bench.serving.alone import F64, RANK_CANDIDATES, rank_call
from bench.serving.pipeline import pipeline
from bench.serving.process import serving, talking
from bench.serving.published import F32, I64, finish, publisher_of, random_model
from livectr.client.clients import RankClient
from livectr.local.ports import free_ports
from livectr.local.valkey import LocalRedis
from livectr.system.errors import InternalError
from livectr.trainer.publish.redis_store import RedisStore
from livectr.trainer.publish.values import Values
from livectr.trainer.publish.version import VersionSnapshot

EVERY_S, SHARE = 2.0, 0.01
GOAL = 1 / 1.3


def rows(quick: bool) -> list[dict[str, object]]:
    """p50 and p99 with swaps and in quiet, in turns (A B A B)."""
    versions, turns, users, ads = (2, 1, 500, 5_000) if quick else (4, 3, 20_000, 20_000)
    seconds = versions * EVERY_S
    times: dict[str, list[F64]] = {"quiet": [], "swaps": []}
    with LocalRedis(f"127.0.0.1:{free_ports(1)}") as server:
        url = f"{server.url}/0"
        command = [sys.executable, "-m", "bench.serving.swaps", url, str(users), str(ads)]
        with talking(command) as publisher, serving("rank", url) as address, RankClient(address) as client:
            rng = np.random.default_rng(0)
            ask = partial(_ask, lambda: rank_call(client, users, ads, rng))
            ask(seconds / 4)  # warm-up
            for _ in range(turns):
                times["quiet"].append(ask(seconds)[2])
                _say(publisher, versions)
                first, last, found = ask(seconds)
                _hear(publisher)
                times["swaps"].append(found)
                if last - first < versions - 1:
                    raise InternalError(f"bench serving: {last - first} of {versions} versions were served")
    workload = (
        f"rank {RANK_CANDIDATES} of {ads:,} ads, a version every {EVERY_S:g} s with {SHARE:.0%} of the rows"
    )
    quiet, swapped = np.concatenate(times["quiet"]), np.concatenate(times["swaps"])
    return [
        row(f"p{p} latency while versions swap", workload, "ms", float(np.percentile(swapped, p)),
            peer_name="in quiet", peer=float(np.percentile(quiet, p)), better="less", goal=goal)
        for p, goal in ((50, None), (99, GOAL))
    ]  # fmt: skip


def _ask(prepare: Callable[[], Callable[[], Any]], seconds: float) -> tuple[int, int, F64]:
    """First and last version that answered, and milliseconds of each call."""
    times, versions = [], []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        call = prepare()
        started = time.perf_counter()
        reply = call()
        times.append((time.perf_counter() - started) * 1000)
        versions.append(reply.version)
    return versions[0], versions[-1], np.array(times)


def _say(publisher: subprocess.Popen[str], versions: int) -> None:
    assert publisher.stdin is not None
    publisher.stdin.write(f"{versions}\n")
    publisher.stdin.flush()


def _hear(publisher: subprocess.Popen[str]) -> None:
    assert publisher.stdout is not None
    if not publisher.stdout.readline():
        raise InternalError("bench serving: the publisher ended")


def _publish(url: str, users: int, ads: int) -> None:
    """Publish a complete version, then as many small ones as each line of standard input says."""
    os.nice(19)
    store = RedisStore(url, "livectr")
    step, _, values = random_model(store, users, ads)
    dense = {name: tensor.clone() for name, tensor in step.weights().items()}
    rows = {name: table.export(state=False) for name, table in step.tables.items()}
    sizes = {name: len(keys) for name, (keys, _) in rows.items()}
    publisher = publisher_of(store, pipeline, step)
    finish(publisher, VersionSnapshot(0, rows, sizes, safetensors.torch.save(dense), values))
    rng = np.random.default_rng(2)
    number = 0
    print("ready on stdin", flush=True)
    for line in sys.stdin:
        for _ in range(int(line)):
            began = time.monotonic()
            number += 1
            factor = float(1 + 0.01 * rng.random())
            changed = {name: _some_rows(*of, factor, rng) for name, of in rows.items()}
            weights = safetensors.torch.save({name: tensor * factor for name, tensor in dense.items()})
            part = [_some_values(each, rng) for each in values]
            finish(publisher, VersionSnapshot(number, changed, sizes, weights, part))
            time.sleep(max(0.0, began + EVERY_S - time.monotonic()))
        print("done", flush=True)
    publisher.close()


def _some_rows(keys: I64, rows: F32, factor: float, rng: np.random.Generator) -> tuple[I64, F32]:
    some = _chosen(len(keys), rng)
    return keys[some], rows[some] * np.float32(factor)


def _some_values(values: Values, rng: np.random.Generator) -> Values:
    some = _chosen(len(values), rng)
    names, texts = ([of[i] for i in some] for of in (values.names, values.values))
    return Values(values.keys[some], names, texts, values.listed)


def _chosen(count: int, rng: np.random.Generator) -> I64:
    return rng.permutation(count)[: round(SHARE * count)]


if __name__ == "__main__":
    _publish(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
