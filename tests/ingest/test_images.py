"""Pictures in the logs: those that decode are kept, the others become letters."""

import base64
import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from livectr.ingest.dead_letters.letters import DeadLetters
from livectr.ingest.decode.decoder import Decoder
from livectr.ingest.decode.images import FORMATS, MAX_PIXELS, BadPictureError, complaint, decode
from livectr.ingest.decode.messages import MessageList
from livectr.ingest.join.examples import ExampleSource, ReadOptions
from livectr.ingest.join.lookups import Lookups
from livectr.ingest.language.keys import key_of
from livectr.ingest.language.streams import Stream, label_join, labelled, recent
from livectr.ingest.language.tables import Table
from livectr.ingest.pipeline import Pipeline, load_pipeline
from livectr.models import LR
from livectr.simulator.simulate import SimulateOptions, simulate
from livectr.simulator.traffic import TrafficOptions
from livectr.simulator.truth import World
from livectr.system.errors import ConfigError
from tests.tiers import examples

PICTURES = Table("ad_images", key="image_id", columns={"image_id": "int64", "image": "image"})


def picture(kind: str = "PNG", size: tuple[int, int] = (8, 6), mode: str = "RGB") -> bytes:
    out = io.BytesIO()
    Image.linear_gradient("L").resize(size).convert(mode).save(out, kind)
    return out.getvalue()


def blank(size: tuple[int, int]) -> bytes:
    """A picture of one bit a pixel, for sizes that take seconds to draw and compress otherwise."""
    out = io.BytesIO()
    Image.new("1", size).save(out, "PNG")
    return out.getvalue()


def event(number: int, image: bytes | None) -> bytes:
    text = None if image is None else base64.b64encode(image).decode()
    return json.dumps({"image_id": number, "image": text}).encode()


@pytest.mark.parametrize("kind", FORMATS)
def test_a_picture_decodes_and_half_of_it_does_not(kind: str) -> None:
    whole = picture(kind, (64, 64))
    assert complaint(whole) is None
    assert complaint(whole[: len(whole) // 2])


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (lambda: b"", "no bytes"),
        (lambda: b"hello", "none of JPEG, PNG"),
        (lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "none of JPEG, PNG"),
        (lambda: picture("TIFF"), "none of JPEG, PNG"),
        (lambda: blank((8001, 8000)), "8001 x 8000 pixels, more than 64 megapixels"),
        (lambda: blank((20_000, 10_000)), "decompression bomb"),
    ],
)
def test_what_is_no_picture(value: Callable[[], bytes], said: str) -> None:
    assert said in (complaint(value()) or "")


def test_the_largest_picture() -> None:
    assert MAX_PIXELS == 8000 * 8000
    assert complaint(blank((8000, 8000))) is None


@examples(300)
@given(st.sampled_from(FORMATS), st.integers(0, 400), st.binary(min_size=1, max_size=8))
def test_damaged_pictures_raise_nothing(kind: str, place: int, damage: bytes) -> None:
    value = picture(kind)
    place %= len(value)
    complaint(value[:place] + damage + value[place + len(damage) :])


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def noise(width: int, height: int, channels: int = 3) -> Image.Image:
    pixels = np.random.default_rng(width).integers(0, 256, (height, width, channels), np.uint8)
    return Image.fromarray(pixels.squeeze())


def test_pixels_are_those_of_the_picture() -> None:
    image = noise(20, 20)
    pixels = decode(encoded(image), size=20)
    assert pixels.dtype == np.uint8 and pixels.shape == (3, 20, 20) and pixels.flags.c_contiguous
    np.testing.assert_array_equal(pixels, np.asarray(image).transpose(2, 0, 1))


@pytest.mark.parametrize(("width", "height"), [(64, 48), (48, 64), (33, 95), (300, 260), (7, 5)])
def test_the_middle_of_the_resized_picture(width: int, height: int) -> None:
    """Against a reference of antialiased bilinear resizing: a triangle filter as wide as the reduction."""
    image = noise(width, height)
    size, short_side = 24, 30
    pixels = decode(encoded(image), size=size, short_side=short_side)
    rows, columns = (
        triangle(length, int(short_side * length / min(width, height))) for length in (height, width)
    )
    whole = np.einsum("yh,hwc,xw->cyx", rows, np.asarray(image, np.float64), columns)
    top, left = round((whole.shape[1] - size) / 2), round((whole.shape[2] - size) / 2)
    wanted = whole[:, top : top + size, left : left + size]
    assert np.abs(pixels - wanted).max() <= 1.51  # Pillow rounds after each direction


def triangle(before: int, after: int) -> np.ndarray:
    scale = before / after
    centre = (np.arange(after) + 0.5) * scale
    weights = 1 - np.abs(np.arange(before) + 0.5 - centre[:, None]) / max(scale, 1)
    weights = weights.clip(0)
    return np.asarray(weights / weights.sum(1, keepdims=True))


def test_what_is_transparent_shows_white() -> None:
    image = Image.new("RGBA", (4, 4), (255, 0, 0, 0))
    image.putpixel((1, 2), (0, 0, 200, 255))
    for kind in ("PNG", "WEBP", "GIF"):
        options: dict[str, object] = {"lossless": True} if kind == "WEBP" else {}
        pixels = decode(encoded(image, kind, **options), size=4)
        assert pixels[:, 0, 0].tolist() == [255, 255, 255], kind
        assert np.abs(pixels[:, 2, 1].astype(int) - [0, 0, 200]).max() <= 3, kind
    half = Image.new("LA", (4, 4), (0, 128))
    assert set(decode(encoded(half), size=4).ravel().tolist()) <= {126, 127, 128}


def test_of_an_animation_the_first_frame() -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("lime", "red")]
    for kind in ("GIF", "WEBP"):
        value = encoded(frames[0], kind, save_all=True, append_images=frames[1:], lossless=True)
        assert decode(value, size=8)[:, 4, 4].tolist() == [0, 255, 0]


def test_a_cameras_note_of_how_it_was_held_is_obeyed() -> None:
    image = Image.new("RGB", (40, 20), "white")
    image.paste("black", (0, 0, 20, 20))  # the left half
    notes = Image.Exif()
    notes[0x0112] = 6  # turn it clockwise: the left half is up
    pixels = decode(encoded(image, "JPEG", exif=notes, quality=95), size=20)
    assert pixels[:, :8].max() < 60 and pixels[:, -8:].min() > 190
    broken = encoded(image, "JPEG", exif=b"Exif\x00\x00nonsense", quality=95)
    assert decode(broken, size=20).shape == (3, 20, 20)


@pytest.mark.parametrize("mode", ["1", "L", "P", "CMYK", "I;16", "RGBA", "LA"])
def test_pictures_of_other_modes(mode: str) -> None:
    if mode == "I;16":
        image = Image.fromarray((np.arange(64, dtype=np.uint16) * 1024).reshape(8, 8))
        wanted = (np.arange(64) * 4).astype(np.uint8).reshape(8, 8)
    else:
        grey = np.repeat(np.array([0, 255], np.uint8), 32).reshape(8, 8)
        image, wanted = Image.fromarray(grey).convert("RGB").convert(mode), grey
    pixels = decode(encoded(image, "JPEG" if mode == "CMYK" else "PNG"), size=8)
    assert np.abs(pixels.astype(int) - wanted).max() <= 2


def test_a_line_of_pixels_does_not_grow_into_a_wall() -> None:
    image = Image.new("L", (60_000, 1), 10)
    image.paste(200, (30_000 - 3, 0, 30_000 + 3, 1))
    assert decode(encoded(image), size=224, short_side=256).min() > 150


@pytest.mark.parametrize("value", [b"", b"hello", picture()[:-30], blank((8001, 8000))])
def test_what_is_no_picture_has_no_pixels(value: bytes) -> None:
    with pytest.raises(BadPictureError) as error:
        decode(value, size=8)
    assert str(error.value) == complaint(value)


BAD = {2: b"", 3: picture()[:-30], 5: b"GIF89a"}
IMAGES = [None if n == 4 else BAD.get(n, picture(("PNG", "JPEG")[n % 2])) for n in range(8)]
GOOD = {n: image or b"" for n, image in enumerate(IMAGES) if n not in BAD}


def as_json(folder: Path) -> None:
    (folder / "0.jsonl").write_bytes(b"".join(event(n, image) + b"\n" for n, image in enumerate(IMAGES)))


def as_arrow(folder: Path) -> None:
    table = pa.table({"image_id": range(8), "image": IMAGES})
    with pa.ipc.new_file(folder / "0.arrow", table.schema) as writer:
        writer.write_table(table)


def as_parquet(folder: Path) -> None:
    pq.write_table(pa.table({"image_id": range(8), "image": IMAGES}), folder / "0.parquet")


@pytest.mark.parametrize("write", [as_json, as_arrow, as_parquet])
def test_a_table_of_pictures(tmp_path: Path, write: Callable[[Path], None]) -> None:
    (tmp_path / "ad_images").mkdir()
    write(tmp_path / "ad_images")
    letters = DeadLetters(tmp_path / "letters")
    lookups = Lookups([PICTURES], f"file:{tmp_path}", until_end=True, dead_letters=letters)
    lookups.close()
    letters.close()
    table = lookups.tables["ad_images"]
    _, rows = table.rows()
    assert {row["image_id"]: row["image"] for row in rows.to_pylist()} == GOOD  # null: there is no picture
    assert letters.counts == {"bad_image": len(BAD)}
    written = [json.loads(line) for line in (tmp_path / "letters" / "00000-letters.jsonl").open()]
    assert sorted(letter["offset"] for letter in written) == sorted(BAD)
    kept = {letter["offset"]: json.loads(letter["value"])["image"] for letter in written}
    assert kept == {n: base64.b64encode(image).decode() for n, image in BAD.items()}
    assert all(letter["detail"].startswith("column image: ") for letter in written)
    assert table.changed()[1] == [[n, None] for n in GOOD]  # what is published has no pictures


def test_arrow_messages_of_a_stream() -> None:
    stream = Stream("shots", key="user", columns={"user": "int64", "shot": "image"})
    sink = io.BytesIO()
    table = pa.table({"user": range(8), "shot": pa.array(IMAGES, pa.large_binary())})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    letters = DeadLetters(None)
    chunk = Decoder(stream, letters).messages(0, MessageList.of([0], [sink.getvalue()]))
    assert dict(zip(chunk.index.tolist(), chunk.batch["shot"].to_pylist(), strict=True)) == GOOD
    assert letters.counts == {"bad_image": len(BAD)}
    ignored = Decoder(stream, letters, columns=["user"]).messages(0, MessageList.of([0], [sink.getvalue()]))
    assert len(ignored) == 8  # a column that is not in use is not looked at


def test_the_simulators_pictures(tmp_path: Path) -> None:
    world = World(users=10, ads=250, ad_interval_s=2, ad_life=5)
    traffic = TrafficOptions(rate=10, seconds=0.2)
    simulate(SimulateOptions(f"file:{tmp_path}", world, traffic, real_time=False))
    sent = [
        json.loads(line)["image_id"] for path in (tmp_path / "ad_images").iterdir() for line in path.open()
    ]
    broken = [number for number in sent if number % 100 == 0]
    letters = DeadLetters(None)
    lookups = Lookups([PICTURES], f"file:{tmp_path}", until_end=True, dead_letters=letters)
    lookups.close()
    assert letters.counts == {"bad_image": len(broken)} and broken
    assert len(lookups.tables["ad_images"]) == len(sent) - len(broken)


def test_examples_continue_without_the_bad_picture(tmp_path: Path) -> None:
    (tmp_path / "ad_images").mkdir()
    as_json(tmp_path / "ad_images")
    (tmp_path / "shown").mkdir()
    rows = [json.dumps({"image_id": n, "user": 1, "click": n % 2}) + "\n" for n in range(8)]
    (tmp_path / "shown" / "0.jsonl").write_text("".join(rows))
    shown = Stream("shown", key="user", columns={"user": "int64", "image_id": "int64", "click": "int32"})
    log = labelled(shown, label="click").lookup(PICTURES)
    letters = DeadLetters(None)
    source = ExampleSource(
        Pipeline(log, sparse={"image": log.image_id}, rank=LR()),
        f"file:{tmp_path}",
        ReadOptions(until_end=True),
        rank=0,
        world=1,
        dead_letters=letters,
    )
    while not source.ended:
        source.poll(0.1)
    examples = source.pop(8)
    source.close()
    assert examples.columns.column("shown.image_id").to_pylist() == list(range(8))
    assert letters.counts == {"bad_image": len(BAD)}
    keys, _ = source.tables["ad_images"].rows()
    assert sorted(keys) == sorted(key_of(pa.array([n for n in range(8) if n not in BAD])))


def test_a_picture_is_no_feature(tmp_path: Path) -> None:
    said = r"ad_images\.image cannot be a feature: images come with the image models; use an image id"
    with pytest.raises(ConfigError, match=said):
        _ = PICTURES.image
    shots = Stream("shots", key="u", time="t", columns={"u": "int64", "t": "int64", "shot": "image"})
    clicks = Stream("clicks", key="u", time="t", columns={"u": "int64", "t": "int64", "shot": "image"})
    for use in (
        lambda: label_join(shots, clicks, on="shot", window="1m"),
        lambda: labelled(shots, label="shot"),
        lambda: recent(clicks["shot"], 5, "1d"),
    ):
        with pytest.raises(ConfigError, match="images come with the image models"):
            use()
    with pytest.raises(ConfigError, match="key column 'shot' is image"):
        Stream("shots", key="shot", columns={"shot": "image"})
    with pytest.raises(ConfigError, match="is not a value of type image"):
        Stream("shots", key="u", columns={"u": "int64", "shot": "image"}, fill={"shot": b""})
    with pytest.raises(ConfigError, match="unknown type 'list<image>'"):
        Stream("shots", key="u", columns={"u": "int64", "shots": "list<image>"})
    file = tmp_path / "pipeline.py"
    file.write_text(
        "from livectr.ingest.language.streams import Stream, labelled\n"
        "s = Stream('s', key='u', columns={'u': 'int64', 'y': 'int32', 'image': 'image'})\n"
        "log = labelled(s, label='y')\n"
        "sparse = {'look': log.image}\n"
    )
    with pytest.raises(ConfigError, match=rf"{file}:4: s\.image cannot be a feature"):
        load_pipeline(file)
