"""Item refresh: which item vectors a version computes again, and what servers hold then."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pytest
import redis

from livectr.ingest.content.refresh_rule import RefreshRule
from livectr.ingest.join.lookup import LookupTable
from livectr.ingest.language.tables import Table
from livectr.serving.version.items import ItemVectors
from livectr.store.manifest import VersionManifest
from livectr.trainer.content import telemetry
from livectr.trainer.content.item_drift import ItemDrift
from livectr.trainer.content.item_refresh import ItemPlan, ItemRefresh, item_refresh_of
from livectr.trainer.publish.items import ItemBlobs, Items
from livectr.trainer.publish.version import Published
from tests.metrics_page import metric_value
from tests.serving.content_world import pipeline
from tests.trainer.publishing import Trainer, snapshot

DIM = 2
SLOT = 32
MINUTE = 60_000
PERIOD = 60 * MINUTE
START = 1_700_000_000_000
HOURLY = RefreshRule(PERIOD)
ADS = Table("ads", key="ad_id", columns={"ad_id": "int64", "price": "int64"})


def vectors_at(step: int, ids: np.ndarray) -> np.ndarray:
    """Vectors that say whose they are, and of which step."""
    return np.stack([ids, np.full(len(ids), step)], axis=1).astype(np.float32)


def moving(step: int, ids: np.ndarray) -> np.ndarray:
    """Vectors that move with every step, each in a direction of its own."""
    drawn = np.stack([np.random.default_rng(id).standard_normal((2, DIM)) for id in ids.tolist()])
    return (drawn[:, 0] + 0.03 * step * drawn[:, 1]).astype(np.float32)


@dataclass
class Run:
    """A process of one rank that publishes items, and a server that follows it."""

    url: str
    refresh: ItemRefresh = field(default_factory=lambda: ItemRefresh(HOURLY, DIM, SLOT))
    vectors: Callable[[int, np.ndarray], np.ndarray] = vectors_at
    table: LookupTable = field(default_factory=lambda: LookupTable(ADS))
    bad: set[int] = field(default_factory=set)
    """Items that cannot be extracted."""
    sizes: list[int] = field(default_factory=list)
    """Vectors that each version has computed."""
    server: ItemVectors | None = None
    read: int = 0
    """Blobs that the server has read with the last version."""
    first_ms: int = 0
    """Event time of the first example."""

    def __post_init__(self) -> None:
        self.trainer = Trainer(self.url)
        self.since = 0
        self.table.track_left()

    def upsert(self, ids: Sequence[int], *, deleted: bool = False) -> None:
        rows = pa.RecordBatch.from_pydict({"ad_id": pa.array(ids, pa.int64()), "price": [1] * len(ids)})
        self.table.upsert(rows, np.full(len(ids), deleted))

    def plan(self, step: int, now_ms: int) -> ItemPlan:
        sample, drift = None, self.refresh.drift
        if drift is not None:
            ids = drift.sample(self.table, self.since)
            sample = ids, self.vectors(step, ids)
        whole = self.trainer.publisher.full
        plan = self.refresh.plan(
            self.table, self.since, now_ms, whole=whole, sample=sample, first_ms=self.first_ms
        )
        return plan.without(np.isin(plan.ids, list(self.bad)))

    def begin(self, step: int, now_ms: int) -> int:
        """Begin a version; the generation of its rows."""
        mark, plan = self.table.mark(), self.plan(step, now_ms)
        blobs = ItemBlobs(plan.tags, plan.sizes, plan.whole, plan.left, plan.published)
        items = Items(plan.ids, DIM, lambda _: self.vectors(step, plan.ids), blobs)
        self.trainer.publisher.begin(snapshot(step, np.arange(3), items=items))
        self.sizes.append(len(plan.ids))
        return mark

    def publish(self, step: int, now_ms: int) -> Published:
        mark = self.begin(step, now_ms)
        done = self.trainer.drain()
        assert done is not None
        self.since = mark
        return done

    def load(self, manifest: VersionManifest, before: ItemVectors | None) -> ItemVectors:
        """Vectors of a version as a server loads them."""
        names = [n for n in manifest.item_vectors if before is None or n not in before.ids]
        with redis.Redis.from_url(self.url) as client:
            blobs = client.mget(names)
        assert None not in blobs
        self.read = len(names)
        return ItemVectors.of(manifest.item_vectors, dict(zip(names, blobs, strict=True)), before)

    def steps(self, manifest: VersionManifest) -> dict[int, int]:
        """Item → the step of its vector: the same for a new server and for one that follows."""
        fresh = self.load(manifest, None).matrix
        self.server = self.load(manifest, self.server)
        for held in (fresh, self.server.matrix):
            assert held.vectors[:, 0].tolist() == held.ids.tolist()
            np.testing.assert_array_equal(held.ids, fresh.ids)
            np.testing.assert_array_equal(held.vectors, fresh.vectors)
        return dict(zip(fresh.ids.tolist(), fresh.vectors[:, 1].astype(int).tolist(), strict=True))


@pytest.fixture
def run(redis_url: str) -> Iterator[Run]:
    with redis.Redis.from_url(redis_url) as client:
        client.flushall()
    made = Run(redis_url)
    made.upsert(range(700))
    yield made
    made.trainer.publisher.close()


def test_slots_take_turns_and_no_vector_is_older_than_the_period(run: Run) -> None:
    """A version every 5 minutes, for 3 hours of event time."""
    for step in range(1, 37):
        steps = run.steps(run.publish(step, START + 5 * MINUTE * step).manifest)
        assert list(steps) == list(range(700))
        oldest = min(steps.values())
        assert (step - oldest) * 5 <= 60 + 5
        assert metric_value(telemetry.OLDEST_ITEM) == (step - oldest) * 300
    assert run.sizes[0] == 700
    later = np.array(run.sizes[1:])
    assert 700 * 2 <= later.sum() <= 700 * 3.1  # once an hour, and not with each of the 35 versions
    assert later.max() <= 700 / 4, "the work is spread over the versions"


def test_vectors_of_before_the_first_example_are_as_old_as_it(run: Run) -> None:
    """The next version may come long after it: Redis was slow."""
    run.publish(1, 0)
    run.first_ms = START
    first = run.publish(2, START + PERIOD // 2).manifest
    assert 700 / 4 < run.sizes[1] < 700 * 3 / 4 and set(run.steps(first).values()) == {1, 2}
    assert metric_value(telemetry.OLDEST_ITEM) == PERIOD / 2000
    assert 1 not in run.steps(run.publish(3, START + PERIOD).manifest).values()


def test_a_version_without_anything_due_shares_the_slots(run: Run) -> None:
    first = run.publish(1, START).manifest
    run.steps(first)
    second = run.publish(2, START + 1).manifest
    assert run.sizes == [700, 0] and list(run.steps(second)) == list(range(700))
    changed = set(first.item_vectors) ^ set(second.item_vectors)
    assert {name.rpartition("-")[2] for name in changed} == {"newer", "left"}
    assert run.read == 2, "a server reads the new blobs alone"


def test_new_and_changed_items_are_computed_with_every_version_until_their_slots_turn(run: Run) -> None:
    run.publish(1, START)
    run.upsert([5, 5000])
    for step in (2, 3):
        steps = run.steps(run.publish(step, START + step).manifest)
        assert [id for id in steps if steps[id] == step] == [5, 5000] and steps[6] == 1
    assert run.sizes == [700, 2, 2]
    steps = run.steps(run.publish(4, START + PERIOD + 4).manifest)
    assert set(steps.values()) == {4}
    steps = run.steps(run.publish(5, START + PERIOD + 5).manifest)
    assert set(steps.values()) == {4} and run.sizes[3:] == [701, 0]


def test_an_item_that_leaves_is_in_no_version_after_it(run: Run) -> None:
    run.steps(run.publish(1, START).manifest)
    run.upsert([7, 8], deleted=True)
    assert {7, 8}.isdisjoint(run.steps(run.publish(2, START + 1).manifest))
    assert {7, 8}.isdisjoint(run.steps(run.publish(3, START + 2).manifest))
    run.upsert([8])
    steps = run.steps(run.publish(4, START + 3).manifest)
    assert 7 not in steps and steps[8] == 4
    steps = run.steps(run.publish(5, START + PERIOD + 4).manifest)
    assert 7 not in steps and len(steps) == 699
    assert run.sizes == [700, 0, 0, 1, 699]


def test_an_item_that_cannot_be_extracted_has_no_vector(run: Run) -> None:
    run.bad = {3}
    assert 3 not in run.steps(run.publish(1, START).manifest)
    run.bad = {3, 4}
    run.upsert([4])
    steps = run.steps(run.publish(2, START + 1).manifest)
    assert {3, 4}.isdisjoint(steps) and len(steps) == 698
    run.bad = set()
    run.upsert([3, 4])
    steps = run.steps(run.publish(3, START + 2).manifest)
    assert (steps[3], steps[4], len(steps)) == (3, 3, 700)


@pytest.mark.parametrize("every", [1, 2, 5])
def test_a_server_that_skips_versions_holds_what_a_new_one_holds(run: Run, every: int) -> None:
    rng, live = np.random.default_rng(every), set(range(700))
    for step in range(1, 41):
        come, go = rng.integers(0, 900, 6).tolist(), rng.integers(0, 900, 4).tolist()
        run.upsert(come)
        run.upsert(go, deleted=True)
        live = (live | set(come)) - set(go)
        done = run.publish(step, START + 2 * MINUTE * step)
        if step % every == 0:
            assert list(run.steps(done.manifest)) == sorted(live)
    assert sum(run.sizes) < 12 * 700


def test_a_catalogue_that_grows_has_more_slots(run: Run) -> None:
    for step in range(1, 12):
        run.upsert(range(700 * step, 700 * (step + 1)))
        manifest = run.publish(step, START + step).manifest
        assert len(run.steps(manifest)) == 700 * (step + 1)
        assert max(map(len, run.server.ids.values())) <= SLOT  # type: ignore[union-attr]


def test_a_publish_that_fails_is_made_up_for(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.publish(1, START)
    run.upsert([5])
    run.upsert([6], deleted=True)

    def broken(*_: object) -> None:
        raise redis.ConnectionError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(run.trainer.store.connection, "write_blob", broken)
        run.begin(2, START + PERIOD // 2)
        assert run.trainer.drain() is None
    steps = run.steps(run.publish(3, START + PERIOD // 2 + 1).manifest)
    assert steps[5] == 3 and 6 not in steps and set(steps.values()) == {1, 3}


def test_blobs_stay_while_a_version_shares_them_and_go_afterwards(run: Run) -> None:
    for step in range(1, 40):
        done = run.publish(step, START + 5 * MINUTE * step)
        run.steps(done.manifest)  # fails if one is gone
    with redis.Redis.from_url(run.url) as client:
        names = {name.decode() for name in client.keys("livectr:blob:*items*")}
    assert len(names) < 2 * len(done.manifest.item_vectors) + 8


def test_another_process_and_an_empty_redis_begin_with_all_vectors(run: Run) -> None:
    run.publish(1, START)
    run.publish(2, START + 1)
    cursor = run.trainer.publisher.cursor(2, begins=False)
    run.trainer.publisher.close()
    run.refresh, run.since = ItemRefresh(HOURLY, DIM, SLOT), 0
    run.trainer = Trainer(run.url, replace(cursor, version=2), take_over=True)
    steps = run.steps(run.publish(3, START + 2).manifest)
    assert set(steps.values()) == {3}
    run.trainer.publisher.begin_again()
    steps = run.steps(run.publish(4, START + 3).manifest)
    assert set(steps.values()) == {4} and run.sizes == [700, 0, 700, 700]


@pytest.mark.parametrize("count", [400, 3000])
def test_the_tolerance_bounds_how_far_published_vectors_are_off(run: Run, count: int) -> None:
    """A small catalogue is drawn whole, a larger one by a sample; some rows change meanwhile."""
    tolerance, rng = 0.4, np.random.default_rng(0)
    run.refresh = ItemRefresh(RefreshRule(1000 * PERIOD, tolerance), DIM, 256)
    run.vectors = moving
    run.upsert(range(400, 700), deleted=True)
    run.upsert(range(count))
    for step in range(1, 16):
        run.upsert(rng.integers(0, count + step, 5).tolist())
        run.upsert(rng.integers(0, count, 2).tolist(), deleted=True)
        held = run.load(run.publish(step, START + step).manifest, None).matrix
        exact = moving(step, held.ids)
        scale = np.sqrt(np.square(exact).sum(axis=1).mean())
        moved = np.linalg.norm(held.vectors - exact, axis=1) / scale
        assert (moved > 1.1 * tolerance).mean() <= (0 if count == 400 else 3 / 256)
        assert metric_value(telemetry.ITEM_DRIFT) <= tolerance
    assert count < sum(run.sizes) < 8 * count, "all are computed beyond the tolerance, not with each version"


def test_a_sample_follows_the_catalogue(run: Run) -> None:
    drift, table, since = ItemDrift(0.1), run.table, 0
    for first, end in [(0, 0), (700, 6000), (6000, 40_000)]:
        run.upsert(range(first, end))
        ids, since = drift.sample(table, since), table.mark()
        live = table.keys
        assert set(ids.tolist()) <= set(live.tolist())
        assert 256 <= len(ids) <= 4 * 256
    for start in range(0, 40_000, 2000):
        run.upsert(range(start, start + 1990), deleted=True)
        ids, since = drift.sample(table, since), table.mark()
        assert set(ids.tolist()) <= set(table.keys.tolist()) and len(ids) >= min(384, len(table))
    assert len(ids) == len(table) == 200


def test_a_version_of_which_too_few_can_be_compared_has_moved(run: Run) -> None:
    run.refresh = ItemRefresh(RefreshRule(1000 * PERIOD, 0.5), DIM, 1 << 12)
    run.upsert(range(3000))
    run.publish(1, START)
    run.publish(2, START + 1)
    drift = run.refresh.drift
    assert drift is not None and run.sizes == [3000, 0]
    ids = drift.sample(run.table, run.since)
    run.upsert(ids[:-255].tolist())
    run.publish(3, START + 2)
    assert run.sizes[2] == 3000


def test_without_the_setting_or_items_there_is_no_refresh() -> None:
    assert item_refresh_of(pipeline, RefreshRule()) is None
    assert item_refresh_of(replace(pipeline, prerank=None, items=None), HOURLY) is None
    assert item_refresh_of(pipeline, HOURLY) is not None
