"""Scores and final labels: against a join that waits for the whole window, in any batches, after a resume."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from livectr.kernels.stream.join import ACCEPTED, CLICK, IMPRESSION, LATE_POSITIVE, POSITIVE
from livectr.trainer.quality.final_labels import FinalLabels, with_final_labels
from livectr.trainer.quality.predictions import Records, records
from tests.kernels.join_reference import Event, brute_force
from tests.tiers import examples

WINDOW, WAIT, DEDUP = 20, 5, 30
EVENTS = st.lists(
    st.tuples(st.sampled_from([IMPRESSION, CLICK]), st.integers(-3, 8), st.integers(0, 150)), max_size=80
)
CUTS = st.lists(st.tuples(st.integers(0, 12), st.booleans()), max_size=20)
"""Examples of a batch, and whether to resume after it."""


@dataclass
class Training:
    """Training order of random events; an example's logit is its place in it.

    Attributes:
        final: (key, time, logit of the first scoring, final label) → deadline of the window.
    """

    scored: Records
    late: np.ndarray
    order: np.ndarray
    final: dict[tuple[int, int, float, int], int]

    @staticmethod
    def of(events: list[Event]) -> Training:
        out = brute_force(events, WINDOW, DEDUP, WAIT)
        shown = [
            (key, ts)
            for (kind, key, ts), status in zip(events, out.status, strict=True)
            if kind == IMPRESSION and status == ACCEPTED
        ]
        slot, label, _, order = np.array(out.released, np.int64).reshape(-1, 4).T
        key, ts = np.array(shown, np.int64).reshape(-1, 2)[slot].T
        scored = records(
            instance=key,
            user=key * 7,
            item=key * 0,
            time_ms=ts,
            seen=np.zeros(len(slot), np.uint32),
            logits={"rank": np.arange(len(slot), dtype=np.float32)},
            label=(label > 0).astype(np.float32),
        )
        first = {s: float(place) for place, s in reversed(list(enumerate(slot.tolist())))}
        final = {
            (*shown[s], first[s], label): deadline
            for s, label, _, deadline in brute_force(events, WINDOW, DEDUP).released
        }
        return Training(scored, label == LATE_POSITIVE, order, final)


def rows(found: Records) -> list[tuple[int, int, float, int]]:
    return [(int(r["instance"]), int(r["time_ms"]), float(r["rank"]), int(r["label"])) for r in found]


@examples(200)
@given(EVENTS.map(lambda events: sorted(events, key=lambda e: e[2] + e[1] * 3)), CUTS)
def test_every_example_leaves_once_with_its_first_score_and_its_final_label(
    events: list[Event], cuts: list[tuple[int, bool]]
) -> None:
    training = Training.of(events)
    labels, start = FinalLabels(WINDOW, ["rank"]), 0
    found: list[tuple[int, int, float, int]] = []
    for count, resume in [*cuts, (len(training.order), True)]:
        part = slice(start, start + count)
        out = rows(labels.add(training.scored[part], training.late[part], training.order[part]))
        start = min(start + count, len(training.order))
        found += out
        now = int(training.order[start - 1]) if start else 0
        # leaves when its window has ended in the training order: not before, and then at once
        assert all(training.final[row] < now for row in out)
        left = {row for row, end in training.final.items() if row[2] < start and end < now}
        assert left == set(found)
        if resume:
            state = labels.state()
            labels = FinalLabels(WINDOW, ["rank"])
            labels.load(state)
            assert all(np.array_equal(state[name], values) for name, values in labels.state().items())
    found += rows(labels.finish())
    assert Counter(found) == Counter(training.final.keys())
    deadlines = [training.final[row] for row in found]
    assert deadlines == sorted(deadlines)
    assert not len(labels)


@examples(100)
@given(EVENTS.map(lambda events: sorted(events, key=lambda e: e[2] + e[1] * 3)))
def test_final_labels_of_a_whole_log(events: list[Event]) -> None:
    training = Training.of(events)
    scored = training.scored.copy()
    count = with_final_labels(scored, training.late)
    assert Counter(rows(scored[count])) == Counter(training.final.keys())


def test_a_batch_in_any_cut_gives_the_same_records() -> None:
    """Many scores, over several parts of the log of rows."""
    rng = np.random.default_rng(3)
    n = 3_000
    ts = np.sort(rng.integers(0, 40_000, n))
    clicked = rng.random(n) < 0.4
    delay = rng.integers(0, 900, n)
    kind = np.r_[np.zeros(n, int), np.ones(int(clicked.sum()), int)]
    key = np.r_[np.arange(n), np.flatnonzero(clicked)]
    order = np.r_[ts + 100, np.maximum(ts + delay, ts + 101)[clicked]]
    place = np.lexsort((kind, order))
    kind, key, order = kind[place], key[place], order[place]
    scored = records(
        instance=key,
        user=key % 50,
        item=key % 9,
        time_ms=ts[key],
        seen=np.full(len(key), 3, np.uint32),
        logits={"rank": rng.normal(size=len(key)).astype(np.float32)},
        label=kind.astype(np.float32),
    )
    outcomes = []
    for step in (7, 500, len(key)):
        labels = FinalLabels(1_000, ["rank"])
        parts = [
            labels.add(scored[at : at + step], (kind == 1)[at : at + step], order[at : at + step])
            for at in range(0, len(key), step)
        ]
        outcomes.append(np.concatenate([*parts, labels.finish()]).tobytes())
        block = FinalLabels(1_000, ["rank"])
        bounds = np.append(np.arange(0, len(key), step), len(key))
        _, left = block.add_block(scored, kind == 1, order, bounds)
        assert np.diff(left).tolist() == [len(part) for part in parts], "each with the batch that lets it out"
    assert len(set(outcomes)) == 1
    found = np.frombuffer(outcomes[0], scored.dtype)
    assert (np.sort(found["instance"]) == np.arange(n)).all()
    assert (found["label"] == clicked[found["instance"]]).all() and POSITIVE == 1
