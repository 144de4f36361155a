"""The label join against a brute-force join: shuffled, duplicated, late and lonely events, any chunking."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from livectr.kernels.stream.join import (
    ACCEPTED,
    CLICK,
    CLICK_BYTES,
    DUPLICATE,
    ENTRY_BYTES,
    FINAL_LATE,
    FINAL_NEGATIVE,
    FINAL_POSITIVE,
    FULL,
    IMPRESSION,
    LATE,
    LATE_POSITIVE,
    NEGATIVE,
    POSITIVE,
    UNMATCHED,
    JoinIndex,
)
from tests.kernels.join_reference import Event, Outcome, brute_force
from tests.tiers import examples

WINDOW, DEDUP = 20, 30
END = np.iinfo(np.int64).max


def chunks(events: Sequence[Event], cuts: Iterable[int]) -> list[Sequence[Event]]:
    bounds = [0, *sorted(cut % (len(events) + 1) for cut in cuts), len(events)]
    return [events[a:b] for a, b in pairwise(bounds)]


def run(
    events: Sequence[Event],
    cuts: Iterable[int] = (),
    *,
    wait: int | None = None,
    finals: bool = False,
    slack: int = 0,
    resume: bool = False,
    amounts: list[tuple[int, float]] | None = None,
) -> Outcome:
    """Outcome of a join; `amounts` gets times and amounts of the clicks that label what leaves.

    The amount of a click is the number of its event, so that it says which one it is.
    """
    out, told = Outcome(), amounts is not None

    def begin() -> JoinIndex:
        return JoinIndex(WINDOW, DEDUP, wait_ms=wait, finals=finals, slack_ms=slack, amounts=told)

    def release(wm: int) -> None:
        released, amount = join.release_with_amounts(wm)
        out.released += zip(*(column.tolist() for column in released), strict=True)
        assert (np.isnan(amount) == (released.click_ts < 0)).all() or not told
        if amounts is not None:
            of_clicks = zip(released.click_ts.tolist(), amount.tolist(), strict=True)
            amounts.extend(row for row in of_clicks if row[0] >= 0)

    join, wm, number = begin(), 0, 0
    for chunk in chunks(events, cuts):
        kind, key, ts = (np.array([event[i] for event in chunk], np.int64) for i in range(3))
        marks = np.maximum.accumulate(np.concatenate(([wm], ts)))[1:]
        wm = int(marks[-1]) if len(marks) else wm
        numbers = np.arange(number, number := number + len(kind), dtype=np.float64)[kind == CLICK]
        pushed = join.push(kind.astype(np.uint8), key, ts, marks, amount=numbers if told else None)
        out.status += pushed.status.tolist()
        out.slot += pushed.slot.tolist()
        out.seen += pushed.seen.tolist()
        release(wm)
        if resume:
            out.ahead += join.ahead_ms.tolist()
            state, known = join.export(), join.known()
            join = begin()
            join.restore(state, known)
            again, known_again = join.export(), join.known()
            assert all(np.array_equal(state[name], again[name], equal_nan=True) for name in state)
            assert all(np.array_equal(known[name], known_again[name]) for name in known)
    release(END)
    assert join.counts.pending == join.counts.waiting == 0
    out.unmatched, out.matched, out.behind = join.counts.unmatched, join.counts.matched, join.counts.behind
    out.ahead += join.ahead_ms.tolist()
    return out


EVENTS = st.lists(
    st.tuples(st.sampled_from([IMPRESSION, CLICK]), st.integers(-3, 8), st.integers(0, 150)), max_size=80
)
NEARLY_ORDERED = EVENTS.map(lambda events: sorted(events, key=lambda e: e[2] + e[1] * 3))
CUTS = st.lists(st.integers(0, 1000), max_size=12)
WAITS = st.sampled_from([None, 0, 5, 15])
SOME_WAIT = st.sampled_from([0, 5, 15])
SLACKS = st.sampled_from([0, 0, 4, 30])
WAYS = st.one_of(st.tuples(WAITS, st.just(False)), st.tuples(SOME_WAIT, st.just(True)))
"""Wait, and whether there are finals."""


@examples(300)
@given(st.one_of(EVENTS, NEARLY_ORDERED), CUTS, WAYS, SLACKS)
def test_equals_a_brute_force_join_in_any_chunking(
    events: list[Event], cuts: list[int], way: tuple[int | None, bool], slack: int
) -> None:
    wait, finals = way
    expected = brute_force(events, WINDOW, DEDUP, wait, finals, slack)
    assert run(events, wait=wait, finals=finals, slack=slack) == expected
    assert run(events, cuts, wait=wait, finals=finals, slack=slack) == expected
    assert run(events, cuts, wait=wait, finals=finals, slack=slack, resume=True) == expected
    whole: list[tuple[int, float]] = []
    assert run(events, wait=wait, finals=finals, slack=slack, amounts=whole) == expected
    for click_ts, number in whole:
        kind, _, ts = events[int(number)]
        assert (kind, ts) == (CLICK, click_ts)
    again: list[tuple[int, float]] = []
    run(events, cuts, wait=wait, finals=finals, slack=slack, resume=True, amounts=again)
    assert again == whole


@examples(200)
@given(st.one_of(EVENTS, NEARLY_ORDERED), SOME_WAIT)
def test_finals_change_nothing_else_and_come_last(events: list[Event], wait: int) -> None:
    """Every impression has one final, after its other stages. It says which stage had the click."""
    plain, told = run(events, wait=wait), run(events, wait=wait, finals=True)
    assert [row for row in told.released if row[1] < FINAL_NEGATIVE] == plain.released
    assert (told.status, told.slot, told.unmatched) == (plain.status, plain.slot, plain.unmatched)
    stages: dict[int, list[int]] = {}
    for slot, label, *_ in told.released:
        stages.setdefault(slot, []).append(label)
    allowed = [[NEGATIVE, FINAL_NEGATIVE], [POSITIVE, FINAL_POSITIVE], [NEGATIVE, LATE_POSITIVE, FINAL_LATE]]
    assert all(labels in allowed for labels in stages.values())
    orders = [row[3] for row in told.released]
    assert orders == sorted(orders)


def test_a_state_of_a_join_without_finals_ends_with_finals_of_what_has_columns() -> None:
    """A clicked impression that had left has no slot in it: its columns were not kept."""
    kinds, keys = np.array([IMPRESSION, IMPRESSION, CLICK], np.uint8), np.array([1, 2, 1])
    times = np.array([0, 0, 1])
    before, after = JoinIndex(WINDOW, DEDUP, wait_ms=2), JoinIndex(WINDOW, DEDUP, wait_ms=2, finals=True)
    before.push(kinds, keys, times, times)
    assert before.release(3).label.tolist() == [POSITIVE, NEGATIVE]
    state = before.export()
    clicked = state["clicked"] == 1
    state["slot"] = np.where(clicked, -1, 0)
    after.restore(state, before.known())
    released = after.release(10 * WINDOW)
    assert released.label.tolist() == [FINAL_NEGATIVE] and released.slot.tolist() == [0]


def test_finals_need_a_wait() -> None:
    with pytest.raises(ValueError, match="without a shorter wait every label is final"):
        JoinIndex(WINDOW, DEDUP, finals=True)


@examples(100)
@given(st.one_of(EVENTS, NEARLY_ORDERED), WAITS)
def test_every_accepted_impression_leaves_once_in_order(events: list[Event], wait: int | None) -> None:
    out = run(events, wait=wait)
    accepted = [s for (kind, _, _), s, st_ in zip(events, out.slot, out.status, strict=True)
                if kind == IMPRESSION and st_ == ACCEPTED]  # fmt: skip
    assert accepted == list(range(len(accepted)))
    first = [row for row in out.released if row[1] != LATE_POSITIVE]
    assert Counter(slot for slot, *_ in first) == Counter(accepted)
    orders = [row[3] for row in out.released]
    assert orders == sorted(orders)
    assert first == sorted(first, key=lambda row: (row[3], row[0]))


@examples(200)
@given(st.one_of(EVENTS, NEARLY_ORDERED), st.sampled_from([0, 5, 15]))
def test_a_late_positive_follows_its_provisional_negative(events: list[Event], wait: int) -> None:
    """Both stages together have the label and the click of a join that waits for the whole window."""
    place: dict[int, int] = {}
    found: dict[int, tuple[int, int]] = {}
    for at, (slot, label, click_ts, _) in enumerate(run(events, wait=wait).released):
        if label == LATE_POSITIVE:
            assert place[slot] < at and found[slot] == (NEGATIVE, -1)
            label = POSITIVE
        else:
            assert slot not in place
            place[slot] = at
        found[slot] = label, click_ts
    patient = {slot: (label, ts) for slot, label, ts, _ in run(events).released}
    assert found == patient


@examples(200)
@given(st.one_of(EVENTS, NEARLY_ORDERED), st.integers(0, 80), WAYS)
def test_a_label_knows_nothing_that_comes_later(
    events: list[Event], seen: int, way: tuple[int | None, bool]
) -> None:
    """Later events change nothing of the rows that left before them; a final leaves when its window ends."""
    wait, finals = way
    marks = np.maximum.accumulate([0, *(event[2] for event in events[:seen])])[1:]
    join = JoinIndex(WINDOW, DEDUP, wait_ms=wait, finals=finals)
    feed(join, events[:seen], marks.tolist())
    released = join.release(int(marks.max(initial=0)))
    rows = list(zip(*(column.tolist() for column in released), strict=True))
    assert run(events, wait=wait, finals=finals).released[: len(rows)] == rows
    clicked = [ts for kind, _, ts in events[:seen] if kind == CLICK]
    assert all(ts in clicked for _, label, ts, _ in rows if label not in (NEGATIVE, FINAL_NEGATIVE))
    shown = [ts for kind, _, ts in events[:seen] if kind == IMPRESSION]
    last = marks.max(initial=0)
    ended = sum(ts + WINDOW < last for ts in shown)
    assert sum(label >= FINAL_NEGATIVE for _, label, *_ in rows) <= ended


def test_a_wait_takes_the_room_of_the_window() -> None:
    """A provisional negative keeps its room until its window ends: `max_bytes` bounds both alike."""
    outcomes = []
    for wait in (None, 5):
        join = JoinIndex(WINDOW, DEDUP, wait_ms=wait, max_bytes=8 * ENTRY_BYTES)
        times = range(0, 200, 2)
        status = feed(join, [(IMPRESSION, t, t) for t in times], times)
        outcomes.append((status, join.counts.bytes, join.counts.pending, join.counts.forgotten))
    assert outcomes[0] == outcomes[1]
    assert FULL in outcomes[0][0] and outcomes[0][3]


def test_many_keys_come_and_go_in_bounded_memory() -> None:
    """The map's erase and growth, the free lists and both agendas, at a size where probing runs collide."""
    rng = np.random.default_rng(1)
    n, step = 20_000, 10
    ts = np.arange(n, dtype=np.int64) * step
    imp_ts = ts + rng.integers(-200, 200, n)
    clicked = rng.random(n) < 0.3
    click_ts = imp_ts + rng.integers(0, 400, n)
    kind = np.concatenate([np.zeros(n, np.uint8), np.ones(int(clicked.sum()), np.uint8)])
    key = np.concatenate([np.arange(n), np.flatnonzero(clicked)]).astype(np.int64)
    at = np.concatenate([imp_ts, click_ts[clicked]])
    order = np.argsort(at + rng.integers(-50, 50, len(at)), kind="stable")
    kind, key, at = kind[order], key[order], at[order]
    join = JoinIndex(1000, 1000)
    pushed = join.push(kind, key, at, np.maximum.accumulate(at))
    released = join.release(END)
    assert np.all(np.isin(pushed.status, [ACCEPTED, UNMATCHED]))  # UNMATCHED: a click ahead of its impression
    label = np.zeros(n, bool)
    label[key[(kind == IMPRESSION)][released.slot]] = released.label
    assert np.array_equal(label, clicked)
    assert len(join.export()["clicks"]) == len(join.known()["key"]) == 0  # all is forgotten


def feed(join: JoinIndex, events: Sequence[Event], wm: Sequence[int], size: int = 0) -> list[int]:
    kind, key, ts = (np.array([event[i] for event in events], np.int64) for i in range(3))
    sizes = np.full(np.count_nonzero(kind == IMPRESSION), size)
    return join.push(kind.astype(np.uint8), key, ts, np.array(wm, np.int64), sizes).status.tolist()


def test_a_click_too_late_does_not_stop_one_in_the_window_while_the_impression_waits() -> None:
    """An impression that came late itself waits longer than its window: its clicks may come in any order."""
    for clicks, rows in (
        ([130, 110], [(0, POSITIVE, 110, 150)]),
        ([130], [(0, NEGATIVE, -1, 150)]),
        ([130, 140], [(0, NEGATIVE, -1, 150)]),
    ):
        join = JoinIndex(WINDOW, DEDUP)
        events = [(IMPRESSION, 7, 100), *((CLICK, 7, ts) for ts in clicks)]
        second = {130: [], 110: [ACCEPTED], 140: [DUPLICATE]}[clicks[-1]]
        assert feed(join, events, [150] * len(events)) == [ACCEPTED, LATE, *second]
        found = zip(*(column.tolist() for column in join.release(END)), strict=True)
        assert list(found) == rows


def test_clicks_that_are_repeated_for_ever_wait_no_longer_than_the_first() -> None:
    join = JoinIndex(WINDOW, DEDUP)
    times = range(0, 10_000, 10)
    status = feed(join, [(CLICK, 1, ts) for ts in times], times)
    assert set(status) == {UNMATCHED, DUPLICATE}
    assert status.count(UNMATCHED) == -(-len(times) // 6)  # each lives for 50 ms and a little
    assert join.counts.unmatched == status.count(UNMATCHED) - 1
    assert len(join.export()["waiting"]) <= 6
    assert join.counts.bytes <= ENTRY_BYTES + 6 * CLICK_BYTES


@examples(100)
@given(st.one_of(EVENTS, NEARLY_ORDERED), CUTS)
def test_state_is_bounded_in_any_chunking(events: list[Event], cuts: list[int]) -> None:
    """Events without room are refused, in any chunking, and after a restart."""
    room = 12 * ENTRY_BYTES
    outcomes = []
    for cut in ([], cuts):
        join, wm = JoinIndex(WINDOW, DEDUP, max_bytes=room), 0
        status: list[int] = []
        rows: list[tuple[object, ...]] = []
        for chunk in chunks(events, cut):
            marks = np.maximum.accumulate([wm, *(event[2] for event in chunk)])[1:]
            wm = int(marks[-1]) if len(marks) else wm
            status += feed(join, chunk, marks.tolist(), ENTRY_BYTES)
            rows += zip(*(column.tolist() for column in join.release(wm)), strict=True)
            assert join.counts.bytes <= room
            state, known, used = join.export(), join.known(), join.counts.bytes
            join = JoinIndex(WINDOW, DEDUP, max_bytes=room)
            join.restore(state, known)
            assert join.counts.bytes == used
        outcomes.append((status, rows))
    assert outcomes[0] == outcomes[1]


def test_a_flood_of_clicks_leaves_impressions_their_room() -> None:
    join = JoinIndex(WINDOW, DEDUP, max_bytes=40 * ENTRY_BYTES)
    status = feed(join, [(CLICK, 1000 + i, 10) for i in range(100)], [10] * 100)
    assert status.count(FULL) == 100 - 10 * ENTRY_BYTES // (ENTRY_BYTES + CLICK_BYTES)
    shown = feed(join, [(IMPRESSION, i, 10) for i in range(30)], [10] * 30)
    assert shown == [ACCEPTED] * 20 + [FULL] * 10
    assert feed(join, [(CLICK, i, 12) for i in range(20)], [12] * 20) == [ACCEPTED] * 20
    assert join.release(40).label.tolist() == [1] * 20
    assert join.counts.forgotten == 10 and join.counts.bytes <= 40 * ENTRY_BYTES


def test_of_clicks_at_the_same_time_the_first_has_the_amount() -> None:
    join = JoinIndex(WINDOW, DEDUP, amounts=True)
    kinds, keys = np.array([CLICK] * 3 + [IMPRESSION, CLICK], np.uint8), np.full(5, 7)
    ts = np.array([12, 11, 11, 11, 13])
    join.push(kinds, keys, ts, np.full(5, 12), amount=np.array([1.0, 2.5, 3.0, 4.0]))
    assert join.release_with_amounts(END)[1].tolist() == [2.5]
    with pytest.raises(ValueError, match="takes the amount of each click"):
        join.push(kinds, keys, ts, np.full(5, 12))
