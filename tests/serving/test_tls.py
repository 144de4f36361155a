"""TLS of servers and clients by files; a renewed certificate is used without a restart."""

from __future__ import annotations

import socket
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from livectr.cli import main
from livectr.client.clients import ClientTls, PreRankClient, RankClient
from livectr.client.failures import NoAnswerError
from livectr.local.ports import free_ports
from livectr.serving.app import App
from livectr.serving.options import ServeOptions
from livectr.serving.tls import server_credentials
from livectr.system.errors import ConfigError
from livectr.system.tls import TlsFiles
from tests.metrics_page import REFUSED, scrape, trusting
from tests.serving.certificates import Authority
from tests.serving.display_requests import rank
from tests.serving.display_world import NOW_MS, World, publication
from tests.serving.processes import ready, server

Serve = Callable[..., App]


def files(cert: Path, key: Path, **more: Any) -> dict[str, Any]:
    return {"tls_cert": str(cert), "tls_key": str(key), **more}


def serial(address: str) -> int:
    """Serial number of the certificate that a server shows."""
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection((host, int(port))) as plain, context.wrap_socket(plain) as secure:
        shown = secure.getpeercert(binary_form=True)
    assert shown is not None
    text = subprocess.run(
        ["openssl", "x509", "-inform", "der", "-noout", "-serial"],
        input=shown,
        capture_output=True,
        check=True,
    )
    return int(text.stdout.decode().strip().removeprefix("serial="), 16)


def test_a_client_that_trusts_the_authority_is_answered(
    redis_url: str, world: World, serve: Serve, tmp_path: Path
) -> None:
    world.publish(publication(redis_url))
    authority = Authority(tmp_path / "a")
    app = serve("rank", **files(*authority.issue("server")))
    with RankClient(app.server.address, tls=ClientTls(str(authority.ca))) as client:
        assert rank(client) == 1
    stranger = Authority(tmp_path / "b")
    for tls in (None, ClientTls(str(stranger.ca))):
        with RankClient(app.server.address, timeout_s=3.0, tls=tls) as client:
            with pytest.raises(grpc.RpcError) as error:
                rank(client)
            assert error.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


def test_clients_show_certificates(redis_url: str, world: World, serve: Serve, tmp_path: Path) -> None:
    world.publish(publication(redis_url))
    servers, clients = Authority(tmp_path / "servers"), Authority(tmp_path / "clients")
    app = serve("prerank", **files(*servers.issue("server"), tls_client_ca=str(clients.ca)))
    cert, key = map(str, clients.issue("client"))
    ca = str(servers.ca)
    with PreRankClient(app.server.address, tls=ClientTls(ca, cert, key)) as client:
        assert len(client.prerank({"user_id": 3, "ts": NOW_MS}, None, 5).ids.values) == 5
    for tls in (ClientTls(ca), ClientTls(ca, *map(str, servers.issue("stranger")))):
        with (
            PreRankClient(app.server.address, timeout_s=3.0, tls=tls) as client,
            pytest.raises(grpc.RpcError),
        ):
            client.describe()


def test_a_renewed_certificate_is_used_without_a_restart(
    redis_url: str, world: World, serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As Kubernetes renews it: `..data` is a link that is replaced. Files that do not fit change nothing."""
    world.publish(publication(redis_url))
    authority = Authority(tmp_path / "a")
    for number in (1, 2):
        folder = tmp_path / f"data-{number}"
        folder.mkdir()
        for path, name in zip(authority.issue(f"s{number}", number), ("tls.crt", "tls.key"), strict=True):
            path.rename(folder / name)
    link = tmp_path / "data"
    link.symlink_to("data-1")
    app = serve("rank", **files(link / "tls.crt", link / "tls.key"))
    address = app.server.address
    with RankClient(address, tls=ClientTls(str(authority.ca))) as old:
        assert rank(old) == 1 and serial(address) == 1
        # in the middle of a careless renewal: the new certificate beside the old key
        broken = tmp_path / "broken"
        broken.mkdir()
        (broken / "tls.crt").write_bytes((tmp_path / "data-2" / "tls.crt").read_bytes())
        (broken / "tls.key").write_bytes((tmp_path / "data-1" / "tls.key").read_bytes())
        replace(link, "broken")
        assert serial(address) == 1 and serial(address) == 1
        assert sum("cannot be used" in record.getMessage() for record in caplog.records) == 1
        replace(link, "data-2")
        assert serial(address) == 2
        assert rank(old) == 1
    with RankClient(address, tls=ClientTls(str(authority.ca))) as new:
        assert rank(new) == 1


def replace(link: Path, target: str) -> None:
    new = link.with_suffix(".new")
    new.symlink_to(target)
    new.replace(link)


def test_the_command_line_asks_over_tls(
    redis_url: str, world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world.publish(publication(redis_url))
    authority = Authority(tmp_path)
    cert, key = map(str, authority.issue("server"))
    flags = ["--set", f"tls_cert={cert}", f"tls_key={key}", f"tls_client_ca={authority.ca}", "--workers", "2"]
    port = free_ports(2)
    flags += ["--set", f"metrics_port={port}", f"metrics_tls_cert={cert}", f"metrics_tls_key={key}"]
    with server("rank", redis_url, *flags, "--set", f"metrics_tls_client_ca={authority.ca}") as process:
        address = ready(process)[0]
        ready(process)
        shown = trusting(authority, *authority.issue("prometheus"))
        for worker in (0, 1):
            assert "livectr_served_version" in scrape(port + worker, shown)
            for wrong in (None, trusting(authority)):
                with pytest.raises(REFUSED):
                    scrape(port + worker, wrong)
        ask = ["query", "rank", "--server", address, "--candidates", "ad_id=100", "position=0"]
        ask += ["--context", "user_id=3", f"ts={NOW_MS}", "tags="]
        mine, own_key = map(str, authority.issue("client"))
        trusted = ["--tls-ca", str(authority.ca)]
        assert main([*ask, *trusted, "--tls-cert", mine, "--tls-key", own_key, "--json"]) == 0
        assert '"pctr"' in capsys.readouterr().out
        other = Authority(tmp_path / "other")
        strange, strange_key = map(str, other.issue("client"))
        capsys.readouterr()
        for words, says in (
            (trusted, "show one that it trusts (--tls-cert"),
            (
                [*trusted, "--tls-cert", strange, "--tls-key", strange_key],
                "show one that it trusts",
            ),
            ([], "If it speaks TLS, name its authority (--tls-ca"),
            (["--tls-ca", str(other.ca)], "is not of the authority that --tls-ca names"),
        ):
            assert main([*ask, *words, "--timeout", "3s"]) == 4
            assert says in capsys.readouterr().err
        assert main([*ask, "--tls-ca", str(tmp_path / "none")]) == 2
        assert "none" in capsys.readouterr().err


def test_a_server_without_tls_or_with_another_name_is_told(
    redis_url: str, world: World, serve: Serve, tmp_path: Path
) -> None:
    world.publish(publication(redis_url))
    authority = Authority(tmp_path)
    plain = serve("rank").server.address
    secured = serve("rank", **files(*authority.issue("server"))).server.address
    renamed = [("grpc.ssl_target_name_override", "elsewhere")]
    for address, options, says in (
        (plain, [], "it does not speak TLS: leave out --tls-ca"),
        (secured, renamed, "its certificate is for another name"),
    ):
        with (
            RankClient(address, 5, tls=ClientTls(str(authority.ca)), options=options) as client,
            pytest.raises(NoAnswerError, match=says),
        ):
            client.describe()


def test_files_that_do_not_fit(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, _ = authority.issue("one")
    _, key = authority.issue("two")
    mistakes: list[dict[str, Any]] = [{"tls_cert": "x"}, {"tls_key": "x"}, {"tls_client_ca": "x"}]
    for wrong in mistakes:
        with pytest.raises(ConfigError, match="set tls_cert and tls_key"):
            ServeOptions("redis://x", **wrong)
        with pytest.raises(ConfigError, match="set metrics_tls_cert and metrics_tls_key"):
            ServeOptions("redis://x", **{f"metrics_{name}": value for name, value in wrong.items()})
    for flags in (files(cert, key), files(cert, tmp_path / "none")):
        with pytest.raises(ConfigError, match=r"TLS files .* cannot be used"):
            server_credentials(TlsFiles(flags["tls_cert"], flags["tls_key"]))
