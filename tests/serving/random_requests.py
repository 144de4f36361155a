"""Random requests on the wire: in every encoding that protobuf takes, half of them with mistakes."""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from google.protobuf.message import Message

from livectr.ingest.language import dtypes
from livectr.ingest.language.event_times import EARLIEST_MS, LATEST_MS
from livectr.ingest.language.streams import Stream
from livectr.kernels.request.parse import KINDS
from livectr.protos import livectr_pb2 as pb
from livectr.serving.limits import RequestLimits
from livectr.serving.request.sentences import ColumnSpec, RequestLayout

LIMITS = RequestLimits(candidates=12, list=5, string_bytes=20)
UNREAD = "unread"
NOW_MS = 1_700_000_000_000
_SCALARS = ("int64", "int32", "float64", "float32", "bool", "string", "binary")
_COLUMNS = {
    "user": "string",
    "ts": "int64",
    "item": "int64",
    **{f"one {dtype}": dtype for dtype in _SCALARS},
    **{f"filled {dtype}": dtype for dtype in _SCALARS},
    **{f"many {dtype}": f"list<{dtype}>" for dtype in _SCALARS if dtype != "binary"},
    "image": "image",
    UNREAD: "int64",
}
_FILL = {
    "filled int64": -(2**40),
    "filled int32": -7,
    "filled float64": 0.1,
    "filled float32": 2.5,
    "filled bool": True,
    "filled string": "nön",
    "filled binary": b"\x00\xff",
}
STREAM = Stream("shown", key="user", time="ts", columns=_COLUMNS, fill=_FILL)

VARINT, FIXED64, LENGTH, GROUP, GROUP_END, FIXED32 = range(6)


def layout(kind: type[Message]) -> RequestLayout:
    """Layout of a kind of requests, with columns of every type."""
    listed = kind is pb.RankRequest

    def placement(name: str) -> pb.Placement:
        if not listed or name in ("user", "ts"):
            return pb.PLACEMENT_CONTEXT
        return pb.PLACEMENT_CANDIDATE if name == "item" else pb.PLACEMENT_EITHER

    item = "item" if kind is pb.RecommendRequest else None
    specs = {
        name: ColumnSpec(name, dtype, placement(name), required=name in ("user", "item", "one int32"))
        for name, dtype in _COLUMNS.items()
        if name not in (UNREAD, "image", item)
    }
    return RequestLayout(kind.DESCRIPTOR.full_name, specs, STREAM, LIMITS, listed, item)


def varint(value: int) -> bytes:
    """Number of 64 bits on the wire."""
    value &= 2**64 - 1
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number: int, wire: int, payload: bytes = b"") -> bytes:
    """Field on the wire; a length stands before the payload of LENGTH."""
    size = varint(len(payload)) if wire == LENGTH else b""
    return varint(number << 3 | wire) + size + payload


class Requests:
    """Random requests of a kind."""

    def __init__(self, kind: type[Message], seed: int) -> None:
        self._random, self._kind, self._layout = Random(seed), kind, layout(kind)

    def next(self) -> bytes:
        """Bytes of a request; of every fourth some are changed."""
        random = self._random
        raw = self._request()
        if random.random() < 0.25:
            raw = self._damaged(raw)
        return raw

    def _request(self) -> bytes:
        random, numbers = self._random, {f.name: f.number for f in self._kind.DESCRIPTOR.fields}
        odd = random.random() < 0.5
        rows = random.choice([1, 2, 3, 5, 12, 12, 12, 12 + odd]) if random.random() < 0.98 else 0
        parts: list[bytes] = []
        apart = {name: random.random() < 0.5 for name in self._layout.columns}
        for name, spec in self._layout.columns.items():
            if not (spec.required or random.random() < 0.4) or (odd and random.random() < 0.02):
                continue
            in_context = spec.placement == pb.PLACEMENT_CONTEXT or (
                spec.placement == pb.PLACEMENT_EITHER and apart[name]
            )
            if odd and random.random() < 0.03:
                in_context = not in_context
            for _ in range(2 if odd and random.random() < 0.02 else 1):
                column = self._column(name, spec.dtype, 1 if in_context else rows, odd)
                part = "context" if in_context else "candidates"
                if part in numbers:
                    parts.append(field(numbers[part], LENGTH, column))
        if random.random() < 0.1:
            name = random.choice([UNREAD, UNREAD, "unknown", "item", ""])
            parts.append(field(numbers["context"], LENGTH, self._column(name, "int64", 1, odd)))
        if "bids" in numbers and random.random() < 0.5:
            count = rows if self._layout.listed else random.randrange(5)
            bids = [random.choice([1.0, 0.0, -0.0, 5e-324]) for _ in range(count)]
            if odd and random.random() < 0.2:
                bids.append(random.choice([math.nan, -1.0, math.inf]))
                random.shuffle(bids)
                bids = bids[: count + random.randrange(2)]
            parts += self._repeated(numbers["bids"], FIXED64, [struct.pack("<d", bid) for bid in bids])
        for name in ("request_id", "side", "bid_column"):
            for _ in range(random.choice([0, 1, 1, 2])):
                text = random.choice(["", "stable", "ü", "x" * (20 + (odd and random.random() < 0.05))])
                if name in numbers:
                    parts.append(field(numbers[name], LENGTH, text.encode()))
        for name in ("version", "explain", "top_k", "prerank_k"):
            if name in numbers and random.random() < 0.6:
                value = random.choice([0, 1, 2, 2**32 - 1, 2**32 + 3, 2**64 - 1])
                parts.append(field(numbers[name], VARINT, varint(value)))
        for ids, names in (("ids", "names"), ("excluded_ids", "excluded_names")):
            for _ in range(random.choice([0, 1, 1, 2, 3]) if ids in numbers else 0):
                member, kind = random.choice([(ids, "ints"), (names, "strings")])
                values = [self._value(kind, odd=False) for _ in range(random.randrange(4))]
                parts.append(field(numbers[member], LENGTH, b"".join(self._values(kind, values))))
        if random.random() < 0.1:
            content = pb.ContentFeatures(name="images", ids=[1, -1], features=b"\xff" * 12)
            parts.append(field(numbers["content"], LENGTH, content.SerializeToString()))
        return b"".join(self._mixed(parts))

    def _column(self, name: str, dtype: str, rows: int, odd: bool) -> bytes:
        """Column message of some rows."""
        random = self._random
        listed, element = dtypes.is_list(dtype), dtypes.element(dtype)
        kind = {"int64": 0, "int32": 0, "float64": 1, "float32": 1, "bool": 2, "string": 3}.get(element, 4)
        if odd and random.random() < 0.02:
            kind = random.randrange(5)
        parts = [field(1, LENGTH, name.encode())]
        if random.random() < 0.1:
            parts.insert(0, field(1, LENGTH, b"another name"))
        lengths = [random.randrange(4) if listed else 1 for _ in range(rows)]
        if odd and listed and random.random() < 0.05:
            lengths[:1] = [6]
        count = sum(lengths) + (odd and random.random() < 0.03)
        if name == "ts":
            at = random.choice([NOW_MS] * 20 + [0, EARLIEST_MS, LATEST_MS + 1, NOW_MS // 1000, NOW_MS * 1000])
            values = [varint(at)] * count
        else:
            wide = element in ("int32", "float32") and not (odd and random.random() < 0.1)
            values = [self._value(KINDS[kind], odd=odd, narrow=wide) for _ in range(count)]
        if random.random() < 0.1:  # another member of the oneof, which ends with the next
            parts.append(field(2 + (kind + 1) % 5, LENGTH, b"".join(self._values(KINDS[(kind + 1) % 5], []))))
        parts += self._split(KINDS[kind], values, 2 + kind)
        offsets = [0, *itertools.accumulate(lengths)]
        if odd and random.random() < 0.05:
            random.shuffle(offsets)
        if listed or (odd and random.random() < 0.02):
            parts += self._repeated(7, VARINT, [varint(offset) for offset in offsets])
        if rows and random.random() < 0.25 and name not in ("user", "ts"):
            nulls = sorted(
                random.sample(range(rows + (odd and random.random() < 0.1)), random.randrange(1, rows + 1))
            )
            if odd and random.random() < 0.1:
                random.shuffle(nulls)
            parts += self._repeated(8, VARINT, [varint(row) for row in nulls])
        return b"".join(parts) if random.random() < 0.7 else b"".join(self._mixed(parts))

    def _value(self, kind: str, *, odd: bool, narrow: bool = False) -> bytes:
        """Value on the wire."""
        random = self._random
        rare = odd and random.random() < 0.03
        if kind == "ints":
            most = 31 if narrow else 63
            return varint(random.choice([0, 1, -1, 127, 128, 2**most - 1, -(2**most), 2 ** (most - 1)]))
        if kind == "doubles":
            usual = [0.0, -0.0, 1.5, math.nan, 3.4e38] if not odd else [0.0, 1.5, 1e-300]
            large = [1e300] if not narrow else [1.0]
            return struct.pack("<d", random.choice([math.inf, -math.inf, 1e39] if rare else usual + large))
        if kind == "bools":
            return varint(random.choice([0, 1, 1, 2, 2**63]))
        usual_texts = [b"", b"a", "ü€😀".encode(), b"nul\0", b"x" * 20]
        return random.choice([b"x" * 21, b"\xff", b"\xed\xa0\x80", b"\xc0\x80"] if rare else usual_texts)

    def _values(self, kind: str, values: list[bytes]) -> list[bytes]:
        """Fields 1 of a message of values."""
        if kind in ("strings", "bytes"):
            return [field(1, LENGTH, value) for value in values]
        return self._repeated(1, FIXED64 if kind == "doubles" else VARINT, values)

    def _repeated(self, number: int, wire: int, values: list[bytes]) -> list[bytes]:
        """Repeated numbers: packed, not packed, or some of each."""
        random = self._random
        if random.random() < 0.8:
            return [field(number, LENGTH, b"".join(values))] if values or random.random() < 0.5 else []
        cut = random.randrange(len(values) + 1)
        return [
            field(number, LENGTH, b"".join(values[:cut])),
            *(field(number, wire, v) for v in values[cut:]),
        ]

    def _split(self, kind: str, values: list[bytes], number: int) -> list[bytes]:
        """Member of a oneof, at times in two messages, which are merged."""
        cuts = [0, len(values)]
        if self._random.random() < 0.15:
            cuts.insert(1, self._random.randrange(len(values) + 1))
        return [
            field(number, LENGTH, b"".join(self._mixed(self._values(kind, values[a:b]))))
            for a, b in itertools.pairwise(cuts)
        ]

    def _mixed(self, parts: list[bytes]) -> list[bytes]:
        """Fields with unknown ones between them, at times."""
        if self._random.random() < 0.8:
            return parts
        unknown: list[Callable[[], bytes]] = [
            lambda: field(50, VARINT, varint(2**64 - 1)),
            lambda: field(1000, LENGTH, b"\xff\xff"),
            lambda: field(51, FIXED32, b"1234") + field(2, FIXED32, b"1234"),
            lambda: field(1, VARINT, b"\x05"),
            lambda: field(52, GROUP) + field(3, LENGTH, b"abc") + field(52, GROUP_END),
            lambda: field(7, FIXED64, b"12345678"),
            lambda: field(52, GROUP) + field(53, GROUP_END),
            lambda: field(54, GROUP_END),
        ]
        weights = [40] * 6 + [1, 1]
        parts = list(parts)
        for _ in range(self._random.randrange(1, 3)):
            (made,) = self._random.choices(unknown, weights)
            parts.insert(self._random.randrange(len(parts) + 1), made())
        return parts

    def _damaged(self, raw: bytes) -> bytes:
        """Bytes with one to three changes."""
        random, changed = self._random, bytearray(raw)
        for _ in range(random.randrange(1, 4)):
            at = random.randrange(len(changed) + 1)
            match random.randrange(4):
                case 0:
                    changed[at : at + 1] = bytes([random.randrange(256)])
                case 1:
                    changed[at:at] = random.choice([b"\x80", b"\xff" * 11, b"\x00", b"\x0a\x00", b"\x07"])
                case 2:
                    del changed[at : at + random.randrange(4)]
                case 3:
                    changed[at:at] = changed[at - 8 : at]
        return bytes(changed)


KINDS_OF_REQUESTS: Mapping[str, Any] = {
    "rank": pb.RankRequest,
    "prerank": pb.PreRankRequest,
    "recommend": pb.RecommendRequest,
}
