"""Servers of a cluster of three: swaps, losses and commands are as with a single server.

Tests marked SERVER_AND_CLUSTER, of other files, hold for both: replies, content, an emptied cluster.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from livectr.cli import main
from livectr.client.clients import RankClient
from livectr.serving.app import App
from livectr.serving.options import ServeOptions
from livectr.verify.live import LiveInputs
from tests.redis_cluster import Cluster, ask
from tests.redis_servers import ClusterClient
from tests.redis_values import manifest_in, value
from tests.serving.display_pipeline import pipeline as display_pipeline
from tests.serving.display_world import HISTORY, NOW_MS, World
from tests.serving.display_world import publication as display_publication
from tests.serving.losses import traffic
from tests.serving.swap_pipeline import pipeline
from tests.serving.swaps import publish, served, trainer
from tests.waiting import left_s, until

Serve = Callable[..., App]
FILE = Path(__file__).with_name("swap_pipeline.py")


@pytest.fixture(scope="module")
def nodes(redis_cluster: Cluster) -> Cluster:
    """The session's cluster; a fixture of this file keeps its tests in a worker."""
    return redis_cluster


@pytest.fixture
def redis_url(nodes: Cluster) -> str:
    nodes.empty()
    return nodes.url


@pytest.fixture
def client(redis_url: str, redis_cluster: Cluster) -> Iterator[ClusterClient]:
    client = ClusterClient("127.0.0.1", redis_cluster.ports[0])
    yield client
    client.close()


def test_versions_swap_under_load(redis_url: str, serve: Serve) -> None:
    publication = trainer(redis_url)
    publish(publication)
    app = serve("rank", pipeline, near_cache_rows=60)
    with traffic(app) as running:
        for version in range(2, 8):
            publish(publication)
            until(lambda: served(app), equals=version)
    assert running.marked == 0 and not running.wrong


def test_a_node_that_lost_its_values_marks_replies(
    redis_url: str, redis_cluster: Cluster, world: World, serve: Serve
) -> None:
    """Look-up rows and histories of a node are gone; what the other nodes hold is used."""
    out = display_publication(redis_url)
    out.history(HISTORY, 3, [101, 102], [NOW_MS - 2000, NOW_MS - 1000])
    world.publish(out)
    app = serve("rank")
    ask = {"user_id": 3, "ts": NOW_MS, "query": "q", "tags": ["x"]}, {"ad_id": [100, 101], "position": [0, 1]}
    with RankClient(app.server.address) as rank:
        assert not rank.rank(*ask).degraded
        owner = redis_cluster.owner(b"{livectr}:manifest")
        for port in redis_cluster.ports:
            if port != owner:
                redis_cluster.client(port).flushall()
        assert rank.rank(*ask).degraded
        world.publish(display_publication(redis_url))
        until(lambda: not rank.rank(*ask).degraded)


def test_users_with_the_rights_of_the_manifests(redis_url: str, nodes: Cluster) -> None:
    """Users of k8s/components/redis, which may list the slots besides."""
    users = (Path(__file__).parents[2] / "k8s/components/redis/users.acl").read_text()
    rights = {
        name: words for line in users.splitlines() for _, name, *words in [line.split()] if name != "default"
    }
    named = {}
    for name in ("trainer", "server"):
        for node in nodes.clients():
            words = [">secret" if word.startswith(">") else word for word in rights[name]]
            ask(node, "ACL", "SETUSER", name, *words, "+cluster|slots")
        named[name] = redis_url.replace("://", f"://{name}:secret@")
    try:
        publication = trainer(named["trainer"])
        publish(publication)
        app = App("rank", pipeline, ServeOptions(named["server"]))
        app.start()
        try:
            assert app.wait_ready(left_s())
            with traffic(app):
                publish(publication)
                until(lambda: served(app), equals=2)
            assert not app.follower.health.reason
        finally:
            app.stop()
        publication.store.close()
    finally:
        for node in nodes.clients():
            ask(node, "ACL", "DELUSER", *named)


def test_live_inputs_are_read(redis_url: str, world: World) -> None:
    """As `livectr query verify` reads them."""
    out = display_publication(redis_url)
    out.history(HISTORY, 3, [101, 102], [NOW_MS - 2000, NOW_MS - 1000])
    world.publish(out)
    live = LiveInputs(display_pipeline, redis_url, "livectr")
    names = [
        *out.store.space.lookup_rows("ads", np.array([*world.ads])),
        *out.store.space.histories(HISTORY, np.array([3])),
    ]
    values = live.read([names])  # type: ignore[list-item]
    assert len(values) == len(world.ads) + 1 and None not in values.values()
    live.close()


def test_operators_commands(
    redis_url: str, client: ClusterClient, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    publication = trainer(redis_url)
    publish(publication)
    named = ["--redis", redis_url]
    assert main(["versions", "list", *named]) == 0 and "served" in capsys.readouterr().out
    assert main(["versions", "hold", *named, "--reason", "a try"]) == 0
    assert json.loads(value(client, "{livectr}:hold"))["reason"] == "a try"
    assert main(["versions", "list", *named]) == 0 and "held since" in capsys.readouterr().out
    assert main(["versions", "release", *named]) == 0 and client.get("{livectr}:hold") is None
    assert main(["inspect", *named]) == 0
    shown = capsys.readouterr().out
    assert "memory used" in shown and "MiB" in shown
    assert manifest_in(client).version == 1


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("redis+cluster://127.0.0.1:70000", "no HOST:PORT"),
        ("redis+cluster://127.0.0.1:7000/3", "database 0 alone"),
        ("redis+sentinel://127.0.0.1:26379", "/SERVICE"),
        ("rediss+cluster://h:1?ssl_ca_cert=x", "no option 'ssl_ca_cert'"),
        ("redis-cluster://h:1", "must begin with"),
    ],
)
def test_urls_are_checked_at_the_start(
    url: str, reason: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for command in (
        ["serve", "rank", "--pipeline", str(FILE), "--redis", url],
        ["train", "--pipeline", str(FILE), "--source", f"file:{tmp_path}", "--publish", url],
        ["versions", "list", "--redis", url],
        ["inspect", "--redis", url],
    ):
        assert main(command) == 2
        assert reason in capsys.readouterr().err, command


def test_a_server_that_is_no_cluster_is_told_apart(
    redis_server: object, capsys: pytest.CaptureFixture[str]
) -> None:
    port = redis_server.port  # type: ignore[attr-defined]
    assert main(["versions", "list", "--redis", f"redis+cluster://127.0.0.1:{port}"]) == 4
    assert "no node of a cluster; say redis://" in capsys.readouterr().err
