"""Behavior histories: roots that share a table, their changes, and their Arrow form."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from livectr.ingest.join.histories import BehaviorHistories
from livectr.ingest.language.expr import RecentRef
from livectr.ingest.language.keys import key_of
from livectr.ingest.language.streams import Stream, recent
from livectr.system.errors import ConfigError
from tests.tiers import examples

clicks = Stream(
    "clicks", key="user", time="ts", columns={"user": "int64", "ts": "int64", "ad": "string", "shop": "int64"}
)
ROOTS = [
    recent(clicks.ad, n=4, within=50),
    recent(clicks.ad, n=2, within=1000),
    recent(clicks.shop, n=3, within=1000),
    recent(clicks.ad, n=2, within=1000, where=clicks.shop >= 2),
]
EVENTS = st.lists(
    st.tuples(st.booleans(), st.integers(0, 3), st.integers(0, 99), st.integers(0, 5)), max_size=60
)
"""click or impression, user, time, item"""


def advance(
    behaviors: BehaviorHistories, events: list[tuple[bool, int, int, int]]
) -> dict[str, list[list[int]]]:
    is_click = np.array([event[0] for event in events], bool)
    user, ts = (np.array([event[i] for event in events], np.int64) for i in (1, 2))
    items = [event[3] for event in events if event[0]]
    batch = pa.record_batch(
        {"ad": pa.array([f"ad{i}" for i in items], pa.string()), "shop": pa.array(items, pa.int64())}
    )
    found = behaviors.advance(is_click, user, ts, batch if items else None)
    return {name: answers.to_pylist() for name, answers in found.items()}


def brute_force(events: list[tuple[bool, int, int, int]]) -> dict[str, list[list[int]]]:
    ad_key = dict(enumerate(key_of(pa.array([f"ad{i}" for i in range(6)])).tolist()))
    answers: dict[str, list[list[int]]] = {root.name: [] for root in ROOTS}
    for root, kept in zip(ROOTS, (4, 4, 3, 2), strict=True):  # the two roots of `ad` share a table of 4
        ref = root.ref
        assert isinstance(ref, RecentRef)
        seen: dict[int, list[tuple[int, int]]] = {}
        for is_click, user, ts, item in events:
            past = seen.setdefault(user, [])
            if is_click:
                if ref.where is not None and item < 2:
                    continue
                past.append((ts, ad_key[item] if ref.column == "ad" else item))
                past.sort(key=lambda behavior: behavior[0])
                del past[:-kept]
            else:
                answers[root.name].append([i for t, i in past if 0 <= ts - t <= ref.within_ms][-ref.n :])
    return answers


@examples(200)
@given(EVENTS, st.integers(0, 60))
def test_equals_a_list_per_user_over_a_restart(events: list[tuple[bool, int, int, int]], cut: int) -> None:
    first = BehaviorHistories(ROOTS)
    answers = advance(first, events[:cut])
    second = BehaviorHistories(ROOTS)
    second.restore(first.export())
    for name, more in advance(second, events[cut:]).items():
        answers[name] += more
    assert answers == brute_force(events)
    assert second.names[:2] == ("ad", "shop") and len(second.names) == 3


def test_changes_are_cut_to_each_root() -> None:
    behaviors = BehaviorHistories(ROOTS)
    advance(behaviors, [(True, user, t, t % 6) for t in range(10) for user in (7, 8)])
    behaviors.mark()
    advance(behaviors, [(True, 8, 20, 1), (False, 7, 30, 0)])
    changed = behaviors.changed(1)
    assert [histories.users.tolist() for histories in changed.values()] == [[8]] * 3 + [[]]
    assert [histories.lengths.tolist() for histories in changed.values()] == [[4], [2], [3], []]
    assert changed[ROOTS[1].name].ts.tolist() == [9, 20]
    assert changed[ROOTS[2].name].items.tolist() == [2, 3, 1]
    assert [len(h.users) for h in behaviors.changed(0).values()] == [2] * 4
    assert BehaviorHistories(()).advance(np.zeros(0, bool), *(np.zeros(0, np.int64),) * 2, None) == {}


def test_conditions_are_of_the_clicks() -> None:
    other = Stream("views", key="user", columns={"user": "int64", "long": "bool"})
    with pytest.raises(ConfigError, match=r"where needs columns of clicks alone, not views.long"):
        recent(clicks.ad, n=2, within=9, where=other.long)
    with pytest.raises(ConfigError, match=r"where is clicks.shop, but must be a condition"):
        recent(clicks.ad, n=2, within=9, where=clicks.shop)
    ref = recent(clicks.ad, n=2, within=9, where=(clicks.shop > 1) & (clicks.ts > clicks.shop)).ref
    assert isinstance(ref, RecentRef) and ref.columns == ("ad", "shop", "ts")
    assert ref.name.startswith("recent(clicks.ad,2,9,") and ref.history != "ad"
