"""Valkeys and a sentinel of the component, started by its own scripts on this machine.

The programs are Debian's Redis, which has TLS: the Valkey of the packages has none. The names valkey-0 and
valkey-1 become localhost and 127.0.0.1, each with a port of its own.
"""

from __future__ import annotations

import os
import shutil
import signal
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

from livectr.local.ports import free_ports
from livectr.system.children import with_parent
from tests.k8s_static.rendering import K8S
from tests.serving.certificates import Authority
from tests.waiting import until

FOLDER = K8S / "components" / "redis"
USERS = ("admin", "trainer", "server", "monitor")


def primary_state(sentinel: redis.Redis) -> Mapping[str, Any]:
    """State of the primary, as the sentinel sees it."""
    state = sentinel.sentinel_master("primary")
    assert isinstance(state, dict)
    return state


def primary_port(sentinel: redis.Redis) -> int:
    """Port of the primary that the sentinel names."""
    address = sentinel.sentinel_get_master_addr_by_name("primary")
    assert isinstance(address, tuple)
    return address[1]


class Valkeys:
    """Primary, replica and a sentinel.

    Args:
        folder: their files.
        tls: with the component redis-tls.

    Attributes:
        authority: of their certificate.
        primary, replica, sentinel: their ports.
        running: port → process.
    """

    def __init__(self, folder: Path, tls: bool = True) -> None:
        self._folder, self._tls = folder, tls
        self.authority = Authority(folder / "tls")
        self.primary, self.replica, self.sentinel = free_ports(1), free_ports(1), free_ports(1)
        self.running: dict[int, subprocess.Popen[bytes]] = {}
        for name in ("auth", "programs"):
            (folder / name).mkdir()
        for user in USERS:
            (folder / "auth" / user).write_text(f"pw-{user}")
        for name, program in (("valkey-server", server_program()), ("valkey-cli", shutil.which("redis-cli"))):
            assert program, "redis-cli is missing: `make setup` installs it (Debian's package redis-tools)"
            (folder / "programs" / name).symlink_to(program)
        self.issue(1)

    def issue(self, serial: int) -> None:
        """Put a new certificate in place of the one there is."""
        cert, key = self.authority.issue("pod", serial)
        shutil.copy(self.authority.ca, self._folder / "ca.crt")
        shutil.copy(key, self._folder / "tls.key")
        shutil.copy(cert, self._folder / "tls.crt")

    def start(self, script: str, port: int) -> None:
        """Run a script that becomes the process of a port."""
        self.running[port] = self.run(script, port)

    def run(self, script: str, port: int) -> subprocess.Popen[bytes]:
        """Run a script of the component beside a port, with paths, names and ports of this machine."""
        run = self._folder / f"run-{port}"
        (run / "etc").mkdir(parents=True, exist_ok=True)
        own = "127.0.0.1" if port == self.replica else "localhost"
        changes = {
            "/etc/redis-auth": str(self._folder / "auth"),
            "/scripts": str(run),
            "/etc/valkey": str(run / "etc"),
            "/run/valkey": str(run),
            "/run/sentinel": str(run),
            "dir /data": f"dir {run}\nbind 127.0.0.1",
            "protected-mode no\ndir": "bind 127.0.0.1\ndir",
            '-h "sentinel-$number.sentinel" -p 26379': f"-h localhost -p {self.sentinel}",
            '-h "$1" --user': '-h localhost -p $(port_of "$1") --user',
            "-h 127.0.0.1 --user": f"-h 127.0.0.1 -p {port} --user",
            "# Names and questions": f"port_of() {{ case $1 in localhost) echo {self.primary} ;; "
            f"*) echo {self.replica} ;; esac; }}\n# Names and questions",
            "valkey-0.valkey": "localhost",
            "valkey-1.valkey": "127.0.0.1",
            "$HOSTNAME.valkey": own,
            "role_of 127.0.0.1": f"role_of {own}",
            "$HOSTNAME.sentinel": "localhost",
            "listening 6379": f"listening {port}",
            "listening 26379": f"listening {port}",
            "$primary 6379 2": "$primary $(port_of $primary) 1",
            "$primary 6379": "$primary $(port_of $primary)",
            "sleep 20": "sleep 0.2",
            "date +%s) + 45": "date +%s) + 5",
        }
        for source in (*FOLDER.glob("*.sh"), *FOLDER.glob("*.conf"), FOLDER / "users.acl"):
            text = source.read_text()
            for old, new in changes.items():
                text = text.replace(old, new)
            (run if source.suffix == ".sh" else run / "etc").joinpath(source.name).write_text(text)
        environment = os.environ | {
            "PATH": f"{self._folder / 'programs'}:{os.environ['PATH']}",
            **({"REDIS_TLS": str(self._folder)} if self._tls else {}),
            "HOSTNAME": "pod-0",
            "MEMORY_LIMIT": str(1 << 28),
        }
        with (run / "log").open("ab") as log:
            return subprocess.Popen(
                with_parent(["sh", str(run / script)]),
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a group to end: the script watches certificates in a child
            )

    def until(self, done: Callable[[], bool]) -> None:
        """Wait as long as it takes. Fails when a process ends."""

        def turn() -> None:
            for port, process in self.running.items():
                assert process.poll() is None, self.log(port)
            time.sleep(0.05)

        until(done, despite=redis.ConnectionError, turn=turn)

    def client(self, port: int, user: str | None = "admin") -> redis.Redis:
        """Client of a port. A sentinel has no users."""
        named: dict[str, Any] = {"username": user, "password": f"pw-{user}"} if user else {}
        if self._tls:
            named |= {"ssl_ca_certs": str(self.authority.ca)}
        return redis.Redis("127.0.0.1", port, ssl=self._tls, socket_timeout=10, **named)

    def certificate(self, port: int) -> str:
        """Certificate (PEM) that a port shows."""
        return ssl.get_server_certificate(("127.0.0.1", port), ca_certs=str(self.authority.ca))

    def log(self, port: int) -> str:
        """Output of the processes of a port."""
        return (self._folder / f"run-{port}" / "log").read_text()

    def stop(self, port: int) -> None:
        """Kill the process of a port."""
        process = self.running.pop(port)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def server_program() -> str | None:
    """Debian's Redis: the program that its package redis-tools has under another name."""
    return shutil.which("redis-server") or shutil.which("redis-check-rdb")


@contextmanager
def replicated(folder: Path) -> Iterator[Valkeys]:
    """Start a sentinel, and a primary with a row that its replica has, too; without TLS."""
    started = Valkeys(folder, tls=False)
    try:
        for script, port in (("sentinel.sh", started.sentinel), ("valkey.sh", started.primary)):
            started.start(script, port)
        started.until(lambda: bool(started.client(started.primary).set("row", 1)))
        started.start("valkey.sh", started.replica)
        sentinel = started.client(started.sentinel, user=None)
        started.until(lambda: primary_state(sentinel)["num-slaves"] == 1)
        started.until(lambda: started.client(started.replica).get("row") == b"1")
        yield started
    finally:
        for port in [*started.running]:
            started.stop(port)
