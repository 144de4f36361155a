"""Clients with every kind of deadline at a full server: each gets its status, and no place leaks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import grpc
import pytest

from livectr.client.clients import column_of
from livectr.kernels.request.swap_lock import SwapLock
from livectr.protos import livectr_pb2 as pb
from livectr.serving.app import App
from livectr.serving.deadlines import LONGEST_WAIT_S, Call, deadline_of, end_of_wait
from livectr.serving.errors import CancelledError, DeadlineError, OverloadError
from livectr.serving.request.admission import Admission
from tests.serving.display_world import NOW_MS, World, publication
from tests.waiting import left_s, until

REQUEST = pb.RankRequest(
    context=[
        column_of("user_id", [3]),
        column_of("ts", [NOW_MS]),
        column_of("tags", [["x"]], "list<string>"),
    ],
    candidates=[column_of("ad_id", [100, 101]), column_of("position", [0, 1])],
).SerializeToString()
GRPC_NO_DEADLINE_S = 9.223372035e18
"""`time_remaining` of gRPC for a call without a deadline."""


class Server:
    """A rank server with two places, both taken until `free`."""

    def __init__(self, app: App) -> None:
        self.app = app
        self._held = ExitStack()
        for _ in range(2):
            self._held.enter_context(app.admission.place(None))
        self._channel = grpc.insecure_channel(app.server.address)

    def call(self, timeout_s: float | None) -> Any:
        """Future of a running call."""
        return self._channel.unary_unary("/livectr.v1.Rank/Rank").future(REQUEST, timeout=timeout_s)

    def until(self, waiting: int) -> None:
        """Wait until so many requests wait for a place."""
        until(lambda: self.app.admission.waiting == waiting, why=lambda: self.app.admission.waiting)

    def free(self) -> None:
        self._held.close()

    def close(self) -> None:
        self.free()
        self._channel.close()


@pytest.fixture
def server(redis_url: str, world: World, serve: Callable[..., App]) -> Iterator[Server]:
    world.publish(publication(redis_url))
    server = Server(serve("rank", max_active=2, max_waiting=16, max_wait_s=30.0))
    yield server
    server.close()
    places = server.app.admission
    until(lambda: not (places.active or places.waiting or places.bytes), "places that are free")


@pytest.mark.parametrize("timeout_s", [None, 1e9, 30.0], ids=["none", "huge", "usual"])
def test_more_clients_than_places_wait_and_are_answered(server: Server, timeout_s: float | None) -> None:
    calls = [server.call(timeout_s) for _ in range(8)]
    server.until(8)
    server.free()
    assert {call.code() for call in calls} == {grpc.StatusCode.OK}


@pytest.mark.parametrize("timeout_s", [0.2, 1e-6, 0.0, -1.0], ids=["short", "tiny", "zero", "expired"])
def test_a_deadline_that_passes_is_deadline_exceeded(server: Server, timeout_s: float) -> None:
    calls = [server.call(timeout_s) for _ in range(8)]
    assert {call.code() for call in calls} == {grpc.StatusCode.DEADLINE_EXCEEDED}
    server.until(0)


@pytest.mark.parametrize("timeout_s", [None, 1e9, 30.0], ids=["none", "huge", "usual"])
def test_a_client_that_goes_leaves_the_queue(server: Server, timeout_s: float | None) -> None:
    calls = [server.call(timeout_s) for _ in range(8)]
    server.until(8)
    for call in calls:
        call.cancel()
    server.until(0)  # while both places are still taken
    assert {call.code() for call in calls} == {grpc.StatusCode.CANCELLED}


def test_a_wait_without_deadline_ends_in_resource_exhausted(
    redis_url: str, world: World, serve: Callable[..., App]
) -> None:
    world.publish(publication(redis_url))
    server = Server(serve("rank", max_active=2, max_waiting=16, max_wait_s=0.1))
    calls = [server.call(None) for _ in range(8)]
    assert {call.code() for call in calls} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert {call.details() for call in calls} == {"no place became free within 0.1 s"}
    server.close()


def test_all_kinds_at_once(server: Server) -> None:
    patient = [server.call(timeout_s) for timeout_s in (None, 1e9, 30.0) for _ in range(2)]
    hasty = [server.call(0.2) for _ in range(3)]
    gone = [server.call(None) for _ in range(3)]
    server.until(12)
    for call in gone:
        call.cancel()
    assert {call.code() for call in hasty} == {grpc.StatusCode.DEADLINE_EXCEEDED}
    server.until(6)
    server.free()
    assert {call.code() for call in patient} == {grpc.StatusCode.OK}


def test_what_is_held_by_all_requests_is_bounded() -> None:
    admission = Admission(max_active=1, max_waiting=8, max_bytes=100)
    served: list[tuple[int, int]] = []

    def wait() -> None:
        with admission.place(None, 40):
            served.append((admission.active, admission.bytes))

    waiter = threading.Thread(target=wait)
    with admission.place(None, 50):
        waiter.start()
        until(lambda: admission.waiting != 0)
        assert admission.bytes == 90
        with pytest.raises(OverloadError, match="max_active_bytes, 100"), admission.place(None, 11):
            pass
        with pytest.raises(DeadlineError), admission.place(time.monotonic() + 0.02, 10):
            pass
        with pytest.raises(CancelledError), admission.place(None, 10, lambda: False):
            pass
        assert admission.bytes == 90
    waiter.join()
    assert served == [(1, 40)] and (admission.active, admission.bytes) == (0, 0)


def test_every_wait_is_capped() -> None:
    now = time.monotonic()
    assert deadline_of(None) is None and deadline_of(GRPC_NO_DEADLINE_S) is None
    assert now + 5 <= (deadline_of(5.0) or 0.0) <= time.monotonic() + 5
    for deadline in (None, now + 1e9, now + GRPC_NO_DEADLINE_S, float("inf")):
        assert end_of_wait(deadline) <= time.monotonic() + LONGEST_WAIT_S
    assert end_of_wait(now + 1) == now + 1
    assert end_of_wait(None, 2.0) <= time.monotonic() + 2


@pytest.mark.parametrize("deadline", [None, 1e9, GRPC_NO_DEADLINE_S])
def test_a_reader_waits_for_a_swap_whatever_its_deadline(deadline: float | None) -> None:
    lock, got = SwapLock(LONGEST_WAIT_S), threading.Event()

    def read() -> None:
        with lock.read(deadline):
            got.set()

    reader = threading.Thread(target=read)
    with lock.write():
        reader.start()
        time.sleep(0.05)
        assert not got.is_set()
    assert got.wait(left_s())
    reader.join()


@pytest.mark.parametrize("deadline", [None, 1e9, GRPC_NO_DEADLINE_S])
def test_a_request_waits_for_a_newer_version_whatever_its_deadline(
    deadline: float | None, redis_url: str, world: World, serve: Callable[..., App]
) -> None:
    trainer = publication(redis_url)
    version = world.publish(trainer)
    follower = serve("rank").follower
    failures: list[BaseException] = []

    def wait() -> None:
        try:
            follower.wait_newer(version, deadline)
        except BaseException as failure:
            failures.append(failure)

    waiter = threading.Thread(target=wait)
    waiter.start()
    time.sleep(0.05)
    world.publish(trainer)
    waiter.join(left_s())
    assert not waiter.is_alive() and not failures


def test_a_call_that_grpc_ends_at_its_deadline_is_late_and_not_cancelled() -> None:
    """Its clock may be some milliseconds before ours."""
    admission = Admission(1, 1)
    deadline = time.monotonic() + 0.105
    with ExitStack() as places:
        places.enter_context(admission.place(None))
        with pytest.raises(DeadlineError, match="waiting for a place"):
            places.enter_context(admission.place(deadline, 0, lambda: time.monotonic() < deadline - 0.015))
    call = Call(time.monotonic() + 0.005, lambda: False)
    with pytest.raises(DeadlineError, match="in the stage score"):
        call.check("score")
    with pytest.raises(CancelledError):
        Call(time.monotonic() + 5, lambda: False).check("score")
