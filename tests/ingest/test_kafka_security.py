"""Kafka over TLS, with client certificates and with passwords, against a real broker."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from livectr.ingest.addresses import connect_admin, kafka_options, topic_address
from livectr.ingest.chunks import BEGINNING
from livectr.ingest.dead_letters.letters import DeadLetters
from livectr.ingest.language.streams import Stream
from livectr.ingest.sources.source import open_source
from livectr.local.kafka import create_topics
from livectr.simulator.sinks import KafkaSink, holds
from livectr.system.errors import ConfigError, ConnectError
from livectr.trainer.run import TrainOptions, train
from tests.secured_kafka import PASSWORD, Secured, secured_broker
from tests.serving.certificates import Authority
from tests.trainer.ad_logs import PARTITIONS, ad_pipeline, events


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_broker(tmp_path_factory.mktemp("tls")) as started:
        yield started


@pytest.mark.parametrize("way", ["TLS", "MUTUAL", "LOGIN", "LOGIN SCRAM-SHA-256", "PLAIN PLAIN"])
def test_records_go_through(broker: Secured, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the admin, the producer and the source; a dead letter goes to its topic."""
    options: dict[str, object] = {}
    listener, _, mechanism = way.partition(" ")
    if listener == "MUTUAL":
        options = dict(zip(("cert", "key"), broker.authority.issue("client"), strict=True))
    if listener == "LOGIN":
        options = broker.login
    if mechanism:
        monkeypatch.setenv("ADS_USER", "ads")
        monkeypatch.setenv("ADS_PASSWORD", PASSWORD)
        options = {"user_env": "ADS_USER", "password_env": "ADS_PASSWORD", "sasl": mechanism}
    url, topic = broker.url(listener, **options), f"events-{way.lower().replace(' ', '-')}"
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


def test_the_whole_way_with_a_password(broker: Secured, tmp_path: Path) -> None:
    """Events, tables, dead letters, a consumer group, and a look at what a topic holds."""
    url = broker.url("LOGIN", **broker.login)
    logs = events(300)
    topics = {topic: PARTITIONS if topic in ("impressions", "clicks") else 1 for topic in logs}
    with closing(KafkaSink(url, topics, ("users", "ads"))) as sink:
        for topic, records in logs.items():
            partition = np.array([p for p, _ in records], np.int32)
            keys = [
                str(record["user_id" if "user_id" in record else "ad_id"]).encode() for _, record in records
            ]
            sink.write(topic, partition, keys, [json.dumps(record).encode() for _, record in records])
        sink.write("impressions", np.zeros(1, np.int32), [b"1"], [b"broken"])
    assert holds(url, "impressions") == "301 messages"
    options = TrainOptions(
        url, checkpoint=str(tmp_path / "c"), group="ads", until_end=True, batch_ramp=0, threads=1
    )
    report = train(ad_pipeline(), options)
    assert report.examples_trained == 300 and report.dead_letters == 1
    with connect_admin(url) as admin:
        offsets = admin.list_group_offsets({"ads": None})["ads"]
        assert sum(at.offset for place, at in offsets.items() if place.topic == "impressions") == 301


def test_every_client_takes_the_options_of_its_address() -> None:
    root, found = Path(__file__).parents[2], 0
    for folder in ("ingest", "trainer", "serving", "store", "livectr"):
        for path in (root / folder).rglob("*.py"):
            for _, call in re.findall(
                r"(Kafka(?:Consumer|Producer|AdminClient))\((.{0,80})", path.read_text(), re.S
            ):
                found += 1
                assert "**kafka_options(" in call or "**options" in call, f"{path}: {call}"
    assert found >= 6


def test_strangers_are_told_why(broker: Secured, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("guess\n")
    stranger = Authority(tmp_path / "stranger")
    mine = dict(zip(("cert", "key"), stranger.issue("client"), strict=True))
    for url, says in (
        (f"kafka://localhost:{broker.ports['TLS']}", "it speaks TLS; say ca=FILE"),
        (broker.url("TLS", ca=stranger.ca), "its certificate does not pass ca="),
        (broker.url("MUTUAL"), "it wants a client's certificate"),
        (broker.url("MUTUAL", **mine), "it refuses the certificate cert="),
        (broker.url("LOGIN"), "it may ask for a user and a password"),
        (
            broker.url("LOGIN", user="ads", password_file=wrong),
            "refuse this user and password by SCRAM-SHA-512",
        ),
        (broker.url("LOGIN", sasl="PLAIN", **broker.login), "refuse this user and password by PLAIN"),
        (broker.url("PLAIN", ca=broker.authority.ca), "it does not speak TLS; leave ca out"),
        ("kafka://localhost:1", "start one or correct the address"),
    ):
        with pytest.raises(ConnectError, match=re.escape(says)) as error, connect_admin(url, 2.0) as admin:
            admin.list_topics()
        assert "guess" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("cafile=x", "there is no option 'cafile'; known are ca, cert"),
        ("ca=/nowhere/ca.crt", "ca cannot be read"),
        ("cert=x&key=y", "cert needs ca, too"),
        ("ca=system&user=ads", "user needs password_file or password_env, too"),
        ("user=ads&user_env=X&password_env=Y", "say user or user_env, not both"),
        ("password_file=/dev/null", "password_file needs user, user_file or user_env, too"),
        ("sasl=PLAIN", "sasl needs user, user_file or user_env, too"),
        ("user=ads&password_env=NOWHERE_SET", "password_env names NOWHERE_SET, a variable that is not set"),
        ("user_file=/nowhere&password_file=/dev/null", "user_file cannot be read"),
        ("ca=/etc/hostname", "ca is no PEM file"),
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
