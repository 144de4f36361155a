"""`livectr evaluate --served … --off-policy SERVER`: what another server would have got from these requests.

    1. read the request ids of the served log, and the impressions of these requests with their clicks
    2. read the served log again: requests of a side that explores, whose first K places were shown
    3. ask the server about each of them: the order of its values is the target
    4. estimate clicks, and bid × clicks, of the target by the propensities of what was shown

The server learns nothing of the clicks by being asked, and the model of DR is that of the answer in the log:
it was asked before the click.
"""

from __future__ import annotations

import base64
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from livectr.analysis.served.estimators import Estimate, Pages, effective, estimates
from livectr.analysis.served.evaluate import ServedOptions
from livectr.analysis.served.impressions import Impressions, JoinColumns, nothing_joined, read_impressions
from livectr.analysis.served.reading import ServedReader, decoded, items_of, request_ids
from livectr.analysis.served.report import OffPolicyReport
from livectr.analysis.served.show_off_policy import show_off_policy
from livectr.client.clients import RankClient
from livectr.ingest.language.labels import CLICK
from livectr.ingest.pipeline import Pipeline, load_pipeline
from livectr.serving.canary import STABLE
from livectr.serving.explore.options import ExploreOptions
from livectr.serving.explore.orders import Explorer
from livectr.serving.served.record import F64, I64, Record
from livectr.system.errors import ConfigError

LEAST_EFFECTIVE = 30
"""Least effective sample size: intervals are normal."""
MOST_UNSUPPORTED = 0.05
"""Largest share of the requests that the served side never would have answered as the target does."""
_THREADS, _ASKED_AT_ONCE = 4, 256


@dataclass(frozen=True)
class OffPolicyOptions:
    """Options of an off-policy evaluation.

    Args:
        served: the log, its impressions and its clicks.
        server: HOST:PORT[@SIDE] of a rank server or one of recommendations; without a side its stable one.
        places: K, first places of an answer that count.
        clip: largest weight; None: all count as they are.
        timeout_s: deadline of a question.
    """

    served: ServedOptions
    server: str
    places: int = 1
    clip: float | None = None
    timeout_s: float = 5.0


def evaluate_off_policy(options: OffPolicyOptions) -> int:
    """Print the estimates. Raises as `off_policy_report`."""
    report = off_policy_report(options)
    if options.served.as_json:
        print(json.dumps(report.as_dict()))
    else:
        show_off_policy(report)
    return 0


def off_policy_report(options: OffPolicyOptions) -> OffPolicyReport:
    """Estimate what the target would have got.

    Raises:
        ConfigError: the log has no propensities, none of its requests can be judged, or the overlap of the
            served side and the target is too small.
        ConnectError: no broker answers.
        CallError: the server does not answer.
        DataError: the logs cannot be used.
    """
    served = options.served
    pipeline = load_pipeline(served.pipeline)
    if pipeline.example_weights is not None:
        raise ConfigError(
            "--off-policy needs every impression of a request, but the log of this pipeline keeps a part of "
            "them (weight= or sampling=): leave --off-policy out"
        )
    join = JoinColumns.of(pipeline, served.request_column, served.item_column)
    reader = ServedReader(served.served)
    ids, _ = request_ids(reader)
    found = read_impressions(pipeline, served.source, join, ids)
    if not len(found):
        raise ConfigError(nothing_joined(served.served, served.source, join, ids, found))
    with Target(options.server, options.timeout_s) as target:
        shown = _Shown(options.places, found, join.item)
        records = _records(reader)
        while chunk := list(itertools.islice(records, _ASKED_AT_ONCE)):
            judged = [(record, page) for record in chunk if (page := shown.page(record)) is not None]
            for (record, page), answer in zip(judged, target.ask(r for r, _ in judged), strict=True):
                shown.add(record, page, answer)
    return _report(options, pipeline, shown)


def _records(reader: ServedReader) -> Iterator[Record]:
    return (record for line in reader.lines() if (record := decoded(line)) is not None)


@dataclass(frozen=True)
class _Answer:
    """Answer of the target: candidates by their values i64[n], its version, and if rows may be missing."""

    order: I64
    version: int
    degraded: bool


class Target:
    """Server whose order is judged.

    Args:
        server: HOST:PORT[@SIDE].
        timeout_s: deadline of a question.
    """

    def __init__(self, server: str, timeout_s: float) -> None:
        address, _, side = server.partition("@")
        self._client = RankClient(address, timeout_s)
        self._asked = self._client.on_side(side or STABLE)
        described = self._client.describe()
        if described.role == "prerank":
            raise ConfigError(f"{server} is a pre-rank server; name one of rank or of recommendations")
        self._server = server
        self._columns = {column.name for column in described.columns}
        self._required = {column.name for column in described.columns if column.required}
        self._binary = {column.name for column in described.columns if column.dtype == "binary"}

    def __enter__(self) -> Target:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def ask(self, records: Iterable[Record]) -> list[_Answer]:
        """Answers to the requests of records, without ids: the target does not explore."""
        with ThreadPoolExecutor(_THREADS, "off-policy") as threads:
            return list(threads.map(self._one, records))

    def _one(self, record: Record) -> _Answer:
        if missing := sorted(self._required - record.context.keys() - record.candidates.keys()):
            raise ConfigError(
                f"{self._server} asks for {', '.join(missing)}, which the requests of the served log do not "
                "have: a target takes the requests of the servers that wrote it"
            )
        context = {
            name: self._value(name, value) for name, value in record.context.items() if name in self._columns
        }
        candidates = {
            name: [self._value(name, value) for value in values]
            for name, values in record.candidates.items()
            if name in self._columns
        }
        bids = () if record.bids is None else record.bids.tolist()
        reply = self._asked.rank(context, candidates, bids)
        return _Answer(np.array(reply.index, np.int64), reply.version, reply.degraded)

    def _value(self, name: str, value: Any) -> Any:
        return base64.b64decode(value) if name in self._binary and value is not None else value


@dataclass(frozen=True)
class _Page:
    """First K places of a request.

    Args:
        places: i64[K], of the candidates that were shown.
        clicked: f64[K].
        user: its key.
    """

    places: I64
    clicked: F64
    user: int


@dataclass(frozen=True)
class _Judged:
    """Request that the target has answered; `bids` and `pctr` are of what was shown, and of the target."""

    served_ms: int
    explored: bool
    supported: bool
    user: int
    version: int
    degraded: bool
    weight: F64
    clicked: F64
    bids: tuple[F64, F64]
    pctr: tuple[F64, F64]


class _Shown:
    """Requests whose first K places were shown.

    Attributes:
        judged: request id → its last record.
        left_out: reason → requests.
        most: most places that a record has propensities of.
        with_bids: a record has bids.
    """

    def __init__(self, places: int, found: Impressions, item_column: str) -> None:
        self._places, self._found, self._column = places, found, item_column
        pairs = zip(found.request, found.item, strict=True)
        self._rows = {pair: row for row, pair in enumerate(pairs)}
        self._requests = set(found.request)
        self._explorers: dict[str, Explorer] = {}
        self.judged: dict[str, _Judged] = {}
        self.left_out: Counter[str] = Counter()
        self.most = 0
        self.with_bids = False

    def page(self, record: Record) -> _Page | None:
        """First places of a record, with their clicks; None: it cannot be judged."""
        held = record.explore
        if held is None or record.value is None:
            return None
        self.most = max(self.most, len(held.order))
        if record.request_id not in self._requests:
            self.left_out["no impressions"] += 1
        elif len(record.pctr) < self._places:
            self.left_out["fewer candidates than places"] += 1
        elif len(held.order) >= self._places:
            items, places = items_of(record, self._column), held.order[: self._places]
            rows = [self._rows.get((record.request_id, items[place])) for place in places.tolist()]
            known = [row for row in rows if row is not None]
            if len(known) == len(rows):
                of = self._found.held[known]
                return _Page(places, of["label"].astype(np.float64), int(of["user"][0]))
            self.left_out["not all of the first places were shown"] += 1
        return None

    def add(self, record: Record, page: _Page, answer: _Answer) -> None:
        """Judge a record by the target's answer; of equal ids the last counts."""
        before = self.judged.get(record.request_id)
        if before is not None and before.served_ms > record.served_ms:
            return
        held, k = record.explore, self._places
        assert held is not None and record.value is not None
        target = answer.order[:k]
        if (explorer := self._explorers.get(held.options)) is None:
            explorer = Explorer(ExploreOptions.parse(held.options))
            self._explorers[held.options] = explorer
        same = np.logical_and.accumulate(page.places == target)
        bids = np.ones(len(record.pctr)) if record.bids is None else record.bids
        self.with_bids |= record.bids is not None
        self.judged[record.request_id] = _Judged(
            record.served_ms,
            held.explored,
            bool(explorer.propensity(record.value, target)[-1] > 0),
            page.user,
            answer.version,
            answer.degraded,
            same / held.propensity[:k],
            page.clicked,
            (bids[page.places], bids[target]),
            (record.pctr[page.places], record.pctr[target]),
        )


def _report(options: OffPolicyOptions, pipeline: Pipeline, shown: _Shown) -> OffPolicyReport:
    """Estimates of judged requests. Raises ConfigError: there are none, or the overlap is too small."""
    _check(options, shown)
    judged = list(shown.judged.values())
    weight = np.stack([one.weight for one in judged])
    clicked = np.stack([one.clicked for one in judged])
    user = np.array([one.user for one in judged], np.int64)
    bids, pctr = (
        [np.stack([getattr(one, name)[at] for one in judged]) for at in (0, 1)] for name in ("bids", "pctr")
    )
    size, unsupported = effective(weight[:, -1]), float(np.mean([not one.supported for one in judged]))
    _check_overlap(options, size, unsupported)
    counted = weight if options.clip is None else np.minimum(weight, options.clip)
    by_clicks = pipeline.worths is None or pipeline.worths.labels == (CLICK,)
    value = list[Estimate]()
    if shown.with_bids and by_clicks:
        worth = Pages(counted, bids[0] * clicked, bids[0] * pctr[0], bids[1] * pctr[1], user)
        value = estimates(worth)
    return OffPolicyReport(
        server=options.server,
        places=options.places,
        requests=len(judged),
        drawn=sum(one.explored for one in judged),
        left_out=dict(shown.left_out),
        versions=(min(one.version for one in judged), max(one.version for one in judged)),
        degraded=sum(one.degraded for one in judged),
        effective=effective(counted[:, -1]),
        largest=float(weight.max()),
        mean_weight=float(counted[:, -1].mean()),
        clip=options.clip,
        clipped=float((counted < weight).any(1).mean()),
        unsupported=unsupported,
        clicks=estimates(Pages(counted, clicked, pctr[0], pctr[1], user)),
        value=value,
    )


def _check(options: OffPolicyOptions, shown: _Shown) -> None:
    if not shown.most:
        raise ConfigError(
            f"{options.served.served} has no propensities: its servers did not explore. Serve with --set "
            "explore=share=0.1,temperature=0.5 for a while, then ask again."
        )
    if shown.most < options.places:
        raise ConfigError(
            f"--places is {options.places}, but {options.served.served} has propensities of the first "
            f"{shown.most} places: lower it, or serve with a larger top= of explore."
        )
    if not shown.judged:
        reasons = "; ".join(f"{reason}: {count:,}" for reason, count in shown.left_out.items())
        raise ConfigError(
            f"no request can be judged ({reasons}). --places {options.places} needs impressions of the first "
            f"{options.places} places of each answer."
        )


def _check_overlap(options: OffPolicyOptions, size: float, unsupported: float) -> None:
    if unsupported > MOST_UNSUPPORTED:
        raise ConfigError(
            f"{unsupported:.0%} of the requests never were answered as {options.server} does: it shows "
            "candidates that did not change places. Serve with a larger top= of explore, or lower --places."
        )
    if size < LEAST_EFFECTIVE:
        raise ConfigError(
            f"the effective sample size is {size:.0f} requests, and {LEAST_EFFECTIVE} are needed: what was "
            f"shown seldom is what {options.server} shows. Log more requests, explore with a larger share or "
            "a higher temperature, or lower --places."
        )
