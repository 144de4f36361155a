"""Look up → user vector → best items → reply in one call: its results, and what it says is missing."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from livectr.kernels.keys.keys import KeyNumbers
from livectr.kernels.network.reply import pack_texts
from livectr.kernels.network.tower import Tower
from livectr.kernels.request.look_up import DONE, LATE, MISSING_ITEMS, MISSING_ROWS, SUPERSEDED
from livectr.kernels.request.pooled import ItemMatrix
from livectr.kernels.request.select import SelectCall, SelectionFields, Selector, Wanted
from livectr.kernels.request.swap_lock import SwapLock
from livectr.kernels.table.field_tables import FieldTables
from livectr.kernels.table.layout import SGD, RowLayout, Segment
from livectr.kernels.table.table import DynamicTable
from livectr.protos import livectr_pb2 as pb
from tests.kernels.given_features import GivenFeatures

DIM, OUT, HIDDEN, MORE = 4, 6, 9, 2
LAYOUT = RowLayout((Segment("rank.w", 1, SGD()), Segment("prerank.t", DIM, SGD())))
USERS, CITIES, ITEMS = np.arange(5), np.arange(100, 110), np.arange(-20, 2000, 7)
FIELDS = SelectionFields(4, 5, 1, 7, 11)
GAMMA, SOFT, BIAS = 3.0, 0.1, 0.25
NONE = np.empty(0, np.uint32)
F32 = np.float32


@dataclass(frozen=True)
class Ragged:
    """Keys of some fields of a row."""

    offsets: np.ndarray
    keys: np.ndarray


class World:
    """Tables of users and cities, a tower, and items; some of them have equal vectors."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.tables = {name: DynamicTable(LAYOUT, name=name, seed=1) for name in ("user", "city")}
        for table, keys in zip(self.tables.values(), (USERS, CITIES), strict=True):
            table.assign(keys, rng.normal(size=(len(keys), LAYOUT.dim)).astype(F32))
        sizes = (2 * DIM + MORE, HIDDEN, OUT)
        self.layers = [
            (rng.normal(size=(before, size)).astype(F32), rng.normal(size=size).astype(F32))
            for before, size in itertools.pairwise(sizes)
        ]
        self.vectors = np.round(rng.normal(size=(len(ITEMS), OUT)), 1).astype(F32)
        self.vectors[rng.random(len(ITEMS)) < 0.2] = self.vectors[0]
        self.lock = SwapLock(60.0, version=7)

    def selector(self, *, shared: int = 0, known: int = len(ITEMS), version: int = 7) -> Selector:
        """Snapshot of batches that share their first fields, with the vectors of the first `known` items."""
        numbers = KeyNumbers()
        numbers.assign(ITEMS[:known])
        front = FieldTables(
            self.tables, [("city", "city"), ("user", "user")], [1] * shared + [0] * (2 - shared)
        )
        items = ItemMatrix(numbers, ITEMS[:known], self.vectors[:known])
        tower = Tower(self.layers, GAMMA, SOFT)
        return Selector(self.lock, version, front, shared, 1, DIM, [1, 0], tower, BIAS, items)

    def call(
        self,
        selector: Selector,
        wanted: Wanted,
        user: int = 3,
        deadline: float | None = None,
        shared: int = 0,
    ) -> SelectCall:
        """Call of a user, who is in two cities; its first fields are shared."""
        keys, offsets = np.array([100, 101, user]), np.array([0, 2, 3], np.int32)
        last = offsets[shared]
        once = Ragged(offsets[: shared + 1], keys[:last])
        own = Ragged(offsets[shared:] - last, keys[last:])
        features = GivenFeatures(once, own, np.array([[0.5, -2]], F32))
        return SelectCall(selector, features, deadline, wanted)

    def scores(self, user: int = 3) -> np.ndarray:
        """Scores f64[items] in NumPy."""
        rows = [self.tables["user"].lookup([user])[0], self.tables["city"].lookup([100, 101]).sum(axis=0)]
        x = np.concatenate([*(row[1:] for row in rows), [0.5, -1 - np.log(2)]])  # symlog of the numbers
        for number, (weight, bias) in enumerate(self.layers):
            x = (np.maximum(x, 0) if number else x) @ weight.astype(np.float64) + bias
        return self.vectors.astype(np.float64) @ (GAMMA * x / np.sqrt(x @ x + SOFT**2)) + BIAS


@pytest.fixture(scope="module")
def world() -> World:
    return World()


def replied(call: SelectCall) -> pb.PreRankResponse:
    """Reply of a call, which has what the call has."""
    reply = pb.PreRankResponse.FromString(call.reply())
    best, ids = call.best
    assert list(reply.ids.values) == ids.tolist()
    np.testing.assert_array_equal(np.array(reply.score, F32), best.scores)
    return reply


@pytest.mark.parametrize("shared", [0, 1, 2])
@pytest.mark.parametrize("k", [1, 40, 1000])
def test_all_items_in_the_order_of_their_scores(world: World, shared: int, k: int) -> None:
    selector = world.selector(shared=shared)
    excluded = np.array([0, 5, 6, len(ITEMS) - 1], np.uint32)
    call = world.call(selector, Wanted(k, None, excluded, FIELDS), shared=shared)
    assert selector.answer(call.words) == DONE
    reply, (best, ids) = replied(call), call.best
    wanted = np.setdiff1d(np.arange(len(ITEMS)), excluded)
    assert len(ids) == min(k, len(wanted)) and not reply.index
    np.testing.assert_allclose(best.scores, world.scores()[best.positions], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(ids, ITEMS[best.positions])

    asked = world.call(
        selector, Wanted(k, ITEMS[wanted], NONE, FIELDS), shared=shared
    )  # a stable sort, by their own bits
    assert selector.answer(asked.words) == DONE and asked.unknown_count == 0
    np.testing.assert_array_equal(asked.best[1], ids)
    np.testing.assert_array_equal(asked.best[0].scores, best.scores)
    assert list(replied(asked).index) == asked.best[0].positions.tolist()
    assert 0 < call.words.looked_up_at <= call.words.scored_at


def test_equal_scores_are_in_the_order_of_the_candidates(world: World) -> None:
    level = ITEMS[(world.vectors == world.vectors[0]).all(axis=1)][::-1].copy()
    selector = world.selector()
    call = world.call(selector, Wanted(len(level), level, NONE))
    assert selector.answer(call.words) == DONE
    assert call.best[0].positions.tolist() == list(range(len(level)))
    assert len(np.unique(call.best[0].scores)) == 1 and call.reply() == b""


def test_vectors_that_are_given_count_as_those_of_the_version(world: World) -> None:
    """A selection is the same, bit for bit, whichever items are new."""
    asked = np.random.default_rng(1).choice(ITEMS, 90)
    whole, some = world.selector(), world.selector(known=50)
    expected, call = (world.call(of, Wanted(30, asked, NONE, FIELDS)) for of in (whole, some))
    assert whole.answer(expected.words) == DONE
    assert some.answer(call.words) == MISSING_ITEMS
    rows = np.searchsorted(ITEMS, asked)
    np.testing.assert_array_equal(call.unknown, rows >= 50)
    with pytest.raises(ValueError, match="shape"):
        call.give_items(world.vectors[:3])
    call.give_items(world.vectors[rows[rows >= 50]])
    assert some.answer(call.words) == DONE and call.unknown_count == np.count_nonzero(rows >= 50)
    assert call.reply() == expected.reply()


@pytest.mark.parametrize("asked", [None, np.empty(0, np.int64)])
def test_no_items(world: World, asked: np.ndarray | None) -> None:
    selector = world.selector(known=0)
    call = world.call(selector, Wanted(3, asked, NONE, FIELDS))
    assert selector.answer(call.words) == DONE
    assert not len(call.best[1]) and replied(call).WhichOneof("items") == "ids"


def test_a_call_says_what_is_missing(world: World) -> None:
    selector = world.selector(shared=1)
    call = world.call(selector, Wanted(5, None, NONE), user=999, shared=1)
    assert selector.answer(call.words) == MISSING_ROWS
    city = world.tables["city"].lookup([100, 101]).sum(axis=0, dtype=F32)
    call.give_vectors(world.tables["user"].lookup([999])[:, None], city[None, None])
    assert selector.answer(call.words) == DONE
    np.testing.assert_allclose(
        call.best[0].scores, world.scores(999)[call.best[0].positions], rtol=1e-5, atol=1e-5
    )


def test_rows_of_another_version_are_not_read(world: World) -> None:
    selector = world.selector(version=6)
    assert selector.answer(world.call(selector, Wanted(1, None, NONE)).words) == SUPERSEDED


def test_a_call_waits_for_a_writer_no_longer_than_its_deadline(world: World) -> None:
    selector = world.selector()
    call = world.call(selector, Wanted(1, None, NONE), deadline=0.0)
    with world.lock.write():
        assert selector.answer(call.words) == LATE
    assert selector.answer(call.words) == DONE


def test_features_that_do_not_fit_are_refused(world: World) -> None:
    selector, once = world.selector(shared=1), Ragged(np.zeros(1, np.int32), np.empty(0, np.int64))
    own = Ragged(np.arange(3, dtype=np.int32), np.arange(2))
    for features in (
        GivenFeatures(once, own, np.zeros((1, 2), F32)),
        GivenFeatures(own, own, np.zeros((1, 1), F32)),
        GivenFeatures(own, Ragged(np.arange(5, dtype=np.int32), np.arange(4)), np.zeros((2, 2), F32)),
    ):
        call = SelectCall(selector, features, None, Wanted(1, None, NONE))
        with pytest.raises(ValueError, match="do not fit"):
            selector.answer(call.words)


def test_arrays_that_do_not_fit_are_refused(world: World) -> None:
    selector, tower = world.selector(), Tower(world.layers, GAMMA, SOFT)
    with pytest.raises(ValueError, match="at least 1"):
        world.call(selector, Wanted(0, None, NONE))
    with pytest.raises(ValueError, match="int64"):
        world.call(selector, Wanted(1, np.zeros(3, np.int32), NONE))
    front, numbers = FieldTables(world.tables, [("user", "user")]), KeyNumbers()
    numbers.assign(np.arange(2))
    items = ItemMatrix(numbers, np.arange(2), np.zeros((2, OUT), F32))
    for first, places in ((2, [0]), (0, [1])):
        with pytest.raises(ValueError, match="from"):
            Selector(world.lock, 7, front, 0, first, DIM, places, tower, BIAS, items)
    with pytest.raises(ValueError, match="shape"):
        narrow = ItemMatrix(numbers, np.arange(2), np.zeros((2, 3), F32))
        Selector(world.lock, 7, front, 0, 1, DIM, [0], tower, BIAS, narrow)
    with pytest.raises(ValueError, match="do not fit"):
        Tower([world.layers[0], world.layers[0]], GAMMA, SOFT)


@given(st.lists(st.text(max_size=300), max_size=20), st.integers(0, 5))
def test_texts_are_packed_as_protobuf_packs_them(texts: list[str], first: int) -> None:
    texts = [text.encode("utf-8", "replace").decode() for text in texts]
    array = pa.array(texts, pa.string())[first:]
    reply = pb.PreRankResponse.FromString(pack_texts(array, 6, 1))
    assert list(reply.names.values) == texts[first:] and reply.WhichOneof("items") == "names"
