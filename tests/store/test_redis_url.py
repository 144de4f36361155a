"""URLs of clusters and sentinels: parts, mistakes; TLS, users and passwords with real servers."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from livectr.config.sources import resolve
from livectr.local.ports import free_ports
from livectr.secrets import has_password, with_password
from livectr.store.layout import without_password
from livectr.store.redis_client import connect_redis
from livectr.store.redis_url import check_redis_url, is_clustered, parse_address
from livectr.system.children import with_parent
from livectr.system.errors import ConfigError
from tests.k8s_static.valkeys import server_program
from tests.redis_cluster import until_redis
from tests.serving.certificates import Authority

PASSWORD = "p@ss /?&"


def test_parts_of_a_cluster() -> None:
    address = parse_address(
        "redis+cluster://u:p%40ss@a:1,b,[::1]:7002?socket_timeout=2&health_check_interval=3"
    )
    assert address.hosts == (("a", 1), ("b", 6379), ("::1", 7002)) and address.service == ""
    assert address.options == {
        "username": "u",
        "password": "p@ss",
        "socket_timeout": 2.0,
        "health_check_interval": 3,
    }
    assert parse_address("rediss+cluster://a/0").options == {"ssl": True}
    assert is_clustered("rediss+cluster://a") and not is_clustered("redis+sentinel://a/s")


def test_parts_of_sentinels() -> None:
    url = "rediss+sentinel://u:p@a,b:5/main/2?ssl_ca_certs=/ca&sentinel_username=s&sentinel_password=t"
    address = parse_address(url)
    assert address.hosts == (("a", 26379), ("b", 5)) and address.service == "main"
    assert address.options == {"username": "u", "password": "p", "db": 2, "ssl": True, "ssl_ca_certs": "/ca"}
    own = {"ssl": True, "ssl_ca_certs": "/ca", "username": "s", "password": "t"}
    assert address.sentinel_options == own, "servers and sentinels have passwords of their own"


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("redis+cluster://", "no HOST:PORT"),
        ("redis+cluster://a:1,,b:2", "no HOST:PORT"),
        ("redis+cluster://a:0", "no HOST:PORT"),
        ("redis+cluster://a:x", "no HOST:PORT"),
        ("redis+cluster://a/1", "database 0 alone"),
        ("redis+cluster://a?sentinel_password=x", "has no sentinels"),
        ("redis+cluster://a?db=3", "no option 'db'"),
        ("redis+sentinel://a:1", "comes /SERVICE"),
        ("redis+sentinel://a/s/1/2", "comes /SERVICE"),
        ("redis+sentinel://a/s/x", "is no number"),
        ("redis+sentinel://a/s?timeout=1", "no option 'timeout'"),
        ("redis+sentinel://:hunter2@a", "***@a"),
        ("redis+cluster://a?ssl_ca_certs=/x", "write rediss+cluster"),
        ("unix+cluster://a", "must begin with"),
        ("redis://a:x", "port"),
    ],
)
def test_a_mistake_gets_a_sentence(url: str, reason: str) -> None:
    with pytest.raises(ConfigError) as error:
        check_redis_url(url)
    assert reason.lower() in str(error.value).lower() and "hunter2" not in str(error.value)


@pytest.mark.parametrize("url", ["redis+cluster://a:1,b:2", "rediss+sentinel://a:1,b:2/s?ssl_ca_certs=/x"])
def test_passwords_are_added_and_hidden(url: str) -> None:
    assert not has_password(url) and without_password(url) == url
    filled = with_password(url.replace("://", "://trainer@"), PASSWORD)
    assert has_password(filled) and parse_address(filled).options["password"] == PASSWORD
    assert parse_address(filled).options["username"] == "trainer"
    hidden = without_password(filled + ("&" if "?" in filled else "?") + "sentinel_password=hunter2")
    assert "***@a:1,b:2" in hidden and "p%40ss" not in hidden and "hunter2" not in hidden
    assert with_password(filled, "other") == filled


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, int]]]:
    """A cluster of one node, and a primary with its sentinel; all speak TLS alone and know a user."""
    folder = tmp_path_factory.mktemp("secured")
    authority = Authority(folder / "tls")
    cert, key = authority.issue("redis")
    program = folder / "redis-server"
    found = server_program()
    assert found, "redis-cli is missing: `make setup` installs it (Debian's package redis-tools)"
    program.symlink_to(found)
    ports = {name: free_ports(1) for name in ("cluster", "primary", "sentinel")}
    tls = f"port 0\ntls-cert-file {cert}\ntls-key-file {key}\ntls-ca-cert-file {authority.ca}\n"
    tls += "tls-auth-clients no\nbind 127.0.0.1\n"
    users = "user default off\nuser trainer on #{} ~* &* +@all\n"
    users = users.format(hashlib.sha256(PASSWORD.encode()).hexdigest())
    save = 'save ""\ntls-cluster yes\ntls-replication yes\n'
    text = {
        "cluster": f"{tls}{save}{users}cluster-enabled yes\ncluster-port {free_ports(1)}\n",
        "primary": f"{tls}{save}{users}",
        "sentinel": f"{tls}tls-replication yes\nsentinel monitor ads 127.0.0.1 {ports['primary']} 1\n"
        f'sentinel auth-user ads trainer\nsentinel auth-pass ads "{PASSWORD}"\n',
    }
    processes = []
    for name, port in ports.items():
        (folder / name).mkdir()
        (folder / f"{name}.conf").write_text(f"{text[name]}tls-port {port}\ndir {folder / name}\n")
        more = ["--sentinel"] if name == "sentinel" else []
        with (folder / f"{name}.log").open("wb") as log:
            command = [str(program), str(folder / f"{name}.conf"), *more]
            processes.append(subprocess.Popen(with_parent(command), stdout=log, stderr=log))

    def client(name: str) -> Any:
        user, password = (None, None) if name == "sentinel" else ("trainer", PASSWORD)
        return redis.Redis(
            "127.0.0.1",
            ports[name],
            username=user,
            password=password,
            ssl=True,
            ssl_ca_certs=str(authority.ca),
        )

    try:
        until_redis(lambda: all(client(name).ping() for name in ports))
        client("cluster").execute_command("CLUSTER ADDSLOTSRANGE", 0, 16383)
        until_redis(lambda: client("cluster").cluster("INFO")["cluster_state"] == "ok")
        until_redis(lambda: client("sentinel").sentinel_masters()["ads"]["flags"] == "master")
        (folder / "password").write_text(PASSWORD + "\n")
        yield folder, ports
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.mark.parametrize("kind", ["cluster", "sentinel"])
def test_users_over_tls_with_a_password_file(secured: tuple[Path, dict[str, int]], kind: str) -> None:
    folder, ports = secured
    path = "/ads" if kind == "sentinel" else ""
    url = f"rediss+{kind}://trainer@127.0.0.1:{ports[kind]}{path}?ssl_ca_certs={folder / 'tls' / 'ca.crt'}"
    flags = {"publish": url, "redis_password_file": str(folder / "password")}
    given = resolve(flags, environment={}).publish
    assert given is not None
    client = connect_redis("secured", given, timeout_s=60)
    client.set("a", b"1")
    assert client.ping() and client.fetch([b"a", b"b"]) == [b"1", None]
    client.close()
    for wrong in (given.replace("trainer:", "nobody:"), url.replace("trainer@", "")):
        client = connect_redis("secured", wrong, timeout_s=5)
        with pytest.raises((redis.AuthenticationError, redis.ResponseError)):
            client.get("a")
        client.close()
    plain = given.replace("rediss+", "redis+").partition("?")[0]
    client = connect_redis("secured", plain, timeout_s=2)
    with pytest.raises(redis.ConnectionError):
        client.get("a")
    client.close()
