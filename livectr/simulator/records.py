"""The simulator's topics as they are written: JSON lines, or Arrow batches with the same columns."""

import json
import struct
import zlib
from base64 import b64encode
from collections.abc import Callable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from livectr.simulator.traffic import STYLES, Columns
from livectr.simulator.truth import (
    APPS,
    CATEGORIES,
    CITIES,
    DEVICES,
    F64,
    GENDERS,
    I64,
    PAGES,
    WORDS,
    Ads,
    Truth,
)

EVENT_TOPICS = ("impressions", "clicks")
TABLE_TOPICS = ("users", "ads")
IMAGE_TOPIC = "ad_images"
IMAGE_SIDE = 32  # pixels
BROKEN_EVERY = 100  # every hundredth picture does not decode
CLICK_COLUMNS = ["request_id", "user_id", "ad_id", "image_id", "ts", "dwell_ms"]

# The context of an impression is semi-structured: a JSON text in a column.
CONTEXTS = [json.dumps({"device": {"os": os}, "app": app}) for os in DEVICES for app in APPS]
_QUOTED = [json.dumps(text) for text in CONTEXTS]


def query_text(first: int, second: int, style: str) -> str | None:
    """Text of a query, from indices in WORDS (-1: no word); None for an empty query."""
    words = [WORDS[i] for i in (first, second) if i >= 0]
    if style == "mistyped":
        words = [word[:-2] + word[-1] for word in words]  # the letter before the last is missing
    text = " ".join(words)
    return (f" {text.upper()} " if style == "shouted" else text) if words else None


_WORD_INDICES = range(-1, len(WORDS))
QUERIES = [query_text(a, b, style) for a in _WORD_INDICES for b in _WORD_INDICES for style in STYLES]
"""By `traffic.query_code`."""
_QUOTED_QUERIES = [json.dumps(text) for text in QUERIES]


def impressions_json(c: Columns) -> list[bytes]:
    """One JSON line per impression."""
    names = ("request_id", "user_id", "ad_id", "ts", "position", "page", "query")
    rows = zip(*(c[name].tolist() for name in names), _context(c).tolist(), strict=True)
    return [
        f'{{"request_id":{r},"user_id":{u},"ad_id":{a},"ts":{t},"position":{p},"page":"{PAGES[g]}",'
        f'"query":{_QUOTED_QUERIES[q]},"context":{_QUOTED[d]}}}'.encode()
        for r, u, a, t, p, g, q, d in rows
    ]


def _context(c: Columns) -> I64:
    return c["device"] * len(APPS) + c["app"]


def clicks_json(c: Columns) -> list[bytes]:
    """One JSON line per click."""
    rows = zip(*(c[name].tolist() for name in CLICK_COLUMNS), strict=True)
    return [
        f'{{"request_id":{r},"user_id":{u},"ad_id":{a},"image_id":{i},"ts":{t},"dwell_ms":{d}}}'.encode()
        for r, u, a, i, t, d in rows
    ]


def impressions_arrow(c: Columns) -> pa.RecordBatch:
    """Impressions as one batch."""
    names = ["request_id", "user_id", "ad_id", "ts", "position", "page", "query", "context"]
    numbers = [pa.array(c[name]) for name in names[:5]]
    pages = pa.array(PAGES).take(pa.array(c["page"]))
    queries = pa.array(QUERIES).take(pa.array(c["query"]))
    contexts = pa.array(CONTEXTS).take(pa.array(_context(c)))
    return pa.RecordBatch.from_arrays([*numbers, pages, queries, contexts], names)


def clicks_arrow(c: Columns) -> pa.RecordBatch:
    """Clicks as one batch."""
    return pa.RecordBatch.from_arrays([pa.array(c[name]) for name in CLICK_COLUMNS], CLICK_COLUMNS)


JSON_OF: dict[str, Callable[[Columns], list[bytes]]] = {
    "impressions": impressions_json,
    "clicks": clicks_json,
}
ARROW_OF: dict[str, Callable[[Columns], pa.RecordBatch]] = {
    "impressions": impressions_arrow,
    "clicks": clicks_arrow,
}


def users_json(truth: Truth) -> list[bytes]:
    """The users table; the age of every 50th user is not known."""
    rows = zip(
        truth.user_id.tolist(), truth.age.tolist(), truth.gender.tolist(), truth.city.tolist(), strict=True
    )
    return [
        json.dumps(
            {"user_id": u, "age": None if u % 50 == 0 else age, "gender": GENDERS[g], "city": CITIES[c]},
            ensure_ascii=False,
        ).encode()
        for u, age, g, c in rows
    ]


def ads_json(ads: Ads) -> list[bytes]:
    """Rows of the ads table."""
    return [
        json.dumps(
            {
                "ad_id": int(ads.ad_id[i]),
                "category": CATEGORIES[ads.category[i]],
                "advertiser": int(ads.advertiser[i]),
                "price": float(ads.price[i]),
                "image_id": int(ads.image_id[i]),
                "title": " ".join(WORDS[w] for w in ads.words[i]).capitalize(),
            }
        ).encode()
        for i in range(len(ads.ad_id))
    ]


def broken_images(ads: Ads) -> NDArray[np.bool_]:
    """Mask bool[A] of ads whose images are cut short and do not decode."""
    return np.asarray(ads.image_id % BROKEN_EVERY == 0)


def images_json(ads: Ads) -> list[bytes]:
    """The ads' images, base64 PNGs; some are broken."""
    rows = []
    broken = broken_images(ads)
    for i in range(len(ads.ad_id)):
        image = png(ads.look[i])
        if broken[i]:
            image = image[: len(image) // 2]
        rows.append(
            json.dumps({"image_id": int(ads.image_id[i]), "image": b64encode(image).decode()}).encode()
        )
    return rows


def png(look: F64) -> bytes:
    """PNG of a latent look float64[4]: hue, brightness, number and direction of stripes."""
    y, x = np.mgrid[0:IMAGE_SIDE, 0:IMAGE_SIDE] / IMAGE_SIDE
    hue, light, stripes, angle = np.tanh(look)
    wave = np.sin(
        2 * np.pi * (2 + 2 * stripes) * (x * np.cos(np.pi * angle / 2) + y * np.sin(np.pi * angle / 2))
    )
    level = 128 + 60 * light + 50 * wave
    tint = np.array([1 + 0.6 * hue, 1, 1 - 0.6 * hue])
    pixels = np.clip(level[..., None] * tint, 0, 255).astype(np.uint8)
    lines = np.concatenate([np.zeros((IMAGE_SIDE, 1), np.uint8), pixels.reshape(IMAGE_SIDE, -1)], axis=1)
    header = struct.pack(">IIBBBBB", IMAGE_SIDE, IMAGE_SIDE, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + _chunk(b"IHDR", header)
        + _chunk(b"IDAT", zlib.compress(lines.tobytes()))
        + _chunk(b"IEND", b"")
    )


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
