"""Requests of a client, from Python values: for which version and side, with which headers."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from livectr.client.calls import Metadata, RemoteMethod
from livectr.client.pack import Content, column_of, content_of, set_items
from livectr.protos import livectr_pb2 as pb
from livectr.system.addresses import is_loopback
from livectr.system.errors import ConfigError

DESCRIBE = RemoteMethod("Model", "Describe", pb.DescribeResponse)
RANK = RemoteMethod("Rank", "Rank", pb.RankResponse)
PRERANK = RemoteMethod("PreRank", "PreRank", pb.PreRankResponse)
RECOMMEND = RemoteMethod("Recommend", "Recommend", pb.RecommendResponse)

Values = Mapping[str, Any]
"""Column → value."""
Columns = Mapping[str, Sequence[Any]]
"""Column → values."""


@dataclass(frozen=True)
class RecommendItems:
    """Items that a request for recommendations is about.

    Args:
        candidates: ids or names; None: the whole catalogue.
        excluded: ids or names of items that are not wanted.
        bid_column: numeric column of the items' look-up table; empty: every bid is 1, or there are `bids`, or
            the pipeline's value says what items are worth.
        bids: of the candidates, one each; pre-rank and rank order by them. Empty: none.
    """

    candidates: Sequence[int] | Sequence[str] | None = None
    excluded: Sequence[int] | Sequence[str] = ()
    bid_column: str = ""
    bids: Sequence[float] = ()


class Asking:
    """Common part of the requests of a client.

    Args:
        address: of the server.
        timeout_s: deadline of every call, in seconds.
        secure: whether calls go over TLS.
        token: bearer token; None: none.

    Raises:
        ConfigError: the token would leave this machine without TLS.
    """

    def __init__(self, address: str, timeout_s: float, secure: bool, token: str | None) -> None:
        if token is not None and not secure and not is_loopback(address):
            raise ConfigError(
                f"a token is sent to {address} over TLS alone: name the authority of the server"
            )
        self._timeout_s = timeout_s
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

    def _end(self, timeout_s: float | None) -> float:
        """Instant of time.monotonic() at which a call has to be answered, with the question for columns."""
        return time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)

    def _know(self, described: pb.DescribeResponse) -> None:
        self._dtypes.update((column.name, column.dtype) for column in described.columns)

    def _ranked(
        self,
        types: Mapping[str, str],
        context: Values,
        candidates: Columns,
        bids: Sequence[float],
        *,
        best: int,
        content: Content | None,
        request_id: str,
    ) -> pb.RankRequest:
        return pb.RankRequest(
            request_id=request_id,
            context=_columns({name: [value] for name, value in context.items()}, types),
            candidates=_columns(candidates, types),
            bids=bids,
            content=content_of(content),
            version=self._pin,
            side=self._side,
            explain=best,
        )

    def _preranked(
        self,
        types: Mapping[str, str],
        context: Values,
        candidates: Sequence[int] | Sequence[str] | None,
        top_k: int,
        bids: Sequence[float],
        *,
        content: Content | None,
        request_id: str,
    ) -> pb.PreRankRequest:
        request = pb.PreRankRequest(
            request_id=request_id,
            context=_columns({name: [value] for name, value in context.items()}, types),
            top_k=top_k,
            bids=bids,
            content=content_of(content),
            version=self._pin,
            side=self._side,
        )
        if candidates is not None:
            set_items(request, "", candidates)
        return request

    def _recommended(
        self,
        types: Mapping[str, str],
        context: Values,
        top_k: int,
        prerank_k: int,
        *,
        items: RecommendItems | None,
        content: Content | None,
        request_id: str,
    ) -> pb.RecommendRequest:
        items = items or RecommendItems()
        request = pb.RecommendRequest(
            request_id=request_id,
            context=_columns({name: [value] for name, value in context.items()}, types),
            prerank_k=prerank_k,
            top_k=top_k,
            bid_column=items.bid_column,
            bids=items.bids,
            content=content_of(content),
            version=self._pin,
            side=self._side,
        )
        if items.candidates is not None:
            set_items(request, "", items.candidates)
        if len(items.excluded):
            set_items(request, "excluded_", items.excluded)
        return request


def _columns(columns: Columns, types: Mapping[str, str]) -> list[pb.Column]:
    return [column_of(name, values, types.get(name)) for name, values in columns.items()]
