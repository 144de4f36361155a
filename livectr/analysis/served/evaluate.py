"""`livectr evaluate --served`: quality of what was served, by side and version, and its skew by feature.

    1. read the request ids of the served log
    2. read the impressions of these requests, with labels and the trainer's features
    3. read the served log again, and find the candidate of each impression

So the memory is that of the impressions, not of the candidates.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from livectr.analysis.served.impressions import (
    Impressions,
    JoinColumns,
    nothing_joined,
    read_impressions,
)
from livectr.analysis.served.reading import ServedReader, decoded, items_of, request_ids
from livectr.analysis.served.report import ServedReport, VersionQuality
from livectr.analysis.served.show import show
from livectr.analysis.served.skew import skew
from livectr.ingest.pipeline import Pipeline, load_pipeline
from livectr.serving.canary import CANARY, STABLE
from livectr.serving.served.record import F32, U32, Record
from livectr.system.errors import ConfigError
from livectr.trainer.quality.metrics import quality
from livectr.trainer.quality.predictions import weights_of

MOST_VERSIONS = 8
"""Rows of the table; more versions are put together to equally many."""

Bools = npt.NDArray[np.bool_]
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ServedOptions:
    """Options of an evaluation of what was served.

    Args:
        served: `kafka://HOST:PORT/TOPIC` or `file:DIR`.
        pipeline: path of its file.
        source: `kafka://…` or `file:…`, the logs of impressions and clicks.
        request_column, item_column: see `JoinColumns.of`.
        as_json: print JSON in place of tables.
    """

    served: str
    pipeline: str
    source: str
    request_column: str | None = None
    item_column: str | None = None
    as_json: bool = False


def evaluate_served(options: ServedOptions) -> int:
    """Print the measures of what was served.

    Raises:
        ConfigError: there is no served log, or no impression joins it.
        ConnectError: no broker answers.
        DataError: the logs cannot be used.
    """
    report = served_report(options)
    if options.as_json:
        print(json.dumps(report.as_dict()))
    else:
        show(report)
    return 0


def served_report(options: ServedOptions) -> ServedReport:
    """Join a served log with impressions and clicks; raises as `evaluate_served`."""
    pipeline = load_pipeline(options.pipeline)
    join = JoinColumns.of(pipeline, options.request_column, options.item_column)
    reader = ServedReader(options.served)
    ids, counts = request_ids(reader)
    found = read_impressions(pipeline, options.source, join, ids)
    counts = replace(counts, impressions=found.all, unusable=found.unusable)
    candidates = _Candidates(pipeline, found, join.item)
    for line in reader.lines():
        if (record := decoded(line)) is not None:
            candidates.add(record)
    joined = candidates.joined
    if not joined.any():
        raise ConfigError(nothing_joined(options.served, options.source, join, ids, found))
    counts = replace(
        counts,
        joined=int(np.count_nonzero(joined)),
        other_items=int(np.count_nonzero(~joined)),
        other_plans=int(np.count_nonzero(joined & ~candidates.comparable)),
    )
    same = candidates.comparable
    served = candidates.digests[same], candidates.dense[same]
    features = list(skew(pipeline, served, (found.digests[same], found.dense[same])))
    return ServedReport(
        counts, list(_by_side(found, candidates)), list(_by_version(found, candidates)), features
    )


class _Candidates:
    """Served candidates of n impressions.

    Attributes:
        logit: f32[n]; NaN: none yet.
        version: i64[n].
        canary: bool[n], whether the canary's side answered.
        comparable: bool[n], whether the server had the features of this pipeline.
        digests: u32[n, F].
        dense: f32[n, Dd].
    """

    def __init__(self, pipeline: Pipeline, found: Impressions, item_column: str) -> None:
        n = len(found)
        self._plan, self._column = pipeline.plan.fingerprint, item_column
        self._rows: dict[str, list[int]] = {}
        for row, request in enumerate(found.request):
            self._rows.setdefault(request, []).append(row)
        self._item = found.item
        self._served_ms = np.full(n, -1, np.int64)
        self.logit = np.full(n, np.nan, np.float32)
        self.version = np.zeros(n, np.int64)
        self.canary: Bools = np.zeros(n, bool)
        self.comparable: Bools = np.zeros(n, bool)
        self.digests: U32 = np.zeros_like(found.digests)
        self.dense: F32 = np.zeros_like(found.dense)

    @property
    def joined(self) -> Bools:
        """bool[n], impressions of a served candidate."""
        return ~np.isnan(self.logit)

    def add(self, record: Record) -> None:
        """Give the impressions of a request their candidates; of equal ids the last record counts.

        Raises:
            ConfigError: the candidates do not have the column of the item.
        """
        rows = self._rows.get(record.request_id)
        if rows is None:
            return
        items = items_of(record, self._column)
        places = {items[place]: place for place in reversed(range(len(items)))}  # of equal ones the first
        for row in rows:
            place = places.get(self._item[row])
            if place is None or record.served_ms < self._served_ms[row]:
                continue
            pctr = record.pctr[place]
            self._served_ms[row], self.version[row] = record.served_ms, record.version
            self.canary[row] = record.side == CANARY
            with np.errstate(divide="ignore"):
                self.logit[row] = np.clip(np.log(pctr) - np.log1p(-pctr), -100, 100)
            features = record.features
            self.comparable[row] = features.plan == self._plan
            if self.comparable[row]:
                self.digests[row], self.dense[row] = features.digests[place], features.dense[place]


def _by_side(found: Impressions, candidates: _Candidates) -> Iterator[VersionQuality]:
    """Quality by side; nothing if all impressions are of one side."""
    joined, canary = candidates.joined, candidates.canary
    if canary[joined].any() and not canary[joined].all():
        for side, rows in ((STABLE, joined & ~canary), (CANARY, joined & canary)):
            yield _quality(side, np.unique(candidates.version[rows]), rows, found, candidates)


def _by_version(found: Impressions, candidates: _Candidates) -> Iterator[VersionQuality]:
    """Quality of all joined impressions, and by version. Sides have versions of their own."""
    joined, version, canary = candidates.joined, candidates.version, candidates.canary
    yield _quality("all", np.unique(version[joined]), joined, found, candidates)
    for prefix, side in (("", joined & ~canary), (f"{CANARY} ", joined & canary)):
        known = np.unique(version[side])
        for part in np.array_split(known, min(len(known), MOST_VERSIONS)) if len(known) else ():
            first, last = int(part[0]), int(part[-1])
            name = f"v{first}" if first == last else f"v{first}–v{last}"
            rows = side & (version >= first) & (version <= last)
            yield _quality(prefix + name, part, rows, found, candidates)


def _quality(
    name: str, versions: I64, rows: Bools, found: Impressions, candidates: _Candidates
) -> VersionQuality:
    held, cold = found.held[rows], np.zeros(np.count_nonzero(rows), bool)
    label, weight = held["label"].astype(np.float32), weights_of(held)
    measured = quality(held["user"], candidates.logit[rows], label, cold, weight)
    return VersionQuality(name, int(versions[0]), int(versions[-1]), measured)
