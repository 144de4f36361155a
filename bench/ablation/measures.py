"""Measures of predictions made before learning: quality over the test part, GAUC over event time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.ablation.span import Span
from livectr.trainer.quality.metrics import gauc, quality
from livectr.trainer.quality.seen import is_cold

STRETCHES = 24
"""Points of a curve over the training part of a log."""
TRUTH = "truth"
"""The variant that knows the simulator's click probabilities."""
Records = NDArray[np.void]
Logits = NDArray[np.float32]


def measure(predictions: Records, logit: Logits, span: Span) -> dict[str, Any]:
    """predictions [n] as `trainer.quality.predictions` logs them, with a model's logits f32[n] →

    {"test": `Quality` as a dictionary, over the examples of the test part,
     "curve": GAUC of each of STRETCHES equal stretches of event time, from the split to the end}

    Undefined values are None.
    """
    user, time_ms = predictions["user"], predictions["time_ms"]
    label = predictions["label"].astype(np.float32)
    last = time_ms >= span.test_ms
    test = quality(user[last], logit[last], label[last], is_cold(predictions["seen"][last]))
    edges = np.linspace(span.split_ms, span.end_ms, STRETCHES + 1)[1:-1]
    stretch = np.searchsorted(edges, time_ms, side="right")
    curve = []
    for i in range(STRETCHES):
        found, _ = gauc(user[stretch == i], logit[stretch == i], label[stretch == i])
        curve.append(None if found != found else round(found, 6))
    return {"test": test.as_dict(), "curve": curve}
