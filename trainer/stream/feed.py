"""Extraction: from a cut to a batch that can be learned, while batches before it are learned.

    feed(cut)     finish the oldest: wait for its features ─► all-gather of its examples' ids ─► Batch
                  begin the next: source.take ─► a worker thread ─► features      the caller: the step before

At most `depth` batches are in flight, so memory is bounded, and without a cut nothing more is taken from the
source. The source is not popped where the cut is made: a commit between them, which drains the stages, takes
the source's position as that of what was learned.
Collectives and the source stay in the caller's thread.

Finishing a batch also updates the running statistics: by the whole batch, in the global sequence. So they are
the same on every rank and for any number of ranks. A batch is extracted with the statistics after the
previous batch, so that a plan with statistics has one batch in flight.

A block of small batches (`trainer.stream.batcher`) is extracted as one, up to where a statistic would change
their features.

An example that could not be extracted, or whose weight cannot be used, goes to the dead letters, and its
batch continues without it.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from livectr.ingest.common_features import AnyFeatures
from livectr.ingest.dead_letters.letters import EXAMPLE, DeadLetters, Reason
from livectr.ingest.extract.position import PlaceExtractor, Places
from livectr.ingest.extract.statistics import Statistics
from livectr.ingest.extract.targets import TargetExtractor, TargetLabels
from livectr.ingest.extract.values import TargetValues, ValueExtractor
from livectr.ingest.extract.weights import WeightExtractor, Weights
from livectr.ingest.extract.worths import WorthExtractor
from livectr.ingest.join.counters import Together
from livectr.ingest.join.example_columns import Examples
from livectr.ingest.join.examples import ExampleSource
from livectr.ingest.language.labels import EARLY_LABEL, labels_of
from livectr.kernels.stream.join import FINAL_NEGATIVE
from livectr.models.losses import LATE
from livectr.trainer.comm.control import Control
from livectr.trainer.drift.feature_drift import FeatureDrift
from livectr.trainer.stream import telemetry
from livectr.trainer.stream.cut import Cut

I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]

FAILED, LATE_POSITIVE, OUTCOME = 1, 2, 4
"""Marks of an example that all ranks get: it cannot be learned; it is a late positive; OUTCOME times its
label."""


IDS = ("instance", "user", "time_ms", "item", "order", "late")


@dataclass(frozen=True)
class Batch:
    """This rank's b rows of a global batch, and the ids of all B examples.

    Attributes:
        features: of the own b rows.
        label: f32[b], of the own rows: 0, 1, or 2 for a late positive (models.losses); of finals
            FINAL_NEGATIVE, FINAL_POSITIVE or FINAL_LATE (kernels.stream.join). A row that comes again for a
            label beside the click is a FINAL_NEGATIVE, EARLY_LABEL or LATE_LABEL (ingest.language.labels).
        sequence: int64[B]; sequence[i] is the row, in rank-major order, of the i-th example in the global
            sequence.
        instance, user, time_ms, item: int64[B], in the global sequence.
        order: int64[B], places of the examples in the global sequence.
        segment: int64[B], calibration segments, in the global sequence; None: there are none.
        late: bool[B], late positives, in the global sequence: no examples of their own.
        outcome: u8[B], labels of all rows, rank-major.
        weights: f32[B, 2], weight and sampling rate of all rows, rank-major; None: each counts once.
        places: int64[B], places at which impressions were shown, of all rows, rank-major; None: not known.
        targets: f32[B, T], labels of the T targets, of all rows, rank-major; NaN: not known with this row.
            None: there are none.
        worths: f32[B, L], worths of the labels of the pipeline's value, in the global sequence; None: it has
            none.
        values: f32[B, V], values of the V targets that have some, of all rows, rank-major; NaN: it did not
            come, or is not known. None: there are none.
        cut: int64[P], number of examples of the cut of each batch, those that could not be extracted
            included; without finals.
        bounds: int64[P + 1], bounds of the P batches of a block, whose rows are in the global sequence; None:
            it is one batch.
    """

    features: AnyFeatures
    label: F32
    sequence: I64
    instance: I64
    user: I64
    time_ms: I64
    item: I64
    order: I64
    late: npt.NDArray[np.bool_]
    outcome: npt.NDArray[np.uint8]
    cut: I64
    bounds: I64 | None = None
    segment: I64 | None = None
    weights: F32 | None = None
    targets: F32 | None = None
    worths: F32 | None = None
    places: I64 | None = None
    values: F32 | None = None

    def __len__(self) -> int:
        return len(self.sequence)

    def parts(self) -> Iterator[Batch]:
        """Batches of a block."""
        if self.bounds is None:
            yield self
            return
        for part, (start, end) in enumerate(pairwise(self.bounds.tolist())):
            rows = slice(start, end)
            yield replace(
                self,
                features=self.features.take(np.arange(start, end)),
                label=self.label[rows],
                sequence=np.arange(end - start),
                outcome=self.outcome[rows],
                cut=self.cut[part : part + 1],
                bounds=None,
                segment=None if self.segment is None else self.segment[rows],
                weights=None if self.weights is None else self.weights[rows],
                targets=None if self.targets is None else self.targets[rows],
                worths=None if self.worths is None else self.worths[rows],
                places=None if self.places is None else self.places[rows],
                values=None if self.values is None else self.values[rows],
                **{name: getattr(self, name)[rows] for name in IDS},
            )

    @property
    def examples(self) -> int:
        """Number of the B that are not late positives; not for a batch with finals."""
        return len(self) - int(np.count_nonzero(self.late))

    @property
    def clicked(self) -> F32:
        """f32[b], labels of the own rows as `DesStep.prepare` takes them: of a final 0 or 1."""
        final, of_click = self.label >= FINAL_NEGATIVE, self.label < EARLY_LABEL
        clicked = (self.label > FINAL_NEGATIVE) & of_click
        return np.where(final, clicked, self.label).astype(np.float32)

    def without_finals(self) -> Batch:
        """The same batch without its finals."""
        return self._of(self.outcome < FINAL_NEGATIVE, self.label < FINAL_NEGATIVE)

    def finals(self) -> Batch:
        """The finals of the batch."""
        return self._of(self.outcome >= FINAL_NEGATIVE, self.label >= FINAL_NEGATIVE)

    def _of(self, stays: Mask, own_stays: Mask) -> Batch:
        """Some rows of the batch.

        Args:
            stays: bool[B], of all rows, rank-major.
            own_stays: bool[b], of the own rows.
        """
        if stays.all():
            return self
        own = np.flatnonzero(own_stays)
        left = stays[self.sequence]
        return replace(
            self,
            features=self.features.take(own),
            label=self.label[own],
            sequence=(np.cumsum(stays) - 1)[self.sequence[left]],
            outcome=self.outcome[stays],
            bounds=None if self.bounds is None else _up_to(stays, self.bounds),
            segment=None if self.segment is None else self.segment[left],
            weights=None if self.weights is None else self.weights[stays],
            targets=None if self.targets is None else self.targets[stays],
            worths=None if self.worths is None else self.worths[left],
            places=None if self.places is None else self.places[stays],
            values=None if self.values is None else self.values[stays],
            **{name: getattr(self, name)[left] for name in IDS},
        )


@dataclass(frozen=True)
class _Computed:
    """Result of a thread for a batch's own rows; None: the pipeline does not name it."""

    features: AnyFeatures
    weights: Weights | None
    targets: TargetLabels | None
    places: Places | None
    worths: F32 | None
    values: TargetValues | None
    codes: I64 | None


@dataclass(frozen=True)
class _Flight:
    """Batch whose features, weights, targets, places and worths a thread computes."""

    cut: Cut
    own: Examples
    computed: Future[_Computed]


class Feed:
    """Stage that turns cuts of one rank's source into batches.

    Args:
        extract: features of examples (ingest.materialized.features, ingest.common_features); `depth` threads
            call it, one in training order.
        depth: most batches in flight; 1 for plans with statistics.
        plain: features of the examples of a block, not grouped; None: `extract`.
        segments: gives the calibration segment int64[b] of each row; None: there are none.
        weights: gives the weights of rows; None: each counts once.
        targets: gives the labels of T targets; None: there are none.
        worths: gives the worths of the value's labels; None: the pipeline has no value.
        places: gives the places of rows; None: not known.
        values: gives the values of targets; None: there are none.
        drift: counts values of features; None: they are not counted.

    Attributes:
        statistics: of the plan, after the finished batches.
    """

    def __init__(
        self,
        source: ExampleSource,
        extract: Callable[[Examples, Statistics], AnyFeatures],
        control: Control,
        *,
        statistics: Statistics,
        dead_letters: DeadLetters,
        depth: int = 1,
        plain: Callable[[Examples, Statistics], AnyFeatures] | None = None,
        segments: Callable[[AnyFeatures], I64] | None = None,
        weights: WeightExtractor | None = None,
        targets: TargetExtractor | None = None,
        worths: WorthExtractor | None = None,
        places: PlaceExtractor | None = None,
        values: ValueExtractor | None = None,
        drift: FeatureDrift | None = None,
    ) -> None:
        if depth > 1 and statistics.nodes:
            raise ValueError("a batch is extracted with the statistics after the batch before it")
        self.statistics, self.depth = statistics, depth
        self._source = source
        self._extract, self._plain = extract, plain or extract
        self._control = control
        self._dead_letters = dead_letters
        self._segments, self._weights, self._targets = segments, weights, targets
        self._worths, self._places, self._values, self._drift = worths, places, values, drift
        self._worker = ThreadPoolExecutor(depth, thread_name_prefix="extract")
        self._flights: deque[_Flight] = deque()

    @property
    def in_flight(self) -> int:
        """Batches that were begun and not finished; those of at most `depth` blocks."""
        return sum(flight.cut.parts for flight in self._flights)

    def together(self) -> int:
        """Number of examples of the next cut that may be extracted at once."""
        return self.statistics.steady - sum(flight.cut.examples for flight in self._flights)

    def __call__(self, cut: Cut | None) -> Batch | None:
        """Begin the next batch if there is a cut. Collective.

        Returns:
            The oldest batch in flight, where there is no cut or no room for the next; else None.
        """
        room = cut is not None and len(self._flights) < self.depth
        batch = None if room or not self._flights else self._finish(self._flights.popleft())
        if cut is not None:
            self._begin(cut)
        return batch

    def _begin(self, cut: Cut) -> None:
        """Take a batch and start to extract it."""
        count, last = int(cut.counts[self._control.rank]), int(cut.order[-1])
        own = self._source.pop(count, last, cut.decided, partial(self._together, cut))
        first = int(cut.counts[: self._control.rank].sum())
        rank_major = np.empty_like(cut.order)
        rank_major[cut.sequence] = cut.order
        if not np.array_equal(own.order, rank_major[first : first + count]):
            raise RuntimeError("a batch has other examples than its cut: some came between the two")
        extract = self._extract if cut.parts == 1 else self._plain
        computed = self._worker.submit(self._compute, extract, own, self.statistics)
        self._flights.append(_Flight(cut, own, computed))

    def _together(self, cut: Cut, words: I64) -> Together:
        """Words of all ranks' examples of a cut. Collective."""
        gathered = np.concatenate(self._control.gather_ragged(words, cut.counts))
        first = int(cut.counts[: self._control.rank].sum())
        own = (cut.sequence >= first) & (cut.sequence < first + len(words))
        return Together(gathered[cut.sequence], cut.order, own)

    def _finish(self, flight: _Flight) -> Batch:
        """Wait for the features of a batch in flight. Collective."""
        with telemetry.EXTRACT_WAIT_SECONDS.time():
            computed = flight.computed.result()
        features, weights, targets = computed.features, computed.weights, computed.targets
        places, worths, values = computed.places, computed.worths, computed.values
        own, cut = flight.own, flight.cut
        if self._drift is not None and computed.codes is not None:
            self._drift.add(computed.codes)
        label = np.where(own.late, np.float32(LATE), own.label)
        wrong: dict[str, tuple[Reason, Mask]] = {}
        for reason, found in (
            (Reason.BAD_WEIGHT, weights),
            (Reason.BAD_TARGET, targets),
            (Reason.BAD_TARGET, values),
            (Reason.BAD_POSITION, places),
        ):
            wrong |= {} if found is None else {what: (reason, rows) for what, rows in found.wrong.items()}
        failed = reduce(np.logical_or, (rows for _, rows in wrong.values()), features.failed)
        more: dict[str, I64] = {}
        if self._segments is not None:
            more["segment"] = self._segments(features)
        if worths is not None:
            more |= {f"worth {at}": words for at, words in enumerate(_words_of(worths))}
        if weights is not None:
            more["weights"] = weights.values.view(np.int64)[:, 0]
        if targets is not None:
            more["targets"] = targets.words
        if places is not None:
            more["places"] = places.numbers
        for v in range(0 if values is None else values.numbers.shape[1]):
            assert values is not None
            more[f"value {v}"] = np.ascontiguousarray(values.numbers[:, v]).view(np.int32).astype(np.int64)
        words = _words(own, failed, [*more.values(), *features.observed])
        known = np.concatenate(self._control.gather_ragged(words, cut.counts))
        ok = known[:, 4] & FAILED == 0
        left = ok[cut.sequence]
        rows = cut.sequence[left]
        if failed.any():
            self._refuse(own, features.failed, wrong, () if values is None else values.wrong)
            self._source.set_aside(own, failed)
            features, label = features.take(np.flatnonzero(~failed)), label[~failed]
        instance, user, time_ms, item, marks, *observed = np.ascontiguousarray(known[rows].T)
        in_sequence, observed = dict(zip(more, observed, strict=False)), observed[len(more) :]
        of_rows = {name: np.ascontiguousarray(known[ok, 5 + at]) for at, name in enumerate(more)}
        worth = None
        if worths is not None:
            pairs = np.stack(
                [words for name, words in in_sequence.items() if name.startswith("worth ")], axis=1
            )
            worth = _worths_of(pairs, worths.shape[1])
        labels = None
        if self._targets is not None:
            labels = labels_of(of_rows["targets"], self._targets.count)
        late = marks & LATE_POSITIVE != 0
        outcome = (known[ok, 4] // OUTCOME).astype(np.uint8)
        again = late | (marks >= OUTCOME * FINAL_NEGATIVE)
        ends = np.array([len(ok)]) if cut.ends is None else cut.ends
        if observed:  # a late positive, or a final, was observed when it first came
            seen = np.stack(observed)
            self.statistics = self.statistics.update(seen[:, ~again] if again.any() else seen)
        return Batch(
            features=features,
            label=label,
            sequence=np.cumsum(ok)[rows] - 1,
            instance=instance,
            user=user,
            time_ms=time_ms,
            item=item,
            order=cut.order[left],
            late=late,
            outcome=outcome,
            cut=np.diff(_up_to(known[cut.sequence, 4] < OUTCOME * FINAL_NEGATIVE, np.append(0, ends))),
            bounds=None if cut.ends is None else _up_to(ok, np.append(0, ends)),
            segment=in_sequence.get("segment"),
            weights=of_rows["weights"].view(np.float32).reshape(-1, 2) if "weights" in of_rows else None,
            targets=labels,
            worths=worth,
            places=of_rows.get("places"),
            values=_values(of_rows),
        )

    def close(self) -> None:
        """Wait for the worker; what is in flight is dropped."""
        self._worker.shutdown(wait=True, cancel_futures=True)

    def _compute(
        self, extract: Callable[[Examples, Statistics], AnyFeatures], own: Examples, statistics: Statistics
    ) -> _Computed:
        """In a worker thread."""
        with telemetry.EXTRACT_SECONDS.time():
            weights = None if self._weights is None else self._weights(own.columns)
            targets = None if self._targets is None else self._targets(own.columns, own.final, own.words)
            worths = None if self._worths is None else self._worths(own.columns)
            places = None if self._places is None else self._places(own.columns)
            values = None
            if self._values is not None and targets is not None:
                values = self._values(own.columns, targets.words)
            features = extract(own, statistics)
            codes = None if self._drift is None else self._drift.codes(own, features)
            return _Computed(features, weights, targets, places, worths, values, codes)

    def _refuse(
        self,
        own: Examples,
        failed: Mask,
        wrong: Mapping[str, tuple[Reason, Mask]],
        valued: Collection[str],
    ) -> None:
        """Write dead letters for own rows that cannot be learned.

        Args:
            own: rows.
            failed: could not be extracted.
            wrong: sentence → reason and rows.
            valued: sentences among them on values of targets.
        """
        if failed.any():
            self._letters(own, failed, Reason.NOT_EXTRACTED, "a feature of an example has too many values")
        for sentence, (reason, found) in wrong.items():
            if (rows := found & ~failed).any():
                self._letters(own, rows, reason, sentence, sentence in valued)
            failed = failed | rows

    def _letters(
        self, own: Examples, rows: Mask, reason: Reason, complaint: str, valued: bool = False
    ) -> None:
        topic = self._source.pipeline.log.impressions.topic
        first = rows & ~own.late & ~own.final  # the others came before, and have their dead letter
        if count := int(np.count_nonzero(first)):
            self._dead_letters.rows.add(topic, 0, {complaint: count})
        if valued:  # a value comes with its label: the impression was an example before
            first |= rows & (own.label == FINAL_NEGATIVE)
        for row in np.flatnonzero(first).tolist():
            partition, instance = int(own.partition[row]), int(own.instance[row])
            values = own.columns.slice(row, 1).to_pylist()[0]
            self._dead_letters.write(
                (topic, partition, EXAMPLE, instance),
                reason,
                f"{complaint} (instance {instance} of partition {partition}, at {own.time_ms[row]} ms, order "
                f"{own.order[row]})",
                json.dumps(values, ensure_ascii=False, default=repr).encode("utf-8", "replace"),
            )


def _values(of_rows: Mapping[str, I64]) -> F32 | None:
    """Values f32[B, V], of words by name; None: there are none."""
    found = [
        words.astype(np.int32).view(np.float32)
        for name, words in of_rows.items()
        if name.startswith("value ")
    ]
    return np.stack(found, 1) if found else None


def _up_to(chosen: Mask, bounds: I64) -> I64:
    """Number int64[P + 1] of the chosen rows before each bound."""
    return np.append(0, np.cumsum(chosen))[bounds]


def _words(own: Examples, failed: Mask, more: Sequence[I64]) -> I64:
    """Columns of own examples that all ranks get, int64[b, 5 + M]: ids, event time, item, marks, M more."""
    marks = FAILED * failed.astype(np.int64) + LATE_POSITIVE * own.late
    marks += OUTCOME * np.where(own.late, int(LATE), own.label).astype(np.int64)
    return np.stack([own.instance, own.user, own.time_ms, own.item, marks, *more], axis=1)


def _words_of(worths: F32) -> I64:
    """Words int64[W, b] of worths f32[b, L], two in each."""
    odd = worths.shape[1] % 2
    even = np.pad(worths, ((0, 0), (0, odd)))
    return np.ascontiguousarray(np.ascontiguousarray(even).view(np.int64).T)


def _worths_of(words: I64, labels: int) -> F32:
    """Worths f32[B, L] of words int64[B, W]."""
    return np.ascontiguousarray(words).view(np.float32)[:, :labels]
