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
from livectr.kernels.request.score import Items, Reads, Revenues, ScoreCall, Snapshot
from livectr.kernels.request.swap_lock import SwapLock
from livectr.kernels.table.field_tables import FieldTables
from livectr.kernels.table.layout import SGD, RowLayout, Segment
from livectr.kernels.table.table import DynamicTable
from livectr.protos import livectr_pb2 as pb
from livectr.system.histograms import Buckets

DIM = 4
SHAPE = Shape(fields=3, dim=DIM, dense=(1, 1), layers=(8, 1), wide=True, pairs=True, prelu=False)
"""Network of a user, a position and an item, with a dense number of the request and one of the item."""
LAYOUT = RowLayout((Segment("rank.w", 1, SGD()), Segment("rank.v", DIM, SGD())))
USERS, POSITIONS, ITEMS = np.arange(5), np.arange(100, 110), np.arange(1000, 1040)
PACK = ReplyPacker(4, 5, 6)
BOUNDS = np.linspace(0.05, 0.9, 13)
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

    def snapshot(self, *names: str, version: int = 7) -> Snapshot:
        """Snapshot of batches with some own fields; without the item, items are apart."""
        fields = tuple((name, name) for name in ("user", *names))
        whole = "item" in names
        reads = Reads([(0, 0)], [(0, 1)], [(1, 2)] * whole, [0], [1] * whole, 1, True)
        front = FieldTables(self.tables, fields, [1] + [0] * len(names))
        return Snapshot(self.lock, version, front, 1, self.network, reads)


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

    def whole(self, snapshot: Snapshot, deadline: float | None = None) -> ScoreCall:
        """Call with all features."""
        keys, revenues = np.concatenate([self.positions, self.items]), Revenues(PACK, self.bids, BOUNDS)
        return ScoreCall(snapshot, self.shared, Ragged(keys), self.dense, deadline, None, revenues)

    def apart(self, snapshot: Snapshot, partials: Partials) -> ScoreCall:
        """Call with kept partial results of the items."""
        dense, items = np.ascontiguousarray(self.dense[:, :1]), Items(partials, self.items)
        return ScoreCall(
            snapshot,
            self.shared,
            Ragged(self.positions),
            dense,
            None,
            items,
            Revenues(PACK, self.bids, BOUNDS),
        )

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

    for call, snapshot in zip(
        (request.whole(snapshots[0]), request.apart(snapshots[1], partials)), snapshots, strict=True
    ):
        assert snapshot.score(call) == DONE
        assert np.array_equal(call.logits, logits)
        reply, buckets = call.reply(), Buckets(BOUNDS)
        assert np.array_equal(reply.pctr, probabilities(logits))
        assert reply.fields == PACK(reply.pctr, request.bids)
        buckets.observe(reply.pctr)
        assert np.array_equal(reply.counts.cumsum(), buckets.rising())
        assert reply.total == pytest.approx(reply.pctr.sum())
        assert 0 < call.ends[0] <= call.ends[1]
    assert len(pb.RankResponse.FromString(reply.fields).index) == count


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
    call = request.apart(snapshot, partials)

    assert snapshot.score(call) == MISSING_ITEMS
    assert np.array_equal(call.kept != 0, np.isin(request.items, request.items[:5]))
    call.give_kept(Kept.of(request.partials(world)))
    assert snapshot.score(call) == DONE and np.array_equal(call.logits, request.logits(world))

    request.user = 999
    call = request.apart(snapshot, partials)
    assert snapshot.score(call) == MISSING_ROWS
    rows = (world.tables["position"].lookup(request.positions)[:, None],
            world.tables["user"].lookup([999])[:, None])  # fmt: skip
    call.give_vectors(*rows)
    call.give_kept(Kept.of(request.partials(world)))
    assert snapshot.score(call) == DONE and np.array_equal(call.logits, request.logits(world))


def test_rows_of_another_version_are_not_read(world: World) -> None:
    snapshot = world.snapshot("position", "item", version=6)

    assert snapshot.score(Request.drawn(1, 3).whole(snapshot)) == SUPERSEDED


def test_a_call_waits_for_a_writer_no_longer_than_its_deadline(world: World) -> None:
    snapshot = world.snapshot("position", "item")
    with world.lock.write():
        assert snapshot.score(Request.drawn(1, 3).whole(snapshot, 0.0)) == LATE
    assert snapshot.score(Request.drawn(1, 3).whole(snapshot, 0.0)) == DONE


def test_arrays_that_do_not_fit_are_refused(world: World) -> None:
    request, snapshot = Request.drawn(2, 4), world.snapshot("position", "item")
    request.bids = np.ones(3)
    with pytest.raises(ValueError, match="not of 4 float64"):
        request.whole(snapshot)
    request.bids, request.dense = np.ones(4), request.dense[:, :1]
    with pytest.raises(ValueError, match="dense numbers"):
        request.whole(snapshot)
    request = Request.drawn(2, 4)
    for wrong in ([0, 1, 2, 3, 4, 5, 6, 3, 8], [0, 1, 2, 3, 4, 5, 6, 7, 9]):
        own = Ragged(np.concatenate([request.positions, request.items]))
        own.offsets = np.array(wrong, np.int32)
        call = ScoreCall(snapshot, request.shared, own, request.dense, None)
        with pytest.raises(ValueError, match="offsets"):
            snapshot.score(call)


VERSIONS = 12
FLAT = Shape(fields=2, dim=0, dense=(), layers=(), wide=True, pairs=False, prelu=False)


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
            call = ScoreCall(
                snapshot,
                Ragged(rng.choice(USERS, 1)),
                Ragged(np.empty(0, np.int64)),
                np.empty((20, 0), F32),
                None,
                Items(partials, items),
                Revenues(PACK, np.ones(20), BOUNDS),
            )
            while (outcome := snapshot.score(call)) == MISSING_ITEMS:
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
