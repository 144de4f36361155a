"""Look up → score → reply in one call: its results, what it says is missing, and swaps beside it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import numpy as np
import pytest

from livectr.kernels.network.forward import ForwardNetwork, Kept, Shape, Sources
from livectr.kernels.network.reply import ReplyPacker, probabilities
from livectr.kernels.request.look_up import DONE, LATE, MISSING_ITEMS, MISSING_ROWS, SUPERSEDED
from livectr.kernels.request.partials import Partials
from livectr.kernels.request.score import Heads, Reads, Revenues, ScoreCall, Snapshot
from livectr.kernels.request.swap_lock import SwapLock
from livectr.kernels.runtime.arrays import address
from livectr.kernels.table.field_tables import FieldTables
from livectr.kernels.table.layout import SGD, RowLayout, Segment
from livectr.kernels.table.table import DynamicTable
from livectr.protos import livectr_pb2 as pb
from livectr.store.hedge import mixed
from livectr.system.histograms import Buckets
from tests.kernels.given_features import GivenFeatures

DIM = 4
SHAPE = Shape(fields=3, dim=DIM, dense=(1, 1), blocks=(), layers=(8, 1), wide=True, pairs=True, prelu=False)
"""Network of a user, a position and an item, with a dense number of the request and one of the item."""
LAYOUT = RowLayout((Segment("rank.w", 1, SGD()), Segment("rank.v", DIM, SGD())))
USERS, POSITIONS, ITEMS = np.arange(5), np.arange(100, 110), np.arange(1000, 1040)
PACK = ReplyPacker(4, 5, 6)
BOUNDS = np.linspace(0.05, 0.9, 13)
REVENUES = Revenues(PACK, BOUNDS)
F32 = np.float32


@dataclass
class Ragged:
    """Keys of some fields, one for each row."""

    keys: np.ndarray
    offsets: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.offsets = np.arange(len(self.keys) + 1, dtype=np.int32)


class World:
    """Tables of rows, and a network, whose batches share the user."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.tables = {name: DynamicTable(LAYOUT, name=name, seed=1) for name in ("user", "position", "item")}
        for table, keys in zip(self.tables.values(), (USERS, POSITIONS, ITEMS), strict=True):
            table.assign(keys, rng.normal(size=(len(keys), LAYOUT.dim)).astype(F32))
        count = 1 + 3 + 2 + (3 * DIM + 2) * 8 + 8 + 8 + 1
        self.network = ForwardNetwork(SHAPE, [rng.normal(size=count).astype(F32)])
        self.lock = SwapLock(60.0, version=7)
        self.partials = Partials(100, self.network.partial_size)

    def snapshot(self, *names: str, version: int = 7, heads: Heads | None = None) -> Snapshot:
        """Snapshot of batches with some own fields; without the item, items are apart."""
        fields = tuple((name, name) for name in ("user", *names))
        whole = "item" in names
        reads = Reads([(0, 0)], [(0, 1)], [(1, 2)] * whole, [0], [1] * whole, 1, True)
        front = FieldTables(self.tables, fields, [1] + [0] * len(names))
        return Snapshot(self.lock, version, front, 1, self.network, reads, heads=heads)


@dataclass
class Request:
    """Request of a user for items at positions."""

    user: int
    positions: np.ndarray
    items: np.ndarray
    dense: np.ndarray
    bids: np.ndarray

    @staticmethod
    def drawn(seed: int, count: int) -> Request:
        rng = np.random.default_rng(seed)
        positions, items = rng.choice(POSITIONS, count), rng.choice(ITEMS, count)
        dense = rng.normal(size=(count, 2)).astype(F32)
        dense[:, 1] = items / 1000  # an item's own
        return Request(int(rng.choice(USERS)), positions, items, dense, rng.random(count))

    def whole(self, deadline: float | None = None) -> ScoreCall:
        """Call with all features."""
        own = Ragged(np.concatenate([self.positions, self.items]))
        features = GivenFeatures(self.shared, own, self.dense)
        return ScoreCall(features, deadline, None, REVENUES, address(self.bids))

    def apart(self, partials: Partials) -> ScoreCall:
        """Call with kept partial results of the items."""
        dense = np.ascontiguousarray(self.dense[:, :1])
        features = GivenFeatures(self.shared, Ragged(self.positions), dense, self.items)
        return ScoreCall(features, None, partials, REVENUES, address(self.bids))

    @property
    def shared(self) -> Ragged:
        return Ragged(np.array([self.user]))

    def partials(self, world: World) -> np.ndarray:
        """Partial results of the items f32[n, S]."""
        sources = Sources(SHAPE)
        sources.add_fields(world.tables["item"].lookup(self.items)[:, None], (2,), 1, {2})
        sources.add(self.dense[:, 1:], 1)
        return world.network.partials(len(self.items), sources)

    def logits(self, world: World) -> np.ndarray:
        """Logits by the calls of each stage."""
        own, common = Sources(SHAPE), Sources(SHAPE)
        own.add_fields(world.tables["position"].lookup(self.positions)[:, None], (1,), 1, {1})
        own.add(self.dense[:, :1])
        common.add_fields(world.tables["user"].lookup([self.user])[:, None], (0,), 1, {0})
        return world.network(len(self.items), own, common, Kept.of(self.partials(world)))


@pytest.fixture(scope="module")
def world() -> World:
    return World()


@pytest.mark.parametrize("count", [1, 2, 47, 400])
def test_a_call_gives_what_its_stages_give(world: World, count: int) -> None:
    request = Request.drawn(count, count)
    logits, partials = request.logits(world), Partials(1000, world.network.partial_size)
    partials.add(request.items, request.partials(world), 1)
    snapshots = world.snapshot("position", "item"), world.snapshot("position")

    for call, snapshot in zip((request.whole(), request.apart(partials)), snapshots, strict=True):
        assert snapshot.answer(call.words) == DONE
        assert np.array_equal(call.logits, logits)
        pctr, buckets = probabilities(logits), Buckets(BOUNDS)
        assert call.reply() == PACK(pctr, request.bids)
        buckets.observe(pctr)
        assert call.counts is not None and np.array_equal(call.counts.cumsum(), buckets.rising())
        assert call.words.total == pytest.approx(pctr.sum())
        assert 0 < call.words.looked_up_at <= call.words.scored_at
    assert len(pb.RankResponse.FromString(call.reply()).index) == count


@pytest.mark.parametrize("weights", [(0.3, 0.7), (1.0, 0.0), (0.0, 1.0), (1e-12, 1 - 1e-12)])
def test_a_mixture_has_the_logits_of_its_heads(world: World, weights: tuple[float, float]) -> None:
    """One of its heads may have lost, and logits may be large."""
    request = Request.drawn(5, 60)
    plain = Shape(fields=3, dim=0, dense=(2,), blocks=(), layers=(), wide=True, pairs=False, prelu=False)
    linear = ForwardNetwork(plain, [np.array([400, 1, 1, 1, 300, 0.5], F32)])
    reads = Reads([(0, 0)], [(0, 1), (1, 2)], [], [0, 1], [], 1, False)
    heads = Heads([(linear, reads)], np.array(weights))
    call = request.whole()

    assert world.snapshot("position", "item", heads=heads).answer(call.words) == DONE

    own, common = Sources(plain), Sources(plain)
    rows = [world.tables[n].lookup(k) for n, k in (("position", request.positions), ("item", request.items))]
    own.add_fields(np.stack(rows, 1), (1, 2), 1, {1, 2})
    own.add(request.dense)
    common.add_fields(world.tables["user"].lookup([request.user])[:, None], (0,), 1, {0})
    logits = np.stack([request.logits(world), linear(60, own, common)])
    np.testing.assert_allclose(call.logits, mixed(logits, np.array(weights)), rtol=1e-6, atol=1e-6)

    call = request.whole()
    apart = world.snapshot("position", "item", heads=Heads([(linear, reads)]))
    assert apart.answer(call.words) == DONE
    np.testing.assert_allclose(call.logits, logits[0], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(call.others(1), logits[1:], rtol=1e-6, atol=1e-6)


def test_probabilities_are_the_logistic_function() -> None:
    logits = np.concatenate([np.random.default_rng(0).normal(size=1000) * 10, [0, 800, -800]]).astype(F32)

    with np.errstate(over="ignore"):
        expected = 1 / (1 + np.exp(-logits.astype(np.float64)))

    # NumPy's exp has its own approximation where the CPU has AVX-512: the last bits may differ.
    np.testing.assert_allclose(probabilities(logits), expected, rtol=1e-15)


def test_a_call_says_what_is_missing(world: World) -> None:
    request, snapshot = Request.drawn(3, 20), world.snapshot("position")
    partials = Partials(30, world.network.partial_size)
    partials.add(request.items[:5], request.partials(world)[:5], 0)
    call = request.apart(partials)

    assert snapshot.answer(call.words) == MISSING_ITEMS
    assert np.array_equal(call.kept != 0, np.isin(request.items, request.items[:5]))
    call.give_kept(Kept.of(request.partials(world)))
    assert snapshot.answer(call.words) == DONE and np.array_equal(call.logits, request.logits(world))

    request.user = 999
    call = request.apart(partials)
    assert snapshot.answer(call.words) == MISSING_ROWS
    rows = (world.tables["position"].lookup(request.positions)[:, None],
            world.tables["user"].lookup([999])[:, None])  # fmt: skip
    call.give_vectors(*rows)
    call.give_kept(Kept.of(request.partials(world)))
    assert snapshot.answer(call.words) == DONE and np.array_equal(call.logits, request.logits(world))


def test_rows_of_another_version_are_not_read(world: World) -> None:
    snapshot = world.snapshot("position", "item", version=6)

    assert snapshot.answer(Request.drawn(1, 3).whole().words) == SUPERSEDED


def test_a_call_waits_for_a_writer_no_longer_than_its_deadline(world: World) -> None:
    snapshot = world.snapshot("position", "item")
    with world.lock.write():
        assert snapshot.answer(Request.drawn(1, 3).whole(0.0).words) == LATE
    assert snapshot.answer(Request.drawn(1, 3).whole(0.0).words) == DONE


def test_features_that_do_not_fit_are_refused(world: World) -> None:
    request, snapshot = Request.drawn(2, 4), world.snapshot("position", "item")
    own = Ragged(np.concatenate([request.positions, request.items]))

    def refused(features: GivenFeatures, partials: Partials | None = None) -> None:
        with pytest.raises(ValueError, match="do not fit"):
            snapshot.answer(ScoreCall(features, None, partials).words)

    refused(GivenFeatures(request.shared, own, request.dense[:, :1]))
    refused(GivenFeatures(request.shared, Ragged(request.positions), request.dense))
    refused(GivenFeatures(Ragged(np.empty(0, np.int64)), own, request.dense))
    refused(GivenFeatures(request.shared, own, request.dense), Partials(1, world.network.partial_size))
    for wrong in ([0, 1, 2, 3, 4, 5, 6, 3, 8], [0, 1, 2, 3, 4, 5, 6, 7, 9]):
        own.offsets = np.array(wrong, np.int32)
        refused(GivenFeatures(request.shared, own, request.dense))


def test_fields_behind_those_that_are_looked_up_are_not_read(world: World) -> None:
    """As fields of which only content is read."""
    request, snapshot = Request.drawn(2, 4), world.snapshot("position")
    dense, partials = np.ascontiguousarray(request.dense[:, :1]), request.partials(world)
    more = np.full(4, 10**9)  # in no table
    own, shared = Ragged(np.concatenate([request.positions, more])), Ragged(np.array([request.user, 10**9]))
    call = ScoreCall(GivenFeatures(shared, own, dense, request.items), None)
    call.give_kept(Kept.of(partials))

    assert snapshot.answer(call.words) == DONE
    assert np.array_equal(call.logits, request.logits(world))


VERSIONS = 12
FLAT = Shape(fields=2, dim=0, dense=(), blocks=(), layers=(), wide=True, pairs=False, prelu=False)


class Swapping:
    """First-order model: at version v a logit is v - v + v / 1000, of user, item and bias."""

    def __init__(self) -> None:
        layout = RowLayout((Segment("rank.w", 1, SGD()),))
        self.tables = {name: DynamicTable(layout, name=name, seed=1) for name in ("user", "item")}
        self.lock = SwapLock(60.0)
        self.front = FieldTables(self.tables, [("user", "user")], [1])
        self.swap(1)

    def swap(self, version: int) -> None:
        """Swap as a near-cache does: rows under the lock, then what is served, by one pointer."""
        network = ForwardNetwork(FLAT, [np.array([version / 1000, 1, 1], F32)])
        reads = Reads([(0, 0)], [], [], [], [], 1, True)
        snapshot = Snapshot(self.lock, version, self.front, 1, network, reads)
        with self.lock.write():
            self.tables["user"].erase(USERS)
            self.tables["user"].assign(USERS, np.full((len(USERS), 1), version, F32))
            self.lock.version = version
        self.served = version, snapshot, network, Partials(len(ITEMS), network.partial_size)

    def ask(self, seed: int) -> int:
        """Version whose score every candidate has."""
        rng = np.random.default_rng(seed)
        items = rng.choice(ITEMS, 20, replace=False)
        while True:
            version, snapshot, network, partials = self.served
            user, nothing = Ragged(rng.choice(USERS, 1)), Ragged(np.empty(0, np.int64))
            features, bids = GivenFeatures(user, nothing, np.empty((20, 0), F32), items), np.ones(20)
            call = ScoreCall(features, None, partials, REVENUES, address(bids))
            while (outcome := snapshot.answer(call.words)) == MISSING_ITEMS:
                sources = Sources(FLAT)
                sources.add_fields(np.full((20, 1, 1), -version, F32), (1,), 1, {1})
                partials.add(items, network.partials(20, sources), 1)
            if outcome == DONE:
                np.testing.assert_allclose(call.logits, version / 1000, rtol=1e-3)
                return version
            assert outcome == SUPERSEDED


def test_threads_score_side_by_side_while_versions_swap() -> None:
    world, answered = Swapping(), [0, 0]
    errors: list[BaseException] = []
    turn = threading.Condition()

    def ask(number: int) -> None:
        try:
            for seed in range(10_000):
                version = world.ask(seed)
                with turn:
                    answered[number] = version
                    turn.notify_all()
                if version == VERSIONS:
                    return
        except BaseException as error:
            errors.append(error)
            with turn:
                turn.notify_all()
            raise

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for version in range(1, VERSIONS + 1):
        if version > 1:
            world.swap(version)
        with turn:
            turn.wait_for(lambda version=version: errors or min(answered) >= version)  # type: ignore[misc]
    for thread in threads:
        thread.join()
    assert not errors and answered == [VERSIONS] * 2
