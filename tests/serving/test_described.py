"""`livectr query describe` of a server whose newest version cannot be loaded, or that has none."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import redis

from livectr.cli import main
from livectr.client.clients import RankClient
from livectr.local.ports import free_ports
from livectr.store.layout import Keyspace
from tests.serving.swap_pipeline import pipeline
from tests.serving.swaps import Serve, publish, trainer
from tests.waiting import until


def shown(address: str, capsys: pytest.CaptureFixture[str], code: int = 0) -> list[str]:
    """Lines of the table of versions."""
    assert main(["query", "describe", "--server", address]) == code
    lines = capsys.readouterr().out.splitlines()
    return [" ".join(line.replace("│", " ").split()) for line in lines]


def test_a_version_that_is_not_loaded_is_listed_beside_the_served_one(
    redis_url: str, serve: Serve, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Manifest of a fresh row set, which names no earlier version."""
    monkeypatch.setenv("COLUMNS", "120")
    publication = trainer(redis_url)
    publish(publication)
    publish(publication)
    app = serve("rank", pipeline)
    assert publication.last is not None
    lost = replace(publication.last, version=9, row_set="9-0", dense=("nowhere",), earlier={}, examples=70)
    redis.Redis.from_url(redis_url).set(Keyspace().manifest, lost.to_json())
    with RankClient(app.server.address) as client:
        until(lambda: client.describe().versions[0].number, equals=9)
        versions = client.describe().versions
        assert [(v.number, v.served, v.examples) for v in versions] == [(9, False, 70), (2, True, 0)]
        assert client.rank({"user_id": 1}, {"ad_id": [1000]}).version == 2
    lines = shown(app.server.address, capsys)
    assert any(line.startswith("9 20") and line.endswith("rank 70 450 not loaded") for line in lines)
    assert any(
        line.startswith("2 20") and line.endswith("rank 0 450 served, may be pinned") for line in lines
    )


def test_without_a_version_there_is_no_table(
    serve: Serve, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    app = serve("rank", pipeline, ready=False)
    with RankClient(app.server.address) as client:
        described = client.describe()
    assert not described.versions and described.sides[0].trouble == "no version is loaded yet"
    lines = shown(app.server.address, capsys, code=4)
    assert not any("champion" in line for line in lines)
    assert any(line.startswith("rank server, version 0 of LR/") for line in lines)


@pytest.mark.parametrize("role", ["describe", "rank"])
def test_a_query_waits_for_a_server_and_its_first_version(
    redis_url: str, serve: Serve, capsys: pytest.CaptureFixture[str], role: str
) -> None:
    port = free_ports(1)
    asks = ["--context", "user_id=1", "--candidates", "ad_id=1000,1001"] if role == "rank" else []
    ask = ["query", role, "--server", f"127.0.0.1:{port}", "--json", *asks]
    assert main([*ask, "--wait", "0.1"]) == 4
    assert "cannot answer yet" in capsys.readouterr().err
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(main, [*ask, "--wait", "1h"])
        serve("rank", pipeline, ready=False, listen=f"127.0.0.1:{port}")
        assert main(ask) == 4
        assert not waiting.done()
        publish(trainer(redis_url))
        assert waiting.result() == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["version"] == 1


def test_a_redis_that_was_emptied_is_said_by_describe_and_with_each_answer(
    redis_url: str, serve: Serve, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    publish(trainer(redis_url))
    app = serve("rank", pipeline)
    redis.Redis.from_url(redis_url).flushall()
    with RankClient(app.server.address) as client:
        until(lambda: bool(client.describe().trouble))
        trouble = client.describe().trouble
    assert f"trouble: {trouble}" in " ".join(shown(app.server.address, capsys))
    named = ["--server", app.server.address]
    assert main(["query", "describe", *named, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["trouble"], facts["examples"], facts["lookup_ttl_ms"]) == (trouble, 0, 600_000)
    ask = ["query", "rank", *named, "--context", "user_id=1", "--candidates", "ad_id=1000,1001"]
    assert main(ask) == 0
    assert re.search("degraded: .* in Redis at", capsys.readouterr().out)
    assert main([*ask, "--json"]) == 0
    assert "in Redis at" in json.loads(capsys.readouterr().out)["degraded"]
