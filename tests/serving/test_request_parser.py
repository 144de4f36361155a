"""The compiled parser of requests, and a reference in Python: equal columns, or the equal error."""

from __future__ import annotations

import gc
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf.message import DecodeError, Message

from livectr.client.clients import column_of
from livectr.protos import livectr_pb2 as pb
from livectr.serving.errors import RequestError
from livectr.serving.request.parse import Request, RequestReader
from tests.serving.random_requests import (
    GROUP,
    GROUP_END,
    KINDS_OF_REQUESTS,
    LENGTH,
    NOW_MS,
    Requests,
    field,
    layout,
)
from tests.serving.request_reference import Expected, expected
from tests.tiers import few

DAMAGED = "request: is not a livectr.v1."


def same_arrays(found: Any, wanted: Any) -> bool:
    return found.keys() == wanted.keys() and all(
        found[name].type == wanted[name].type and found[name].equals(wanted[name]) for name in found
    )


def assert_equal(request: Request, wanted: Expected) -> None:
    columns, parsed = request.columns, request
    for array in (*columns.context.values(), *columns.candidates.values()):
        array.validate(full=True)
    assert columns.size == wanted.size
    assert same_arrays(columns.context, wanted.context)
    assert same_arrays(columns.candidates, wanted.candidates)
    assert request.bids.tobytes() == np.array(wanted.bids, np.float64).tobytes()
    assert wanted.time is None or columns.now_ms == wanted.time
    message = wanted.message
    for name in ("request_id", "side", "version", "explain", "top_k", "prerank_k", "bid_column"):
        assert getattr(parsed, name) == getattr(message, name, getattr(parsed, name)), name
    assert parsed.contents == len(message.content) == len(request.content)
    for found, items in ((parsed.items, wanted.items), (parsed.excluded, wanted.excluded)):
        assert (found is None) == (items is None)
        if found is not None and items is not None:
            assert (found.kind, found.array.to_pylist()) == items
            named = [len(name.encode()) for name in items[1]] if found.kind == "names" else []
            assert found.longest == max(named, default=0)


def outcome(read: RequestReader, kind: type[Message], raw: bytes) -> str:
    """Kind of result; both parsers have the same."""
    try:
        wanted: Expected | RequestError = expected(kind, read.layout, raw)
    except RequestError as error:
        wanted = error
    try:
        request = read.read(raw)
        if isinstance(wanted, Expected):
            assert_equal(request, wanted)
            return "good"
        raise AssertionError(f"{request.columns} instead of {wanted}")
    except RequestError as error:
        assert isinstance(wanted, RequestError), error
        if str(wanted).startswith(DAMAGED):
            assert str(error).startswith(str(wanted))
            return "damaged"
        assert str(error) == str(wanted)
        return str(error).partition(": ")[2][:12]


@pytest.mark.parametrize("seed", few(range(20), 0))
@pytest.mark.parametrize("name", KINDS_OF_REQUESTS)
def test_random_requests_have_equal_columns_or_the_equal_error(name: str, seed: int) -> None:
    kind = KINDS_OF_REQUESTS[name]
    requests, read = Requests(kind, seed), RequestReader(kind, layout(kind))
    seen: Counter[str] = Counter()
    for number in range(400):
        raw = requests.next()
        try:
            seen[outcome(read, kind, raw)] += 1
        except AssertionError as error:
            raise AssertionError(f"request {number} of seed {seed}: {raw.hex()}") from error
    assert seen["good"] > 40 and seen["damaged"] > 15 and len(seen) > 8, seen


def test_groups_are_as_deep_as_protobuf_takes_them() -> None:
    """In a request, in a column, and in its values."""
    read = RequestReader(pb.RankRequest, layout(pb.RankRequest))
    for inside in (
        lambda raw: raw,
        lambda raw: field(2, LENGTH, raw),
        lambda raw: field(2, LENGTH, field(2, LENGTH, raw)),
        lambda raw: field(5, LENGTH, raw),
        lambda raw: field(4, 3) + raw + field(4, 4),
    ):
        for depth in range(97, 102):
            raw = inside(field(52, GROUP) * depth + field(52, GROUP_END) * depth)
            try:
                pb.RankRequest.FromString(raw)
                good = True
            except DecodeError:
                good = False
            try:
                read.read(raw)
                assert good, depth
            except RequestError:
                assert not good, depth


def asked(read: RequestReader, start: int) -> Request:
    """Request of 12 candidates from `start` on."""
    items = list(range(start, start + 12))
    context = [column_of("user", ["anna"]), column_of("ts", [NOW_MS]), column_of("one int32", [7])]
    request = pb.RankRequest(context=context, candidates=[column_of("item", items)], bids=items)
    return read.read(request.SerializeToString())


def test_arrays_outlive_the_request_and_its_reader() -> None:
    """Memory is lent again only after the last array is gone."""
    read = RequestReader(pb.RankRequest, layout(pb.RankRequest))
    kept = [(start, asked(read, start)) for start in range(100)]
    arrays = [(start, request.columns.candidates["item"], request.bids) for start, request in kept]
    del kept
    for start in range(1000, 1100):
        asked(read, start)
    del read
    gc.collect()
    for start, items, bids in arrays:
        assert items.to_pylist() == bids.tolist() == list(range(start, start + 12))
    assert pa.concat_arrays([items for _, items, _ in arrays]).null_count == 0


def test_threads_share_a_reader() -> None:
    read = RequestReader(pb.RankRequest, layout(pb.RankRequest))

    def requests(first: int) -> list[int]:
        kept = [asked(read, first + number) for number in range(50)]
        return [request.columns.candidates["item"][11].as_py() for request in kept]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(requests, range(0, 8_000, 1_000)))
    assert found == [[first + number + 11 for number in range(50)] for first in range(0, 8_000, 1_000)]
