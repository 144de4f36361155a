"""Calibration maps: logit → scale · logit + shift, with a positive scale, for each segment.

    p = σ(scale_s · z + shift_s)      Platt scaling (Platt 1999) of a segment's logits

McMahan et al. 2013, §7, correct p by γ p^κ, learned by segments of the data: for small p that is this map,
with shift = log γ and scale = κ. Unlike theirs it stays below 1. Deviation: they fit piecewise functions and
isotonic regressions, too; those have flat parts, in which candidates of different logits become equal.

trainer.quality.calibrator learns the maps; a version carries them as tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from livectr.system.errors import MismatchError

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

PREFIX = "calibration."
"""Begin of the names of the maps' tensors in a version."""


@dataclass(frozen=True)
class SegmentMaps:
    """Maps of S segments, and of all examples of other segments.

    Attributes:
        keys: i64[S], rising: keys of the segments.
        scale, shift: f32[S + 1], of each segment; the last of other segments.
    """

    keys: I64
    scale: F32
    shift: F32

    @staticmethod
    def identity() -> SegmentMaps:
        """The map of no segments that changes nothing."""
        return SegmentMaps(np.empty(0, np.int64), np.ones(1, np.float32), np.zeros(1, np.float32))

    def place(self, segment: I64) -> I64:
        """Places i64[n] of the maps of segments i64[n]."""
        found = np.searchsorted(self.keys, segment)
        known = np.append(self.keys, 0)[found] == segment
        return np.where(known & (found < len(self.keys)), found, len(self.keys))

    def of(self, segment: I64) -> tuple[F32, F32]:
        """Scale and shift, f32[n] each, of segments i64[n]."""
        place = self.place(segment)
        return self.scale[place], self.shift[place]

    def __call__(self, logits: F32, segment: I64) -> F64:
        """Calibrated logits f64[n] of logits f32[n] in segments i64[n]."""
        scale, shift = self.of(segment)
        mapped: F64 = scale.astype(np.float64) * logits + shift
        return mapped

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Tensors of a version, by name."""
        return {f"{PREFIX}keys": self.keys, f"{PREFIX}scale": self.scale, f"{PREFIX}shift": self.shift}

    @staticmethod
    def from_arrays(arrays: Mapping[str, npt.NDArray[Any]]) -> SegmentMaps | None:
        """Maps of a version; None: it has none.

        Raises:
            MismatchError: they are no maps.
        """
        if PREFIX + "keys" not in arrays:
            return None
        try:
            keys, scale, shift = (arrays[PREFIX + name] for name in ("keys", "scale", "shift"))
        except KeyError as error:
            raise MismatchError(f"the published calibration lacks {error}") from None
        fits = keys.dtype == np.int64 and scale.dtype == shift.dtype == np.float32
        if not fits or not len(keys) + 1 == len(scale) == len(shift):
            raise MismatchError("the published calibration has other shapes than its segments")
        return SegmentMaps(keys, scale, shift)
