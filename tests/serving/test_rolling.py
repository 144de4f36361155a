"""Servers come and go under load, and no request fails."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import grpc
import psutil
import pytest

from livectr.client.clients import RankClient
from tests.serving.display_requests import rank
from tests.serving.display_world import World, publication
from tests.serving.kubelet import probed
from tests.serving.processes import ready, server
from tests.serving.service import NO_POLICY, Service
from tests.waiting import left_s, until


class Load:
    """Clients that ask without pause, each on its own connections.

    Args:
        target: address, as gRPC knows it.
        options: of the channels.
    """

    def __init__(self, target: str, options: tuple[tuple[str, str], ...] = (), *, clients: int = 4) -> None:
        self._target, self._options = target, options
        self._stop = threading.Event()
        self.answered = 0
        self.failed: list[grpc.RpcError] = []
        self._threads = [threading.Thread(target=self._ask) for _ in range(clients)]

    def _ask(self) -> None:
        own = ("grpc.use_local_subchannel_pool", 1)  # clients of a process would share a connection
        with RankClient(self._target, timeout_s=60.0, options=[*self._options, own]) as client:
            while not self._stop.is_set():
                try:
                    self.answered += rank(client)
                except grpc.RpcError as error:
                    self.failed.append(error)

    @contextmanager
    def running(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join()
        assert not self.failed, (len(self.failed), self.failed[0])

    def proceed(self, n: int = 50) -> None:
        """Wait for `n` more answers."""
        least = self.answered + n
        until(lambda: self.answered >= least)


@pytest.mark.full
def test_any_client_of_a_service_survives_a_rolling_update(redis_url: str, world: World) -> None:
    """Clients without retries: their connections reach their age and move before the server stops."""
    world.publish(publication(redis_url))
    flags = ("--set", "drain_s=1s", "max_connection_age_s=2s")
    with ExitStack() as stack:
        old = [stack.enter_context(probed(redis_url, *flags)) for _ in range(2)]
        service = stack.enter_context(Service())
        service.endpoints = {ready(process)[0]: kubelet.address for process, kubelet in old}
        load = Load(service.address, NO_POLICY)
        with load.running():
            load.proceed()
            for process, _ in old:
                new, kubelet = stack.enter_context(probed(redis_url, *flags))
                service.endpoints |= {ready(new)[0]: kubelet.address}
                kubelet.until(ready=True)
                process.terminate()
                assert process.wait(left_s()) == 0
                load.proceed()


def test_our_clients_survive_without_a_service(redis_url: str, world: World) -> None:
    """Calls that meet a server at its end are made again, at the next address."""
    world.publish(publication(redis_url))
    with ExitStack() as stack:
        first = [stack.enter_context(server("rank", redis_url)) for _ in range(2)]
        addresses = [ready(process)[0] for process in first]
        load = Load("ipv4:" + ",".join(addresses))
        with load.running():
            load.proceed()
            first[0].terminate()
            assert first[0].wait(left_s()) == 0
            load.proceed()
            ready(stack.enter_context(server("rank", redis_url, "--listen", addresses[0])))
            first[1].terminate()
            assert first[1].wait(left_s()) == 0
            load.proceed()


def test_clients_connect_again_at_the_age_of_their_connections(redis_url: str, world: World) -> None:
    """So a new server gets its share of clients."""
    world.publish(publication(redis_url))
    with server("rank", redis_url, "--set", "max_connection_age_s=500ms") as process:
        address = ready(process)[0]
        load = Load(address, NO_POLICY)
        with load.running():
            load.proceed()
            before: set[int] = set()  # each lives for half a second: on a busy machine none may be there now

            def some() -> set[int]:
                before.update(connections(process.pid))
                return before

            until(some)
            until(lambda: not before & connections(process.pid))
            load.proceed()


def connections(pid: int) -> set[int]:
    """Ports of the clients that are connected to a server."""
    found = psutil.Process(pid).net_connections("tcp")
    listening = {c.laddr.port for c in found if c.status == psutil.CONN_LISTEN}
    return {c.raddr.port for c in found if c.raddr and c.laddr.port in listening}
