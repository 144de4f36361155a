"""Teachers of outcomes that come late, for tests of steps."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from livectr.models.es_dfm import expected_labels, lessons_of_heads
from livectr.models.fnw import fake_negative_weighted
from livectr.models.importance import plain, weighted
from livectr.trainer.des.step import Teach, TeachPart

Way = Literal["vanilla", "fnw", "es_dfm", "heads"]


def lessons(way: Way, outcome: NDArray[np.int64], rng: np.random.Generator) -> Teach | None:
    """Teacher of outcomes of a main model, or of the heads; None: the labels teach."""
    of_part = lessons_of_parts(way, outcome, rng)
    return None if of_part is None else lambda logits: of_part(logits, slice(None))


def lessons_of_parts(way: Way, outcome: NDArray[np.int64], rng: np.random.Generator) -> TeachPart | None:
    """`lessons` of the batches of a block."""
    of, heads = torch.from_numpy(outcome.astype(np.float32)), rng.normal(size=(2, len(outcome)))
    clicked, in_time = torch.from_numpy(heads.astype(np.float32))
    ways: dict[Way, TeachPart | None] = {
        "vanilla": None,
        "fnw": lambda logits, rows: {role: fake_negative_weighted(z, of[rows]) for role, z in logits.items()},
        "es_dfm": lambda logits, rows: dict.fromkeys(
            logits, expected_labels(of[rows], clicked[rows], in_time[rows])
        ),
        "heads": lambda _, rows: lessons_of_heads(of[rows]),
    }
    return ways[way]


def weighted_parts(label: NDArray[np.float32], rng: np.random.Generator) -> TeachPart:
    """Teacher of labels with weights, some 0, and with rates."""
    of = torch.from_numpy(label)
    given = np.stack([rng.integers(0, 4, len(label)), rng.choice([0.05, 0.5, 1], len(label))], 1)
    weights = torch.from_numpy(given.astype(np.float32))
    return lambda logits, rows: dict.fromkeys(logits, weighted(plain(of[rows]), weights[rows]))
