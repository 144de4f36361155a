"""Content refresh: which vectors a version computes again, and what the version holds then."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
import redis
import torch

from livectr.ingest.content.refresh_rule import RefreshRule
from livectr.ingest.content.store import ContentStore
from livectr.models.embedding import EmbeddingModel, SubNetwork
from livectr.serving.version.id_vectors import IdVectors, joined
from livectr.store.manifest import VersionManifest
from livectr.store.vectors import decode_vectors
from livectr.system.errors import ConfigError
from livectr.trainer.comm.control import Control
from livectr.trainer.content import telemetry
from livectr.trainer.content.refresh import ContentRefresh, RefreshPlan, refreshes_of
from livectr.trainer.options import TrainOptions
from livectr.trainer.publish.version import Published
from tests.metrics_page import metric_value
from tests.serving.content_world import pipeline
from tests.trainer.publishing import Trainer, snapshot
from tests.waiting import left_s

WIDTH, OUT, SHARDS = 16, 4, 4
MODEL = EmbeddingModel(width=WIDTH, hidden=(8, 8), out=OUT, init_scale=1.0)
SLOT = 32
MINUTE = 60_000
PERIOD = 60 * MINUTE
START = 1_700_000_000_000
HOURLY = RefreshRule(PERIOD)


def features(ids: np.ndarray, seed: int = 0) -> np.ndarray:
    return np.stack([np.random.default_rng([seed, id]).standard_normal(WIDTH) for id in ids.tolist()])


def filled(folder: Path, ids: np.ndarray) -> ContentStore:
    store = ContentStore.create(folder, width=WIDTH, encoder="test", shards=SHARDS)
    store.append(ids, features(ids))
    return store


@pytest.fixture
def store(tmp_path: Path) -> ContentStore:
    return filled(tmp_path / "images", np.arange(1000, 1700))


@pytest.fixture(autouse=True)
def _empty(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.flushall()


def network_at(step: int) -> SubNetwork:
    """The sub-model after some steps, each of which moves it a little."""
    made = MODEL.network("content.images", seed=3)
    with torch.no_grad():
        for i, parameter in enumerate(made.parameters()):
            generator = torch.Generator().manual_seed(i)
            parameter.add_(0.01 * step * torch.randn(parameter.shape, generator=generator))
    return made


def vectors_at(step: int, store: ContentStore, ids: np.ndarray) -> np.ndarray:
    rows, known = store.read(ids)
    assert known.all()
    with torch.no_grad():
        return network_at(step).embed(torch.from_numpy(rows).float()).numpy()


@dataclass
class Run:
    """A process of one rank that publishes, as the training loop drives it."""

    url: str
    refresh: ContentRefresh
    trainer: Trainer = field(init=False)
    sizes: list[int] = field(default_factory=list)
    """Vectors that each version has computed."""
    first_ms: int = 0
    """Event time of the first example."""

    def __post_init__(self) -> None:
        self.trainer = Trainer(self.url)

    def plan(self, step: int, now_ms: int) -> RefreshPlan:
        whole = self.trainer.publisher.full
        return self.refresh.plan(network_at(step), now_ms, whole=whole, first_ms=self.first_ms)

    def publish(self, step: int, now_ms: int) -> Published:
        counter = telemetry.PRECOMPUTED_CONTENT.labels("images")._value
        before = counter.get()
        part = snapshot(step, np.arange(3), content={"images": self.plan(step, now_ms)})
        done = self.trainer.publish(part)
        assert done is not None
        self.sizes.append(int(counter.get() - before))
        return done

    def held(self, manifest: VersionManifest) -> tuple[np.ndarray, np.ndarray]:
        """Ids and vectors of a version, as a server that has just started reads them."""
        with redis.Redis.from_url(self.url) as client:
            blobs = client.mget(manifest.content["images"])
        assert None not in blobs
        made = IdVectors(*joined([decode_vectors(blob) for blob in blobs]))
        return made.ids, made.vectors


@pytest.fixture
def run(redis_url: str, store: ContentStore) -> Iterator[Run]:
    made = Run(redis_url, ContentRefresh("images", store, Control(), HOURLY, SLOT))
    yield made
    made.trainer.publisher.close()


def steps_of(run: Run, manifest: VersionManifest, store: ContentStore, most: int) -> np.ndarray:
    """Step whose sub-model explains the published vector of each id, in the order of `run.held`; all must."""
    ids, vectors = run.held(manifest)
    assert np.array_equal(ids, np.sort(store.ids))
    found = np.zeros(len(ids), np.int64)
    for step in range(1, most + 1):
        found[np.isclose(vectors, vectors_at(step, store, ids), rtol=1e-5, atol=1e-6).all(axis=1)] = step
    assert found.all(), "a vector that no version's sub-model explains"
    return found


def test_slots_take_turns_and_no_vector_is_older_than_the_period(run: Run, store: ContentStore) -> None:
    """A version every 5 minutes, for 3 hours of event time."""
    versions = 36
    for step in range(1, versions + 1):
        done = run.publish(step, START + 5 * MINUTE * step)
        if step % 6:
            continue
        steps = steps_of(run, done.manifest, store, step)
        assert (step - steps.min()) * 5 <= 60 + 5
        age_s = metric_value(telemetry.OLDEST_CONTENT, content="images")
        assert age_s == (step - steps.min()) * 300
    assert run.sizes[0] == 700
    later = np.array(run.sizes[1:])
    assert 700 * 2 <= later.sum() <= 700 * 3.1  # once an hour, and not with each of the 35 versions
    assert later.max() <= 700 / 4, "the work is spread over the versions"


def test_vectors_of_before_the_first_example_are_as_old_as_it(run: Run, store: ContentStore) -> None:
    """The next version may come long after it: Redis was slow."""
    run.publish(1, 0)
    run.first_ms = START
    steps = steps_of(run, run.publish(2, START + PERIOD // 2).manifest, store, 2)
    assert 700 / 4 < run.sizes[1] < 700 * 3 / 4 and set(steps.tolist()) == {1, 2}
    assert metric_value(telemetry.OLDEST_CONTENT, content="images") == PERIOD / 2000
    assert steps_of(run, run.publish(3, START + PERIOD).manifest, store, 3).min() == 2


def test_a_version_without_anything_due_shares_all_blobs(run: Run) -> None:
    first = run.publish(1, START).manifest
    second = run.publish(2, START + 1).manifest
    assert run.sizes == [700, 0]
    names = set(first.content["images"]) ^ set(second.content["images"])
    assert {name.rpartition("-")[2] for name in names} == {"newer"}
    assert run.held(second)[0].tolist() == list(range(1000, 1700))


def test_own_inputs_that_changed_are_always_computed(run: Run, store: ContentStore) -> None:
    run.publish(1, START)
    store.append(np.array([1005, 5000]), features(np.array([1005, 5000]), seed=1))
    second = run.publish(2, START + 1)
    steps = steps_of(run, second.manifest, store, 2)
    ids = run.held(second.manifest)[0]
    assert ids[steps == 2].tolist() == [1005, 5000] and run.sizes == [700, 2]
    # they stay as they were published
    store.append(np.array([1006]), features(np.array([1006]), seed=1))
    third = run.publish(3, START + 2)
    steps = steps_of(run, third.manifest, store, 3)
    assert ids[steps == 3].tolist() == [1006] and ids[steps == 2].tolist() == [1005, 5000]
    assert run.sizes == [700, 2, 1]
    # until their slot's turn
    last = run.publish(4, START + PERIOD + 3)
    assert (steps_of(run, last.manifest, store, 4) == 4).all()
    with redis.Redis.from_url(run.url) as client:
        assert decode_vectors(client.get(last.manifest.content["images"][-1]))[0].tolist() == []


@pytest.mark.parametrize("digests", [None, np.arange(8, dtype=np.uint64) + 1])
def test_rows_that_a_merge_moves_have_not_changed(tmp_path: Path, digests: np.ndarray | None) -> None:
    """Rows of four appends, which are then merged into a chunk; another process sees them, too. Without
    digests, rows that come in a chunk with new ones count as changed."""
    store = ContentStore.create(tmp_path / "merged", width=WIDTH, encoder="test", shards=1)
    other = ContentStore.open(tmp_path / "merged")
    moments, seen = [0, 0], []
    for start in range(0, 48, 8):
        ids = np.arange(start, start + 8)
        store.append(ids, features(ids), digests)
        other.refresh()
        for number, held in enumerate((store, other)):
            changed, moments[number] = held.changed(moments[number])
            new = held.ids[changed].tolist()
            seen.append(set(ids.tolist()) <= set(new) if digests is None else new == ids.tolist())
    assert any(c.name.first != c.name.last for c in store._chunks.values()), "some were merged"
    assert all(seen)
    again = np.arange(0, 16)
    store.append(again, features(again), None if digests is None else np.r_[digests, digests + 99])
    changed = store.ids[store.changed(moments[0])[0]].tolist()
    if digests is None:
        assert set(again.tolist()) <= set(changed)
    else:
        assert changed == list(range(8, 16)), "pictures of an equal digest have equal features"


def test_a_crowd_of_new_ids_makes_its_slot_due(run: Run, store: ContentStore) -> None:
    run.publish(1, START)
    more = np.arange(7000, 7400)
    store.append(more, features(more))
    done = run.publish(2, START + 1)
    with redis.Redis.from_url(run.url) as client:
        newer = decode_vectors(client.get(done.manifest.content["images"][-1]))[0]
    assert len(newer) <= len(store) / 16
    assert run.held(done.manifest)[0].tolist() == sorted(store.ids.tolist())


def test_a_publish_that_fails_is_made_up_for(
    run: Run, store: ContentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.publish(1, START)
    store.append(np.array([1005]), features(np.array([1005]), seed=1))
    publisher = run.trainer.publisher

    def broken(*_: object) -> None:
        raise redis.ConnectionError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(run.trainer.store.connection, "write_blob", broken)
        publisher.begin(snapshot(2, np.arange(3), content={"images": run.plan(2, START + PERIOD // 2)}))
        assert run.trainer.drain() is None
    third = run.publish(3, START + PERIOD // 2 + 1)
    steps = steps_of(run, third.manifest, store, 3)
    ids = run.held(third.manifest)[0]
    assert 3 in steps[ids == 1005] and 2 not in steps and 1 in steps


def test_blobs_stay_while_a_version_shares_them_and_go_afterwards(run: Run) -> None:
    for step in range(1, 40):
        done = run.publish(step, START + 5 * MINUTE * step)
        run.held(done.manifest)  # raises if one is gone
    with redis.Redis.from_url(run.url) as client:
        names = {name.decode() for name in client.keys("livectr:blob:*content*")}
    slots = len(run.refresh._slots)
    assert len(names) < 2 * slots + 8, "blobs of replaced slots go with the last version that shares them"


def test_another_process_begins_with_all_vectors(run: Run, store: ContentStore) -> None:
    run.publish(1, START)
    run.publish(2, START + 1)
    cursor = run.trainer.publisher.cursor(2, begins=False)
    run.trainer.publisher.close()
    run.refresh = ContentRefresh("images", store, Control(), HOURLY, SLOT)
    run.trainer = Trainer(run.url, replace(cursor, version=2), take_over=True)
    done = run.publish(3, START + 2)
    assert (steps_of(run, done.manifest, store, 3) == 3).all()


class Lockstep(Control):
    """Rank of several in one process: threads that wait for each other."""

    def __init__(self, rank: int, world: int, barrier: threading.Barrier, table: dict[int, np.ndarray]):
        super().__init__(0, 1)
        self.rank, self.world, self._barrier, self._table = rank, world, barrier, table

    def gather(self, values: np.ndarray) -> np.ndarray:
        self._table[self.rank] = np.array(values, np.int64)
        self._barrier.wait(left_s())
        out = np.stack([self._table[rank] for rank in range(self.world)])
        self._barrier.wait(left_s())
        return out


def on_ranks(folder: Path, world: int, rule: RefreshRule, versions: int) -> list[dict[int, bytes]]:
    """Computed vectors of each version, by id; ranks hold their shards."""
    barrier, table = threading.Barrier(world), dict[int, np.ndarray]()
    out: list[dict[int, bytes]] = [{} for _ in range(versions)]
    errors: list[BaseException] = []

    def rank_of(rank: int) -> None:
        try:
            own = ContentStore.open(folder, range(rank, SHARDS, world))
            refresh = ContentRefresh("images", own, Lockstep(rank, world, barrier, table), rule, SLOT)
            for version in range(versions):
                plan = refresh.plan(network_at(version), START + version * 7 * MINUTE, whole=False)
                for ids, vectors in plan.run(lambda: False):
                    # to the 4th digit: products of blocks of other sizes round differently
                    out[version] |= {
                        i: v.round(4).tobytes() for i, v in zip(ids.tolist(), vectors, strict=True)
                    }
                plan.published()
        except BaseException as error:
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=rank_of, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    return out


@pytest.mark.parametrize("rule", [HOURLY, RefreshRule(PERIOD, 0.4)], ids=["schedule", "tolerance"])
def test_one_two_and_four_ranks_compute_the_same(store: ContentStore, rule: RefreshRule) -> None:
    one = on_ranks(store.root, 1, rule, 12)
    assert len(one[0]) == 700 and 0 < sum(map(len, one[1:])) < 11 * 700
    for world in (2, 4):
        several = on_ranks(store.root, world, rule, 12)
        assert [version.keys() for version in several] == [version.keys() for version in one]
        assert several == one


def test_the_tolerance_bounds_how_far_published_vectors_are_off(redis_url: str, store: ContentStore) -> None:
    tolerance = 0.4
    rule = RefreshRule(1000 * PERIOD, tolerance)
    run = Run(redis_url, ContentRefresh("images", store, Control(), rule, SLOT))
    for step in range(1, 13):
        done = run.publish(step, START + step)
        ids, vectors = run.held(done.manifest)
        exact = vectors_at(step, store, ids)
        moved = np.linalg.norm(vectors - exact, axis=1) / np.sqrt(np.square(exact).sum(axis=1).mean())
        assert (moved > 1.1 * tolerance).mean() <= 3 / 256  # the sample's scale is not that of all ids
        assert metric_value(telemetry.CONTENT_DRIFT, content="images") <= tolerance
    run.trainer.publisher.close()
    assert 700 < sum(run.sizes) < 8 * 700, "beyond the tolerance all are computed, and not with each version"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"content_refresh_s": -1.0}, "content_refresh_s is -1.0, but must be at least 0"),
        ({"content_tolerance": 0.1}, "content_tolerance needs content_refresh_s"),
        ({"content_refresh_s": 60.0, "content_tolerance": -0.1}, "content_tolerance is -0.1, but must be"),
    ],
)
def test_settings_that_cannot_work_are_refused(options: dict[str, float], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        TrainOptions("file:logs", **options)  # type: ignore[arg-type]


def test_a_pipeline_without_content_or_times_is_refused(store: ContentStore) -> None:
    with pytest.raises(ConfigError, match="the pipeline has none, leave it out"):
        refreshes_of(replace(pipeline, content={}, rank=pipeline.shadows["ids"], prerank=None, items=None,
                             shadows={}), {}, Control(), HOURLY)  # fmt: skip
    assert refreshes_of(pipeline, {"images": store}, Control(), RefreshRule()) == {}
