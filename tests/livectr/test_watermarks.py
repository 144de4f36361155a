"""`livectr inspect --source`: a line for each topic partition, against a brute-force running maximum."""

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka import KafkaProducer

from livectr.cli import main
from livectr.ingest.addresses import kafka_servers
from livectr.ingest.language.streams import Stream
from livectr.inspection.event_times import measure
from livectr.inspection.watermarks import duration, suggested
from livectr.local.kafka import create_topics
from livectr.system.errors import ConfigError
from tests.commands import run
from tests.tiers import examples

PIPELINE = """
from livectr import Pipeline, Stream, label_join
from livectr.models import LR
columns = {"id": "int64", "user": "int64", "ad": "int64", "ts": "int64"}
shown, clicks = (Stream(name, key="user", time="ts", columns=columns) for name in ("shown", "clicks"))
log = label_join(shown, clicks, on="id", window="10s")
pipeline = Pipeline(log, sparse={"ad": log.ad}, rank=LR())
"""


def views(topic: str = "views") -> Stream:
    return Stream(topic, key="user", time="ts", columns={"user": "int64", "ts": "int64"})


def write(folder: Path, topic: str, partition: int, times: list[int]) -> None:
    (folder / topic).mkdir(exist_ok=True, parents=True)
    rows = [{"id": i, "user": i % 50, "ad": i, "ts": ts} for i, ts in enumerate(times)]
    (folder / topic / f"{partition}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def times_of(delays: list[int]) -> list[int]:
    """Event times with delays, behind a beginning in order, which the first records need to be confirmed."""
    return [10**12 + 100 * i - delay for i, delay in enumerate([0] * 20 + delays)]


DELAYS = st.lists(st.integers(0, 30_000), min_size=1, max_size=200)


@examples(30)
@given(st.lists(DELAYS, min_size=1, max_size=3))
def test_equals_the_running_maximum(
    tmp_path_factory: pytest.TempPathFactory, partitions: list[list[int]]
) -> None:
    folder = tmp_path_factory.mktemp("log")
    for number, delays in enumerate(partitions):
        write(folder, "views", number, times_of(delays))
    lines = measure(f"file:{folder}", [views()])
    assert [line.partition for line in lines] == list(range(len(partitions)))
    for line, delays in zip(lines, partitions, strict=True):
        times = np.array(times_of(delays))
        behind = np.sort(np.maximum.accumulate(times) - times)
        ranked = [int(behind[int(np.ceil(q * (len(behind) - 1)))]) for q in (0.5, 0.99, 0.999)]
        assert line.delay_ms == (*ranked, behind[-1])
        assert (line.oldest_ms, line.newest_ms) == (times.min(), times.max())
        assert line.end == line.waiting == line.read == len(times)
        assert line.idle and not line.holds and not line.wrong


def test_a_wrong_clock_is_counted_and_no_disorder(tmp_path: Path) -> None:
    times = [10**12 + 100 * i for i in range(1000)]
    times[500] += 3_600_000
    write(tmp_path, "views", 0, times)
    (line,) = measure(f"file:{tmp_path}", [views()])
    assert (line.wrong, line.newest_ms, line.delay_ms) == (1, times[-1], (0, 0, 0, 0))


def test_rows_that_a_trainer_has_not_read_wait(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, logs = tmp_path / "pipeline.py", tmp_path / "logs"
    file.write_text(PIPELINE)
    times = [10**12 + 100 * i - (2_500 if i % 100 == 7 else 0) for i in range(2_000)]
    for topic in ("shown", "clicks"):
        for number in range(2):
            write(logs, topic, number, times[:1_000])
    flags = ["--pipeline", str(file), "--source", f"file:{logs}"]
    trained = ["train", *flags, "--until-end", "--checkpoint", str(tmp_path / "c")]
    assert run([sys.executable, "-m", "livectr", *trained]).returncode == 0
    for topic, number, stop in (
        ("shown", 0, 2_000),
        ("shown", 1, 2_000),
        ("clicks", 0, 2_000),
        ("clicks", 1, 1_500),
    ):
        write(logs, topic, number, times[:stop])
    assert main(["inspect", *flags, "--checkpoint", str(tmp_path / "c")]) == 0
    shown = capsys.readouterr().out
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.splitlines() if "│" in line]
    lines = {(row[0], row[1]): row for row in cells if row[0] in ("shown", "clicks") and len(row) == 13}
    assert [row[2:4] for row in lines.values()] == [
        ["2,000", "1,000"],
        ["1,500", "500"],
        *[["2,000", "1,000"]] * 2,
    ]
    assert [place for place, row in lines.items() if row[12] == "holds"] == [("clicks", "1")]
    assert lines["clicks", "0"][4:6] == ["09-09 01:46:38", "09-09 01:49:59"]
    assert lines["clicks", "0"][7:11] == ["0s", "2400ms", "2400ms", "0"]
    assert "clicks partition 1 holds the watermark back, by 50s" in shown
    wanted = (
        'clicks: EventTime("ts", max_disorder="5s") gives 99.9% of the records their right place; it is 0s'
    )
    assert wanted in shown


def test_a_partition_of_kafka_that_gives_records_holds_and_a_quiet_one_is_idle(
    kafka_url: str, topic_name: Callable[[str], str]
) -> None:
    topic = topic_name("views")
    create_topics(kafka_url, {topic: 2})
    now_ms, stop = time.time_ns() // 1_000_000, threading.Event()
    with KafkaProducer(bootstrap_servers=kafka_servers(kafka_url)) as producer:

        def send(partition: int, i: int, ts: int) -> None:
            value = json.dumps({"user": i % 50, "ts": ts}).encode()
            producer.send(topic, value=value, partition=partition)

        for i in range(300):
            send(0, i, now_ms - 100_000 + i)
            send(1, i, now_ms - 900_000 + i)
        producer.flush()

        def proceed() -> None:
            i = 300
            while not stop.wait(0.05):
                send(0, i, now_ms - 100_000 + i)
                producer.flush()
                i += 1

        thread = threading.Thread(target=proceed)
        thread.start()
        try:
            lines = measure(kafka_url, [views(topic)])
        finally:
            stop.set()
            thread.join()
    assert [(line.idle, line.holds) for line in lines] == [(False, True), (True, False)]
    assert lines[0].end > 300 and (lines[1].end, lines[1].waiting) == (300, 300)


def test_what_is_missing_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    untimed = Stream("views", key="user", columns={"user": "int64"})
    with pytest.raises(ConfigError, match="no event stream of the pipeline has a time column"):
        measure(f"file:{tmp_path}", [untimed])
    assert main(["inspect", "--source", f"file:{tmp_path}"]) == 2
    assert "say what to show" in capsys.readouterr().err


def test_durations_are_those_that_people_write() -> None:
    assert [duration(ms) for ms in (0, 7, 1_000, 90_000, 3_600_000, 12_345)] == [
        "0s",
        "7ms",
        "1s",
        "90s",
        "1h",
        "12s",
    ]
    assert [suggested(ms) for ms in (0, 3, 2_500, 61_000, 10**10)] == [0, 5, 5_000, 100_000, 10**10]
