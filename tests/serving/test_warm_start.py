"""A server that is ready has all of its kernels: no request waits for the compiler."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from livectr.client.clients import PreRankClient, RankClient, RecommendClient
from livectr.kernels.runtime.library import BUILT
from tests.serving.content_world import IMAGES, NOW_MS, World, make_store, publication
from tests.serving.processes import ready, server

CACHE = Path(os.environ.get("LIVECTR_CACHE_DIR") or Path.home() / ".cache" / "livectr") / "kernels"
PIPELINE = Path(__file__).parent / "content_world.py"
CONTEXT = {"user_id": 3, "ts": NOW_MS}
ITEMS = {"ad_id": list(range(100, 140))}


def rank(address: str) -> None:
    with RankClient(address) as client:
        assert len(client.rank(CONTEXT, ITEMS, timeout_s=60).pctr) == 40


def prerank(address: str) -> None:
    with PreRankClient(address) as client:
        assert len(client.prerank(CONTEXT, None, 5, timeout_s=60).ids.values) == 5


def recommend(address: str) -> None:
    with RecommendClient(address) as client:
        assert client.recommend(CONTEXT, 5, 20, timeout_s=60).ids.values


ASK: Mapping[str, Callable[[str], None]] = {"rank": rank, "prerank": prerank, "recommend": recommend}


def kernels(pid: int) -> set[str]:
    """Files of kernels that a process has loaded."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    files = {Path(line.split()[-1]) for line in lines if line.endswith(".so")}
    return {file.name for file in files if file.is_relative_to(CACHE) or file.is_relative_to(BUILT)}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(make_store(tmp_path_factory.mktemp("content") / "images"))


@pytest.mark.parametrize("role", sorted(ASK))
def test_a_ready_server_loads_no_more_kernels(redis_url: str, world: World, role: Any) -> None:
    out = publication(redis_url)
    out.history(IMAGES, 3, [5101, 5107], [NOW_MS - 5000, NOW_MS - 4000])
    world.publish(out)
    with server(role, redis_url, "--listen", "127.0.0.1:0", pipeline=PIPELINE) as process:
        address, _ = ready(process)
        loaded = kernels(process.pid)
        assert loaded
        ASK[role](address)
        assert kernels(process.pid) == loaded
