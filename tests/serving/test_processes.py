"""Server processes: the ready line, workers on one port, a graceful end, exit status 2 for mistakes."""

from __future__ import annotations

import re
import signal
import subprocess

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from livectr.client.clients import PreRankClient, RankClient
from livectr.local.ports import free_ports
from livectr.serving.app import serve_rank
from livectr.serving.options import ServeOptions
from livectr.system.errors import ConfigError
from tests.promtool import checked_scrape
from tests.serving.display_world import NOW_MS, World, publication
from tests.serving.processes import HERE, ready, server
from tests.waiting import left_s


def test_a_process_serves_and_ends_gracefully(redis_url: str, world: World) -> None:
    version = world.publish(publication(redis_url))
    port = free_ports(1)
    flags = ["--listen", "127.0.0.1:0", "--set", f"metrics_port={port}"]
    with server("rank", redis_url, *flags, begin=subprocess.Popen) as process:
        address, served = ready(process)
        assert served == str(version)
        with RankClient(address) as client:
            response = client.rank(
                {"user_id": 3, "ts": NOW_MS, "tags": []}, {"ad_id": [100], "position": [0]}
            )
        assert len(response.pctr) == 1
        text = checked_scrape(port)
        assert 'livectr_requests_total{code="OK",role="rank",side="stable"} 1.0' in text
        assert f'livectr_served_version{{role="rank",side="stable"}} {version}.0' in text
        assert "livectr_freshness_seconds_bucket" in text
        assert re.search(r"^livectr_pause_seconds_count [1-9]", text, re.MULTILINE), "pauses are observed"
        process.send_signal(signal.SIGTERM)
        assert process.wait(left_s()) == 0


def test_workers_share_a_port(redis_url: str, world: World) -> None:
    world.publish(publication(redis_url))
    with server("prerank", redis_url, "--listen", "127.0.0.1:0", "--workers", "2") as process:
        address, _ = ready(process)
        assert ready(process)[0] == address
        for _ in range(4):
            with PreRankClient(address) as client:
                assert len(client.prerank({"user_id": 3, "ts": NOW_MS}, None, 5).ids.values) == 5
        process.send_signal(signal.SIGTERM)
        assert process.wait(left_s()) == 0
    with pytest.raises(grpc.RpcError), grpc.insecure_channel(address) as channel:
        health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=left_s())


def test_the_wrong_pipeline_exits_with_2(redis_url: str, world: World) -> None:
    world.publish(publication(redis_url))
    with server("rank", redis_url, pipeline=HERE / "swap_pipeline.py") as process:
        _, stderr = process.communicate(timeout=left_s())
    assert process.returncode == 2
    assert "another pipeline" in stderr and "Traceback" not in stderr


def test_no_redis_exits_with_4() -> None:
    with server("rank", "redis://127.0.0.1:1") as process:
        _, stderr = process.communicate(timeout=left_s())
    assert process.returncode == 4
    assert "cannot be reached" in stderr and "Traceback" not in stderr


def test_options_that_cannot_work(redis_url: str) -> None:
    from tests.serving.display_pipeline import pipeline

    with pytest.raises(ConfigError, match="workers is 0, but must be at least 1"):
        serve_rank(pipeline, ServeOptions(redis_url, workers=0))
    with pytest.raises(ConfigError, match="choose a free HOST:PORT"):
        serve_rank(pipeline, ServeOptions(redis_url, listen="203.0.113.1:1"))
    with pytest.raises(ConfigError, match="not a Redis URL"):
        serve_rank(pipeline, ServeOptions("http://nowhere"))
