"""Kafka over TLS, with client certificates and with passwords, against a real broker."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from livectr.ingest.addresses import connect_admin, kafka_options, topic_address
from livectr.ingest.chunks import BEGINNING
from livectr.ingest.dead_letters.letters import DeadLetters
from livectr.ingest.language.streams import Stream
from livectr.ingest.sources.source import open_source
from livectr.kernels.errors import ConfigError, ConnectError
from livectr.local.kafka import Broker, create_topics
from livectr.local.ports import free_ports
from livectr.simulator.sinks import KafkaSink
from tests.serving.certificates import Authority

PASSWORD = "o=&? 7"
LISTENERS = ("TLS", "MUTUAL", "LOGIN")


@dataclass(frozen=True)
class Secured:
    """Broker with a listener for TLS, one for client certificates, and one for passwords over TLS."""

    ports: dict[str, int]
    authority: Authority
    password_file: Path

    def url(self, listener: str, **options: object) -> str:
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
        text[at] += ",TLS:SSL,MUTUAL:SSL,LOGIN:SASL_SSL"
        path.write_text("\n".join([*text, *self._lines]) + "\n")
        return path

    def _format(self, libs: Path, properties: Path) -> None:
        """Format with a user whose password is kept as SCRAM."""
        scram = f'--add-scram=SCRAM-SHA-512=[name=ads,password="{PASSWORD}"]'
        java = self._java(
            libs,
            "kafka.tools.StorageTool",
            "format",
            "--cluster-id=MkU3OEVBNTcwNTJENDM2Qk",
            f"--config={properties}",
            scram,
        )
        assert java.wait() == 0, self.log.read_text()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("tls")
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
    for name in LISTENERS:
        prefix = f"listener.name.{name.lower()}"
        lines += [f"{prefix}.ssl.keystore.type=PEM", f"{prefix}.ssl.keystore.location={store}"]
        lines += [f"{prefix}.ssl.truststore.type=PEM", f"{prefix}.ssl.truststore.location={authority.ca}"]
    lines += ["listener.name.mutual.ssl.client.auth=required"]
    lines += ["sasl.enabled.mechanisms=SCRAM-SHA-512"]
    module = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    lines += [f"listener.name.login.scram-sha-512.sasl.jaas.config={module}"]
    password = folder / "password"
    password.write_text(PASSWORD + "\n")
    with SecuredBroker(ports, lines):
        yield Secured(ports, authority, password)


@pytest.mark.parametrize("listener", LISTENERS)
def test_records_go_through(broker: Secured, listener: str) -> None:
    """By the admin, the producer and the source; a dead letter goes to its topic."""
    options: dict[str, object] = {}
    if listener == "MUTUAL":
        options = dict(zip(("cert", "key"), broker.authority.issue("client"), strict=True))
    if listener == "LOGIN":
        options = broker.login
    url, topic = broker.url(listener, **options), f"events-{listener.lower()}"
    create_topics(url, {topic: 1})
    with closing(KafkaSink(url, {topic: 1}, ())) as sink:
        values = [b'{"user_id": 1}', b'{"user_id": 2}', b"broken"]
        sink.write(topic, np.zeros(3, np.int32), [None] * 3, values)
    letters = DeadLetters(url)
    stream = Stream(topic, key="user_id", columns={"user_id": "int64"})
    source = open_source(url, [stream], until_end=True, dead_letters=letters)
    assert source.topics() == {topic: [0]}
    source.assign({(topic, 0): BEGINNING})
    source.start()
    rows: list[int] = []
    while not source.at_end(topic, 0):
        for chunk in source.poll(1):
            rows += chunk.batch["user_id"].to_pylist()
    source.close()
    letters.close()
    assert rows == [1, 2]
    with connect_admin(url) as admin:
        assert "livectr.dead_letters" in admin.list_topics()


def test_strangers_get_no_answer(broker: Secured, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("guess\n")
    stranger = Authority(tmp_path / "stranger")
    mine = dict(zip(("cert", "key"), stranger.issue("client"), strict=True))
    for url in (
        f"kafka://localhost:{broker.ports['TLS']}",
        broker.url("TLS", ca=stranger.ca),
        broker.url("MUTUAL"),
        broker.url("MUTUAL", **mine),
        broker.url("LOGIN"),
        broker.url("LOGIN", user="ads", password_file=wrong),
    ):
        with pytest.raises(ConnectError), connect_admin(url, 3.0) as admin:
            admin.list_topics()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("cafile=x", "there is no option 'cafile'; known are ca, cert"),
        ("ca=/nowhere/ca.crt", "ca cannot be read"),
        ("cert=x&key=y", "cert needs ca, too"),
        ("ca=system&user=ads", "user needs password_file, too"),
        ("ca=system&user=ads&password_file=/dev/null&sasl=GSSAPI", "sasl must be SCRAM-SHA-512 or"),
    ],
)
def test_mistakes(options: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        kafka_options(f"kafka://b0:9093?{options}")


@pytest.mark.parametrize(
    "url", ["kafka://ads:hunter2@b0:9093", "kafka://b0:9093?ca=system&user=ads&password=hunter2"]
)
def test_a_password_in_an_address_is_refused_and_not_shown(url: str) -> None:
    place, mark, options = url.partition("?")
    for parse, given in ((kafka_options, url), (topic_address, f"{place}/served{mark}{options}")):
        with pytest.raises(ConfigError, match="password_file") as error:
            parse(given)
        assert "hunter2" not in str(error.value)


def test_options() -> None:
    assert kafka_options("kafka://b0:9092,b1:9092") == {
        "bootstrap_servers": ["b0:9092", "b1:9092"],
        "security_protocol": "PLAINTEXT",
    }
    assert kafka_options("kafka://b0:9093?ca=system")["security_protocol"] == "SSL"
