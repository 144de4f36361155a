"""The local broker, and the messages when a part of it is missing."""

from __future__ import annotations

import random
import socket
from pathlib import Path
from typing import Any

import psutil
import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from livectr.ingest.addresses import connect_admin, kafka_servers
from livectr.local import kafka, ports
from livectr.local.kafka import Broker, create_topics
from livectr.system.errors import ConfigError


@pytest.mark.full
def test_a_data_folder_outlives_the_broker(tmp_path: Path) -> None:
    """Records, however old their event time, are there after a crash and a second start."""
    with Broker(data_dir=tmp_path, partitions=3) as broker:
        producer = KafkaProducer(bootstrap_servers=kafka_servers(broker.url))
        for _ in range(10):
            producer.send("appears", b"x", partition=2, timestamp_ms=1)
        producer.flush()
        producer.close()
        pid = broker.pid
        assert pid is not None
        broker.kill()
        assert not psutil.pid_exists(pid)
        broker.start()
        consumer = KafkaConsumer(bootstrap_servers=kafka_servers(broker.url))
        assert consumer.end_offsets([TopicPartition("appears", n) for n in range(3)]) == {
            TopicPartition("appears", 0): 0,
            TopicPartition("appears", 1): 0,
            TopicPartition("appears", 2): 10,
        }
        consumer.close()
        pid = broker.pid
    assert pid is not None
    assert not psutil.pid_exists(pid)
    assert (tmp_path / "log").is_dir()


@pytest.mark.usefixtures("kafka_url")  # its start, or one before, has formatted a folder
def test_a_start_after_the_first_formats_without_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class BrokerError(Exception):
        """Raised where the broker would start."""

    def starts(self: Broker, libs: Path, main: str, *arguments: str) -> None:
        assert main == "kafka.Kafka"
        assert (tmp_path / "log" / "bootstrap.checkpoint").stat().st_size > 0
        lines = (tmp_path / "log" / "meta.properties").read_text().splitlines()
        ids = dict(line.split("=", 1) for line in lines)
        assert ids["version"] == ids["node.id"] == "1" and ids["cluster.id"] != ids["directory.id"]
        raise BrokerError

    monkeypatch.setattr(Broker, "_java", starts)
    with pytest.raises(BrokerError):
        Broker(data_dir=tmp_path).start()


def test_create_topics(kafka_url: str) -> None:
    create_topics(kafka_url, {"made-a": 2, "made-b": 1}, compacted=["made-b"])
    create_topics(kafka_url, {"made-a": 5, "made-c": 1})
    with connect_admin(kafka_url) as admin:
        found = {
            topic["name"]: len(topic["partitions"])
            for topic in admin.describe_topics(["made-a", "made-b", "made-c"])
        }
    assert found == {"made-a": 2, "made-b": 1, "made-c": 1}


def test_a_probe_never_connects_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a port below the kernel's range for outgoing connections, and another than it asks."""
    own: list[int] = []

    class Probe(socket.socket):
        def connect(self, address: Any) -> None:
            own.append(self.getsockname()[1])
            super().connect(address)

    with socket.create_server(("127.0.0.1", 0)) as server:
        ephemeral = server.getsockname()[1]
        with monkeypatch.context() as patch:
            patch.setattr(socket, "socket", Probe)
            assert ports.listens("127.0.0.1", ephemeral)
    with monkeypatch.context() as patch:
        patch.setattr(socket, "socket", Probe)
        assert not any(ports.listens("127.0.0.1", ephemeral) for _ in range(20))
    assert own and all(0 < port < ports._below(1) for port in own)
    draws = iter([20_000, 20_000, 20_001])

    class Draw:
        def randrange(self, *span: int) -> int:
            return next(draws)

    monkeypatch.setattr(random, "SystemRandom", Draw)
    assert ports._other_than(20_000) == 20_001


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not HOST:PORT"):
        Broker("9092x")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="'java' is missing: install a Java 17 runtime and Maven"):
        Broker().start()
    monkeypatch.setenv("LIVECTR_CACHE_DIR", str(tmp_path))
    (tmp_path / "java").touch(mode=0o755)
    with pytest.raises(ConfigError, match="'mvn' is missing"):
        kafka.broker_jars()
    (tmp_path / "mvn").write_text("#!/bin/sh\necho 'no route to the repository'; exit 1\n")
    (tmp_path / "mvn").chmod(0o755)
    with pytest.raises(ConfigError, match=r"could not fetch the Kafka .* no route to the repository"):
        kafka.broker_jars()
