"""Clients of the servers: Python values in, responses out.

    with RankClient("127.0.0.1:50051") as client:
        response = client.rank({"user_id": 7}, {"ad_id": [1, 2, 3]}, bids=[1.0, 0.5, 2.0])

The client reads the types of the columns from the server (`describe`) and packs values accordingly.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import grpc
import numpy as np
import numpy.typing as npt

from livectr.kernels.errors import ConfigError
from livectr.kernels.process.addresses import is_loopback
from livectr.protos import livectr_pb2 as pb
from livectr.protos import livectr_pb2_grpc as rpc
from livectr.serving.client_token import WithToken

Stub = TypeVar("Stub")

Content = Mapping[str, Mapping[int, npt.ArrayLike]]
"""Content name → id → raw features f[width]; `describe` names the width."""

ChannelOptions = Sequence[tuple[str, Any]]

_FIELDS = {
    "int64": "ints",
    "int32": "ints",
    "float64": "doubles",
    "float32": "doubles",
    "bool": "bools",
    "string": "strings",
    "binary": "bytes",
}


_RETRY = json.dumps(
    {
        "methodConfig": [
            {
                "name": [{}],
                "retryPolicy": {
                    "maxAttempts": 4,
                    "initialBackoff": "0.05s",
                    "maxBackoff": "1s",
                    "backoffMultiplier": 2,
                    "retryableStatusCodes": ["UNAVAILABLE", "CANCELLED"],
                },
            }
        ]
    }
)
"""gRPC service config: a call that meets a server at its end is made again, within its deadline.

gRPC's C core answers a call that arrives in the moment when a server stops with CANCELLED.
"""


@dataclass(frozen=True)
class ClientTls:
    """PEM files of a client.

    Args:
        ca: authorities that the server's certificate may be of.
        cert: own certificate chain, for servers that ask for one.
        key: its private key.
    """

    ca: str
    cert: str | None = None
    key: str | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """Credentials of a channel. Raises ConfigError when a file cannot be read."""
        try:
            ca, key, cert = (Path(p).read_bytes() if p else None for p in (self.ca, self.key, self.cert))
        except OSError as error:
            raise ConfigError(f"{error.filename} cannot be read: {error.strerror}") from None
        return grpc.ssl_channel_credentials(ca, key, cert)


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


class _Client(Generic[Stub]):
    """Channel to a server.

    A call that meets a server at its end is made again, at most three times within its
    deadline.

    Args:
        address: HOST:PORT; any target that gRPC knows.
        timeout_s: deadline of every call, in seconds.
        tls: files for a server with TLS; None: without TLS.
        token: bearer token, for a server that asks for one.
        options: more options of the gRPC channel.

    Raises:
        ConfigError: a file of `tls` cannot be read, or the token would leave this machine without TLS.
    """

    def __init__(
        self,
        address: str,
        timeout_s: float = 5.0,
        *,
        tls: ClientTls | None = None,
        token: str | None = None,
        options: ChannelOptions = (),
    ) -> None:
        self._timeout_s = timeout_s
        given = [
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
            ("grpc.service_config", _RETRY),
            *options,
        ]
        if token is not None and tls is None and not is_loopback(address):
            raise ConfigError(
                f"a token is sent to {address} over TLS alone: name the authority of the server"
            )
        if tls is None:
            self._channel = grpc.insecure_channel(address, given)
        else:
            self._channel = grpc.secure_channel(address, tls.credentials(), given)
        if token is not None:
            self._channel = grpc.intercept_channel(self._channel, WithToken(token))
        self._model = rpc.ModelStub(self._channel)  # type: ignore[no-untyped-call]
        self._dtypes: dict[str, str] | None = None

    def describe(self) -> Any:
        """DescribeResponse: role, model, version, columns of a request.

        Raises:
            grpc.RpcError: the server does not answer in time.
        """
        return self._model.Describe(pb.DescribeRequest(), timeout=self._timeout_s)

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _columns(self, columns: Mapping[str, Sequence[Any]]) -> list[Any]:
        if self._dtypes is None:
            self._dtypes = {column.name: column.dtype for column in self.describe().columns}
        return [column_of(name, values, self._dtypes.get(name)) for name, values in columns.items()]


class RankClient(_Client[Any]):
    """Client of a rank server."""

    def __init__(
        self,
        address: str,
        timeout_s: float = 5.0,
        *,
        tls: ClientTls | None = None,
        token: str | None = None,
        options: ChannelOptions = (),
    ) -> None:
        super().__init__(address, timeout_s, tls=tls, token=token, options=options)
        self._stub = rpc.RankStub(self._channel)  # type: ignore[no-untyped-call]

    def rank(
        self,
        context: Mapping[str, Any],
        candidates: Mapping[str, Sequence[Any]],
        bids: Sequence[float] = (),
        *,
        content: Content | None = None,
        request_id: str = "",
        explain: int = 0,
        version: int = 0,
    ) -> Any:
        """Score n candidates in a context; RankResponse.

        Args:
            context: column → value.
            candidates: column → n values.
            bids: n values; empty: every bid is 1.
            content: inline content: raw features of images or texts that may be too new for the server.
            request_id: comes back in the response.
            explain: number of the best candidates whose scores are explained.
            version: pin: the only version that may answer; 0: the served one.

        Raises:
            grpc.RpcError: INVALID_ARGUMENT names the wrong field; FAILED_PRECONDITION: another version is
                served.
        """
        request = pb.RankRequest(
            explain=explain,
            request_id=request_id,
            context=self._columns({name: [value] for name, value in context.items()}),
            candidates=self._columns(candidates),
            bids=bids,
            content=content_of(content),
            version=version,
        )
        return self._stub.Rank(request, timeout=self._timeout_s)


class PreRankClient(_Client[Any]):
    """Client of a pre-rank server."""

    def __init__(
        self,
        address: str,
        timeout_s: float = 5.0,
        *,
        tls: ClientTls | None = None,
        token: str | None = None,
        options: ChannelOptions = (),
    ) -> None:
        super().__init__(address, timeout_s, tls=tls, token=token, options=options)
        self._stub = rpc.PreRankStub(self._channel)  # type: ignore[no-untyped-call]

    def prerank(
        self,
        context: Mapping[str, Any],
        candidates: Sequence[int] | Sequence[str] | None,
        top_k: int,
        *,
        content: Content | None = None,
        request_id: str = "",
        version: int = 0,
    ) -> Any:
        """Select the best `top_k` candidates; PreRankResponse.

        Args:
            context: column → value.
            candidates: ids or names of items; None: the whole catalogue.
            top_k: number of items to return.
            content: inline content, as in `RankClient.rank`.
            request_id: comes back in the response.
            version: pin: the only version that may answer; 0: the served one.

        Raises:
            grpc.RpcError: INVALID_ARGUMENT names the wrong field; FAILED_PRECONDITION: another version is
                served.
        """
        request = pb.PreRankRequest(
            request_id=request_id,
            context=self._columns({name: [value] for name, value in context.items()}),
            top_k=top_k,
            content=content_of(content),
            version=version,
        )
        if candidates is not None:
            _set_items(request, "", candidates)
        return self._stub.PreRank(request, timeout=self._timeout_s)


class RecommendClient(_Client[Any]):
    """Client of a server of recommendations."""

    def __init__(
        self,
        address: str,
        timeout_s: float = 5.0,
        *,
        tls: ClientTls | None = None,
        token: str | None = None,
        options: ChannelOptions = (),
    ) -> None:
        super().__init__(address, timeout_s, tls=tls, token=token, options=options)
        self._stub = rpc.RecommendStub(self._channel)  # type: ignore[no-untyped-call]

    def recommend(
        self,
        context: Mapping[str, Any],
        top_k: int,
        prerank_k: int = 400,
        *,
        items: RecommendItems | None = None,
        content: Content | None = None,
        request_id: str = "",
        version: int = 0,
    ) -> Any:
        """Recommend `top_k` items; RecommendResponse.

        Args:
            context: column → value, for all items.
            top_k: number of items to return.
            prerank_k: number of items that pre-rank selects and rank scores; at least `top_k`.
            items: what is recommended; None: the whole catalogue, with every bid 1.
            content: inline content, as in `RankClient.rank`.
            request_id: comes back in the response.
            version: pin: the only version that may answer; 0: the served one.

        Raises:
            grpc.RpcError: INVALID_ARGUMENT names the wrong field; FAILED_PRECONDITION: another version is
                served.
        """
        items = items or RecommendItems()
        request = pb.RecommendRequest(
            request_id=request_id,
            context=self._columns({name: [value] for name, value in context.items()}),
            prerank_k=prerank_k,
            top_k=top_k,
            bid_column=items.bid_column,
            content=content_of(content),
            version=version,
        )
        if items.candidates is not None:
            _set_items(request, "", items.candidates)
        if len(items.excluded):
            _set_items(request, "excluded_", items.excluded)
        return self._stub.Recommend(request, timeout=self._timeout_s)


def _set_items(request: Any, prefix: str, items: Sequence[int] | Sequence[str]) -> None:
    """Set the ids or names of a request."""
    named = len(items) > 0 and isinstance(items[0], str)
    target = getattr(request, f"{prefix}{'names' if named else 'ids'}")
    target.SetInParent()
    target.values.extend(items)


def content_of(content: Content | None) -> list[Any]:
    """ContentFeatures messages of raw features, converted to float16."""
    return [
        pb.ContentFeatures(name=name, ids=list(rows), features=np.array(list(rows.values()), "<f2").tobytes())
        for name, rows in (content or {}).items()
    ]


def column_of(name: str, values: Sequence[Any], dtype: str | None = None) -> Any:
    """Column message with a value for each row.

    Args:
        dtype: type of the column; None: inferred from the first value.

    Raises:
        TypeError: no column holds values of this type.
    """
    column = pb.Column(name=name)
    flat: Any = values
    listed = dtype.startswith("list<") if dtype else len(values) > 0 and isinstance(values[0], (list, tuple))
    if listed:
        column.offsets.extend(np.cumsum([0, *map(len, values)]).tolist())
        flat = [item for row in values for item in row]
    element = dtype.removeprefix("list<").removesuffix(">") if dtype else None
    kind = _FIELDS[element] if element is not None else _kind(name, flat)
    target = getattr(column, kind)
    target.SetInParent()
    target.values.extend(flat.tolist() if isinstance(flat, np.ndarray) else flat)
    return column


def _kind(name: str, values: Any) -> str:
    first = values[0] if len(values) else 0
    for types, kind in (
        ((bool, np.bool_), "bools"),
        ((int, np.integer), "ints"),
        ((float, np.floating), "doubles"),
        ((str,), "strings"),
        ((bytes,), "bytes"),
    ):
        if isinstance(first, types):
            return kind
    raise TypeError(f"{name}: {type(first).__name__} is no type of a column")
