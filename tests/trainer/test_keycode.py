"""Keys through the wire code and back, and the bytes that it takes."""

from __future__ import annotations

import math
import os
import sys

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from livectr.ingest.plan.features import Features
from livectr.system.errors import InternalError
from livectr.trainer.comm import key_codec as keycode
from livectr.trainer.comm.key_codec import I32, I64, Encoded, Segments
from tests.commands import run
from tests.tiers import examples
from tests.trainer.key_entropy import Field, best_bytes

INT64 = np.iinfo(np.int64)
KEYS = st.one_of(
    st.integers(-3, 3),
    st.integers(1 << 40, (1 << 40) + 200),
    st.sampled_from([INT64.min, INT64.max]),
    st.integers(INT64.min, INT64.max),
)


def ragged(fields: list[Field]) -> tuple[I32, I64]:
    cells = [cell for field in fields for cell in field]
    keys = np.array([key for cell in cells for key in cell], np.int64)
    return np.cumsum([0, *map(len, cells)]).astype(np.int32), keys


def segments_of(fields: list[Field]) -> Segments:
    return Segments.concat(
        [Segments.of(*ragged([field]), len(field)) if field else Segments.empty(1) for field in fields]
    )


def decoded(coded: Encoded, cells: I64) -> tuple[I32, I64]:
    zeros = np.zeros(len(cells), np.int64)
    return keycode.decode(coded.header, cells, [coded.payload], zeros, coded.bounds[:-1])


def check(fields: list[Field]) -> Encoded:
    segments = segments_of(fields)
    coded = keycode.encode(segments)
    keys, sizes = keycode.measure(coded.header, segments.cells)
    assert keys.tolist() == [sum(map(len, field)) for field in fields]
    np.testing.assert_array_equal(sizes, np.diff(coded.bounds))
    offsets, found = decoded(coded, segments.cells)
    want_offsets, want = ragged(fields)
    np.testing.assert_array_equal(offsets, want_offsets)
    np.testing.assert_array_equal(found, want)
    return coded


@given(st.lists(st.lists(st.lists(KEYS, max_size=5), max_size=12), max_size=6))
@example([])
@example([[]])
@example([[[], []]])
@example([[[7]]])
@example([[[INT64.min], [INT64.max]] * 9])
@example([[[-1]] * 30, [], [[-1, -1]] * 30, [[5], []] * 8])
@example([[[key] for key in range(40)]])
def test_keys_come_back_and_take_the_fewest_bytes(fields: list[Field]) -> None:
    coded = check(fields)
    assert np.diff(coded.bounds).tolist() == [best_bytes(field) for field in fields]


@examples(30)
@given(st.integers(0, 64), st.integers(1, 300), st.integers(0, 1 << 30))
def test_every_key_width(width: int, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    whole = rng.integers(INT64.min, INT64.max, count)
    keys = (whole.view(np.uint64) >> np.uint64(64 - width)).view(np.int64) if width else whole * 0
    check([[[int(key)] for key in keys]])
    check([[[int(key)] * 3 for key in keys]])


@pytest.mark.parametrize("longest", [1, 2, 3, 15, 16, 255, 256, 70_000])
def test_every_width_of_lengths(longest: int) -> None:
    check([[[1] * longest, [], [2]], [[3]]])


@pytest.mark.parametrize("unique", [1, 2, 256, 257, 65_536, 65_537, 70_000])
def test_numbers_of_unique_keys(unique: int) -> None:
    rng = np.random.default_rng(unique)
    names = rng.integers(INT64.min, INT64.max, unique)
    keys = rng.permutation(np.r_[names, names, names])
    segments = Segments.of(np.arange(len(keys) + 1, dtype=np.int32), keys, len(keys))
    coded = keycode.encode(segments)
    np.testing.assert_array_equal(decoded(coded, segments.cells)[1], keys)
    framed = 8 if unique == 1 else 0
    index = math.ceil(3 * unique * (unique - 1).bit_length() / 8)
    assert len(coded.payload) == framed + (8 * unique if unique > 1 else 0) + index


def test_a_key_all_to_all() -> None:
    """Three ranks' batches, one of them empty, one grouped: every field's keys of all ranks, on its rank."""
    rng = np.random.default_rng(3)
    common, fields, world = (1, 4), 6, 3
    rest = tuple(f for f in range(fields) if f not in common)
    owned = [[f for f in range(fields) if f % world == r] for r in range(world)]
    order = [f for own in owned for f in own]
    lists: list[list[Field]] = []  # [rank][field]
    sent: list[Encoded] = []
    cells: list[I64] = []
    for rows, groups in ((5, 2), (0, 0), (4, 4)):
        of = [
            [rng.integers(0, 50, rng.integers(0, 4)).tolist() for _ in range(groups if f in common else rows)]
            for f in range(fields)
        ]
        lists.append(of)
        sides = [(common, groups), (rest, rows)]
        parts = [
            Segments.of(*ragged([of[f] for f in numbers]), n) if n else Segments.empty(len(numbers))
            for numbers, n in sides
        ]
        segments = Segments.concat(parts).take(np.argsort(common + rest)).take(order)
        cells.append(segments.cells)
        sent.append(keycode.encode(segments.plain(np.array([f in owned[len(sent)] for f in order]))))
    for r, own in enumerate(owned):
        first = sum(map(len, owned[:r]))
        at = slice(first, first + len(own))
        headers = np.array([coded.header[at] for coded in sent])
        counts = np.array([n[at] for n in cells])
        messages = [c.payload[c.bounds[at.start] : c.bounds[at.stop]] for c in sent]
        _, sizes = keycode.measure(headers.ravel(), counts.ravel())
        assert sizes.reshape(world, -1).sum(1).tolist() == [len(m) for m in messages]
        start = np.cumsum(sizes.reshape(world, -1), 1) - sizes.reshape(world, -1)
        sender = np.broadcast_to(np.arange(world)[:, None], start.shape)
        offsets, keys = keycode.decode(
            headers.T.ravel(), counts.T.ravel(), messages, sender.T.ravel(), start.T.ravel()
        )
        want = ragged([[cell for of in lists for cell in of[f]] for f in own])
        np.testing.assert_array_equal(offsets, want[0])
        np.testing.assert_array_equal(keys, want[1])


def test_plain_keys_are_those_given() -> None:
    keys = np.array([3, 3, 3, 9])
    segments = Segments.of(np.arange(5, dtype=np.int32), keys, 2)
    coded = keycode.encode(segments.plain(np.array([True, False])))
    assert np.diff(coded.bounds).tolist() == [16, 9]
    np.testing.assert_array_equal(coded.payload[:16].view(np.int64), [3, 3])
    np.testing.assert_array_equal(decoded(coded, segments.cells)[1], keys)


def zipf_fields(rng: np.random.Generator, fields: int, rows: int, mix: int) -> Features:
    keys = (rng.zipf(1.25, fields * rows).astype(np.uint64) * np.uint64(mix)).view(np.int64)
    return Features(rows, np.arange(len(keys) + 1, dtype=np.int32), keys, np.empty((rows, 0), np.float32))


@pytest.mark.parametrize(("mix", "at_most"), [(1, 0.35), (0x9E3779B97F4A7C15, 0.65)])
def test_zipf_keys_take_far_fewer_bytes(mix: int, at_most: float) -> None:
    features = zipf_fields(np.random.default_rng(1), 20, 2048, mix)
    keys: NDArray[np.int64] = features.keys if mix > 1 else features.keys % 1_000_000
    coded = keycode.encode(Segments.of(features.offsets, keys, 2048))
    assert len(coded.payload) <= at_most * keys.nbytes


def test_any_number_of_threads_gives_the_same_bytes() -> None:
    program = (
        "import numpy as np; from livectr.trainer.comm.key_codec import Segments, encode\n"
        "keys = np.random.default_rng(1).zipf(1.2, 26 * 999)\n"
        "coded = encode(Segments.of(np.arange(26 * 999 + 1, dtype=np.int32), keys, 999))\n"
        "print(*(a.tobytes().hex() for a in (coded.header, coded.bounds, coded.payload)))"
    )
    said = [
        run(
            [sys.executable, "-c", program],
            env=os.environ | {"LIVECTR_THREADS": threads},
            check=True,
            capture_output=True,
        ).stdout
        for threads in ("1", "3")
    ]
    assert len(said[0]) > 26 * 999 and said[0] == said[1]


def test_a_message_that_is_not_what_its_header_says() -> None:
    fields = [[[1 << 50], [-5, 7]] * 20]  # ragged, and unique keys with numbers of 2 bits: the fourth is none
    segments = segments_of(fields)
    coded = check(fields)
    zero = np.zeros(1, np.int64)
    broken = coded.payload.copy()
    broken[-1] = 0xFF
    with pytest.raises(InternalError, match="not what their header says"):
        keycode.decode(coded.header, segments.cells, [broken], zero, zero)
    broken = coded.payload.copy()
    broken[0] ^= 1
    with pytest.raises(InternalError, match="not what their header says"):
        keycode.decode(coded.header, segments.cells, [broken], zero, zero)
    with pytest.raises(ValueError, match="does not lie in its message"):
        keycode.decode(coded.header, segments.cells, [coded.payload[:-1]], zero, zero)
    with pytest.raises(ValueError, match="does not lie in its message"):
        keycode.decode(coded.header, segments.cells, [coded.payload], zero, zero - 1)
    with pytest.raises(ValueError, match="none of 1"):
        keycode.decode(coded.header, segments.cells, [coded.payload], zero + 1, zero)


def test_offsets_that_do_not_fit_the_keys() -> None:
    with pytest.raises(ValueError, match="rise within the 2 keys"):
        Segments.of(np.array([0, 3], np.int32), np.arange(2), 1)
    with pytest.raises(ValueError, match="rise within the 2 keys"):
        Segments.of(np.array([0, 2, 1, 2], np.int32), np.arange(2), 1)
    with pytest.raises(ValueError, match="never fall"):
        keycode.encode(Segments.of(np.array([0, 2, 1, 2], np.int32), np.arange(2), 3))
    with pytest.raises(ValueError, match="no fields of 2"):
        Segments.of(np.array([0, 1, 1, 2], np.int32), np.arange(2), 2)


def test_segments_of_different_numbers_of_cells() -> None:
    keys = np.arange(7)
    segments = Segments.ragged(np.array([0, 2, 2, 3, 7], np.int32), keys, np.array([2, 0, 2]))
    coded = keycode.encode(segments)
    offsets, found = decoded(coded, segments.cells)
    assert (offsets.tolist(), found.tolist()) == ([0, 2, 2, 3, 7], keys.tolist())
    assert keycode.measure(coded.header, segments.cells)[0].tolist() == [2, 0, 5]
    for ends, cells in ([0, 2, 8], [1, 1]), ([0, 2, 1], [1, 1]), ([0, 2, 3], [1, 2]):
        with pytest.raises(ValueError, match="do not fit"):
            Segments.ragged(np.array(ends, np.int32), keys, np.array(cells))
