"""Starts of Valkeys and sentinels after failures: the rows survive, and one of two is the primary."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.k8s_static.valkeys import Valkeys, primary_port, primary_state, replicated
from tests.redis_cluster import ask


@pytest.fixture
def valkeys(tmp_path: Path) -> Iterator[Valkeys]:
    with replicated(tmp_path) as started:
        yield started


def until_parted(valkeys: Valkeys, primary: int) -> None:
    """Wait until a port is the primary of the sentinel, with the row, and the other its replica."""
    sentinel = valkeys.client(valkeys.sentinel, user=None)
    valkeys.until(lambda: primary_port(sentinel) == primary)
    until_copied(valkeys, primary)


def until_copied(valkeys: Valkeys, primary: int) -> None:
    """Wait until a port is a primary, with the row, and the other its replica."""
    (other,) = {valkeys.primary, valkeys.replica} - {primary}
    valkeys.until(lambda: valkeys.client(primary).info("replication")["role"] == "master")
    valkeys.until(lambda: valkeys.client(other).info("replication").get("master_link_status") == "up")
    assert valkeys.client(primary).get("row") == valkeys.client(other).get("row") == b"1"


def test_a_primary_that_starts_again_at_once_leaves_its_place(valkeys: Valkeys) -> None:
    """The sentinel has not missed it, and its memory is empty."""
    valkeys.stop(valkeys.primary)
    valkeys.start("valkey.sh", valkeys.primary)
    until_parted(valkeys, valkeys.replica)


def test_a_valkey_that_finds_no_sentinel_waits(valkeys: Valkeys) -> None:
    """A guess would make it a replica of its own replica; then neither is a primary any more."""
    for port in (valkeys.sentinel, valkeys.primary):
        valkeys.stop(port)
    valkeys.start("valkey.sh", valkeys.primary)
    valkeys.until(lambda: "waiting for two sentinels" in valkeys.log(valkeys.primary))
    with pytest.raises(redis.ConnectionError):
        valkeys.client(valkeys.primary).ping()
    valkeys.start("sentinel.sh", valkeys.sentinel)
    until_parted(valkeys, valkeys.replica)


def test_a_replica_of_a_lost_primary_is_told_that_it_is_the_primary(valkeys: Valkeys) -> None:
    """No sentinel has seen it as one: all have started again, and know what they are told at the start."""
    for port in (valkeys.sentinel, valkeys.primary):
        valkeys.stop(port)
    valkeys.start("sentinel.sh", valkeys.sentinel)
    sentinel = valkeys.client(valkeys.sentinel, user=None)
    valkeys.until(lambda: primary_port(sentinel) == valkeys.replica)
    valkeys.start("valkey.sh", valkeys.primary)
    until_parted(valkeys, valkeys.replica)


def hold_up(valkeys: Valkeys, tilt_ms: int) -> None:
    """The primary is lost while the sentinel is held up, which then does nothing for a while (TILT).

    The replica misses its primary for so long that no sentinel would choose it.
    """
    sentinel = valkeys.client(valkeys.sentinel, user=None)
    ask(sentinel, "SENTINEL SET primary down-after-milliseconds 200")  # ten times that is too long
    ask(sentinel, "SENTINEL DEBUG tilt-period", tilt_ms)
    held_up = valkeys.running[valkeys.sentinel]
    os.killpg(held_up.pid, signal.SIGSTOP)
    valkeys.stop(valkeys.primary)
    replica = valkeys.client(valkeys.replica)
    valkeys.until(lambda: replica.info("replication").get("master_link_down_since_seconds", 0) > 4)
    os.killpg(held_up.pid, signal.SIGCONT)


def test_a_replica_that_missed_its_primary_for_long_takes_its_place(valkeys: Valkeys) -> None:
    hold_up(valkeys, 1000)
    sentinel = valkeys.client(valkeys.sentinel, user=None)
    valkeys.until(lambda: "tilt" not in primary_state(sentinel)["flags"])
    valkeys.start("valkey.sh", valkeys.primary)
    until_parted(valkeys, valkeys.replica)


def test_rows_survive_while_no_sentinel_acts(valkeys: Valkeys) -> None:
    hold_up(valkeys, 3_600_000)
    valkeys.start("valkey.sh", valkeys.primary)
    until_copied(valkeys, valkeys.replica)
