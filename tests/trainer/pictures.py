"""Pictures for tests of encoding: pictures of one colour, a topic of them in files, an encoder of colours."""

import base64
import io
import json
from collections.abc import Sequence
from pathlib import Path

from PIL import Image
from torch import Tensor

from livectr.ingest.language.content import Content
from livectr.ingest.language.tables import Table
from livectr.models.embedding import EmbeddingModel
from livectr.models.encoders import Encoder

TOPIC = Table("pictures", key="image_id", columns={"image_id": "int64", "image": "image", "note": "string"})
CONTENT = Content(
    ("image",),
    EmbeddingModel(width=3, hidden=(4,), out=2),
    topic=TOPIC,
    encoder="tests.trainer.pictures:Colours",
)

Colour = tuple[int, int, int]


def picture(colour: Colour) -> bytes:
    """A PNG."""
    out = io.BytesIO()
    Image.new("RGB", (5, 4), colour).save(out, "PNG")
    return out.getvalue()


def colour_of(number: int) -> Colour:
    """Another one for each number."""
    return number % 256, number // 256 % 256, 7


def line(number: int, value: bytes | None) -> bytes:
    """A record of the topic."""
    text = None if value is None else base64.b64encode(value).decode()
    return json.dumps({"image_id": number, "image": text}).encode() + b"\n"


def write(folder: Path, lines: Sequence[bytes], partition: int = 0) -> str:
    """Add records to a partition of the topic; returns the source's URL."""
    (folder / TOPIC.topic).mkdir(parents=True, exist_ok=True)
    with (folder / TOPIC.topic / f"{partition}.jsonl").open("ab") as file:
        file.write(b"".join(lines))
    return f"file:{folder}"


class Colours:
    """A network for an encoder: the mean of each colour, f32[B, 3]. Remembers what it saw."""

    width = 3
    size = 4

    def __init__(self) -> None:
        self.seen: list[Colour] = []

    def __call__(self, pictures: Tensor) -> Tensor:
        means = pictures.float().mean((2, 3))
        self.seen += [(int(r), int(g), int(b)) for r, g, b in means]
        return means


def colours(network: Colours) -> Encoder:
    """As `load_encoder` makes it of a user's class."""
    return Encoder("colours", network.width, network.size, network.size, network)
