"""Layout in Redis: codecs are inverse to each other, and a reader of version v sees version v."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from redis.crc import key_slot
from safetensors.numpy import save as save_tensors

from livectr.store.keyspace import slot_of
from livectr.store.layout import (
    BUCKETS,
    Keyspace,
    RowStatus,
    buckets_of,
    by_bucket,
    decode_changed,
    decode_erased,
    decode_history,
    decode_lookup_rows,
    decode_rows,
    encode_changed,
    encode_history,
    encode_lookup_row,
    encode_slots,
    erased_slot,
    key_of,
)
from livectr.store.manifest import VersionManifest
from livectr.store.vectors import decode_vectors, encode_vectors
from tests.tiers import examples

keys_i64 = arrays(np.int64, st.integers(0, 50), elements=st.integers(-(2**63), 2**63 - 1))


@given(keys_i64)
def test_keys_carry_their_bucket_and_their_number(keys: np.ndarray) -> None:
    names = Keyspace("shop").rows("7", "ad", keys)
    assert names == [name for key in keys for name in Keyspace("shop").rows("7", "ad", np.array([key]))]
    for key, bucket, name in zip(keys.tolist(), buckets_of(keys).tolist(), names, strict=True):
        assert name == f"shop:{{{bucket:02x}}}:7:ad:".encode() + key.to_bytes(8, "little", signed=True)
        assert key_of(name) == key


@given(keys_i64)
def test_buckets_partition_the_keys(keys: np.ndarray) -> None:
    parts = by_bucket(keys)
    together = np.concatenate([at for _, at in parts]) if parts else np.empty(0, np.int64)
    assert sorted(together.tolist()) == list(range(len(keys)))
    for bucket, at in parts:
        assert (buckets_of(keys[at]) == bucket).all()


def test_running_ids_spread_over_all_buckets() -> None:
    counts = np.bincount(buckets_of(np.arange(160_000)), minlength=BUCKETS)
    assert counts.min() > 9_500 and counts.max() < 10_500


@examples(50)
@given(
    st.lists(st.dictionaries(st.integers(1, 9), st.booleans(), max_size=6), max_size=20),
    st.integers(0, 10),
    st.integers(1, 5),
    st.integers(0, 10),
)
def test_a_reader_sees_its_own_version(
    writes: list[dict[int, bool]], reader: int, dim: int, floor: int
) -> None:
    """Rows are written or erased at some versions; the two newest slots are kept, as by the scripts."""
    values: list[bytes | None] = []
    want: list[tuple[RowStatus, float]] = []
    for versions in writes:
        written = sorted(versions)
        slots = [
            encode_slots(v, np.full((1, dim), v, np.float32))[0] if versions[v] else erased_slot(v, dim)
            for v in written
        ]
        values.append(b"".join(reversed(slots[-2:])) or None)
        visible = [v for v in written[-2:] if v <= reader]
        if visible and versions[visible[-1]]:
            want.append((RowStatus.FOUND, float(visible[-1])))
        elif visible:
            want.append((RowStatus.MISSING, 0.0))
        else:
            unknown = len(written) > 1 or reader < floor
            want.append((RowStatus.OVERWRITTEN if unknown else RowStatus.MISSING, 0.0))
    rows, status = decode_rows(values, reader, dim, floor)
    assert rows.shape == (len(writes), dim)
    for i, (wanted, value) in enumerate(want):
        assert status[i] == wanted
        assert (rows[i] == value).all()
        alone, of_alone = decode_rows([values[i]], reader, dim, floor)
        assert of_alone.tolist() == [wanted] and (alone == rows[i]).all()


def test_a_value_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="13 bytes"):
        decode_rows([b"x" * 13], 1, 4)


@given(
    st.lists(
        st.one_of(st.none(), st.integers(), st.text(), st.binary(), st.booleans(), st.lists(st.integers()))
    )
)
def test_lookup_rows_round_trip(columns: list[object]) -> None:
    assert decode_lookup_rows([encode_lookup_row(columns), encode_lookup_row([1])]) == [columns, [1]]


@given(arrays(np.int64, st.tuples(st.integers(0, 20), st.just(2))))
def test_histories_round_trip(pairs: np.ndarray) -> None:
    items, times = decode_history(encode_history(pairs[:, 0], pairs[:, 1]))
    assert (items == pairs[:, 0]).all() and (times == pairs[:, 1]).all()


def test_blobs_round_trip() -> None:
    changed = {"ad": np.arange(3), "user": np.empty(0, np.int64)}
    back = decode_changed(encode_changed(changed))
    assert back.keys() == changed.keys() and all((back[t] == changed[t]).all() for t in changed)
    both = encode_changed(changed, {"ad": np.arange(3, 5)})
    assert decode_changed(both)["ad"].tolist() == [3, 4, 0, 1, 2]
    assert {table: keys.tolist() for table, keys in decode_erased(both).items()} == {"ad": [3, 4]}
    blob = encode_vectors(np.arange(2), np.arange(6, dtype=np.float32).reshape(2, 3))
    for value in (blob, memoryview(blob)):
        ids, vectors = decode_vectors(value)
        assert ids.tolist() == [0, 1] and vectors.tolist() == [[0, 1, 2], [3, 4, 5]]
        assert np.shares_memory(vectors, np.frombuffer(blob, np.uint8))  # a copy would stop requests


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"x" * 40,
        encode_vectors(np.arange(2), np.ones((2, 3), np.float32))[:-4],
        encode_changed({"ad": np.arange(4)}),
        save_tensors({"ids": np.arange(2), "vectors": np.ones((2, 3))}),
    ],
)
def test_a_blob_without_vectors_is_refused(value: bytes) -> None:
    with pytest.raises(ValueError, match="holds no vectors"):
        decode_vectors(value)


def test_buckets_are_spread_over_the_slots_of_a_cluster() -> None:
    """Whatever the number of nodes: each holds equally many buckets, up to one."""
    space = Keyspace("shop", clustered=True)
    slots = [slot_of(space.bucket_epoch(bucket).encode()) for bucket in range(BUCKETS)]
    assert slots == [key_slot(space.bucket_epoch(bucket).encode()) for bucket in range(BUCKETS)]
    for nodes in range(1, 17):
        held = np.bincount([slot * nodes // 16384 for slot in slots], minlength=nodes)
        assert held.max() - held.min() <= 1, (nodes, held)


@given(keys_i64)
def test_keys_of_a_cluster_have_the_slot_and_the_bucket_of_their_tag(keys: np.ndarray) -> None:
    space = Keyspace("shop", clustered=True)
    for key, bucket, name in zip(
        keys.tolist(), buckets_of(keys).tolist(), space.rows("7", "ad", keys), strict=True
    ):
        assert space.bucket_of(name) == bucket and key_of(name) == key
        assert slot_of(name) == slot_of(space.bucket_epoch(bucket).encode())


def test_sentinels_of_a_cluster_show_a_version_or_a_later_one() -> None:
    def at(version: int, created_ms: int = 5) -> VersionManifest:
        return VersionManifest(version, 1, "1-0", 1, "f:g", 1, created_ms, 1, (), {}, sentinel="word")

    space, alone = Keyspace("shop", clustered=True), Keyspace("shop")
    for text in ("word", "f:g"):
        value = space.sentinel_value(text, at(7)).encode()
        assert space.shows_all(value, text, at(7)) and space.shows_all(value, text, at(6))
        assert space.shows_all(value, text, None)
        assert not space.shows_all(value, text, at(8)) and not space.shows_all(value, text, at(7, 6))
        assert not space.shows_all(value, "other", at(7)) and not space.shows_all(None, text, at(7))
        assert alone.shows_all(text.encode(), text, at(7)) and not alone.shows_all(value, text, at(7))
    assert not space.shows_all(b"", "", None) and not alone.shows_all(b"", "", at(7))
