"""Policies against a dict model, over restarts, and around the step."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from livectr.ingest.language.policies import TablePolicy
from livectr.kernels.table.field_tables import FieldTables
from livectr.kernels.table.layout import AdaGrad, RowLayout, Segment
from livectr.kernels.table.table import DynamicTable
from livectr.system.errors import ConfigError, MismatchError
from livectr.trainer.checkpoint.checkpoint import Checkpointer
from livectr.trainer.checkpoint.content import CheckpointState
from livectr.trainer.comm.control import Control
from livectr.trainer.tables import telemetry
from livectr.trainer.tables.policies import SEARCHES, SLICE, Policies
from tests.metrics_page import metric_value
from tests.tiers import examples

LAYOUT = RowLayout((Segment("v", 2, AdaGrad(), 0.1),))
HOUR_MS = 3_600_000
EVERYTHING = TablePolicy(
    admit_after=2, sketch="64KiB", max_age="6h", max_rows=60, evict="lfu", half_life="2h"
)


class Rank:
    """One rank that trains one table on keys, as trainer.run does."""

    def __init__(
        self, policy: TablePolicy, *, timed: bool = True, name: str = "ad", rank: int = 0, parts: int = 1
    ) -> None:
        self.table = DynamicTable(LAYOUT, name=name, seed=1)
        self.policies = Policies(
            {name: self.table}, {name: policy}, timed=timed, rank=rank, parts={name: parts}
        )
        self.front = FieldTables({name: self.table}, [(name, name)])

    def learn(self, keys: np.ndarray, time_ms: int) -> None:
        self.policies.before(np.full(3, time_ms))
        (out,) = self.front.forward(np.arange(len(keys) + 1), keys, len(keys))
        self.front.backward(np.sign(out) + 0.1)
        self.policies.after()

    def content(self) -> tuple[bytes, ...]:
        """Keys, rows and their use, in the order of the keys."""
        keys, rows = self.table.export()
        order = np.argsort(keys)
        stamps, counts = self.table.usage(keys[order])
        return tuple(part.tobytes() for part in (keys[order], rows[order], stamps, counts))


def stream(steps: int, seed: int, ids: int = 150) -> list[tuple[np.ndarray, int]]:
    """Batches of skewed keys, of which some stop coming, and event times that hurry and stand still."""
    rng = np.random.default_rng(seed)
    time_ms, batches = 1_700_000_000_000, []
    for step in range(steps):
        time_ms += int(rng.choice([0, 500, 20_000, HOUR_MS]))
        keys = (ids * rng.random(rng.integers(1, 30)) ** 2).astype(np.int64) + 20 * (step // 10)
        batches.append((keys, time_ms))
    return batches


def aged(use: tuple[int, int], now: int) -> int:
    """Decayed count of a row, with a half-life of two hours."""
    stamp, count = use
    return count >> (now // 7200 - stamp // 7200)


Evict = Literal["lru", "lfu"]


@examples(40)
@given(
    evict=st.sampled_from(["lru", "lfu"]),
    budget=st.integers(1, 80),
    age_h=st.one_of(st.none(), st.integers(1, 30)),
    seed=st.integers(0, 999),
)
def test_what_stays_is_what_a_dict_keeps(evict: Evict, budget: int, age_h: int | None, seed: int) -> None:
    max_age = None if age_h is None else f"{age_h}h"
    rank = Rank(TablePolicy(max_age=max_age, max_rows=budget, evict=evict, half_life="2h"))
    rows: dict[int, tuple[int, int]] = {}  # key -> stamp, count
    looked = 0
    for keys, time_ms in stream(30, seed):
        rank.learn(keys, time_ms)
        now = time_ms // 1000

        for key in set(keys.tolist()):
            rows[key] = now, (aged(rows[key], now) if key in rows else 0) + 256
        if age_h and now - looked >= max(1, age_h * 3600 // SEARCHES):
            looked = now
            rows = {key: use for key, use in rows.items() if use[0] >= now - age_h * 3600}
        if len(rows) > budget:
            least = {
                key: (use[0] if evict == "lru" else aged(use, now), use[0], key) for key, use in rows.items()
            }
            for key in sorted(rows, key=least.__getitem__)[: len(rows) - budget + budget // SLICE]:
                del rows[key]
        assert sorted(rank.table.export()[0].tolist()) == sorted(rows)


@pytest.mark.parametrize("world", [1, 2])
def test_a_resumed_run_keeps_and_learns_the_same(tmp_path: Path, world: int) -> None:
    """Checkpoints of deltas at random steps; tables restored on one rank or on two, whole on each."""
    names = ("ad", "user")
    batches = {name: stream(80, seed) for seed, name in enumerate(names)}
    whole = {name: Rank(EVERYTHING, name=name) for name in names}
    other = {name: Rank(EVERYTHING, name=name) for name in names}
    rng = np.random.default_rng(7)
    checkpoint = Checkpointer(tmp_path, Control(), {})
    sizes = set()
    for step in range(80):
        for name in names:
            for rank in (whole[name], other[name]):
                rank.learn(batches[name][step][0], batches["ad"][step][1])
        if rng.random() < 0.3:
            state = {k: v for rank in other.values() for k, v in rank.policies.state().items()}
            tables = {name: rank.table for name, rank in other.items()}
            checkpoint.commit(
                CheckpointState(
                    step,
                    0,
                    0,
                    None,
                    tables,
                    {n: t.mark() for n, t in tables.items()},
                    {},
                    {},
                    {},
                    policies=state,
                    tracked=names,
                )
            )
            sizes.add(len(tables["ad"]))
        if step in (25, 50, 70):
            checkpoint.close()
            checkpoint = Checkpointer(tmp_path, Control(), {})
            restored = checkpoint.restore()
            assert restored is not None
            other = {name: Rank(EVERYTHING, name=name) for name in names}
            if world == 1:
                restored.load_tables({name: rank.table for name, rank in other.items()})
            for name, rank in other.items():
                if world == 2:
                    restored.load_tables({name: rank.table})
                rank.policies.load(restored.policies())
            for again in range(restored.manifest.step + 1, step + 1):
                for name in names:
                    other[name].learn(batches[name][again][0], batches["ad"][again][1])
    checkpoint.close()
    assert len(sizes) > 3 and max(sizes) <= 60
    for name in names:
        assert other[name].content() == whole[name].content()
        ours, theirs = other[name].policies.state(), whole[name].policies.state()
        assert all((ours[part] == theirs[part]).all() for part in theirs)


class Parts:
    """A table that is split by key over ranks."""

    def __init__(self, world: int, states: list[dict[str, np.ndarray]] | None = None) -> None:
        self.tables = [DynamicTable(LAYOUT, name="ad", seed=1) for _ in range(world)]
        self.policies = [
            Policies({"ad": table}, {"ad": EVERYTHING}, timed=True, rank=rank, parts={"ad": world})
            for rank, table in enumerate(self.tables)
        ]
        self.fronts = [FieldTables({"ad": table}, [("ad", "ad")]) for table in self.tables]
        if states is not None:
            for policies in self.policies:
                policies.load(states)

    def learn(self, keys: np.ndarray, time_ms: int) -> None:
        for rank, (policies, front) in enumerate(zip(self.policies, self.fronts, strict=True)):
            mine = keys[keys % len(self.tables) == rank]
            policies.before(np.array([time_ms]))
            (out,) = front.forward(np.arange(len(mine) + 1), mine, len(mine))
            front.backward(out)
            policies.after()

    def take(self, others: "Parts") -> None:
        """The rows of other parts, with their use."""
        for table in others.tables:
            keys, rows = table.export()
            for rank, mine in enumerate(self.tables):
                at = keys % len(self.tables) == rank
                mine.assign(keys[at], rows[at])
                mine.set_usage(keys[at], *table.usage(keys[at]))

    def held(self) -> list[list[int]]:
        return [sorted(table.export()[0].tolist()) for table in self.tables]


def test_parts_of_a_table_share_its_budget_and_continue(world: int = 3) -> None:
    """Restore exactly on as many ranks; on fewer, keys seen once are still known. No part is over its
    share."""
    batches = stream(60, 3)
    whole, other = Parts(world), Parts(world)
    for batch in batches[:30]:
        whole.learn(*batch)
        other.learn(*batch)
    states = [policies.state() for policies in other.policies]
    same, fewer = Parts(world, states), Parts(2, states)
    same.take(other)
    fewer.take(other)
    known, time_ms = int(np.setdiff1d(batches[29][0], np.concatenate(other.held()))[0]), batches[29][1]
    for batch in batches[30:]:
        whole.learn(*batch)
        same.learn(*batch)
    assert same.held() == whole.held()
    assert all(0 < len(keys) <= 20 for keys in same.held())
    fewer.learn(np.array([known]), time_ms)
    assert known in fewer.held()[known % 2]
    for batch in batches[30:]:
        fewer.learn(*batch)
    assert all(0 < len(keys) <= 30 for keys in fewer.held())


def test_a_sketch_that_is_split_and_put_together_counts_no_sighting_twice() -> None:
    """A whole table becomes four parts, and these three: a key that was seen once needs as many as before."""
    policy = TablePolicy(admit_after=4, sketch="64KiB")

    whole = Rank(policy)
    whole.learn(np.arange(30), 10**12)
    states = []
    for rank in range(4):
        four = Rank(policy, rank=rank, parts=4)
        four.policies.load([whole.policies.state()])
        states.append(four.policies.state())
    three = Rank(policy, rank=1, parts=3)
    three.policies.load(states)
    held = []
    for _ in range(3):
        three.learn(np.arange(30), 10**12)
        held.append(len(three.table))
    assert held == [0, 0, 30]


@pytest.mark.parametrize("evict", ["lru", "lfu"])
def test_memory_is_bounded_under_ever_new_keys(evict: Evict) -> None:
    """A byte budget holds for all that the table takes, but for a batch's rows; keys that recur stay."""
    budget = 2 << 20
    rank = Rank(TablePolicy(max_bytes=budget, evict=evict))
    regular = np.arange(500, dtype=np.int64)
    fresh, batch = 10_000, 1_000
    for step in range(120):
        rank.learn(
            np.concatenate([regular, np.arange(fresh, fresh + batch)]), 1_700_000_000_000 + 1000 * step
        )
        fresh += batch
        mark = rank.table.mark()
        rank.table.forget(mark)
        assert rank.table.nbytes <= budget + batch * rank.table.row_bytes + (1 << 20)
    assert len(rank.table) < 0.3 * fresh
    assert (rank.table.find(regular) != 0xFFFFFFFF).all()


def test_expiry_follows_the_events_not_one_wrong_clock() -> None:
    rank = Rank(TablePolicy(max_age="1d"))
    day = 24 * HOUR_MS
    rank.learn(np.array([1, 2]), 100 * day)
    rank.policies.before(np.array([100 * day, 100 * day, 9_000 * day]))  # a record from the future
    rank.policies.after()
    assert len(rank.table) == 2
    rank.learn(np.array([2]), 101 * day)
    rank.learn(np.array([3]), 90 * day)  # and a batch from the past
    assert sorted(rank.table.export()[0].tolist()) == [1, 2, 3]
    before = metric_value(telemetry.EXPIRED_ROWS, table="ad")
    rank.learn(np.array([3]), 101 * day + HOUR_MS)
    assert sorted(rank.table.export()[0].tolist()) == [2, 3]
    assert metric_value(telemetry.EXPIRED_ROWS, table="ad") == before + 1


def test_without_event_times_a_batch_is_a_second() -> None:
    rank = Rank(TablePolicy(max_rows=2, evict="lru"), timed=False)
    for key in (5, 4, 3):
        rank.learn(np.array([key]), 0)
    assert sorted(rank.table.export()[0].tolist()) == [3, 4]


def test_what_happens_is_counted() -> None:
    rank = Rank(TablePolicy(admit_after=2, sketch="64KiB", max_rows=20, evict="lru"), name="counted")
    metrics = (telemetry.ADMITTED_ROWS, telemetry.REFUSED_KEYS, telemetry.EVICTED_ROWS)
    for _ in range(3):
        rank.learn(np.arange(30), 10**12)
    assert [metric_value(metric, table="counted") for metric in metrics] == [30 + 11, 30, 22]


@pytest.fixture
def plain() -> Iterator[DynamicTable]:
    yield DynamicTable(LAYOUT, name="ad", seed=1)


def test_a_table_without_policy_is_left_alone(plain: DynamicTable) -> None:
    policies = Policies({"ad": plain}, {"user": EVERYTHING}, timed=True)
    policies.before(np.array([5]))
    policies.after()
    assert not plain.tracks and plain.admits_all
    assert policies.state() == {} and policies.tracked == frozenset()


def test_mistakes_are_told(plain: DynamicTable) -> None:
    with pytest.raises(ConfigError, match="less than a row of"):
        Rank(TablePolicy(max_bytes=10, evict="lru"))
    policies = Policies({"ad": plain}, {"ad": EVERYTHING}, timed=True)
    with pytest.raises(MismatchError, match="without the policies of table 'ad'"):
        policies.load([])
    with pytest.raises(ConfigError, match="spills to SSD"):
        Policies({"ad": plain}, {"ad": EVERYTHING}, timed=True)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(max_rows=10), 'max_rows needs evict="lru" or evict="lfu"'),
        (dict(max_bytes="1GiB"), 'max_bytes needs evict="lru"'),
        (dict(evict="lru"), "needs max_rows or max_bytes"),
        (dict(evict="fifo", max_rows=1), '"lru" or "lfu", not \'fifo\''),
        (dict(admit_after=1), "from 2 to 127, not 1; leave it out"),
        (dict(admit_after=True), "not True"),
        (dict(admit_after=2, sketch=8), "too small"),
        (dict(max_rows=0, evict="lru"), "above 0, not 0"),
        (dict(max_rows=1.5, evict="lru"), "above 0, not 1.5"),
        (dict(max_bytes="much", evict="lru"), "no amount of memory"),
        (dict(max_bytes=0, evict="lru"), "above 0, not 0"),
        (dict(max_age="30 days"), "is not a duration"),
        (dict(max_age="10ms"), 'a second or more, such as "30d"'),
        (dict(max_rows=1, evict="lfu", half_life=0), "must be positive"),
    ],
)
def test_bad_settings_are_told(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TablePolicy(**settings)  # type: ignore[arg-type]
