"""`livectr features encode|show`: features of pictures, before training."""

import argparse
from pathlib import Path
from typing import Any

from livectr.commands.flags import command, count
from livectr.commands.settings import add_log_flags
from livectr.system.heap import loading

ABOUT = """\
A fixed network turns a picture into numbers (features) once; a small sub-model on these numbers is trained
with the model. The command keeps the features by image id in a folder, which training and serving map into
memory. Training encodes pictures of new ads when they arrive in a topic of the pipeline. Encode beforehand
large collections, and pictures that an old log refers to.

Every picture of SOURCE that the folder does not hold yet is encoded: run it again after an interruption, or
for new pictures. A picture that cannot be decoded becomes a dead letter; the others are encoded.

SOURCE is a folder of picture files, or a topic with columns image_id and image: file:DIR --topic NAME,
kafka://HOST:PORT/TOPIC. The name of a file without its suffix is the id (12345.jpg). A name that is no
integer stands for its 64-bit key, as in a string feature.

Encoders: small (128 numbers, for demos and tests), vgg16:FILE.safetensors (4096 numbers: VGG16 up to FC6 with
torchvision's weights), module:attribute (your own). A folder keeps the features of one encoder."""

EXAMPLES = """\
  livectr features encode pictures/ --encoder vgg16:vgg16.safetensors --out features/
  livectr features encode file:/tmp/logs --topic ad_images --encoder small --out features/
  livectr features encode kafka://localhost:9092/ad_images --encoder small --out features/
  livectr features encode pictures/ --encoder my_nets:resnet --out features/ --dead-letters letters/
  livectr train --pipeline p.py … --set content=images=features/"""


def add(commands: Any) -> None:
    """Add the commands."""
    encode = command(commands, "encode", run, "turn pictures into a folder of features", EXAMPLES)
    encode.description = ABOUT
    encode.add_argument("source", metavar="SOURCE", help="a folder, file:DIR or kafka://HOST:PORT/TOPIC")
    encode.add_argument("--encoder", required=True, metavar="NAME", help="network that encodes a picture")
    encode.add_argument("--out", required=True, metavar="DIR", help="folder of features; made if absent")
    encode.add_argument("--topic", metavar="NAME", help="topic of a log that has the pictures")
    encode.add_argument(
        "--id-column", default="image_id", metavar="NAME[:TYPE]", help="column of a topic [image_id:int64]"
    )
    encode.add_argument("--image-column", default="image", metavar="NAME", help="column of a topic [image]")
    encode.add_argument("--batch", type=count, default=64, help="pictures that are encoded at a time [64]")
    encode.add_argument(
        "--shards", type=count, default=16, help="shards of a new folder; at least the ranks [16]"
    )
    encode.add_argument("--device", choices=("cpu", "gpu"), default="cpu", help="device that encodes [cpu]")
    encode.add_argument(
        "--dead-letters",
        metavar="DIR|URL",
        help="target of dead letters [of a log: beside it; of a folder: nowhere]",
    )
    encode.add_argument(
        "--part",
        default="0/1",
        metavar="I/N",
        help="encode the pictures of shards s with s mod N = I; other processes encode the others [0/1]",
    )
    add_log_flags(encode, "encode")
    show = command(
        commands,
        "show",
        run_show,
        "show what a folder of encoded pictures holds",
        "  livectr features show features/",
    )
    show.add_argument("folder", metavar="DIR")
    show.add_argument("--json", action="store_true", help="print JSON in place of a table")


def run(given: argparse.Namespace) -> int:
    """Encode pictures."""
    with loading(lean=given.alone):
        from livectr.ingest.materialized.parts import Part
        from livectr.logs.encode import EncodeOptions, encode

    options = EncodeOptions(
        source=given.source,
        out=Path(given.out),
        encoder=given.encoder,
        topic=given.topic,
        key=given.id_column,
        image=given.image_column,
        batch=given.batch,
        shards=given.shards,
        device=given.device,
        dead_letters=given.dead_letters,
        part=Part.parse(given.part),
    )
    return encode(options)


def run_show(given: argparse.Namespace) -> int:
    """Show a folder of features."""
    from livectr.logs.encode import show

    return show(Path(given.folder), as_json=given.json)
