"""Metrics endpoint with real sockets: plain, by https, and for clients with a certificate alone."""

from __future__ import annotations

import socket
import ssl
import time
from pathlib import Path

import pytest

from livectr.local.ports import free_ports
from livectr.system.errors import ConfigError
from livectr.system.metrics_server import metrics_server
from livectr.system.tls import TlsFiles
from tests.metrics_page import REFUSED, scrape, trusting
from tests.serving.certificates import Authority


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def files(cert: Path, key: Path, client_ca: Path | None = None) -> TlsFiles:
    return TlsFiles(str(cert), str(key), str(client_ca) if client_ca else None)


def test_plain_without_a_certificate() -> None:
    port = free_ports(1)
    with metrics_server(port, "127.0.0.1"):
        assert "python_info" in scrape(port)
        with pytest.raises(REFUSED):
            scrape(port, ssl.create_default_context())
    with pytest.raises(REFUSED):
        scrape(port)


def test_https_answers_and_plain_is_refused(authority: Authority, tmp_path: Path) -> None:
    port = free_ports(1)
    with metrics_server(port, "127.0.0.1", files(*authority.issue("server"))):
        assert "python_info" in scrape(port, trusting(authority))
        for stranger in (None, trusting(Authority(tmp_path))):
            with pytest.raises(REFUSED):
                scrape(port, stranger)


def test_clients_show_certificates(authority: Authority, tmp_path: Path) -> None:
    port, clients = free_ports(1), Authority(tmp_path)
    with metrics_server(port, "127.0.0.1", files(*authority.issue("server"), clients.ca)):
        assert "python_info" in scrape(port, trusting(authority, *clients.issue("prometheus")))
        for own in ((), authority.issue("stranger")):
            with pytest.raises(REFUSED):
                scrape(port, trusting(authority, *own))


def test_a_silent_client_keeps_nobody_out(authority: Authority) -> None:
    port = free_ports(1)
    with (
        metrics_server(port, "127.0.0.1", files(*authority.issue("server"))),
        socket.create_connection(("127.0.0.1", port)),
    ):
        time.sleep(0.1)  # it is accepted first
        assert "python_info" in scrape(port, trusting(authority))


def test_a_renewed_certificate_is_shown_without_a_restart(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    used = (tmp_path / "tls.crt", tmp_path / "tls.key")
    first, second = authority.issue("first", 1), authority.issue("second", 2)

    def replace(cert: Path, key: Path) -> None:
        for source, target in ((cert, used[0]), (key, used[1])):
            new = target.with_suffix(".new")
            new.write_bytes(source.read_bytes())
            new.replace(target)

    def serial() -> int:
        with (
            socket.create_connection(("127.0.0.1", port)) as plain,
            trusting(authority).wrap_socket(plain, server_hostname="localhost") as secure,
        ):
            shown = secure.getpeercert()
        assert shown is not None
        return int(str(shown["serialNumber"]), 16)

    replace(*first)
    port = free_ports(1)
    with metrics_server(port, "127.0.0.1", files(*used)):
        assert serial() == 1
        replace(second[0], first[1])  # in the middle of a careless renewal
        assert serial() == 1 and serial() == 1
        assert sum("cannot be used" in record.getMessage() for record in caplog.records) == 1
        replace(*second)
        assert serial() == 2


def test_files_that_do_not_fit(authority: Authority, tmp_path: Path) -> None:
    cert, key = authority.issue("one")
    _, other = authority.issue("two")
    for wrong in (files(cert, other), files(cert, tmp_path / "none"), files(cert, key, tmp_path / "none")):
        with (
            pytest.raises(ConfigError, match=r"TLS files .* cannot be used"),
            metrics_server(free_ports(1), "127.0.0.1", wrong),
        ):
            pass


def test_a_port_that_is_taken() -> None:
    port = free_ports(1)
    with (
        metrics_server(port, "127.0.0.1"),
        pytest.raises(ConfigError, match=f"metrics port {port}"),
        metrics_server(port, "127.0.0.1"),
    ):
        pass
