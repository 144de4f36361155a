"""Mistakes of a client are INVALID_ARGUMENT with the field's name."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import grpc
import pytest

from livectr.client.clients import column_of
from livectr.protos import livectr_pb2 as pb
from livectr.serving.app import App
from tests.serving.display_world import NOW_MS, World, publication
from tests.waiting import left_s

Call = Callable[[str, bytes], bytes]


@pytest.fixture
def call(redis_url: str, world: World, serve: Callable[..., App]) -> Iterator[Call]:
    """Sends raw bytes to a method of the rank or pre-rank server."""
    world.publish(publication(redis_url))
    channels = {
        "Rank": grpc.insecure_channel(
            serve("rank", max_candidates=50, max_message_bytes=20_000).server.address
        ),
        "PreRank": grpc.insecure_channel(serve("prerank", max_candidates=50).server.address),
    }

    def send(method: str, request: bytes) -> bytes:
        answer: bytes = channels[method].unary_unary(f"/livectr.v1.{method}/{method}")(
            request, timeout=left_s()
        )
        return answer

    yield send
    for channel in channels.values():
        channel.close()


def refusal(call: Call, request: Any) -> str:
    method = type(request).__name__.removesuffix("Request")
    with pytest.raises(grpc.RpcError) as failure:
        call(method, request.SerializeToString())
    assert failure.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    return str(failure.value.details())


def columns(values: Mapping[str, list[Any]], dtypes: dict[str, str] | None = None) -> list[Any]:
    return [column_of(name, column, (dtypes or {}).get(name)) for name, column in values.items()]


def rank(
    context: dict[str, Any] | None = None,
    candidates: Mapping[str, list[Any] | None] | None = None,
    dtypes: dict[str, str] | None = None,
    bids: list[float] | None = None,
) -> Any:
    """Correct request with the given parts replaced (None: left out)."""
    shared = {"user_id": 3, "ts": NOW_MS, "query": "a b", "tags": ["x"]} | (context or {})
    each: dict[str, list[Any] | None] = {"ad_id": [100, 101], "position": [0, 1]}
    each |= candidates or {}
    kinds = {"tags": "list<string>"} | (dtypes or {})
    return pb.RankRequest(
        context=columns({k: [v] for k, v in shared.items() if v is not None}, kinds),
        candidates=columns({k: v for k, v in each.items() if v is not None}, kinds),
        bids=bids or [],
    )


@pytest.mark.parametrize(
    ("request_", "field", "problem"),
    [
        (rank(context={"user_id": None}), "context.user_id", "is missing (type int64)"),
        (rank(candidates={"position": None}), "candidates.position", "is missing (type int32)"),
        (rank(context={"colour": 1}), "context.colour", "is no column of impressions"),
        (rank(context={"user_id": "three"}), "context.user_id", "holds strings; send ints (int64)"),
        (rank(context={"ts": 1.5}), "context.ts", "holds doubles; send ints (int64)"),
        (
            rank(context={"query": b"a"}, dtypes={"query": "binary"}),
            "context.query",
            "holds bytes; send strings",
        ),
        (rank(candidates={"ad_id": [100]}), "candidates.position", "holds 2 values, expected 1"),
        (rank(candidates={"position": [1, 2, 3]}), "candidates.position", "holds 3 values, expected 2"),
        (rank(candidates={"position": [1, 2**31]}), "candidates.position", "does not fit int32"),
        (rank(candidates={"ad_id": [], "position": []}), "candidates.ad_id", "is empty"),
        (rank(candidates={"ad_id": None, "position": None}), "candidates", "there are none"),
        (rank(candidates={"ad_id": [1] * 51, "position": [1] * 51}), "candidates.ad_id", "at most 50"),
        (rank(context={"position": 1}), "candidates.position", "is in context too"),
        (rank(context={"ad_id": 1}, candidates={"ad_id": None}), "context.ad_id", "belongs into candidates"),
        (
            rank(context={"user_id": None}, candidates={"user_id": [3, 3]}),
            "candidates.user_id",
            "belongs into context",
        ),
        (rank(context={"ts": NOW_MS // 1000}), "context.ts", "time `ts` is in seconds"),
        (rank(context={"ts": 10**17}), "context.ts", "no time in milliseconds of the years 1 to 9999"),
        (rank(bids=[1.0]), "bids", "holds 1 values for 2 candidates"),
        (rank(bids=[1.0, math.nan]), "bids", "value 1 is not a finite number"),
        (rank(bids=[-1.0, 1.0]), "bids", "value 0 is negative"),
        (rank(bids=[1.0, -1.0]), "bids", "value 1 is negative"),
    ],
)
def test_rank_names_the_field(call: Call, request_: Any, field: str, problem: str) -> None:
    details = refusal(call, request_)
    assert details.startswith(f"{field}: ") and problem in details


def test_columns_without_values_twice_or_with_wrong_offsets(call: Call) -> None:
    hollow, double, ragged = rank(), rank(), rank()
    hollow.candidates[1].ClearField("ints")
    assert "candidates.position: holds no values" in refusal(call, hollow)
    double.context.append(double.context[0])
    assert refusal(call, double) == "context.user_id: is there twice"
    del ragged.context[3].offsets[:]
    assert "context.tags: needs 2 rising offsets" in refusal(call, ragged)
    ragged.context[3].offsets.extend([0, 7])
    assert "context.tags: needs 2 rising offsets from 0 to 1" in refusal(call, ragged)
    ragged.context[3].offsets[:] = [0, 1]
    ragged.context[0].offsets[:] = [0, 1]
    assert "context.user_id: has offsets, but int64 is no list" in refusal(call, ragged)


def test_the_key_and_the_time_are_never_null(call: Call) -> None:
    """Other columns may be: a null reads as in training."""
    for name in ("user_id", "ts"):
        message = rank()
        next(column for column in message.context if column.name == name).nulls.append(0)
        assert refusal(call, message) == f"context.{name}: is null; send a value"
    for nulls in ([2], [1, 1], [1, 0]):
        message = rank()
        message.candidates[1].nulls.extend(nulls)
        assert refusal(call, message).startswith("candidates.position: nulls must be rising numbers of its 2")


def test_malformed_and_oversize_messages(call: Call) -> None:
    for method in ("Rank", "PreRank"):
        with pytest.raises(grpc.RpcError) as failure:
            call(method, b"\xff\xff\xff\xff")
        assert failure.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert str(failure.value.details()).startswith(f"request: is not a livectr.v1.{method}Request")
    details = refusal(call, rank(context={"query": "x" * 30_000}))
    assert details.startswith("request: has 30") and "at most 20000" in details


def test_an_empty_message_names_what_is_missing(call: Call) -> None:
    assert refusal(call, pb.RankRequest()).startswith("candidates: there are none")
    assert refusal(call, pb.PreRankRequest()).startswith("context.user_id: is missing")


def prerank(**fields: Any) -> Any:
    context = columns({"user_id": [3], "ts": [NOW_MS]})
    return pb.PreRankRequest(**{"context": context, "ids": pb.Int64s(values=[100]), "top_k": 1, **fields})


@pytest.mark.parametrize(
    ("request_", "field", "problem"),
    [
        (prerank(top_k=0), "top_k", "must be at least 1"),
        (prerank(top_k=10_001), "top_k", "at most 10000 items (max_top_k)"),
        (prerank(top_k=2**31 - 1), "top_k", "is 2147483647; this server gives at most 10000"),
        (prerank(top_k=2**32 - 1, ids=None), "top_k", "at most 10000 items (max_top_k)"),
        (prerank(request_id="x" * 20_000), "request_id", "at most 16384 (max_string_bytes)"),
        (prerank(ids=pb.Int64s()), "ids", "is empty"),
        (prerank(ids=pb.Int64s(values=range(51))), "ids", "at most 50"),
        (prerank(ids=None, names=pb.Strings(values=["a"])), "names", "known by int64; send ids"),
        (prerank(context=columns({"user_id": ["x"]})), "context.user_id", "holds strings; send ints"),
        (prerank(context=columns({"user": [1]})), "context.user", "is no column of impressions"),
    ],
)
def test_pre_rank_names_the_field(call: Call, request_: Any, field: str, problem: str) -> None:
    details = refusal(call, request_)
    assert details.startswith(f"{field}: ") and problem in details


def test_requests_at_the_limits_are_answered(call: Call) -> None:
    most = {"ad_id": [100] * 50, "position": [1] * 50}
    ranked = pb.RankResponse.FromString(call("Rank", rank(None, most, bids=[0.0] * 50).SerializeToString()))
    assert list(ranked.index) == list(range(50))  # bids of zero are bids
    asked = prerank(ids=pb.Int64s(values=range(100, 150)), top_k=10_000, request_id="x" * 16_384)
    reply = pb.PreRankResponse.FromString(call("PreRank", asked.SerializeToString()))
    assert sorted(reply.ids.values) == list(range(100, 150))


def test_a_negative_top_k_on_the_wire(call: Call) -> None:
    request = prerank(top_k=1)
    request.ClearField("top_k")
    minus_one = b"\x28" + b"\xff" * 9 + b"\x01"  # field 5, which a uint32 cuts to its lower half
    with pytest.raises(grpc.RpcError) as failure:
        call("PreRank", request.SerializeToString() + minus_one)
    assert failure.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "(max_top_k)" in str(failure.value.details())


def test_names_do_not_make_a_text_too_long_to_be_sent(call: Call) -> None:
    details = refusal(call, rank(context={"😀" * 1500: 1}))
    assert details.startswith("context.😀😀") and "is no column of impressions" in details
    assert len(details) < 500


def test_a_column_that_no_feature_needs_is_ignored(call: Call) -> None:
    request = rank(context={"request_id": "abc"})
    assert len(pb.RankResponse.FromString(call("Rank", request.SerializeToString())).index) == 2
