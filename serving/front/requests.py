"""JSON requests, as people write them: their values are typed by the columns that the server describes.

{"context": {"user_id": 42, "page": "home"}, "candidates": {"ad_id": [1, 2, 3]}, "bids": [1.5, 2, 1]}

Every request may have `content`, `request_id`, `version` and `side`.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from livectr.client.clients import Content, PreRankClient, RankClient, RecommendClient, RecommendItems
from livectr.client.pack import FieldError
from livectr.serving.front import answers
from livectr.system.json_objects import refuse_repeated

EXACT = 2**53
"""JavaScript is exact up to here. Larger integers are texts in answers, and may be in requests."""

COMMON = ("content", "request_id", "version", "side")
"""Fields of every request."""

_INTEGER = re.compile(r"-?(0|[1-9]\d{0,18})")
_VERSION = re.compile(r"0|[1-9]\d{0,19}")


class EveryClient(RankClient, PreRankClient, RecommendClient):
    """Client for every call, on the same channels."""


class JsonRequest:
    """Fields of a JSON request.

    Args:
        raw: UTF-8 text.
        fields: names that it may have.

    Raises:
        FieldError: it is no JSON object, or has another field.
    """

    def __init__(self, raw: bytes, fields: Sequence[str]) -> None:
        try:
            given = json.loads(raw, object_pairs_hook=refuse_repeated)  # NaN is null, as in a log of JSON
            if b"\\u" in raw:
                json.dumps(given, ensure_ascii=False).encode()  # ValueError for half a pair of surrogates
        except (ValueError, RecursionError) as error:
            raise FieldError("", f"the request is no JSON: {error}") from None
        if not isinstance(given, dict):
            raise FieldError("", f"the request must be a JSON object with {', '.join(fields)}")
        if unknown := sorted(given.keys() - set(fields)):
            says = f"there is no field {unknown[0]!r}; the fields are {', '.join(fields)}"
            raise FieldError("", says)
        self._given = {name: value for name, value in given.items() if value is not None}

    def mapping(self, name: str) -> dict[str, Any]:
        """Field that is an object; absent: an empty one."""
        return dict(self._of(name, dict, "an object", {}))

    def sequence(self, name: str) -> Sequence[Any]:
        """Field that is a list; absent: an empty one."""
        return list(self._of(name, list, "a list", []))

    def text(self, name: str) -> str:
        """Field that is a text; absent: an empty one."""
        return str(self._of(name, str, "a text", ""))

    def count(self, name: str, otherwise: int) -> int:
        """Field that is a whole number from 0 to 2^32 - 1."""
        value = self._of(name, int, "a whole number", otherwise)
        if isinstance(value, bool) or not 0 <= value < 2**32:
            raise FieldError(name, f"is {json.dumps(value)}, but must be a whole number from 0 to 4294967295")
        return int(value)

    def version(self) -> int:
        """Version that alone may answer, from 0 (any) to 2^64 - 1; large ones may be texts."""
        value = self._given.get("version", 0)
        if isinstance(value, str) and _VERSION.fullmatch(value):
            value = int(value)
        if type(value) is not int or not 0 <= value < 2**64:
            raise FieldError("version", f"is {json.dumps(value)}, but must be the version of a reply, or 0")
        return value

    def numbers(self, name: str) -> list[float]:
        """Field that is a list of numbers."""
        values = self.sequence(name)
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise FieldError(name, f"holds {json.dumps(value)}, but must hold numbers")
        return [float(value) for value in values]

    def items(self, name: str) -> list[int] | list[str] | None:
        """Field that is a list of ids or names, or an object of one such list; None: absent."""
        if isinstance(self._given.get(name), dict):
            columns = self.mapping(name)
            if len(columns) != 1:
                raise FieldError(name, "must have one column, or be a list of ids or names")
            values = next(iter(columns.values()))
        elif name in self._given:
            values = self.sequence(name)
        else:
            return None
        for kind in (int, str):
            if isinstance(values, list) and all(
                isinstance(v, kind) and not isinstance(v, bool) for v in values
            ):
                return values
        raise FieldError(name, "must be a list of ids, or a list of names")

    def content(self) -> Content:
        """Inline content: name → id → numbers."""
        found: dict[str, dict[int, list[float]]] = {}
        for name, rows in self.mapping("content").items():
            if not isinstance(rows, dict) or not all(_INTEGER.fullmatch(key) for key in rows):
                raise FieldError(
                    f"content.{name}", 'must be an object of ids with their numbers, {"7": [0.5, …]}'
                )
            found[name] = {int(key): self._row(f"content.{name}.{key}", row) for key, row in rows.items()}
            if len({len(row) for row in found[name].values()}) > 1:
                raise FieldError(f"content.{name}", "has rows of different lengths")
        return found

    @staticmethod
    def _row(name: str, row: Any) -> list[float]:
        if not isinstance(row, list) or not all(type(value) in (int, float) for value in row):
            raise FieldError(name, "must be a list of numbers")
        return row

    def _of(self, name: str, kind: type, called: str, otherwise: Any) -> Any:
        value = self._given.get(name, otherwise)
        if not isinstance(value, kind):
            raise FieldError(name, f"must be {called}")
        return value


def rank(client: EveryClient, raw: bytes, timeout_s: float) -> answers.Row:
    """Answer of Rank."""
    request = JsonRequest(raw, ("context", "candidates", "bids", "explain", *COMMON))
    types = client.column_types(timeout_s=timeout_s)
    candidates = {}
    for name, values in request.mapping("candidates").items():
        if not isinstance(values, list):
            raise FieldError(f"candidates.{name}", "must be a list with a value for each candidate")
        candidates[name] = [typed(f"candidates.{name}", value, types.get(name)) for value in values]
    answer = _asking(client, request).explain(
        _context(request, types),
        candidates,
        request.numbers("bids"),
        best=request.count("explain", 0),
        content=request.content(),
        request_id=request.text("request_id"),
        timeout_s=timeout_s,
    )
    reply = _reply(answer, answers.ranked(answer, candidates))
    explanations = answers.explained(answer)
    return reply | ({"explanations": explanations} if explanations else {})


def prerank(client: EveryClient, raw: bytes, timeout_s: float) -> answers.Row:
    """Answer of PreRank."""
    request = JsonRequest(raw, ("context", "candidates", "bids", "top_k", *COMMON))
    answer = _asking(client, request).prerank(
        _context(request, client.column_types(timeout_s=timeout_s)),
        request.items("candidates"),
        request.count("top_k", 10),
        request.numbers("bids"),
        content=request.content(),
        request_id=request.text("request_id"),
        timeout_s=timeout_s,
    )
    return _reply(answer, answers.chosen(answer))


def recommend(client: EveryClient, raw: bytes, timeout_s: float) -> answers.Row:
    """Answer of Recommend."""
    fields = ("context", "candidates", "exclude", "top_k", "prerank_k", "bid_column", "bids", *COMMON)
    request = JsonRequest(raw, fields)
    items = RecommendItems(
        request.items("candidates"),
        request.items("exclude") or (),
        request.text("bid_column"),
        request.numbers("bids"),
    )
    answer = _asking(client, request).recommend(
        _context(request, client.column_types(timeout_s=timeout_s)),
        request.count("top_k", 10),
        request.count("prerank_k", 400),
        items=items,
        content=request.content(),
        request_id=request.text("request_id"),
        timeout_s=timeout_s,
    )
    reply = _reply(answer, answers.recommended(answer))
    return reply | {"prerank_model": answer.prerank_model, "stages": answers.stages(answer)}


METHODS: Mapping[str, Callable[[EveryClient, bytes, float], answers.Row]] = {
    "rank": rank,
    "prerank": prerank,
    "recommend": recommend,
}
"""Last part of the path → function that answers it. Raises FieldError, and CallError of the server."""


def typed(name: str, value: Any, dtype: str | None) -> Any:
    """Value of a column.

    Args:
        name: of the column, for messages.
        value: as JSON has it. Texts may be integers (JavaScript rounds large numbers), objects are the JSON
            texts of string columns, and binary columns are in base64.
        dtype: of the column; None: unknown, and the server refuses it.

    Raises:
        FieldError: the value cannot be meant.
    """
    if dtype is None:
        return value
    if dtype.startswith("list<"):
        element = dtype.removeprefix("list<").removesuffix(">")
        return [typed(name, one, element) for one in value] if isinstance(value, list) else value
    if isinstance(value, str) and dtype in ("int32", "int64") and _INTEGER.fullmatch(value):
        return int(value)
    if isinstance(value, dict) and dtype == "string":
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, str) and dtype == "binary":
        try:
            return base64.b64decode(value, validate=True)
        except ValueError:  # binascii.Error, or letters that are not ASCII
            raise FieldError(name, "must be bytes in base64") from None
    return value


def _asking(client: EveryClient, request: JsonRequest) -> EveryClient:
    """Client for the version and the side that the request names."""
    return client.pinned(request.version()).on_side(request.text("side"))


def _context(request: JsonRequest, types: Mapping[str, str]) -> dict[str, Any]:
    given = request.mapping("context").items()
    return {name: typed(f"context.{name}", value, types.get(name)) for name, value in given}


def _reply(answer: Any, rows: list[answers.Row]) -> answers.Row:
    reply = {"side": answer.side, "version": answer.version, "model": answer.model}
    reply["results"] = [_exact(row) for row in rows]
    if answer.request_id:
        reply["request_id"] = answer.request_id
    if answer.degraded:
        reply["degraded"] = answer.degraded_reason
    reply |= answers.exploration(answer)
    return reply


def _exact(value: Any) -> Any:
    """The value as JSON that JavaScript reads without loss."""
    if isinstance(value, dict):
        return {name: _exact(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_exact(one) for one in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value) if isinstance(value, int) and abs(value) > EXACT else value
