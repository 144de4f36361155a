"""Clients of the servers: Python values in, responses out.

    with RankClient("127.0.0.1:50051") as client:
        response = client.rank({"user_id": 7}, {"ad_id": [1, 2, 3]}, bids=[1.0, 0.5, 2.0])

The client reads the types of the columns from the server (`describe`) and packs values accordingly. It may be
used by any number of threads.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self, cast

import grpc

from livectr.client.asking import DESCRIBE, PRERANK, RANK, RECOMMEND, Asking, Columns, Values
from livectr.client.asking import RecommendItems as RecommendItems
from livectr.client.calls import Calls, RemoteMethod
from livectr.client.channels import ChannelOptions, ChannelPlan
from livectr.client.channels import ClientTls as ClientTls
from livectr.client.failures import RefusedCallError
from livectr.client.pack import ColumnError as ColumnError
from livectr.client.pack import Content as Content
from livectr.client.pack import column_of as column_of
from livectr.protos import livectr_pb2 as pb


class Client(Asking):
    """Channels to a server, with deadlines, retries and hedges.

    A call that meets a server which is unavailable, or which ends, is made again: at most three times, within
    its deadline.

    Args:
        address: HOST:PORT; any target that gRPC knows. Of a name with several servers,
            each channel uses one, and tries the next when it fails.
        timeout_s: deadline of every call, in seconds.
        tls: files for a server with TLS; None: without TLS.
        token: bearer token, for a server that asks for one.
        options: more options of the gRPC channels.
        channels: number of connections; calls take them in turn. gRPC has one thread for a connection, and at
            most 100 calls on it at a time.
        hedge_after_s: seconds after which a call without an answer is made once more, on another connection.
            The first answer counts, and the other call is cancelled. At most a tenth of the calls are hedged.
            None: no hedges.

    Raises:
        ConfigError: a file cannot be read, a number cannot be used, or the token would leave this machine
            without TLS.
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
        if hedge_after_s is not None and channels == 1:
            channels = 2  # the second call must not wait behind the first
        opened = ChannelPlan(address, channels, tls, options).open(grpc)
        self._calls = Calls(address, opened, hedge_after_s)

    def describe(self, *, timeout_s: float | None = None) -> pb.DescribeResponse:
        """Role, model, kept versions, sides, and columns of a request.

        Args:
            timeout_s: deadline in seconds; None: the client's.

        Raises:
            CallError: the server does not answer in time.
        """
        return cast(pb.DescribeResponse, self._ask(DESCRIBE, pb.DescribeRequest(), self._end(timeout_s)))

    def column_types(self, *, timeout_s: float | None = None) -> Mapping[str, str]:
        """Column → type, such as "int64" or "list<string>".

        The server is asked once, and again after it refused a call.

        Raises:
            CallError: the server does not answer in time.
        """
        return self._types(self._end(timeout_s))

    def close(self) -> None:
        """Close the channels; calls under way fail."""
        self._calls.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, method: RemoteMethod[Any], request: Any, end: float) -> Any:
        try:
            return self._calls.ask(method, request, max(0.0, end - time.monotonic()), self._metadata)
        except RefusedCallError:
            self._dtypes.clear()  # the server may have another pipeline since
            raise

    def _types(self, end: float) -> Mapping[str, str]:
        if not self._dtypes:
            self._know(self._ask(DESCRIBE, pb.DescribeRequest(), end))
        return self._dtypes.copy()


class RankClient(Client):
    """Client of a rank server, or of a server of recommendations; see `Client`."""

    def rank(
        self,
        context: Values,
        candidates: Columns,
        bids: Sequence[float] = (),
        *,
        content: Content | None = None,
        request_id: str = "",
        timeout_s: float | None = None,
    ) -> pb.RankResponse:
        """Score n candidates in a context; best expected revenue first.

        Args:
            context: column → value.
            candidates: column → n values.
            bids: n values; empty: those of the pipeline's value, without one every bid is 1.
            content: inline content: raw features of images or texts that may be too new for the server.
            request_id: comes back in the response.
            timeout_s: deadline in seconds; None: the client's.

        Raises:
            ColumnError: a value does not fit its column.
            CallError: there is no answer; with INVALID_ARGUMENT it names the wrong field.
        """
        return self.explain(
            context, candidates, bids, best=0, content=content, request_id=request_id, timeout_s=timeout_s
        )

    def explain(
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
        """Score as `rank` does, and take the scores of the best candidates apart, feature by feature.

        Args:
            context: as of `rank`.
            candidates: as of `rank`.
            bids: as of `rank`.
            best: number of candidates to explain, at most 8.
            content: as of `rank`.
            request_id: as of `rank`.
            timeout_s: as of `rank`.

        Raises:
            ColumnError, CallError: as `rank`; RESOURCE_EXHAUSTED while another request is explained.
        """
        end = self._end(timeout_s)
        types = self._types(end)
        request = self._ranked(
            types, context, candidates, bids, best=best, content=content, request_id=request_id
        )
        return cast(pb.RankResponse, self._ask(RANK, request, end))


class PreRankClient(Client):
    """Client of a pre-rank server, or of a server of recommendations; see `Client`."""

    def prerank(
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
        """Select the best `top_k` candidates.

        Args:
            context: column → value.
            candidates: ids or names of items; None: the whole catalogue.
            top_k: number of items to return.
            bids: n values, which weigh the candidates; empty: those of the pipeline's value, if it has one.
            content: inline content, as in `RankClient.rank`.
            request_id: comes back in the response.
            timeout_s: deadline in seconds; None: the client's.

        Raises:
            ColumnError: a value does not fit its column.
            CallError: there is no answer; with INVALID_ARGUMENT it names the wrong field.
        """
        end = self._end(timeout_s)
        types = self._types(end)
        request = self._preranked(
            types, context, candidates, top_k, bids, content=content, request_id=request_id
        )
        return cast(pb.PreRankResponse, self._ask(PRERANK, request, end))


class RecommendClient(Client):
    """Client of a server of recommendations; see `Client`."""

    def recommend(
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
        """Recommend `top_k` items.

        Args:
            context: column → value, for all items.
            top_k: number of items to return.
            prerank_k: number of items that pre-rank selects and rank scores; at least `top_k`.
            items: what is recommended; None: the whole catalogue, with every bid 1.
            content: inline content, as in `RankClient.rank`.
            request_id: comes back in the response.
            timeout_s: deadline in seconds; None: the client's.

        Raises:
            ColumnError: a value does not fit its column.
            CallError: there is no answer; with INVALID_ARGUMENT it names the wrong field.
        """
        end = self._end(timeout_s)
        types = self._types(end)
        request = self._recommended(
            types, context, top_k, prerank_k, items=items, content=content, request_id=request_id
        )
        return cast(pb.RecommendResponse, self._ask(RECOMMEND, request, end))
