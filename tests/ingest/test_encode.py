"""Encoding of pictures into a store: encoded, skipped and bad pictures, and the time of writing."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from livectr.ingest.content import encode
from livectr.ingest.content.encode import F32, U8, Outcome, PictureWriter
from livectr.ingest.content.store import ContentStore


def plain(red: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (5, 4), (red, 0, 9)).save(out, "PNG")
    return out.getvalue()


class Mean:
    """Encoder that records the sizes of its batches."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    def __call__(self, pixels: U8) -> F32:
        assert pixels.dtype == np.uint8 and pixels.shape[1:] == (3, 4, 4)
        self.batches.append(len(pixels))
        return pixels.mean((2, 3), dtype=np.float32)


@pytest.fixture
def store(tmp_path: Path) -> ContentStore:
    return ContentStore.create(tmp_path / "s", width=3, encoder="mean", shards=2)


def reds(store: ContentStore, *ids: int) -> list[float]:
    return list(store.read(np.array(ids))[0][:, 0].tolist())


def test_pictures_are_encoded_in_batches_and_once(store: ContentStore) -> None:
    mean = Mean()
    writer = PictureWriter(store, mean, size=4, batch=3, threads=2)
    ids = np.arange(8)
    assert writer.write(ids, [plain(10 + n) for n in range(8)]) == Outcome(8, 0, ())
    assert mean.batches == [3, 3, 2] and len(store) == 0  # they wait for more
    again = writer.write(np.array([2, 8, 3]), [plain(12), plain(18), plain(99)])
    assert again == Outcome(2, 1, ())  # 2 waits with these bytes; 3 waits with others
    writer.flush()
    assert reds(store, *range(9)) == [10, 11, 12, 99, 14, 15, 16, 17, 18]
    assert writer.write(ids, [plain(10 + n) for n in range(8)]) == Outcome(1, 7, ())  # 3 has changed back
    writer.close()
    assert reds(ContentStore.open(store.root), 3) == [13]


def test_of_an_id_that_is_there_twice_the_last_counts(store: ContentStore) -> None:
    mean = Mean()
    writer = PictureWriter(store, mean, size=4)
    assert writer.write(np.array([5, 6, 5]), [plain(1), plain(2), plain(3)]) == Outcome(2, 1, ())
    writer.close()
    assert reds(store, 5, 6) == [3, 2]


def test_bad_pictures_are_told_with_their_place_and_keep_what_was_there(store: ContentStore) -> None:
    writer = PictureWriter(store, Mean(), size=4, batch=2)
    writer.write(np.array([1]), [plain(7)])
    values = [b"", plain(2)[:40], plain(3), b"hello"]
    outcome = writer.write(np.array([1, 2, 3, 4]), values)
    assert (outcome.encoded, outcome.skipped) == (1, 0)
    assert [place for place, _ in outcome.bad] == [0, 1, 3]
    assert outcome.bad[0][1] == "no bytes" and "none of JPEG" in outcome.bad[2][1]
    writer.close()
    assert reds(store, 1, 3) == [7, 3] and len(store) == 2


def test_many_rows_are_written_before_the_end(store: ContentStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode, "WAITING_ROWS", 4)
    writer = PictureWriter(store, Mean(), size=4, batch=2)
    writer.write(np.arange(7), [plain(n) for n in range(7)])
    assert len(store) == 4
    writer.close()
    assert len(store) == 7


def test_what_was_encoded_is_kept_when_the_encoder_fails(store: ContentStore) -> None:
    def failing(pixels: U8) -> F32:
        if pixels[:, 0].max() == 200:
            raise RuntimeError("no more memory")
        return pixels.mean((2, 3), dtype=np.float32)

    writer = PictureWriter(store, failing, size=4, batch=2)
    with pytest.raises(RuntimeError):
        writer.write(np.arange(4), [plain(n) for n in (1, 2, 200, 4)])
    writer.close()
    assert reds(store, 0, 1) == [1, 2] and len(store) == 2
