"""Latency of both servers: a client on loopback, real processes and Redis, a model of random rows.

The catalogue is larger than a request, so that its ads change from request to request. The clock starts when
the client packs the request and stops when it has the parsed reply.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import safetensors.torch

from bench.serving_pipeline import pipeline
from livectr.ingest.extract.extractor import Extractor
from livectr.ingest.pipeline import Pipeline
from livectr.kernels.process.children import with_parent
from livectr.local.ports import free_ports
from livectr.local.valkey import LocalRedis
from livectr.protos.store import encode_history, encode_lookup_row
from livectr.serving.client import PreRankClient, RankClient
from livectr.trainer.comm.control import Control
from livectr.trainer.des.item_vectors import item_vectors
from livectr.trainer.des.step import DesStep
from livectr.trainer.publish.publisher import Publisher
from livectr.trainer.publish.redis_store import RedisStore
from livectr.trainer.publish.store_types import Values
from livectr.trainer.publish.version import PublishedModel, Push, VersionSnapshot

RANK_CANDIDATES = 400
PRERANK_CANDIDATES = 4_000
RANK_GOAL_MS = 20.0
PRERANK_GOAL_MS = 10.0
ROOT = Path(__file__).resolve().parent.parent
NOW_MS = 1_700_000_000_000

F64 = npt.NDArray[np.float64]


def run(quick: bool = False) -> list[dict[str, object]]:
    """p50 and p99 of rank (400 candidates) and pre-rank (4,000), in ms at the client."""
    requests = 150 if quick else 2_000
    users, ads = (500, 5_000) if quick else (20_000, 20_000)
    with LocalRedis(f"127.0.0.1:{free_ports(1)}") as server:
        url = f"{server.url}/0"
        publish(url, users, ads)
        rng = np.random.default_rng(0)

        def context() -> dict[str, Any]:
            return {
                "user_id": int(rng.integers(users)),
                "ts": NOW_MS + int(rng.integers(86_400_000)),
                "query": "red winter Shoes",
                "device": "phone",
                "site": "news",
            }

        def ask_rank(client: RankClient) -> Callable[[], object]:
            chosen = rng.choice(ads, RANK_CANDIDATES, replace=False).tolist()
            visit, bids = {**context(), "position": 1}, rng.random(RANK_CANDIDATES).tolist()
            return lambda: client.rank(visit, {"ad_id": chosen}, bids)

        def ask_prerank(client: PreRankClient) -> Callable[[], object]:
            chosen = rng.choice(ads, PRERANK_CANDIDATES, replace=False).tolist()
            visit = context()
            return lambda: client.prerank(visit, chosen, RANK_CANDIDATES)

        with serving("rank", url) as address, RankClient(address) as ranks:
            ranked = latencies_ms(lambda: ask_rank(ranks), requests)
        with serving("prerank", url) as address, PreRankClient(address) as towers:
            preranked = latencies_ms(lambda: ask_prerank(towers), requests)
    fields = len(pipeline.fields)
    return [
        *rows(
            f"rank {RANK_CANDIDATES} of {ads:,} ads, {fields} fields, DeepFM 256-128", ranked, RANK_GOAL_MS
        ),
        *rows(f"pre-rank {PRERANK_CANDIDATES:,} of {ads:,} ads, 32-d vectors", preranked, PRERANK_GOAL_MS),
    ]


def rows(workload: str, times_ms: F64, goal_ms: float) -> list[dict[str, object]]:
    found = []
    for percent, goal in ((50, None), (99, goal_ms)):
        ours = float(np.percentile(times_ms, percent))
        found.append(
            {
                "figure": f"p{percent} latency, one client",
                "workload": workload,
                "unit": "ms",
                "ours": ours,
                "peer_name": None,
                "peer": None,
                "ratio": None,
                "goal": goal,
                "met": None if goal is None else ours < goal,
            }
        )
    return found


def latencies_ms(prepare: Callable[[], Callable[[], object]], requests: int) -> F64:
    """Milliseconds of each prepared call, after a tenth as many that warm the server up."""
    times = np.empty(requests)
    for i in range(-requests // 10, requests):
        call = prepare()
        started = time.perf_counter()
        call()
        if i >= 0:
            times[i] = (time.perf_counter() - started) * 1000
    return times


@contextmanager
def serving(role: str, url: str, pipeline_file: str = "bench/serving_pipeline.py") -> Iterator[str]:
    """A server process; its address."""
    command = [sys.executable, "-m", "livectr", "serve", role, "--pipeline", pipeline_file]
    process = subprocess.Popen(
        with_parent([*command, "--redis", url, "--listen", "127.0.0.1:0"]),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if " ready on " in line:
                yield line.split(" ready on ")[1].split()[0]
                break
        else:
            raise RuntimeError(f"the {role} server ended with status {process.wait()} before it was ready")
    finally:
        process.terminate()
        process.wait(timeout=30)


def publish(url: str, users: int, ads: int) -> None:
    """One version of random rows, with look-up rows, histories of 50 items and item vectors, by the trainer's
    own publisher."""
    rng = np.random.default_rng(1)
    items = pa.RecordBatch.from_pydict(
        {
            "ad_id": np.arange(ads),
            "category": pa.array(rng.integers(0, 30, ads), pa.int32()),
            "advertiser": rng.integers(0, 500, ads),
            "price": pa.array(rng.random(ads) * 50, pa.float32()),
            "title": [f"title {i}" for i in range(ads)],
        }
    )
    step = DesStep(pipeline, seed=1)
    features = Extractor(pipeline.plan)(pipeline.item_columns(items))
    step.front.forward(features.offsets, features.keys, features.rows)
    step.tables["user"].find_or_insert(np.arange(users))
    store = RedisStore(url, "livectr")
    dense = safetensors.torch.save(step.weights())
    vectors = np.arange(ads), item_vectors(step, features)
    push(store, pipeline, step, dense, side_values(store, users, items, rng), items=vectors)


def push(
    store: RedisStore, pipeline: Pipeline, step: DesStep, dense: bytes, values: Sequence[Values], **parts: Any
) -> None:
    """Publish a version of all rows of a step. parts: other fields of the Snapshot."""
    publisher = Publisher(
        store,
        Control(),
        PublishedModel(pipeline.fingerprint, [(s.name, s.dim) for s in step.layout.segments], seed=1),
    )
    publisher.start(None)
    publisher.begin(
        VersionSnapshot(
            step=0,
            rows={name: table.export(state=False) for name, table in step.tables.items()},
            table_rows={name: len(table) for name, table in step.tables.items()},
            dense=dense,
            values=values,
            **parts,
        )
    )
    while publisher.busy:
        publisher.observe([publisher.push.state])
        if publisher.push.state in (Push.FAILED, Push.LOST):
            raise RuntimeError("the version could not be published")
        time.sleep(0.01)
    publisher.close()


def side_values(
    store: RedisStore, users: int, items: pa.RecordBatch, rng: np.random.Generator
) -> list[Values]:
    people, ads = np.arange(users), np.arange(items.num_rows)
    profiles: list[bytes | None] = [
        encode_lookup_row([u, int(age), f"city{u % 40}"]) for u, age in enumerate(rng.integers(15, 80, users))
    ]
    articles: list[bytes | None] = [encode_lookup_row(list(row.values())) for row in items.to_pylist()]
    times = NOW_MS - np.arange(50, 0, -1) * 1000
    clicked = rng.integers(0, items.num_rows, (users, 50))
    histories: list[bytes | None] = [encode_history(clicked[u], times) for u in range(users)]
    (recent,) = pipeline.history_roots
    return [
        Values(people, store.space.lookup_rows("users", people), profiles),
        Values(ads, store.space.lookup_rows("ads", ads), articles),
        Values(people, store.space.histories(recent.name, people), histories),
    ]


if __name__ == "__main__":
    print(json.dumps(run(quick="--quick" in sys.argv), indent=2))
