"""Traffic that checks each reply while Redis loses keys, and the health of a server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import numpy as np
from grpc_health.v1 import health_pb2, health_pb2_grpc

from livectr.client.clients import RankClient
from livectr.serving.app import App
from tests.metrics_page import metric_value
from tests.serving.swaps import ADS, USERS, versions_of
from tests.waiting import left_s, until


class Traffic:
    """Requests for random rows, as fast as a client can send them; each reply is checked."""

    def __init__(self, app: App) -> None:
        self._address = app.server.address
        self._stop = threading.Event()
        self.right = self.marked = 0
        self.wrong: list[object] = []
        self._thread = threading.Thread(target=self._ask)

    def _ask(self) -> None:
        rng = np.random.default_rng(0)
        with RankClient(self._address) as rank:
            while not self._stop.is_set():
                ads = rng.choice(ADS, 20).tolist()
                reply = rank.rank({"user_id": int(rng.choice(USERS))}, {"ad_id": ads})
                if reply.degraded:
                    self.marked += 1
                    if not reply.degraded_reason:
                        self.wrong.append("no reason")
                elif versions_of(reply) == {reply.version}:
                    self.right += 1
                else:
                    self.wrong.append((reply.version, versions_of(reply)))

    def __enter__(self) -> Traffic:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


@contextmanager
def traffic(app: App) -> Iterator[Traffic]:
    """Run requests during the block; some have been answered correctly before it begins."""
    with Traffic(app) as running:
        until(lambda: running.right > 20)
        yield running
    assert not running.wrong, running.wrong[:5]


def health(app: App) -> int:
    with grpc.insecure_channel(app.server.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        return int(stub.Check(health_pb2.HealthCheckRequest(), timeout=left_s()).status)


SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


def trouble(kind: str) -> float:
    return metric_value("livectr_serving_degraded", role="rank", kind=kind, side="stable")
