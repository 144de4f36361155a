"""Clients for asyncio: the calls of `livectr.client.clients`, awaited.

    async with AsyncRankClient("127.0.0.1:50051") as client:
        response = await client.rank({"user_id": 7}, {"ad_id": [1, 2, 3]}, bids=[1.0, 0.5, 2.0])

Deadlines, retries, hedges and errors are those of the other clients. A client belongs to the event loop of
its first call; any number of tasks may use it.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self, cast

import grpc
import grpc.aio

from livectr.client.asking import (
    DESCRIBE,
    PRERANK,
    RANK,
    RECOMMEND,
    Asking,
    Columns,
    RecommendItems,
    Values,
)
from livectr.client.calls import RemoteMethod, check_hedge
from livectr.client.channels import ChannelOptions, ChannelPlan, ClientTls
from livectr.client.failures import RefusedCallError, call_error
from livectr.client.hedge import LOST, HedgeBudget
from livectr.client.pack import Content
from livectr.protos import livectr_pb2 as pb


class _Channels:
    """Channels of one event loop, opened by the first call, and used in turn."""

    def __init__(self, plan: ChannelPlan) -> None:
        self._plan = plan
        self._opened: list[Any] = []
        self._turn = itertools.count()
        self._callables: dict[tuple[str, int], Any] = {}

    def begin(self, method: RemoteMethod[Any], request: Any, left_s: float, metadata: Any) -> Any:
        """Begin a call with `left_s` seconds to its deadline, on the next channel."""
        if not self._opened:
            self._opened = self._plan.open(grpc.aio)
        at = next(self._turn) % len(self._opened)
        if (method.path, at) not in self._callables:
            self._callables[method.path, at] = self._opened[at].unary_unary(
                method.path,
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=method.answer.FromString,
            )
        return self._callables[method.path, at](request, timeout=left_s, metadata=metadata)

    async def close(self) -> None:
        for channel in self._opened:
            await channel.close()


class AsyncClient(Asking):
    """Channels to a server, for coroutines; arguments and errors are those of `Client`.

    Example:
        async with AsyncClient("127.0.0.1:50051") as client:
            described = await client.describe()
    """

    def __init__(
        self,
        address: str,
        timeout_s: float = 5.0,
        *,
        tls: ClientTls | None = None,
        token: str | None = None,
        options: ChannelOptions = (),
        channels: int = 1,
        hedge_after_s: float | None = None,
    ) -> None:
        super().__init__(address, timeout_s, tls is not None, token)
        check_hedge(hedge_after_s)
        if hedge_after_s is not None and channels == 1:
            channels = 2  # the second call must not wait behind the first
        self._address, self._hedge_after_s = address, hedge_after_s
        self._channels = _Channels(ChannelPlan(address, channels, tls, options))
        self._budget = HedgeBudget()

    async def describe(self, *, timeout_s: float | None = None) -> pb.DescribeResponse:
        """See `Client.describe`."""
        return cast(
            pb.DescribeResponse, await self._ask(DESCRIBE, pb.DescribeRequest(), self._end(timeout_s))
        )

    async def column_types(self, *, timeout_s: float | None = None) -> Mapping[str, str]:
        """See `Client.column_types`."""
        return await self._types(self._end(timeout_s))

    async def close(self) -> None:
        """Close the channels; calls under way fail."""
        await self._channels.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _ask(self, method: RemoteMethod[Any], request: Any, end: float) -> Any:
        try:
            if self._hedge_after_s is None:
                return await self._begin(method, request, end)
            return await self._first_answer(method, request, end, self._hedge_after_s)
        except grpc.RpcError as error:
            failure = call_error(error, self._address)
            if isinstance(failure, RefusedCallError):
                self._dtypes.clear()  # the server may have another pipeline since
            raise failure from None

    def _begin(self, method: RemoteMethod[Any], request: Any, end: float) -> Any:
        return self._channels.begin(method, request, max(0.0, end - time.monotonic()), self._metadata)

    async def _first_answer(self, method: RemoteMethod[Any], request: Any, end: float, after_s: float) -> Any:
        """Answer of a call, or of a second one that begins after `after_s` seconds."""
        self._budget.earn()
        calls = [self._begin(method, request, end)]
        try:
            ends = {asyncio.ensure_future(calls[0].code())}
            done, _ = await asyncio.wait(ends, timeout=after_s)
            if not done and self._budget.spend():
                calls.append(self._begin(method, request, end))
                ends.add(asyncio.ensure_future(calls[1].code()))
            done, open_ends = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            # A failure of one server leaves the other call its chance.
            if open_ends and all(one.result() in LOST for one in done):
                await asyncio.wait(open_ends)
            ended = [one for one in calls if one.done()]
            answered = [one for one in ended if await one.code() is grpc.StatusCode.OK]
            return await (answered or ended)[0]
        finally:
            for one in calls:
                one.cancel()  # no effect on one that is done

    async def _types(self, end: float) -> Mapping[str, str]:
        if not self._dtypes:
            self._know(await self._ask(DESCRIBE, pb.DescribeRequest(), end))
        return self._dtypes.copy()


class AsyncRankClient(AsyncClient):
    """Client of a rank server, or of a server of recommendations, for coroutines; see `RankClient`."""

    async def rank(
        self,
        context: Values,
        candidates: Columns,
        bids: Sequence[float] = (),
        *,
        content: Content | None = None,
        request_id: str = "",
        timeout_s: float | None = None,
    ) -> pb.RankResponse:
        """See `RankClient.rank`."""
        return await self.explain(
            context, candidates, bids, best=0, content=content, request_id=request_id, timeout_s=timeout_s
        )

    async def explain(
        self,
        context: Values,
        candidates: Columns,
        bids: Sequence[float] = (),
        *,
        best: int = 1,
        content: Content | None = None,
        request_id: str = "",
        timeout_s: float | None = None,
    ) -> pb.RankResponse:
        """See `RankClient.explain`."""
        end = self._end(timeout_s)
        types = await self._types(end)
        request = self._ranked(
            types, context, candidates, bids, best=best, content=content, request_id=request_id
        )
        return cast(pb.RankResponse, await self._ask(RANK, request, end))


class AsyncPreRankClient(AsyncClient):
    """Client of a pre-rank server, or of a server of recommendations, for coroutines; see `PreRankClient`."""

    async def prerank(
        self,
        context: Values,
        candidates: Sequence[int] | Sequence[str] | None,
        top_k: int,
        bids: Sequence[float] = (),
        *,
        content: Content | None = None,
        request_id: str = "",
        timeout_s: float | None = None,
    ) -> pb.PreRankResponse:
        """See `PreRankClient.prerank`."""
        end = self._end(timeout_s)
        types = await self._types(end)
        request = self._preranked(
            types, context, candidates, top_k, bids, content=content, request_id=request_id
        )
        return cast(pb.PreRankResponse, await self._ask(PRERANK, request, end))


class AsyncRecommendClient(AsyncClient):
    """Client of a server of recommendations, for coroutines; see `RecommendClient`."""

    async def recommend(
        self,
        context: Values,
        top_k: int,
        prerank_k: int = 400,
        *,
        items: RecommendItems | None = None,
        content: Content | None = None,
        request_id: str = "",
        timeout_s: float | None = None,
    ) -> pb.RecommendResponse:
        """See `RecommendClient.recommend`."""
        end = self._end(timeout_s)
        types = await self._types(end)
        request = self._recommended(
            types, context, top_k, prerank_k, items=items, content=content, request_id=request_id
        )
        return cast(pb.RecommendResponse, await self._ask(RECOMMEND, request, end))
