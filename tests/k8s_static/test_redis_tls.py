"""Redis of the components by TLS: their scripts on real servers, and their manifests."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
import yaml

from livectr.system.errors import ConnectError
from livectr.trainer.publish.redis_store import RedisStore
from tests.k8s_static.rendering import K8S, of_kind, only
from tests.k8s_static.valkeys import FOLDER, Valkeys, primary_port, primary_state
from tests.serving.certificates import Authority


@contextmanager
def running(folder: Path) -> Iterator[Valkeys]:
    """Primary, replica and sentinel that run and know each other."""
    started = Valkeys(folder)
    try:
        for script, port in (("sentinel.sh", started.sentinel), ("valkey.sh", started.primary)):
            started.start(script, port)
        started.until(lambda: bool(started.client(started.primary).ping()))
        started.start("valkey.sh", started.replica)
        for port, user in ((started.replica, "admin"), (started.sentinel, None)):
            started.until(lambda: bool(started.client(port, user).ping()))  # noqa: B023
        yield started
    finally:
        for port in [*started.running]:
            started.stop(port)


@pytest.fixture(scope="module")
def valkeys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkeys]:
    with running(tmp_path_factory.mktemp("valkeys")) as started:
        yield started


def test_the_replica_copies_by_tls(valkeys: Valkeys) -> None:
    valkeys.client(valkeys.primary, "trainer").set("row", 1)
    replica = valkeys.client(valkeys.replica)
    valkeys.until(lambda: replica.info("replication")["master_link_status"] == "up")
    valkeys.until(lambda: replica.get("row") == b"1")


def test_plain_connections_and_another_authority_are_refused(valkeys: Valkeys) -> None:
    stranger = Authority(valkeys.authority.ca.parent / "stranger")
    for port in (valkeys.primary, valkeys.replica, valkeys.sentinel):
        with pytest.raises(redis.ConnectionError):
            redis.Redis("127.0.0.1", port, username="admin", password="pw-admin").ping()
        with pytest.raises(ssl.SSLCertVerificationError):
            ssl.get_server_certificate(("127.0.0.1", port), ca_certs=str(stranger.ca))
    address = f"trainer:pw-trainer@127.0.0.1:{valkeys.primary}"
    RedisStore(f"rediss://{address}?ssl_ca_certs={valkeys.authority.ca}", "livectr").close()
    for wrong in (f"redis://{address}?socket_timeout=3", f"rediss://{address}?ssl_ca_certs={stranger.ca}"):
        with pytest.raises(ConnectError):
            RedisStore(wrong, "livectr")


def test_renewed_certificates_are_taken_up(valkeys: Valkeys) -> None:
    """A Valkey is told; a sentinel ends, and is started again by its pod."""
    former = valkeys.certificate(valkeys.primary)
    sentinel = valkeys.running.pop(valkeys.sentinel)
    valkeys.issue(2)
    for port in (valkeys.primary, valkeys.replica):
        valkeys.until(lambda: valkeys.certificate(port) != former)  # noqa: B023
    assert sentinel.wait() == 0
    valkeys.start("sentinel.sh", valkeys.sentinel)
    valkeys.until(lambda: bool(valkeys.client(valkeys.sentinel, user=None).ping()))
    assert valkeys.certificate(valkeys.sentinel) == valkeys.certificate(valkeys.primary)


def test_a_sentinel_fails_over_by_tls(tmp_path: Path) -> None:
    with running(tmp_path) as valkeys:
        sentinel = valkeys.client(valkeys.sentinel, user=None)
        valkeys.until(lambda: primary_state(sentinel)["num-slaves"] == 1)
        valkeys.stop(valkeys.primary)
        valkeys.until(lambda: primary_port(sentinel) == valkeys.replica)
        valkeys.until(lambda: valkeys.client(valkeys.replica).info("replication")["role"] == "master")


NAME = "strimzi-tls"


def test_all_parts_of_redis_speak_tls() -> None:
    parts = {"valkey": "StatefulSet", "sentinel": "StatefulSet", "redis": "Deployment"}
    for name, kind in parts.items():
        pod = only(NAME, kind, name)["spec"]["template"]["spec"]
        (container,) = [c for c in pod["containers"] if c["name"] in (name, "haproxy")]
        assert {"name": "REDIS_TLS", "value": "/tls"} in container["env"]
        assert "/tls" in [mount["mountPath"] for mount in container["volumeMounts"]]
    checks = (FOLDER / "haproxy.cfg").read_text()
    assert 'default-server check-ssl verify required ca-file "${REDIS_TLS}/ca.crt"' in checks
    for name, verified in re.findall(r'  server \S+ "(\S+)\.\$\{DOMAIN\}:\d+" verifyhost (\S+)', checks):
        assert name == verified


@pytest.mark.parametrize(
    ("overlay", "kind", "name"),
    [
        (NAME, "StatefulSet", "trainer"),
        (NAME, "Deployment", "rank"),
        (NAME, "Deployment", "prerank"),
        (NAME, "Deployment", "recommend"),
        ("gang", "JobSet", "trainer"),
    ],
)
def test_clients_check_the_certificate(overlay: str, kind: str, name: str) -> None:
    spec = only(overlay, kind, name)["spec"]
    if kind == "JobSet":
        spec = spec["replicatedJobs"][0]["template"]["spec"]
    pod = spec["template"]["spec"]
    addresses = [e["value"] for e in pod["containers"][0]["env"] if "rediss://" in e.get("value", "")]
    user = "trainer" if name == "trainer" else "server"
    assert addresses == [f"rediss://{user}@redis:6379?ssl_ca_certs=/tls/ca.crt"]
    assert "/tls" in [mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]]


def test_certificates_name_who_is_asked() -> None:
    names = {m["metadata"]["name"]: set(m["spec"]["dnsNames"]) for m in of_kind(NAME, "Certificate") if
             m["metadata"]["name"] in ("valkey-tls", "sentinel-tls")}  # fmt: skip
    assert names["valkey-tls"] >= {"redis", "localhost", "valkey-0.valkey", "valkey-1.valkey"}
    assert names["sentinel-tls"] == {f"sentinel-{number}.sentinel" for number in range(3)}


def test_the_exporter_asks_by_tls() -> None:
    """Both exporters ask at the address that is in their file of passwords."""
    spec = only(NAME, "StatefulSet", "valkey")["spec"]["template"]["spec"]
    plain = yaml.safe_load((K8S / "components" / "redis-exporter" / "exporter.yaml").read_text())
    for pod, scheme in ((spec, "rediss"), (plain["spec"]["template"]["spec"], "redis")):
        (exporter,) = [c for c in pod["containers"] if c["name"] == "exporter"]
        (writer,) = [c for c in pod["initContainers"] if c["name"] == "exporter-password"]
        assert f"-redis.addr={scheme}://monitor@localhost:6379" in exporter["args"]
        assert f'"{scheme}://monitor@localhost:6379"' in writer["command"][-1]
        assert ("-tls-ca-cert-file=/tls/ca.crt" in exporter["args"]) == (scheme == "rediss")
        assert "/etc/redis-auth/monitor" in writer["command"][-1]
