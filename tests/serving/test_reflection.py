"""The example client knows only the address: services, messages and columns come by reflection."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from livectr.client.clients import RankClient
from livectr.serving.app import App
from tests.serving.display_world import NOW_MS, World, publication

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "reflection_client.py"


def ask(address: str, *request: str) -> str:
    """Run the example where LiveCTR cannot be imported; its output."""
    command = [sys.executable, "-I", str(EXAMPLE), address, *request]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd="/").stdout


def test_it_ranks(redis_url: str, world: World, serve: Callable[..., App]) -> None:
    world.publish(publication(redis_url))
    address = serve("rank").server.address
    context = {"user_id": 3, "ts": NOW_MS, "query": "a b", "position": 1}
    candidates: dict[str, list[Any]] = {"ad_id": [100, 101, 102], "tags": [["x"], [], ["x", "y"]]}
    request = json.dumps({"context": context, "candidates": candidates, "bids": [1, 2, 3]})
    answer = json.loads(ask(address, request))
    with RankClient(address) as client:
        expected = client.rank(context, candidates, [1, 2, 3])
    assert answer["index"] == list(expected.index)
    assert answer["pctr"] == pytest.approx(list(expected.pctr))
    assert answer["version"] == "1"


def test_it_pre_ranks(redis_url: str, world: World, serve: Callable[..., App]) -> None:
    world.publish(publication(redis_url))
    request = {"context": {"user_id": 3, "ts": NOW_MS}, "ids": [100, 101, 102], "top_k": 2}
    answer = json.loads(ask(serve("prerank").server.address, json.dumps(request)))
    assert len(answer["ids"]["values"]) == len(answer["score"]) == 2


def test_it_says_what_the_server_needs(redis_url: str, world: World, serve: Callable[..., App]) -> None:
    world.publish(publication(redis_url))
    text = ask(serve("rank").server.address)
    assert "livectr.v1.Rank" in text and "grpc.health.v1.Health" in text
    assert 'name: "ad_id"' in text and "PLACEMENT_CANDIDATE" in text
