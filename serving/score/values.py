"""Values of candidates: what their probabilities are worth, by the pipeline's `value`.

bids of the request, or else the candidates' look-up rows ─► worths ─┐
scores of rank ──────────► probabilities of labels, expected values ─┴─► values
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.ingest.extract.worths import WorthExtractor
from livectr.ingest.language.keys import key_of
from livectr.ingest.language.labels import CLICK
from livectr.ingest.pipeline import Pipeline
from livectr.ingest.plan.worths import Worths
from livectr.kernels.runtime.arrays import address
from livectr.serving.errors import RequestError
from livectr.serving.request.lookup_rows import LookupQuery, LookupRows
from livectr.serving.request.lookup_table import LookupRoot
from livectr.serving.request.parse import Request, RequestColumns
from livectr.store.layout import F32, I64

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class CandidateWorths:
    """Worths of n candidates.

    Args:
        by_label: label → f64[n].
        complete: False if a look-up row may be missing.
        bid_label: label whose worths are the bids.
        expected: labels whose expected value is a factor, too.
    """

    by_label: Mapping[str, F64]
    complete: bool = True
    bid_label: str = CLICK
    expected: Collection[str] = ()

    @property
    def bids(self) -> F64:
        """Bids f64[n] that count: of the request, or of rows."""
        return self.by_label[self.bid_label]

    @property
    def bids_at(self) -> int:
        """Address of bids f64[n] whose product with click probabilities is the value; 0: it is none."""
        return address(self.by_label[CLICK]) if self.by_label.keys() == {CLICK} else 0

    def values(self, pctr: F64, targets: Mapping[str, F64], expected: Mapping[str, F64]) -> F64:
        """Values f64[n] of candidates.

        Args:
            pctr: f64[n], probabilities of a click.
            targets: name of a target → its probabilities f64[n].
            expected: name of a target with values → expected values f64[n], given that it comes.
        """
        terms = []
        for label, worth in self.by_label.items():
            term = worth * (pctr if label == CLICK else targets[label])
            terms.append(term * expected[label] if label in self.expected else term)
        total: F64 = sum(terms[1:], terms[0])
        return total


class Valuer:
    """Finds the worths of candidates. Thread-safe.

    Args:
        worths: of the pipeline.
        rows: cache of look-up rows.

    Attributes:
        by_clicks: values are bids times click probabilities.
    """

    def __init__(self, worths: Worths, rows: LookupRows) -> None:
        self.worths, self._rows = worths, rows
        self.by_clicks = worths.labels == (CLICK,)
        self._extract = WorthExtractor(worths, worths.row_plan, worths.labels)
        self._roots = [LookupRoot.of(root) for root in self._extract.roots]
        self._lookup = worths.lookup
        self._bid_label = worths.value.bid_label
        self._bids_suffice = len(worths.labels) == 1 or self._lookup is None

    @staticmethod
    def of(pipeline: Pipeline, rows: LookupRows) -> Valuer | None:
        """Valuer of a pipeline; None: it has no `value`."""
        return None if pipeline.worths is None else Valuer(pipeline.worths, rows)

    def of_request(self, request: Request, columns: RequestColumns) -> CandidateWorths:
        """Worths of a rank request's candidates. Raises RequestError: it needs bids."""
        bids = request.bids if request.bids_size else None
        self.check(bids)
        keys = None
        if self._lookup is not None and not (bids is not None and self._bids_suffice):
            keys = _keys(columns, self._lookup.on)
        return self.of_keys(columns.size, keys, bids)

    def of_keys(self, size: int, keys: I64 | None, bids: F64 | None) -> CandidateWorths:
        """Worths of candidates.

        Args:
            size: n.
            keys: i64[n], keys of their look-up rows; None: the rows are not needed.
            bids: f64[n]; None: those of the rows.
        """
        found, complete = self.of_rows(size, keys)
        by_label = {
            label: np.ascontiguousarray(found[:, t], np.float64) for t, label in enumerate(self.worths.labels)
        }
        if bids is not None:
            by_label[self._bid_label] = bids
        return CandidateWorths(by_label, complete, self._bid_label, self.worths.value.expected)

    def of_rows(self, size: int, keys: I64 | None) -> tuple[F32, bool]:
        """Worths f32[n, labels] of look-up rows by their keys i64[n]; False if a row may be missing."""
        if keys is None or self._lookup is None:
            return self._extract.without_rows(size), True
        result = self._rows.find([LookupQuery(self._lookup.table, keys)])
        columns = result.rows[0].columns(self._roots)
        return self._extract(pa.RecordBatch.from_pydict(columns)), result.complete

    def cold(self, keys: I64) -> F32:
        """Worths f32[n] of the label of the bids, for items i64[n] without a published one."""
        found, _ = self.of_rows(len(keys), keys)
        return np.ascontiguousarray(found[:, self.worths.labels.index(self._bid_label)])

    def check(self, bids: F64 | None, *, named: bool = True) -> None:
        """Check that a request has the bids that it needs.

        Args:
            bids: that it has.
            named: it names its candidates.

        Raises:
            RequestError: it has none.
        """
        if bids is not None or not self.worths.needs_bids:
            return
        cure = "send one for each candidate" if named else "name the candidates, with a bid for each"
        raise RequestError(
            "bids", f"is missing: no look-up row has the bids of this pipeline's value; {cure}"
        )


def _keys(columns: RequestColumns, name: str) -> I64:
    """Keys i64[n] of a column of candidates, or of the context."""
    if columns.has_candidate(name):
        return key_of(columns.candidates[name])
    assert isinstance(columns, Request)  # of others the items are candidates
    return np.repeat(key_of(columns.context[name]), columns.size)
