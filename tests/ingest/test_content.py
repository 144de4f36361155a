"""Content store: rows by id in files, the newest row first, with several writers and readers."""

import gc
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from livectr.ingest.content import files as content_files
from livectr.ingest.content.files import list_chunks
from livectr.ingest.content.store import ContentStore, digest_of, shard_of
from livectr.system.errors import ConfigError
from tests.tiers import examples

WIDTH = 6


def rows_of(ids: np.ndarray, salt: int = 0) -> np.ndarray:
    """Features that encode their id and writer."""
    out = np.empty((len(ids), WIDTH), np.float16)
    out[:] = (np.asarray(ids, np.int64).view(np.uint64) % 1009)[:, None].astype(np.float16)
    out[:, 0] = salt
    return out


def store_at(path: Path, **more: int) -> ContentStore:
    return ContentStore.create(path, width=WIDTH, encoder="small", **more)


def whole(store: ContentStore) -> dict[int, list[float]]:
    """Rows of `chunks`, which must have each id once."""
    found: dict[int, list[float]] = {}
    for ids, features in store.chunks(rows=5):
        assert len(ids) == len(features) <= 5
        for one, row in zip(ids.tolist(), features.tolist(), strict=True):
            assert one not in found
            found[one] = row
    return found


def test_rows_come_back_by_id(tmp_path: Path) -> None:
    store = store_at(tmp_path / "s")
    ids = np.array([5, -3, 2**62, 0, 77])
    assert store.append(ids, rows_of(ids), np.arange(5, dtype=np.uint64)) == 5
    for one in (store, ContentStore.open(tmp_path / "s")):
        got, known = one.read(np.array([77, 9, 5, 77, 0]))
        assert got.dtype == np.float16 and got.shape == (5, WIDTH)
        assert known.tolist() == [True, False, True, True, True]
        np.testing.assert_array_equal(got[known], rows_of(np.array([77, 5, 77, 0])))
        assert not got[1].any()
        out = np.ones((3, WIDTH), np.float16)
        assert one.read(np.array([9, 5, 0]), out)[0] is out
        np.testing.assert_array_equal(out, [np.zeros(WIDTH), *rows_of(np.array([5, 0]))])
        marks, known = one.digests(np.array([0, 9, 5]))
        assert marks.tolist() == [3, 0, 0] and known.tolist() == [True, False, True]
        assert sorted(one.ids.tolist()) == sorted(ids.tolist()) and len(one) == 5
        assert one.width == WIDTH and one.encoder == "small" and one.shards == 16


def test_an_empty_store(tmp_path: Path) -> None:
    store = store_at(tmp_path / "s")
    for one in (store, ContentStore.open(tmp_path / "s")):
        assert len(one) == 0 and one.ids.shape == (0,) and list(one.chunks()) == [] and not one.refresh()
        got, known = one.read(np.array([1, 2]))
        assert got.shape == (2, WIDTH) and not known.any()
        got, known = one.read(np.array([], np.int64))
        assert got.shape == (0, WIDTH) and known.shape == (0,)
    assert store.append(np.array([], np.int64), np.empty((0, WIDTH), np.float32)) == 0
    assert len(store) == 0 and store.bytes_on_disk == 0


def test_the_newest_row_of_an_id_counts(tmp_path: Path) -> None:
    store = store_at(tmp_path / "s", shards=2)
    ids = np.arange(10)
    store.append(ids, rows_of(ids, 1))
    assert store.append(np.array([3, 4, 3]), rows_of(np.array([3, 4, 3]), 2) + np.array([[0], [0], [5]])) == 2
    for one in (store, ContentStore.open(tmp_path / "s")):
        got, _ = one.read(ids)
        assert got[:, 0].tolist() == [1, 1, 1, 7, 2, 1, 1, 1, 1, 1]
        assert len(one) == 10
        assert {n: row[0] for n, row in whole(one).items()} == dict(enumerate(got[:, 0].tolist()))


@examples(15)
@given(st.lists(st.lists(st.integers(-4, 12), max_size=9), max_size=14), st.integers(1, 3))
def test_like_a_dictionary(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[int]], n: int
) -> None:
    """Appends of any size, with merges between them, equal a dictionary."""
    path = tmp_path_factory.mktemp("store")
    store, reader = store_at(path, shards=n), ContentStore.open(path)
    truth: dict[int, tuple[list[float], int]] = {}
    for number, batch in enumerate(batches):
        ids = np.array(batch, np.int64)
        features, marks = rows_of(ids, number), np.arange(len(ids), dtype=np.uint64) + 100 * number
        store.append(ids, features, marks)
        truth.update(zip(batch, zip(features.tolist(), marks.tolist(), strict=True), strict=True))
        if number % 3 == 0:
            reader.refresh()
    reader.refresh()
    for one in (store, reader, ContentStore.open(path)):
        assert whole(one) == {key: row for key, (row, _) in truth.items()}
        ids = np.array([*truth, 1000], np.int64)
        got, known = one.read(ids)
        assert got[:-1].tolist() == [row for row, _ in truth.values()] and known.sum() == len(truth)
        assert one.digests(ids)[0][:-1].tolist() == [mark for _, mark in truth.values()]


def test_small_chunks_are_merged(tmp_path: Path) -> None:
    store = store_at(tmp_path / "s", shards=1)
    for number in range(40):
        store.append(np.array([number, -1]), rows_of(np.array([number, -1]), number))
    assert len(list_chunks(store.root, 0)) <= 9
    assert len(list((tmp_path / "s" / "shard-000").glob("*.npy"))) == 3 * len(list_chunks(store.root, 0))
    got, known = ContentStore.open(tmp_path / "s").read(np.arange(-1, 40))
    assert known.all() and got[:, 0].tolist() == [39, *range(40)]


def test_no_chunk_is_merged_beyond_its_greatest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content_files, "MERGED_BYTES", 8 * 2 * WIDTH)
    store = store_at(tmp_path / "s", shards=1)
    for number in range(40):
        store.append(np.array([number]), rows_of(np.array([number])))
    sizes = [len(content_files.open_chunk(store.root, n, WIDTH).ids) for n in list_chunks(store.root, 0)]
    assert 4 <= max(sizes) <= 8 and sum(sizes) == 40


def test_what_an_interrupted_merge_left_is_not_seen_and_goes(tmp_path: Path) -> None:
    store = store_at(tmp_path / "s", shards=1)
    folder = tmp_path / "s" / "shard-000"
    for number in range(3):
        store.append(np.array([1]), rows_of(np.array([1]), number))
    before = {path.name: path.read_bytes() for path in folder.glob("*.npy")}
    store.append(np.array([1]), rows_of(np.array([1]), 3))  # merges 1 to 4
    for name, value in before.items():
        (folder / name).write_bytes(value)  # as if they had not been removed
    (folder / ".000005.features.npy.1").write_bytes(b"half")
    again = ContentStore.open(tmp_path / "s")
    assert whole(again) == {1: rows_of(np.array([1]), 3)[0].tolist()}
    again.append(np.array([2]), rows_of(np.array([2])))
    names = sorted(path.name for path in folder.iterdir())
    assert [name for name in names if name.endswith("ids.npy")] == ["000001-000004.ids.npy", "000005.ids.npy"]
    assert not [name for name in names if name.startswith(".")]


def test_a_chunk_without_ids_is_not_there(tmp_path: Path) -> None:
    """A process that dies while it writes leaves no ids: its number is used again."""
    store = store_at(tmp_path / "s", shards=1)
    store.append(np.array([1]), rows_of(np.array([1])))
    folder = tmp_path / "s" / "shard-000"
    (folder / "000002.features.npy").write_bytes(b"torn")
    again = ContentStore.open(tmp_path / "s")
    assert len(again) == 1
    again.append(np.array([2]), rows_of(np.array([2]), 9))
    assert ContentStore.open(tmp_path / "s").read(np.array([2]))[0][0, 0] == 9


@pytest.mark.parametrize("kind", ["features", "digests", "ids"])
@pytest.mark.parametrize("harm", ["cut", "missing", "other"])
def test_torn_files_are_named(tmp_path: Path, kind: str, harm: str) -> None:
    store = store_at(tmp_path / "s", shards=1)
    ids = np.arange(100)
    store.append(ids, rows_of(ids))
    path = tmp_path / "s" / "shard-000" / f"000001.{kind}.npy"
    if harm == "cut":
        path.write_bytes(path.read_bytes()[:-10])
    elif harm == "other":
        np.save(path, np.zeros((3, 2), np.int32))
    else:
        path.unlink()
    if (kind, harm) == ("ids", "missing"):
        assert len(ContentStore.open(tmp_path / "s")) == 0
        return
    with pytest.raises(ConfigError, match=rf"000001\.{kind}\.npy .*; delete .*000001\.\* and run"):
        ContentStore.open(tmp_path / "s")


def test_rows_of_another_width_are_refused(tmp_path: Path) -> None:
    store = store_at(tmp_path / "s")
    with pytest.raises(ConfigError, match=r"holds 6 numbers a row .*rows of 7 were given; use"):
        store.append(np.array([1]), np.zeros((1, 7), np.float32))
    with pytest.raises(ConfigError, match="one number were given"):
        store.append(np.array([1]), np.zeros(1, np.float32))
    with pytest.raises(ValueError, match="2 ids, 1 rows"):
        store.append(np.array([1, 2]), np.zeros((1, WIDTH), np.float32))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (70_000.0, "id 8 reach 70000, more than float16's 65504"),
        (np.nan, "id 8 are not"),
        (-np.inf, "id 8 are"),
    ],
)
def test_numbers_that_float16_cannot_hold_are_refused(tmp_path: Path, value: float, said: str) -> None:
    store = store_at(tmp_path / "s")
    features = np.zeros((2, WIDTH), np.float32)
    features[1, 3] = value
    with pytest.raises(ConfigError, match=said):
        store.append(np.array([7, 8]), features)
    assert len(store) == 0 and not list((tmp_path / "s").glob("*/*.npy"))
    features[1, 3] = 65_504
    store.append(np.array([7, 8]), features)
    assert store.read(np.array([8]))[0][0, 3] == 65_504


def test_shards(tmp_path: Path) -> None:
    store = store_at(tmp_path / "s", shards=4)
    ids = np.arange(-500, 500)
    store.append(ids, rows_of(ids))
    shard = store.shard_of(ids)
    assert set(shard.tolist()) == {0, 1, 2, 3} and np.bincount(shard).min() > 180
    ranks = [ContentStore.open(tmp_path / "s", range(rank, 4, 2)) for rank in range(2)]
    for rank, part in enumerate(ranks):
        mine = ids[shard % 2 == rank]
        assert sorted(part.ids.tolist()) == mine.tolist()
        assert part.read(mine)[1].all()
        with pytest.raises(ValueError, match="not owned"):
            part.read(ids)
        with pytest.raises(ValueError, match="not owned"):
            part.append(ids, rows_of(ids))
        part.append(mine[:3], rows_of(mine[:3], 5))
    assert store.refresh() and not store.refresh()
    assert (store.read(ids)[0][:, 0] == 5).sum() == 6
    with pytest.raises(ConfigError, match="has the shards 0 to 3, not 4"):
        ContentStore.open(tmp_path / "s", [4])


def test_the_shard_of_an_id_never_changes() -> None:
    ids = np.array([0, 1, 2, 1_000_001, -1, 2**63 - 1])
    assert shard_of(ids, 16).tolist() == [0, 12, 7, 1, 1, 10]


def test_create_open_and_ensure(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no store\.json, so it is no content store"):
        ContentStore.open(tmp_path / "s")
    made = ContentStore.ensure(tmp_path / "a" / "s", width=WIDTH, encoder="small", shards=3)
    made.append(np.array([1]), rows_of(np.array([1])))
    assert len(ContentStore.ensure(tmp_path / "a" / "s", width=WIDTH, encoder="small")) == 1
    assert json.loads((tmp_path / "a" / "s" / "store.json").read_text()) == {
        "width": WIDTH, "encoder": "small", "shards": 3,
    }  # fmt: skip
    for width, encoder in ((WIDTH, "vgg16"), (8, "small")):
        with pytest.raises(ConfigError, match=f"6 numbers a row of encoder 'small', not {width} of"):
            ContentStore.ensure(tmp_path / "a" / "s", width=width, encoder=encoder)
    with pytest.raises(ConfigError, match="holds a content store; open it"):
        ContentStore.create(tmp_path / "a" / "s", width=WIDTH, encoder="small")
    with pytest.raises(ConfigError, match="must be at least 1"):
        ContentStore.create(tmp_path / "b", width=0, encoder="small")
    (tmp_path / "a" / "s" / "store.json").write_text('{"width": "wide"}')
    with pytest.raises(ConfigError, match="must name width, encoder and shards"):
        ContentStore.open(tmp_path / "a" / "s")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        ContentStore.ensure(tmp_path / "file" / "s", width=1, encoder="small")


def test_features_are_mapped_not_read(tmp_path: Path) -> None:
    store = store_at(tmp_path / "s", shards=1)
    store.append(np.arange(10), rows_of(np.arange(10)))
    ((_, features),) = ContentStore.open(tmp_path / "s").chunks()
    base: object = features
    while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap) and not features.flags.writeable


APPEND = """
import sys, numpy as np
from livectr.ingest.content.store import ContentStore
store = ContentStore.open(sys.argv[1])
for number in range(int(sys.argv[2]), int(sys.argv[3])):
    ids = np.arange(number, number + 5)
    store.append(ids, np.full((5, 6), number, np.float16))
"""


def test_a_process_reads_while_others_append(tmp_path: Path) -> None:
    reader = store_at(tmp_path / "s", shards=2)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    writers = [
        subprocess.Popen([sys.executable, "-c", APPEND, str(tmp_path / "s"), str(a), str(b)], env=environment)
        for a, b in ((0, 20), (1000, 1020))
    ]
    seen = 0
    try:
        while any(writer.poll() is None for writer in writers):
            reader.refresh()
            ids = reader.ids
            assert len(ids) >= seen and reader.read(ids)[1].all()
            assert len(whole(reader)) == len(ids)
            seen = len(ids)
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
    assert [writer.returncode for writer in writers] == [0, 0]
    reader.refresh()
    for start in (0, 1000):
        got, known = reader.read(np.arange(start, start + 24))
        assert known.all()
        assert got[:, 3].tolist() == [start + min(n, 19) for n in range(24)]


def test_a_sweep_gives_every_id_while_chunks_are_merged(tmp_path: Path) -> None:
    store = store_at(tmp_path / "s", shards=1)
    for number in range(7):
        store.append(np.array([number]), rows_of(np.array([number])))
    found = []
    for ids, _ in store.chunks():
        found += ids.tolist()
        store.append(np.array([100 + len(found)]), rows_of(np.array([1])))
    assert sorted(found) == list(range(7))


def test_threads_append_to_one_store(tmp_path: Path) -> None:
    store = store_at(tmp_path / "s", shards=2)

    def work(start: int) -> None:
        for number in range(start, start + 10):
            store.append(np.array([number]), rows_of(np.array([number])))

    threads = [threading.Thread(target=work, args=(start,)) for start in (0, 10, 20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (
        sorted(ContentStore.open(tmp_path / "s").ids.tolist()) == sorted(store.ids.tolist()) == [*range(30)]
    )


def test_threads_open_chunks_while_one_is_interrupted(tmp_path: Path) -> None:
    """CPython 3.11's parser of literals, which reads the header of a .npy file, is not safe in threads."""
    store = ContentStore.create(tmp_path, width=4, encoder="test", shards=1)
    store.append(np.arange(8), np.ones((8, 4)))  # type: ignore[arg-type]
    (name,) = list_chunks(tmp_path, 0)
    errors: list[BaseException] = []
    done = threading.Event()

    def interrupt(phase: str, info: dict[str, int]) -> None:
        if sys._getframe().f_back.f_code.co_name == "parse":  # type: ignore[union-attr]
            done.wait(0.002)

    def open_chunk(depth: int) -> None:
        if depth:
            open_chunk(depth - 1)
        else:
            content_files.open_chunk(tmp_path, name, 4)

    def open_often(depth: int) -> None:
        """The thread without depth opens it twenty times, the others until then."""
        left = 20
        try:
            while left and not done.is_set():
                open_chunk(depth)
                left -= not depth
        except BaseException as error:
            errors.append(error)
        if not left or errors:
            done.set()

    threads = [threading.Thread(target=open_often, args=(9 * i,)) for i in range(3)]
    threshold = gc.get_threshold()
    gc.callbacks.append(interrupt)
    gc.set_threshold(1)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(interrupt)
    assert not errors


def test_digests_tell_bytes_apart() -> None:
    assert digest_of(b"a") == digest_of(b"a") != digest_of(b"b")
    assert 0 <= digest_of(b"") < 2**64
