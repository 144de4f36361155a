"""Calibrator: learns maps of logits by segment from prequential logits and final labels (store.calibration).

    final labels ─► bins of the logit, by segment ─► pane is full ─► maps: MAP estimates by Newton's method
                                                                      │ examples of later batches
                                                                      └► calibrated logits; the next version

An example was scored before it was learned, so its logit errs as a served one does. Its bin counts examples,
clicks and predicted clicks; a map is fitted to the bins, each at the logit of its mean probability. When a
pane of examples ends, bins of a segment fade by e^(−clicks / window), with its clicks of the pane, and the
maps of segments with new examples are fitted again:

    global map    of the bins of all examples, by logit
    segment map   the global map, then a line of the segment's bins, by logit after the global map of its pane

So a drift that all segments share is followed within a window of all clicks, and a segment's window is for
its deviation from it. A line's prior is scale ~ N(1, u) and shift ~ N(0, v) at the mean logit, with u and v
as wide as the segments differ beyond noise (empirical Bayes): a segment of few clicks shrinks to the global
map, and all do where the model is right already. A precision counts clicks, as an intercept of n clicks has
a curvature of n. Panes are a function of the examples alone: the same maps on any number of ranks and after a
restart, whatever the batches.

Every contender of the pipeline has its maps, so that a new champion is served with its own.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from livectr.ingest.language.calibration import Calibration
from livectr.ingest.plan.segments import NO_SEGMENT
from livectr.store.calibration import SegmentMaps
from livectr.trainer.part import F32, Arrays, Part, Scored
from livectr.trainer.quality import telemetry
from livectr.trainer.quality.metrics import bounded
from livectr.trainer.quality.predictions import CALIBRATED, SEGMENT
from livectr.trainer.setup import Setup

LOG = logging.getLogger(__name__)

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

MOST_SEGMENTS = 1_000
"""Segments with a map of their own, the first that come; others have the global map."""
PANES, SHORTEST, LONGEST = 50, 100, 2_000
"""A pane has a fiftieth of the examples before it, within limits."""
SHIFT_PRIORS, SCALE_PRIORS = (2.0, 100.0), (20.0, 1e6)
"""Least and greatest precision. The shift's stays low, so that a segment's clicks decide in the long run: the
sum of predictions has to become that of clicks. A slope that fits noise would cost log loss for nothing."""
LEAST_SCALE, MOST_SCALE = 0.1, 10.0
JUDGED = 500
"""Clicks from which the calibration of a segment is reported."""
FIRST_LOGIT, BIN_WIDTH, BINS = -12.0, 0.25, 96
COUNT, CLICKS = 0, 1  # then predicted clicks
_STEPS, _LONGEST_STEP, _CLOSE = 50, 1.0, 1e-7


class Calibrator(Part):
    """Maps of every contender, and the calibration by segment. Rank 0 holds it.

    Args:
        calibration: its declaration.
        contenders: roles of ranking models.

    Attributes:
        seen: examples with final labels.
    """

    kind = "calibration"

    def __init__(self, calibration: Calibration, contenders: Sequence[str]) -> None:
        self._by, self._window = calibration.by or "", calibration.window_clicks
        self._roles = tuple(contenders)
        self._begin([])

    @staticmethod
    def of(setup: Setup) -> Calibrator | None:
        """Calibrator of a run on rank 0; None where nothing is calibrated, and on other ranks."""
        calibration = setup.pipeline.calibration
        if calibration is None or setup.rank != 0:
            return None
        return Calibrator(calibration, list(setup.pipeline.contenders))

    def _begin(self, segments: Sequence[int]) -> None:
        self.seen = self._held = 0
        self._number = {key: number for number, key in enumerate(segments, 1)}
        size = len(segments) + 1
        self._bins = np.zeros((len(self._roles), size, BINS, 3))
        self._pane = np.zeros_like(self._bins)
        self._promised, self._pane_promised = np.zeros((2, size)), np.zeros((2, size))
        self._lines = _identities(len(self._roles), size)
        self._maps = {role: self._maps_of(i) for i, role in enumerate(self._roles)}

    # Use

    def maps(self, champion: str) -> SegmentMaps:
        """Maps of a contender."""
        return self._maps[champion]

    def calibrated(self, logits: F32, segment: I64, champion: str) -> F32:
        """Calibrated logits f32[n] of a contender's logits f32[n] in segments i64[n]."""
        return self._maps[champion](logits, segment).astype(np.float32)

    # Learning

    def measure(self, scored: Scored) -> None:
        """Count examples; maps are fitted at the end of each pane."""
        records, start = scored.records, 0
        while start < len(records):
            part = slice(start, start + self._size - self._held)
            logits = {role: scored.logits[role][part] for role in self._roles}
            weight = None if scored.scaled is None else scored.scaled.by_click[part]
            self._count(records[part], logits, scored.champion, scored.logits[CALIBRATED][part], weight)
            added = len(records[part])
            start, self._held = start + added, self._held + added
            if self._held == self._size:
                self._close()

    def closes(self, count: int) -> bool:
        """Return true if so many more examples end a pane."""
        return self._held + count >= self._size

    @property
    def _size(self) -> int:
        return min(max(self.seen // PANES, SHORTEST), LONGEST)

    def _count(
        self,
        records: npt.NDArray[np.void],
        logits: Mapping[str, F32],
        champion: str,
        calibrated: F32,
        weight: F64 | None,
    ) -> None:
        """Add examples to the open pane, one after another, so that sums do not depend on batches."""
        segment = self._numbers(records[SEGMENT])
        label = records["label"].astype(np.float64)
        own = segment > 0
        for i, role in enumerate(self._roles):
            logit, (scale, shift) = bounded(logits[role]), self._lines[i, 0]
            place, sums = _binned(logit, label, weight)
            np.add.at(self._pane[i, 0], place, sums)
            of_own = None if weight is None else weight[own]
            place, sums = _binned(scale * logit[own] + shift, label[own], of_own)
            np.add.at(self._pane[i], (segment[own], place), sums)
        for which, each in enumerate((logits[champion], calibrated)):
            promised = _probability(bounded(each))
            promised = promised if weight is None else promised * weight
            np.add.at(self._pane_promised[which], segment, promised)

    def _numbers(self, keys: I64) -> I64:
        """Numbers of segments i64[n], new ones included; 0: no map of its own."""
        if not self._by:
            return np.zeros(len(keys), np.int64)
        unique, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        for place in np.argsort(first):  # in the order in which they come
            key = int(unique[place])
            if key != NO_SEGMENT and key not in self._number and len(self._number) < MOST_SEGMENTS:
                self._number[key] = len(self._number) + 1
                if len(self._number) == MOST_SEGMENTS:
                    LOG.warning(
                        "calibration: field %s has %d segments; later ones have the map of all examples",
                        self._by,
                        MOST_SEGMENTS,
                    )
        if (more := len(self._number) + 1 - self._bins.shape[1]) > 0:
            grown = [(0, 0), (0, more), (0, 0), (0, 0)]
            self._bins, self._pane = np.pad(self._bins, grown), np.pad(self._pane, grown)
            self._promised, self._pane_promised = (
                np.pad(sums, [(0, 0), (0, more)]) for sums in (self._promised, self._pane_promised)
            )
            self._lines = np.concatenate([self._lines, _identities(len(self._roles), more)], axis=1)
        numbers = np.array([self._number.get(key, 0) for key in unique.tolist()], np.int64)
        return numbers[inverse]

    def _close(self) -> None:
        """Close a pane: bins of the past fade, and maps of segments with new examples are fitted."""
        touched = self._pane[0, :, :, COUNT].sum(axis=1) > 0
        kept = np.exp(-self._pane[0, :, :, CLICKS].sum(axis=1) / self._window)
        self._bins = self._bins * kept[:, None, None] + self._pane
        self._promised = self._promised * kept + self._pane_promised
        self._pane[:], self._pane_promised[:] = 0, 0
        self.seen, self._held = self.seen + self._held, 0
        own = np.flatnonzero(touched[1:]) + 1
        for i, role in enumerate(self._roles):
            every = Lines.of(self._bins[i, 1:])
            self._lines[i, :1] = Lines.of(self._bins[i, :1]).fitted()
            self._lines[i, own] = every.take(own - 1).fitted()
            self._maps[role] = self._maps_of(i)
        self._show()

    def _maps_of(self, role: int) -> SegmentMaps:
        keys = np.array(list(self._number), np.int64)
        order = np.argsort(keys)
        (scale, shift), lines = self._lines[role, 0], self._lines[role, [*(order + 1), 0]]
        lines[-1] = 1, 0
        composed = np.stack([lines[:, 0] * scale, lines[:, 0] * shift + lines[:, 1]]).astype(np.float32)
        return SegmentMaps(keys[order], *composed)

    # Measures

    def by_segment(self) -> tuple[F64, F64, F64]:
        """Clicks, and calibration without and with the maps, f64[J] each, of the J judged segments."""
        first = 1 if self._by else 0
        bins = self._bins[0, first:].sum(axis=1)
        judged = bins[:, CLICKS] >= min(JUDGED, self._window / 2)
        clicks, promised = bins[judged, CLICKS], self._promised[:, first:][:, judged]
        return clicks, promised[0] / clicks, promised[1] / clicks

    def report(self) -> dict[str, Any]:
        """Lowest and highest calibration of segments, without and with the maps."""
        clicks, raw, mapped = self.by_segment()
        found: dict[str, Any] = {"by": self._by, "segments": len(self._number), "judged": len(clicks)}
        for name, ratio in (("raw", raw), (CALIBRATED, mapped)):
            found[name] = [round(float(x), 4) for x in (ratio.min(), ratio.max())] if len(ratio) else []
        return {"segments": found}

    def _show(self) -> None:
        clicks, raw, mapped = self.by_segment()
        telemetry.CALIBRATION_SEGMENTS.set(len(self._number))
        for name, ratio in (("rank", raw), (CALIBRATED, mapped)):
            for bound, value in (("lowest", ratio.min), ("highest", ratio.max)):
                number = value() if len(clicks) else float("nan")
                telemetry.SEGMENT_CALIBRATION.labels(name, bound).set(number)

    # State

    def state(self) -> Arrays:
        """State for a checkpoint: equal for equal states."""
        return {
            "numbers": np.array([self.seen, self._held], np.int64),
            "by": np.frombuffer(self._by.encode(), np.uint8),
            "roles": np.frombuffer("\n".join(self._roles).encode(), np.uint8),
            "segments": np.array(list(self._number), np.int64),
            "bins": self._bins,
            "pane": self._pane,
            "promised": self._promised,
            "pane_promised": self._pane_promised,
            "lines": self._lines,
        }

    def load(self, state: Arrays) -> None:
        """Resume from a `state`; that of another field or of other contenders is left out."""
        if state["by"].tobytes() != self._by.encode() or _roles(state) != self._roles:
            LOG.info("the calibration begins anew: its segments or models are others")
            return
        self._begin(state["segments"].tolist())
        self.seen, self._held = map(int, state["numbers"])
        self._bins, self._pane = state["bins"].copy(), state["pane"].copy()
        self._promised, self._pane_promised = state["promised"].copy(), state["pane_promised"].copy()
        self._lines = state["lines"].copy()
        self._maps = {role: self._maps_of(i) for i, role in enumerate(self._roles)}
        self._show()


def saved_maps(state: Arrays, champion: str) -> SegmentMaps | None:
    """Maps of a contender in a `Calibrator.state`; None: there is none, or not of this contender."""
    roles = _roles(state) if state else ()
    if champion not in roles:
        return None
    held = Calibrator(Calibration(by=state["by"].tobytes().decode() or None), roles)
    held.load(state)
    return held.maps(champion)


def _roles(state: Arrays) -> tuple[str, ...]:
    return tuple(state["roles"].tobytes().decode().split("\n"))


def _identities(roles: int, count: int) -> F64:
    return np.tile([1.0, 0.0], (roles, count, 1))


def _binned(logit: F64, label: F64, weight: F64 | None) -> tuple[I64, F64]:
    """Bins i64[n] of logits f64[n], and what they add to them, f64[n, 3]; weight: f64[n], None is 1."""
    place = np.clip((logit - FIRST_LOGIT) / BIN_WIDTH, 0, BINS - 1).astype(np.int64)
    sums = np.stack([np.ones(len(label)), label, _probability(logit)], axis=1)
    return place, sums if weight is None else sums * weight[:, None]


@dataclass(frozen=True)
class Lines:
    """Bins of S segments, from which a line is fitted for each.

    Attributes:
        z: f64[S, BINS], logits of the bins.
        x: f64[S, BINS], the same less the segment's mean.
        count, clicks: f64[S, BINS].
        precision: of the priors of level and scale.
    """

    z: F64
    x: F64
    count: F64
    clicks: F64
    precision: tuple[float, float]

    @staticmethod
    def of(bins: F64) -> Lines:
        """Lines of bins f64[S, BINS, 3], whose priors are as wide as the segments differ.

        The scores of a segment that needs no map have variance I, its information; of a prior of variance v
        they have I + I² v. So v is estimated by moments from all S segments (empirical Bayes).
        """
        count, clicks, predicted = np.moveaxis(bins, 2, 0)
        mean = np.clip(predicted / np.maximum(count, 1e-300), 1e-12, 1 - 1e-12)
        z = np.where(count > 0, np.log(mean) - np.log1p(-mean), 0.0)
        weight = count * mean * (1 - mean)
        x = z - (weight * z).sum(axis=1, keepdims=True) / np.maximum(
            weight.sum(axis=1, keepdims=True), 1e-300
        )
        rest = clicks - count * mean
        level = _precision(rest.sum(axis=1), weight.sum(axis=1), SHIFT_PRIORS)
        scale = _precision((rest * x).sum(axis=1), (weight * x * x).sum(axis=1), SCALE_PRIORS)
        return Lines(z, x, count, clicks, (level, scale))

    def take(self, segments: I64) -> Lines:
        """Lines of some segments, with the priors of all."""
        z, x, count, clicks = (each[segments] for each in (self.z, self.x, self.count, self.clicks))
        return Lines(z, x, count, clicks, self.precision)

    def fitted(self) -> F64:
        """Scale and shift f64[S, 2]: the posterior mode of each segment, by Newton's method."""
        z, x, count, clicks = self.z, self.x, self.count, self.clicks
        of_level, of_scale = self.precision
        scale, level = np.zeros(len(z)), np.zeros(len(z))  # of the difference from the logit
        for _ in range(_STEPS):
            p = _probability(z + level[:, None] + scale[:, None] * x)
            rest, curved = clicks - count * p, count * p * (1 - p)
            by_level = rest.sum(axis=1) - of_level * level
            by_scale = (rest * x).sum(axis=1) - of_scale * scale
            level_level = curved.sum(axis=1) + of_level
            level_scale = (curved * x).sum(axis=1)
            scale_scale = (curved * x * x).sum(axis=1) + of_scale
            size = level_level * scale_scale - level_scale**2
            scale_step = (level_level * by_scale - level_scale * by_level) / size
            scale_step = np.clip(scale_step, -_LONGEST_STEP, _LONGEST_STEP)
            scale_step = np.clip(scale + scale_step, LEAST_SCALE - 1, MOST_SCALE - 1) - scale
            level_step = (by_level - level_scale * scale_step) / level_level  # given the step of the scale
            level_step = np.clip(level_step, -_LONGEST_STEP, _LONGEST_STEP)
            scale, level = scale + scale_step, level + level_step
            if max(np.abs(scale_step).max(initial=0), np.abs(level_step).max(initial=0)) < _CLOSE:
                break
        return np.stack([1 + scale, level - scale * (z - x)[:, 0]], axis=1)


def _precision(score: F64, information: F64, limits: tuple[float, float]) -> float:
    """Precision of a prior: 1/v by moments of scores f64[S] with information f64[S], within limits."""
    least, most = limits
    excess, whole = float((score**2 - information).sum()), float((information**2).sum())
    return min(max(whole / excess, least), most) if excess > 0 else most


def _probability(logit: F64) -> F64:
    return 0.5 * (1 + np.tanh(0.5 * logit))
