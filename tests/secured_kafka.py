"""Kafka broker with listeners for TLS, client certificates and passwords."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from livectr.local.kafka import Broker
from livectr.local.ports import free_ports
from tests.serving.certificates import Authority

PASSWORD = "o=&? 7"
LISTENERS = ("TLS", "MUTUAL", "LOGIN", "PLAIN")


@dataclass(frozen=True)
class Secured:
    """Broker with listeners for TLS, client certificates, passwords over TLS (SCRAM), and without (PLAIN)."""

    ports: dict[str, int]
    authority: Authority
    password_file: Path

    def url(self, listener: str, **options: object) -> str:
        if listener != "PLAIN":
            options = {"ca": self.authority.ca, **options}
        return f"kafka://localhost:{self.ports[listener]}?" + "&".join(f"{k}={v}" for k, v in options.items())

    @property
    def login(self) -> dict[str, object]:
        return {"user": "ads", "password_file": self.password_file}


class SecuredBroker(Broker):
    """Broker with more listeners."""

    def __init__(self, ports: dict[str, int], lines: list[str]) -> None:
        super().__init__()
        self._ports, self._lines = ports, lines

    def _write_properties(self) -> Path:
        path = super()._write_properties()
        text = path.read_text().splitlines()
        for prefix in ("listeners=", "advertised.listeners="):
            at = next(i for i, line in enumerate(text) if line.startswith(prefix))
            text[at] += "".join(f",{name}://localhost:{port}" for name, port in self._ports.items())
        at = next(i for i, line in enumerate(text) if line.startswith("listener.security.protocol.map="))
        text[at] += ",TLS:SSL,MUTUAL:SSL,LOGIN:SASL_SSL,PLAIN:SASL_PLAINTEXT"
        path.write_text("\n".join([*text, *self._lines]) + "\n")
        return path

    def _format(self, libs: Path, properties: Path) -> None:
        """Format with a user whose password is kept as SCRAM."""
        scram = [f'--add-scram=SCRAM-SHA-{n}=[name=ads,password="{PASSWORD}"]' for n in (256, 512)]
        java = self._java(
            libs,
            "kafka.tools.StorageTool",
            "format",
            "--cluster-id=MkU3OEVBNTcwNTJENDM2Qk",
            f"--config={properties}",
            *scram,
        )
        assert java.wait() == 0, self.log.read_text()


@contextmanager
def secured_broker(folder: Path) -> Iterator[Secured]:
    """Run a broker whose keys and passwords are in a folder."""
    authority = Authority(folder)
    cert, key = authority.issue("broker")
    store = folder / "broker.pem"
    pkcs8 = subprocess.run(
        ["openssl", "pkcs8", "-topk8", "-nocrypt", "-in", str(key)], check=True, capture_output=True
    )
    store.write_bytes(pkcs8.stdout + cert.read_bytes())
    first = free_ports(len(LISTENERS))
    ports = {name: first + i for i, name in enumerate(LISTENERS)}
    lines = []
    for name in LISTENERS[:3]:
        prefix = f"listener.name.{name.lower()}"
        lines += [f"{prefix}.ssl.keystore.type=PEM", f"{prefix}.ssl.keystore.location={store}"]
        lines += [f"{prefix}.ssl.truststore.type=PEM", f"{prefix}.ssl.truststore.location={authority.ca}"]
    lines += ["listener.name.mutual.ssl.client.auth=required"]
    lines += ["listener.name.login.sasl.enabled.mechanisms=SCRAM-SHA-512,SCRAM-SHA-256"]
    lines += ["listener.name.plain.sasl.enabled.mechanisms=PLAIN"]
    security = "org.apache.kafka.common.security"
    module = f"{security}.scram.ScramLoginModule required;"
    lines += [f"listener.name.login.scram-sha-{n}.sasl.jaas.config={module}" for n in (256, 512)]
    module = f'{security}.plain.PlainLoginModule required user_ads="{PASSWORD}";'
    lines += [f"listener.name.plain.plain.sasl.jaas.config={module}"]
    password = folder / "password"
    password.write_text(PASSWORD + "\n")
    with SecuredBroker(ports, lines):
        yield Secured(ports, authority, password)
