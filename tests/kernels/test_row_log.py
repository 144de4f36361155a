"""Log of rows against a dictionary: the same rows in a bounded file, through erasures and compaction."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from livectr.kernels.tiers.row_log import RowLog

WIDTH = 20
SEGMENT_BYTES = 1 << 16
Open = Callable[[], RowLog]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    files: list[int] = []

    def open_log() -> RowLog:
        files.append(os.open(tmp_path / f"rows-{len(files)}", os.O_RDWR | os.O_CREAT))
        return RowLog(files[-1], WIDTH, SEGMENT_BYTES)

    yield open_log
    for file in files:
        os.close(file)


def put(
    log: RowLog, known: dict[tuple[int, int], bytes], names: np.ndarray, rng: np.random.Generator
) -> None:
    """names: int64[n, 2], table and key."""
    rows = rng.integers(0, 256, (len(names), WIDTH), np.uint8)
    log.put(names[:, 0].astype(np.uint32), names[:, 1].copy(), rows)
    known.update(zip(map(tuple, names.tolist()), map(bytes, rows), strict=True))


def check(log: RowLog, known: dict[tuple[int, int], bytes], names: np.ndarray) -> None:
    found, rows = log.get(names[:, 0].astype(np.uint32), names[:, 1].copy())
    wanted = [known.get((table, key)) for table, key in names.tolist()]
    assert found.tolist() == [row is not None for row in wanted]
    assert rows.tobytes() == b"".join(row for row in wanted if row is not None)
    assert len(log) == len(known)


def test_any_order_of_calls_gives_the_rows_of_a_dictionary(opened: Open) -> None:
    log, known, rng = opened(), dict[tuple[int, int], bytes](), np.random.default_rng(0)
    keys = np.r_[rng.integers(-(2**63), 2**63 - 1, 20_000), 0, -1, 2**63 - 1, -(2**63)]
    names = np.stack([rng.integers(0, 3, len(keys)), keys], 1)
    for step in range(60):
        put(log, known, names[rng.integers(0, len(names), 3_000)], rng)
        assert log.file_bytes <= 1.5 * len(known) * (WIDTH + 12) + 5 * SEGMENT_BYTES
        some = names[rng.integers(0, len(names), 500)]
        check(log, known, some)
        if step % 4 == 3:
            gone = names[rng.integers(0, len(names), 2_000)]
            log.erase(gone[:, 0].astype(np.uint32), gone[:, 1].copy())
            for name in map(tuple, gone.tolist()):
                known.pop(name, None)
        if step == 30:
            log.clear(1)
            known = {name: row for name, row in known.items() if name[0] != 1}
    check(log, known, names)
    for table in range(4):
        parts = list(log.scan(table, 1_000))
        assert all(len(part) == 1_000 for part, _ in parts[:-1])
        scanned = {
            (table, key): bytes(row)
            for part, rows in parts
            for key, row in zip(part.tolist(), rows, strict=True)
        }
        assert scanned == {name: row for name, row in known.items() if name[0] == table}


def test_the_index_takes_few_bytes_a_row(opened: Open) -> None:
    log, rng = opened(), np.random.default_rng(1)
    keys = rng.permutation(400_000).astype(np.int64)
    log.put(np.zeros(len(keys), np.uint32), keys, np.zeros((len(keys), WIDTH), np.uint8))
    assert log.memory_bytes <= 19.5 * len(keys) + 2 * SEGMENT_BYTES


def test_equal_keys_of_a_call_keep_the_last_row(opened: Open) -> None:
    log, rng = opened(), np.random.default_rng(2)
    known = dict[tuple[int, int], bytes]()
    names = np.zeros((10_000, 2), np.int64)
    put(log, known, names, rng)
    check(log, known, names[:1])
    assert log.file_bytes <= 6 * SEGMENT_BYTES


def test_a_disk_that_is_full_is_an_error(tmp_path: Path) -> None:
    file = os.open(tmp_path / "rows", os.O_RDWR | os.O_CREAT)
    log = RowLog(file, WIDTH, SEGMENT_BYTES)
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, file)
    keys = np.arange(10_000)
    with pytest.raises(OSError, match="No space left on device"):
        log.put(np.zeros(len(keys), np.uint32), keys, np.zeros((len(keys), WIDTH), np.uint8))
    for each in (full, file):
        os.close(each)
    with pytest.raises(OSError, match="Bad file descriptor"):
        RowLog(file, WIDTH)
