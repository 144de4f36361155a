"""Record of the served log: a request, its scores, and digests of its features. JSON, one a line or message.

    request_id           as the client sent it; clients log it with the impression
    served_ms            time of the answer by the server's clock
    role                 "rank" or "recommend"
    version, model       of every score
    side                 "stable" or "canary": which answered
    share                share of the requests in the log
    context, candidates  column → value, and column → n values; a recommendation has the items of its reply;
                         of a side that explores, all that rank scored
    bids                 n values that counted, of the request or of rows; absent: every bid is 1
    value                n expected values; of a pipeline with a value, or a side that explores
    explore              of a side that explores:
        options          share, temperature, top and seed, in the form of the setting
        explored         the order was drawn
        order            places among the candidates of the first m answered
        propensity       m probabilities, of the first 1 … m places
    pctr                 n click probabilities (float32), in the order of the candidates
    features             what the model read, for comparison with the trainer's features of the impression:
        plan             fingerprint of the feature plan
        shared           numbers of the fields that all candidates share
        once, each       digests of these fields, uint32[shared], and of the others, uint32[n, others]
        dense            float32[n, Dd]

Arrays are base64 of little-endian numbers, row by row. The digest of a field is a 32-bit hash of its keys and
their order: a list of 20 keys takes 4 bytes. An empty list has digest 0.
"""

from __future__ import annotations

import base64
import itertools
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from livectr.ingest.extract.sharing import SharedFeatures
from livectr.ingest.plan.features import Features
from livectr.serving.canary import STABLE
from livectr.serving.explore.orders import Drawn
from livectr.system.errors import DataError

I64 = npt.NDArray[np.int64]
U32 = npt.NDArray[np.uint32]
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

Columns = Iterable[Any] | Mapping[str, Sequence[Any]]
"""Column messages, or column → values."""

_STEP, _END = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1B54A32D192ED03)


@dataclass(frozen=True)
class Answer:
    """Answered request, as a request's thread leaves it to the writer.

    Args:
        time_ms: time of the request that its features saw.
        bids: n values, or none.
        pctr: f64[n].
        features: of m rows, with the numbers of the version.
        rows: i64[n], rows of `features` that were answered; None: all, n = m.
        values: f64[n], expected values; None: the pipeline has none, and the side does not explore.
        drawn: order of the answer; None: the side does not explore.
    """

    role: str
    request_id: str
    version: int
    model: str
    time_ms: int
    context: Columns
    candidates: Columns
    bids: Sequence[float]
    pctr: F64
    features: SharedFeatures
    rows: I64 | None = None
    values: F64 | None = None
    drawn: Drawn | None = None

    @property
    def bytes(self) -> int:
        """Memory that the answer holds, about."""
        parts = self.features.shared, self.features.own
        arrays = sum(part.keys.nbytes + part.offsets.nbytes + part.dense.nbytes for part in parts)
        columns = sum(_bytes(columns) for columns in (self.context, self.candidates))
        return 1024 + arrays + self.pctr.nbytes + columns


@dataclass(frozen=True)
class ServedFeatures:
    """Digests of n candidates' features.

    Args:
        plan: fingerprint of the feature plan.
        digests: u32[n, F], in the order of the plan's fields.
        dense: f32[n, Dd].
    """

    plan: str
    digests: U32
    dense: F32


@dataclass(frozen=True)
class RecordedOrder:
    """Order of a record of a side that explores.

    Args:
        options: of the exploration, as `ExploreOptions.parse` reads them.
        explored: the order was drawn.
        order: i64[m], places among the candidates of the first m answered.
        propensity: f64[m], of the first 1 … m places.
    """

    options: str
    explored: bool
    order: I64
    propensity: F64


@dataclass(frozen=True)
class Record:
    """Record that was read; see the module. `bids`, `value` and `explore` are None where it has none."""

    request_id: str
    served_ms: int
    version: int
    model: str
    side: str
    context: Mapping[str, Any]
    candidates: Mapping[str, Sequence[Any]]
    pctr: F64
    features: ServedFeatures
    bids: F64 | None = None
    value: F64 | None = None
    explore: RecordedOrder | None = None


def encode(answer: Answer, facts: Mapping[str, Any], *, plan: str, time: str | None) -> bytes:
    """One line of JSON, without its end.

    Args:
        answer: with its features.
        facts: about the log: `side` and `share`.
        plan: fingerprint of the feature plan.
        time: name of the time column; a request without it has the time that its features saw.
    """
    features, rows = answer.features, answer.rows
    each = features.own if rows is None else features.own.take(rows)
    context = {name: values[0] for name, values in _values(answer.context).items()}
    candidates = _values(answer.candidates)
    if time is not None and time not in candidates:
        context.setdefault(time, answer.time_ms)
    record = {
        "request_id": answer.request_id,
        "served_ms": _now_ms(),
        "role": answer.role,
        "version": answer.version,
        "model": answer.model,
        **facts,
        "context": context,
        "candidates": candidates,
        **({"bids": list(answer.bids)} if len(answer.bids) else {}),
        **({"value": answer.values.tolist()} if answer.values is not None else {}),
        **({"explore": _order(answer.drawn)} if answer.drawn is not None else {}),
        "pctr": [float(f"{p:.9g}") for p in answer.pctr.astype(np.float32).tolist()],
        "features": {
            "plan": plan,
            "shared": list(features.shared_fields),
            "once": _text(digests(features.shared), "<u4"),
            "each": _text(digests(each), "<u4"),
            "dense": _text(each.dense, "<f4"),
        },
    }
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def decode(line: bytes) -> Record:
    """Read a record.

    Raises:
        DataError: the line is no record.
    """
    try:
        found = json.loads(line)
        pctr = np.array(found["pctr"], np.float64)
        names = "request_id", "served_ms", "version", "model", "context", "candidates"
        plain = {name: found[name] for name in names} | {"side": found.get("side", STABLE)}
        return Record(
            **plain,
            pctr=pctr,
            features=_features(found["features"], len(pctr)),
            bids=_numbers(found, "bids", len(pctr)),
            value=_numbers(found, "value", len(pctr)),
            explore=_recorded(found["explore"], len(pctr)) if "explore" in found else None,
        )
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise DataError(f"a line is no record of a served log: {line[:80]!r}") from error


def request_of(line: bytes) -> str:
    """Request id of a record, without the rest. Raises DataError: the line is no record."""
    try:
        found = json.loads(line)
        _ = found["pctr"], found["features"]
        return str(found["request_id"])
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"a line is no record of a served log: {line[:80]!r}") from error


def digests(features: Features) -> U32:
    """Digests u32[B, F] of the keys of each field and row."""
    starts, ends = features.offsets[:-1].astype(np.int64), features.offsets[1:].astype(np.int64)
    lengths = ends - starts
    place = np.arange(len(features.keys), dtype=np.int64) - np.repeat(starts, lengths)
    with np.errstate(over="ignore"):
        mixed = _mixed(features.keys.view(np.uint64) ^ _mixed((place + 1).view(np.uint64) * _STEP))
        sums = np.zeros(len(mixed) + 1, np.uint64)
        np.cumsum(mixed, out=sums[1:])
        whole = _mixed(sums[ends] - sums[starts] + lengths.view(np.uint64) * _END)
    cells: U32 = (whole >> np.uint64(32)).astype(np.uint32)
    return np.ascontiguousarray(cells.reshape(-1, features.rows).T)


def _mixed(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Finalizer of SplitMix64; 0 stays 0."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _features(found: Mapping[str, Any], rows: int) -> ServedFeatures:
    shared = found["shared"]
    once, each = _array(found["once"], "<u4"), _array(found["each"], "<u4").reshape(rows, -1)
    both = np.empty((rows, len(shared) + each.shape[1]), np.uint32)
    both[:, shared] = once
    both[:, np.setdiff1d(np.arange(both.shape[1]), shared)] = each
    dense = _array(found["dense"], "<f4").reshape(rows, -1)
    return ServedFeatures(found["plan"], both, dense)


def _order(drawn: Drawn) -> dict[str, Any]:
    return {
        "options": drawn.options,
        "explored": drawn.explored,
        "order": drawn.order[: len(drawn.propensity)].tolist(),
        "propensity": drawn.propensity.tolist(),
    }


def _numbers(found: Mapping[str, Any], name: str, rows: int) -> F64 | None:
    if name not in found:
        return None
    values = np.array(found[name], np.float64)
    if values.shape != (rows,):
        raise ValueError(f"{name} of another length")
    return values


def _recorded(found: Mapping[str, Any], rows: int) -> RecordedOrder:
    order = np.array(found["order"], np.int64)
    propensity = np.array(found["propensity"], np.float64)
    places = np.unique(order)
    good = len(order) == len(propensity) == len(places) and ((places >= 0) & (places < rows)).all()
    if not good or not ((propensity > 0) & (propensity <= 1 + 1e-9)).all():
        raise ValueError("no order of the candidates")
    return RecordedOrder(str(found["options"]), bool(found["explored"]), order, propensity)


def _values(columns: Columns) -> dict[str, Sequence[Any]]:
    if isinstance(columns, Mapping):
        return dict(columns)
    messages: Iterable[Any] = columns
    return {message.name: _column(message) for message in messages}


def _bytes(columns: Columns) -> int:
    """Size of columns: of messages on the wire, or 8 bytes a value."""
    if isinstance(columns, Mapping):
        return 8 * sum(map(len, columns.values()))
    messages: Iterable[Any] = columns
    return sum(int(message.ByteSize()) for message in messages)


def _column(column: Any) -> list[Any]:
    """Values of a Column message: one, or one list, a row."""
    kind = column.WhichOneof("values")
    values = list(getattr(column, kind).values) if kind else []
    if kind == "bytes":
        values = [base64.b64encode(value).decode() for value in values]
    at = list(column.offsets)
    rows: list[Any] = [values[a:b] for a, b in itertools.pairwise(at)] if at else values
    for row in column.nulls:
        rows[row] = None
    return rows


def _text(numbers: npt.NDArray[Any], dtype: str) -> str:
    return base64.b64encode(numbers.astype(dtype).tobytes()).decode()


def _array(text: str, dtype: str) -> npt.NDArray[Any]:
    return np.frombuffer(base64.b64decode(text), dtype)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
