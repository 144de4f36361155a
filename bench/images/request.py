"""Rank request with images, and without: 400 candidates of a user with 32 clicked images.

Two servers of the same code, each with its own Redis and its own model of random rows; requests alternate
(A B A B). Every image has a published vector.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import safetensors.torch

from bench.images.store import random_store
from bench.images.view import BEHAVIORS, WIDTH, view
from bench.rows import row
from bench.serving.alone import F64
from bench.serving.process import serving
from bench.serving.published import NOW_MS, push
from livectr.client.clients import RankClient
from livectr.ingest.content.store import ContentStore
from livectr.ingest.extract.extractor import Extractor
from livectr.local.ports import free_ports
from livectr.local.valkey import LocalRedis
from livectr.store.layout import encode_history, encode_lookup_row
from livectr.trainer.content.precompute import ContentPrecompute
from livectr.trainer.des.step import DesStep
from livectr.trainer.publish.redis_store import RedisStore
from livectr.trainer.publish.values import Values

CANDIDATES = 400
GOAL = 1 / 1.2
PAPERS_MS = 24, 21


def rows(quick: bool) -> list[dict[str, object]]:
    """Medians of both, and their 99th percentiles."""
    requests, users, ads = (20, 100, 1000) if quick else (2000, 20_000, 20_000)
    times = latencies_ms(requests, users, ads)
    workload = f"{CANDIDATES} candidates of {ads:,} ads, {BEHAVIORS} clicked images, one client"
    added = np.median(times, axis=0)
    made = [
        row(f"rank request with images, p{percent}", workload, "ms", ours, peer_name="ID-only", peer=peer,
            better="less", goal=goal)
        for percent, goal in ((50, GOAL), (99, None))
        for ours, peer in [np.percentile(times, percent, axis=0).tolist()]
    ]  # fmt: skip
    paper = f"DICM §4.4: {PAPERS_MS[0]} ms over {PAPERS_MS[1]}"
    made.append(
        row("what images add to a rank request, p50", workload, "ms", float(added[0] - added[1]),
            peer_name=paper, peer=PAPERS_MS[0] - PAPERS_MS[1], better="less")
    )  # fmt: skip
    return made


def latencies_ms(requests: int, users: int, ads: int) -> F64:
    """f64[requests, 2]: with images and without."""
    rng = np.random.default_rng(0)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="livectr-bench-")))
        store = random_store(folder, ads, WIDTH)
        clients = []
        for name, images in (("with_images", True), ("id_only", False)):
            server = stack.enter_context(LocalRedis(f"127.0.0.1:{free_ports(1)}"))
            url = f"{server.url}/0"
            publish(url, users, ads, store if images else None)
            address = stack.enter_context(serving("rank", url, f"bench/images/{name}.py"))
            clients.append(stack.enter_context(RankClient(address)))
        times = np.empty((requests, 2))
        for i in range(-requests // 10, requests):
            visit: dict[str, Any] = {
                "user_id": int(rng.integers(users)),
                "ts": NOW_MS + int(rng.integers(86_400_000)),
                "device": "phone",
                "site": "news",
                "position": 1,
            }
            chosen = rng.choice(ads, CANDIDATES, replace=False).tolist()
            bids = rng.random(CANDIDATES).tolist()
            for side, client in enumerate(clients):
                started = time.perf_counter()
                client.rank(visit, {"ad_id": chosen}, bids)
                if i >= 0:
                    times[i, side] = (time.perf_counter() - started) * 1000
    return times


def publish(url: str, users: int, ads: int, store: ContentStore | None) -> None:
    """One version of random rows; with a store, of the model with images, and the vectors of all of them."""
    rng = np.random.default_rng(1)
    pipeline = view(images=store is not None)
    items = pa.RecordBatch.from_pydict(
        {
            "ad_id": np.arange(ads),
            "category": pa.array(rng.integers(0, 30, ads), pa.int32()),
            "advertiser": rng.integers(0, 500, ads),
            "price": pa.array(rng.random(ads) * 50, pa.float32()),
            "image_id": np.arange(ads),
        }
    )
    step = DesStep(pipeline, seed=1, content={} if store is None else {"images": store})
    features = Extractor(pipeline.plan)(pipeline.item_columns(items))
    step.front.forward(features.offsets, features.keys, features.rows)
    step.tables["user"].find_or_insert(np.arange(users))
    redis = RedisStore(url, "livectr")
    content = {}
    if step.ams is not None and store is not None:
        content["images"] = ContentPrecompute("images", step.ams.networks["images"], store)
    values = side_values(redis, pipeline.history_roots, users, items, rng)
    push(redis, pipeline, step, safetensors.torch.save(step.weights()), values, content=content)


def side_values(
    redis: RedisStore, histories: Any, users: int, items: pa.RecordBatch, rng: np.random.Generator
) -> list[Values]:
    """Look-up rows, and of each user BEHAVIORS clicks, whose images have the ads' numbers."""
    people, ads = np.arange(users), np.arange(items.num_rows)
    profiles: list[bytes | None] = [
        encode_lookup_row([u, int(age), f"city{u % 40}"]) for u, age in enumerate(rng.integers(15, 80, users))
    ]
    articles: list[bytes | None] = [encode_lookup_row(list(item.values())) for item in items.to_pylist()]
    times = NOW_MS - np.arange(BEHAVIORS, 0, -1) * 1000
    clicked = rng.integers(0, items.num_rows, (users, BEHAVIORS))
    lists: list[bytes | None] = [encode_history(clicked[u], times) for u in range(users)]
    return [
        Values(people, redis.space.lookup_rows("users", people), profiles),
        Values(ads, redis.space.lookup_rows("ads", ads), articles),
        *(Values(people, redis.space.histories(root.name, people), lists) for root in histories),
    ]
