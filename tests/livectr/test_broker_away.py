"""Standard error while the broker is away: our lines, not the client library's."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer

from livectr.local.kafka import Broker, create_topics
from tests.commands import Command
from tests.waiting import left_s, until

DEADLINE_S = 120
PIPELINE = """
from livectr.ingest.pipeline import Pipeline
from livectr.ingest.language.streams import Stream, labelled
from livectr.models import LR

shown = Stream("shown", key="user", columns={"user": "int64", "click": "int32"})
log = labelled(shown, label="click")
pipeline = Pipeline(log, sparse={"user": log.user}, rank=LR())
"""


def wait(done: Callable[[], bool], process: subprocess.Popen[str], errors: Path) -> None:
    until(done, process=process, why=errors.read_text)


def produce(url: str) -> None:
    producer = KafkaProducer(bootstrap_servers=url.removeprefix("kafka://"))
    for user in range(50):
        producer.send("shown", json.dumps({"user": user, "click": user % 2}).encode(), partition=0)
    producer.flush(timeout=left_s())
    producer.close()


@pytest.mark.full
def test_a_trainer_whose_broker_goes_and_comes_back_says_so_in_its_own_words(tmp_path: Path) -> None:
    pipeline, errors = tmp_path / "pipeline.py", tmp_path / "errors"
    pipeline.write_text(PIPELINE)
    with Broker(data_dir=tmp_path / "kafka") as broker, errors.open("w") as stderr:
        create_topics(broker.url, {"shown": 1})
        produce(broker.url)
        command = [sys.executable, "-m", "livectr", "train", "--pipeline", str(pipeline)]
        options = ["--source", broker.url, "--set", "max_steps=2", "batch_size=50", "batch_ramp=0", "--json"]
        with Command(command + options, stdout=subprocess.PIPE, stderr=stderr, text=True) as trainer:
            try:
                wait(lambda: "livectr.trainer.quality.monitor" in errors.read_text(), trainer, errors)
                broker.kill()
                wait(lambda: "does not answer; waiting for it" in errors.read_text(), trainer, errors)
                time.sleep(3)  # a few of the client's attempts to connect
                broker.start()
                wait(lambda: "answers again" in errors.read_text(), trainer, errors)
                produce(broker.url)
                report, _ = trainer.communicate(timeout=left_s())
            finally:
                trainer.kill()
    assert trainer.returncode == 0 and json.loads(report)["examples_trained"] == 100
    lines = errors.read_text().splitlines()
    foreign = [
        line for line in lines if not re.match(r"[-\d]+ [:,\d]+ [A-Z]+ (ingest|trainer|livectr)\.", line)
    ]
    assert not foreign
    assert len(lines) < 20


SERVER = """
import sys, time
from livectr.serving.served import sinks
from livectr.serving.served.log import ServedLog
from tests.serving.display_pipeline import pipeline
from tests.serving.display_world import World
from tests.serving.served_answers import answer, written
from tests.waiting import until

sinks.REQUEST_S = 1.5
one = answer(World(), "r")
log = ServedLog(sys.argv[1], 1.0, pipeline)
log.offer(one)
until(written)
print("taken", flush=True)
sys.stdin.readline()
for turn in range(25):  # a message each
    if turn == 4:
        began = time.process_time()
    if turn == 14:
        print(time.process_time() - began, flush=True)
    log.offer(one)
    time.sleep(0.1)
log.close(timeout_s=0.6)
"""


def said_while_the_broker_hangs(broker: Broker, script: str, *words: str) -> tuple[float, str]:
    """CPU seconds that a script prints while the broker is stopped, and its standard error.

    The script first prints a line, when the broker has taken its first record, and then waits for one.
    """
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([sys.executable, "-c", script, *words], text=True, **pipes) as process:
        assert process.stdout is not None and process.stdout.readline() == "taken\n"
        assert broker.pid is not None
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            cpu_s, said = process.communicate("stopped\n", timeout=left_s())
        finally:
            os.kill(broker.pid, signal.SIGCONT)
    return float(cpu_s), said


@pytest.mark.full
def test_a_served_log_whose_broker_hangs_costs_no_cpu_and_ends_in_our_own_words(tmp_path: Path) -> None:
    """Kafka's client loops at its limit of messages in flight, and may raise while the process ends."""
    with Broker(data_dir=tmp_path / "kafka") as broker:
        cpu_s, said = said_while_the_broker_hangs(broker, SERVER, f"{broker.url}/served")
    assert cpu_s < 0.4
    assert "records of what was served are lost" in said and "Traceback" not in said


LETTERS = """
import sys, time
from pathlib import Path
from livectr.ingest.dead_letters.spool import Spool
from livectr.ingest.dead_letters.topic import TopicSink
from tests.waiting import until

spool = Spool(Path(sys.argv[2]), most_bytes=1 << 30)
sink = TopicSink(sys.argv[1], spool)


def write(offset):
    place = {"topic": "shown", "partition": 0, "offset": offset, "index": 0}
    sink.write(("shown", 0, offset, 0), place | {"record": "x" * 20_000})


write(0)
until(lambda: not spool.letters)
print("taken", flush=True)
sys.stdin.readline()
for offset in range(1, 20):  # a batch each
    write(offset)
time.sleep(1)
began = time.process_time()
time.sleep(2)
print(time.process_time() - began, flush=True)
"""


@pytest.mark.full
def test_dead_letters_whose_broker_hangs_cost_no_cpu(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path / "kafka") as broker:
        cpu_s, _ = said_while_the_broker_hangs(broker, LETTERS, broker.url, str(tmp_path / "spool"))
    assert cpu_s < 0.8
