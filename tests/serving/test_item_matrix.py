"""Item matrix of a version: read from Redis in pieces, sorted by id; its index is shared by versions."""

from __future__ import annotations

import numpy as np
import pytest
import redis

from livectr.kernels.network.retrieval import Query, best_of_keys, best_rows
from livectr.serving.version import reader as reader_module
from livectr.serving.version.id_vectors import IdVectors
from livectr.serving.version.reader import Reader
from livectr.store.vectors import decode_vectors, encode_vectors


@pytest.mark.parametrize("size", [1, (1 << 20) - 1, 1 << 20, (5 << 19) + 7])
def test_large_blobs_are_read_in_pieces(redis_url: str, client: redis.Redis, size: int) -> None:
    value = np.random.default_rng(size).bytes(size)
    client.set("blob", value)
    reader = Reader(redis_url, "livectr", "fingerprint")
    found, gone = reader.large_blobs(["blob", "gone"])
    assert found is not None and bytes(found) == value and gone is None
    reader.close()


def test_a_blob_that_goes_while_it_is_read_is_gone(
    redis_url: str, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.set("blob", bytes(100))
    monkeypatch.setattr(reader_module, "_PIECE_BYTES", 10)
    reader = Reader(redis_url, "livectr", "fingerprint")
    read = reader._patient.getrange

    def getrange(name: str, start: int, end: int) -> object:
        if start == 50:
            client.delete("blob")
        return read(name, start, end)

    monkeypatch.setattr(reader._patient, "getrange", getrange)
    assert reader.large_blobs(["blob"]) == [None]
    reader.close()


@pytest.mark.parametrize("rows", [0, 1, 2, 1000])
def test_rows_are_sorted_by_id_and_begin_at_a_line_of_the_cache(rows: int) -> None:
    rng = np.random.default_rng(rows)
    ids = rng.permutation(10 * rows)[:rows].astype(np.int64)
    blob = encode_vectors(ids, rng.normal(size=(rows, 16)).astype(np.float32))
    given = decode_vectors(blob)
    items = IdVectors(*given)
    order = np.argsort(ids)
    assert items.ids.tolist() == ids[order].tolist()
    np.testing.assert_array_equal(items.vectors, given[1][order])
    assert not rows or items.vectors.ctypes.data % 64 == 0
    again = IdVectors(ids[order], given[1][order], items)
    np.testing.assert_array_equal(again.vectors, items.vectors)
    assert again._rows is items._rows
    for kept in (items.ids, items.vectors):  # a view would keep the blob in memory
        assert not np.shares_memory(kept, np.frombuffer(blob, np.uint8))


def test_ids_in_order_do_not_keep_the_blob() -> None:
    blob = encode_vectors(np.arange(5), np.ones((5, 2), np.float32))
    items = IdVectors(*decode_vectors(blob))
    assert not np.shares_memory(items.ids, np.frombuffer(blob, np.uint8))


def test_best_is_best_of_all_ids() -> None:
    rng = np.random.default_rng(0)
    ids = rng.permutation(5000)[:2000].astype(np.int64)
    items = IdVectors(ids, np.round(rng.normal(size=(2000, 8)), 1).astype(np.float32))
    query = Query(np.round(rng.normal(size=8), 1).astype(np.float32), 0.5, 300)
    best = best_rows(items.vectors, query, np.empty(0, np.uint32))
    _, unknown, of_ids = best_of_keys(items.matrix.numbers, items.ids, items.vectors, query)
    assert not unknown.any() and of_ids is not None
    assert best.positions.tolist() == of_ids.positions.tolist()
    np.testing.assert_array_equal(best.scores, of_ids.scores)
