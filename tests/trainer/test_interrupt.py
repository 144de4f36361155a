"""Interrupts of a store break commands of other threads, and nothing else."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from livectr.store.measured_redis import MeasuredRedis
from livectr.trainer.publish.redis_store import RedisStore
from livectr.trainer.publish.store_errors import STORE_ERRORS

BROKEN = 200
"""Commands that are broken: far more than it takes to meet each moment of a command."""


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """Let threads take turns at any moment."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_a_thread_meets_no_error_but_those_of_the_store(redis_url: str, hasty_threads: None) -> None:
    store = RedisStore(redis_url, "interrupts")
    ended = threading.Event()
    broken: list[BaseException] = []
    died: list[BaseException] = []

    def work() -> None:
        while not ended.is_set() and not died:
            try:
                store.client.remove([b"a", b"b"])
            except STORE_ERRORS as error:
                broken.append(error)
            except BaseException as error:
                died.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    while len(broken) < BROKEN and not died:
        store.client.interrupt()
    ended.set()
    for thread in threads:
        thread.join()
    store.close()
    assert not died


def test_a_command_that_waits_fails_at_once(redis_url: str) -> None:
    store = RedisStore(redis_url, "interrupts")
    failed: list[BaseException] = []
    client = store.client
    assert isinstance(client, MeasuredRedis)

    def wait() -> None:
        try:
            client.blpop(["nothing"], timeout=25)
        except STORE_ERRORS as error:
            failed.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    while thread.is_alive():
        store.client.interrupt()
        thread.join(0.05)
    store.close()
    assert failed
