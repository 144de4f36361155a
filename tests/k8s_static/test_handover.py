"""A primary that is told to stop hands its role over; every write that was answered is at the new primary."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
import yaml

from tests.k8s_static.valkeys import FOLDER, Valkeys, primary_port, replicated
from tests.redis_cluster import ask


@pytest.fixture
def valkeys(tmp_path: Path) -> Iterator[Valkeys]:
    with replicated(tmp_path) as started:
        yield started


class Writer:
    """Client that writes numbered keys to whichever Valkey takes them, one after the other.

    Attributes:
        answered: numbers whose write was acknowledged.
    """

    def __init__(self, started: Valkeys) -> None:
        self.answered: list[int] = []
        self._started, self._stop = started, threading.Event()
        self._thread = threading.Thread(target=self._write)

    def _write(self) -> None:
        ports, number = [self._started.primary, self._started.replica], 0
        clients = {port: self._started.client(port) for port in ports}
        while not self._stop.is_set():
            number += 1
            try:
                clients[ports[0]].set(f"written:{number}", number)
            except (redis.ConnectionError, redis.TimeoutError, redis.ReadOnlyError):
                ports.reverse()
                self._stop.wait(0.01)
            else:
                self.answered.append(number)
                self._stop.wait(0.002)  # as fast as it goes would take the cores from the sentinel

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


@pytest.fixture
def writer(valkeys: Valkeys) -> Iterator[Writer]:
    with Writer(valkeys) as writing:
        valkeys.until(lambda: len(writing.answered) > 100)
        yield writing


def output(valkeys: Valkeys, text: str) -> int:
    return valkeys.log(valkeys.primary).count(text)


def leave(valkeys: Valkeys, writer: Writer, *, held_up: bool) -> None:
    """Stop the primary as Kubernetes does it: preStop, the end of the process, and a new one at once."""
    sentinel = valkeys.running[valkeys.sentinel]
    if held_up:
        client = valkeys.client(valkeys.sentinel, user=None)
        ask(client, "SENTINEL DEBUG", "tilt-period", 4000)  # half a minute in earnest
        os.killpg(sentinel.pid, signal.SIGSTOP)
    script = valkeys.run("leave.sh", valkeys.primary)
    if held_up:
        valkeys.until(lambda: output(valkeys, "not handed over yet") >= 1)
        os.killpg(sentinel.pid, signal.SIGCONT)
    assert script.wait() == 0
    assert output(valkeys, "handed over to"), valkeys.log(valkeys.primary)
    valkeys.stop(valkeys.primary)
    valkeys.start("valkey.sh", valkeys.primary)
    known = valkeys.client(valkeys.sentinel, user=None)
    assert primary_port(known) == valkeys.replica
    before = len(writer.answered)
    valkeys.until(lambda: len(writer.answered) > before + 100)


@pytest.mark.parametrize("held_up", [False, True])
def test_no_answered_write_is_lost(valkeys: Valkeys, writer: Writer, held_up: bool) -> None:
    """The process starts again before it is missed.

    held_up: the sentinel does not answer, and then does nothing for a while.
    """
    leave(valkeys, writer, held_up=held_up)
    writer.__exit__()
    valkeys.until(
        lambda: valkeys.client(valkeys.primary).info("replication").get("master_link_status") == "up"
    )
    for port in (valkeys.replica, valkeys.primary):
        client = valkeys.client(port)
        valkeys.until(lambda: client.exists(f"written:{writer.answered[-1]}") == 1)  # noqa: B023
        values = client.mget([f"written:{number}" for number in writer.answered])
        assert values == [str(number).encode() for number in writer.answered]


def test_a_pod_has_time_to_hand_over() -> None:
    """The grace of the pod > preStop + the last waits for sentinels + the end of the process."""
    waits = re.search(r"date \+%s\) \+ (\d+)\)\)", (FOLDER / "leave.sh").read_text())
    documents = yaml.safe_load_all((FOLDER / "valkey.yaml").read_text())
    pods = [each["spec"]["template"]["spec"] for each in documents if each["kind"] == "StatefulSet"]
    assert waits is not None and len(pods) == 1
    assert pods[0]["terminationGracePeriodSeconds"] >= int(waits[1]) + 14 + 5


def test_a_replica_leaves_at_once(valkeys: Valkeys) -> None:
    assert valkeys.run("leave.sh", valkeys.replica).wait() == 0
    assert valkeys.client(valkeys.primary).info("replication")["role"] == "master"
