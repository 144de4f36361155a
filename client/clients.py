"""Clients of the servers: Python values in, responses out.

    with RankClient("127.0.0.1:50051") as client:
        response = client.rank({"user_id": 7}, {"ad_id": [1, 2, 3]}, bids=[1.0, 0.5, 2.0])

The client reads the types of the columns from the server (`describe`) and packs values accordingly. It may be
used by any number of threads.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, cast

from livectr.client.calls import Calls, Metadata, RemoteMethod
from livectr.client.channels import ChannelOptions, open_channels
from livectr.client.channels import ClientTls as ClientTls
from livectr.client.failures import RefusedCallError
from livectr.client.pack import ColumnError as ColumnError
from livectr.client.pack import Content as Content
from livectr.client.pack import column_of as column_of
from livectr.client.pack import content_of, set_items
from livectr.protos import livectr_pb2 as pb
from livectr.system.addresses import is_loopback
from livectr.system.errors import ConfigError

_DESCRIBE = RemoteMethod("Model", "Describe", pb.DescribeResponse)
_RANK = RemoteMethod("Rank", "Rank", pb.RankResponse)
_PRERANK = RemoteMethod("PreRank", "PreRank", pb.PreRankResponse)
_RECOMMEND = RemoteMethod("Recommend", "Recommend", pb.RecommendResponse)


@dataclass(frozen=True)
class RecommendItems:
    """Items that a request for recommendations is about.

    Args:
        candidates: ids or names; None: the whole catalogue.
        excluded: ids or names of items that are not wanted.
        bid_column: numeric column of the items' look-up table; empty: every bid is 1.
    """

    candidates: Sequence[int] | Sequence[str] | None = None
    excluded: Sequence[int] | Sequence[str] = ()
    bid_column: str = ""


class Client:
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
        if token is not None and tls is None and not is_loopback(address):
            raise ConfigError(
                f"a token is sent to {address} over TLS alone: name the authority of the server"
            )
        self._timeout_s = timeout_s
        if hedge_after_s is not None and channels == 1:
            channels = 2  # the second call must not wait behind the first
        self._calls = Calls(address, open_channels(address, channels, tls, options), hedge_after_s)
        self._metadata: Metadata = () if token is None else (("authorization", f"Bearer {token}"),)
        self._pin = 0
        self._side = ""
        self._dtypes: dict[str, str] = {}

    def with_metadata(self, metadata: Mapping[str, str]) -> Self:
        """The same client on the same channels, whose calls have these headers, too.

        Args:
            metadata: lower-case name → value, such as `authorization` or `traceparent`.
        """
        other = copy.copy(self)
        other._metadata = (*self._metadata, *metadata.items())
        return other

    def pinned(self, version: int) -> Self:
        """The same client on the same channels, whose requests this version alone may answer; 0: any.

        While another version is served, calls raise a CallError with FAILED_PRECONDITION.
        """
        other = copy.copy(self)
        other._pin = version
        return other

    def on_side(self, side: str) -> Self:
        """The same client on the same channels, whose requests a side of the server answers.

        Args:
            side: "stable" or "canary"; empty: the server chooses.
        """
        other = copy.copy(self)
        other._side = side
        return other

    def describe(self, *, timeout_s: float | None = None) -> pb.DescribeResponse:
        """Role, model, kept versions, sides, and columns of a request.

        Args:
            timeout_s: deadline in seconds; None: the client's.

        Raises:
            CallError: the server does not answer in time.
        """
        return cast(pb.DescribeResponse, self._ask(_DESCRIBE, pb.DescribeRequest(), self._end(timeout_s)))

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

    def _end(self, timeout_s: float | None) -> float:
        """Instant of time.monotonic() at which a call has to be answered, with the question for columns."""
        return time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)

    def _ask(self, method: RemoteMethod[Any], request: Any, end: float) -> Any:
        try:
            return self._calls.ask(method, request, max(0.0, end - time.monotonic()), self._metadata)
        except RefusedCallError:
            self._dtypes.clear()  # the server may have another pipeline since
            raise

    def _types(self, end: float) -> Mapping[str, str]:
        if not self._dtypes:
            described = self._ask(_DESCRIBE, pb.DescribeRequest(), end)
            self._dtypes.update((column.name, column.dtype) for column in described.columns)
        return self._dtypes.copy()

    def _context(self, context: Mapping[str, Any], end: float) -> list[pb.Column]:
        return self._columns({name: [value] for name, value in context.items()}, end)

    def _columns(self, columns: Mapping[str, Sequence[Any]], end: float) -> list[pb.Column]:
        types = self._types(end)
        return [column_of(name, values, types.get(name)) for name, values in columns.items()]


class RankClient(Client):
    """Client of a rank server, or of a server of recommendations; see `Client`."""

    def rank(
        self,
        context: Mapping[str, Any],
        candidates: Mapping[str, Sequence[Any]],
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
            bids: n values; empty: every bid is 1.
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
        context: Mapping[str, Any],
        candidates: Mapping[str, Sequence[Any]],
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
        request = pb.RankRequest(
            request_id=request_id,
            context=self._context(context, end),
            candidates=self._columns(candidates, end),
            bids=bids,
            content=content_of(content),
            version=self._pin,
            side=self._side,
            explain=best,
        )
        return cast(pb.RankResponse, self._ask(_RANK, request, end))


class PreRankClient(Client):
    """Client of a pre-rank server, or of a server of recommendations; see `Client`."""

    def prerank(
        self,
        context: Mapping[str, Any],
        candidates: Sequence[int] | Sequence[str] | None,
        top_k: int,
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
            content: inline content, as in `RankClient.rank`.
            request_id: comes back in the response.
            timeout_s: deadline in seconds; None: the client's.

        Raises:
            ColumnError: a value does not fit its column.
            CallError: there is no answer; with INVALID_ARGUMENT it names the wrong field.
        """
        end = self._end(timeout_s)
        request = pb.PreRankRequest(
            request_id=request_id,
            context=self._context(context, end),
            top_k=top_k,
            content=content_of(content),
            version=self._pin,
            side=self._side,
        )
        if candidates is not None:
            set_items(request, "", candidates)
        return cast(pb.PreRankResponse, self._ask(_PRERANK, request, end))


class RecommendClient(Client):
    """Client of a server of recommendations; see `Client`."""

    def recommend(
        self,
        context: Mapping[str, Any],
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
        items = items or RecommendItems()
        request = pb.RecommendRequest(
            request_id=request_id,
            context=self._context(context, end),
            prerank_k=prerank_k,
            top_k=top_k,
            bid_column=items.bid_column,
            content=content_of(content),
            version=self._pin,
            side=self._side,
        )
        if items.candidates is not None:
            set_items(request, "", items.candidates)
        if len(items.excluded):
            set_items(request, "excluded_", items.excluded)
        return cast(pb.RecommendResponse, self._ask(_RECOMMEND, request, end))
