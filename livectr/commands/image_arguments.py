"""The flags of `livectr images`."""

import argparse
from typing import Any

from livectr.commands.flags import Parser, command, count

IMAGES = """\
A picture becomes numbers once, by a fixed network; a small network behind it is trained with the model.
`encode` keeps the numbers (features) by image id in a folder, which training and serving map into memory.
Pictures of new ads that arrive in a topic of the pipeline are encoded while it trains; encode beforehand what
is large, or what an old log refers to."""

ENCODE = """\
Encodes every picture of SOURCE that the folder has not yet: run it again after an interruption, or for new
pictures. A picture that does not decode is a dead letter and the rest goes on.

SOURCE is a folder of picture files, whose names without suffix are their ids (12345.jpg; a name that is no
integer stands for its 64-bit key, as in a string feature), or a topic with columns image_id and image:
file:DIR --topic NAME, kafka://HOST:PORT/TOPIC.

Encoders: small (128 numbers, for demos and tests), vgg16:FILE.safetensors (4096 numbers: VGG16 up to FC6 with
torchvision's weights), module:attribute (your own). A folder keeps the features of one encoder."""


def add_images(commands: Any) -> None:
    """`livectr images encode|show`."""
    parser = commands.add_parser(
        "images",
        help="turn pictures into features, before training",
        description=IMAGES,
        epilog="examples:\n"
        "  livectr images encode /data/pictures --encoder vgg16:vgg16.safetensors --out /data/features\n"
        "  livectr images encode kafka://localhost:9092/ad_images --encoder small --out /data/features\n"
        "  livectr images show /data/features\n"
        "  livectr train --pipeline p.py … --content images=/data/features",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    actions = parser.add_subparsers(
        title="actions", metavar="encode|show", parser_class=Parser, required=True
    )
    encode = command(
        actions,
        "encode",
        "encode_images",
        "encode pictures into a folder of features",
        "  livectr images encode pictures/ --encoder small --out features/\n"
        "  livectr images encode file:/tmp/logs --topic ad_images --encoder small --out features/\n"
        "  livectr images encode pictures/ --encoder my_nets:resnet --out features/ --dead-letters letters/",
    )
    encode.description = ENCODE
    encode.add_argument("source", metavar="SOURCE", help="a folder, file:DIR or kafka://HOST:PORT/TOPIC")
    encode.add_argument("--encoder", required=True, metavar="NAME", help="what turns a picture into numbers")
    encode.add_argument("--out", required=True, metavar="DIR", help="the folder of features; made if absent")
    encode.add_argument("--topic", metavar="NAME", help="of a log: the topic that has the pictures")
    encode.add_argument(
        "--id-column", default="image_id", metavar="NAME[:TYPE]", help="of a topic [image_id:int64]"
    )
    encode.add_argument("--image-column", default="image", metavar="NAME", help="of a topic [image]")
    encode.add_argument("--batch", type=count, default=64, help="pictures that are encoded at a time [64]")
    encode.add_argument("--shards", type=count, default=16, help="of a new folder; at least the ranks [16]")
    encode.add_argument("--device", choices=("cpu", "gpu"), default="cpu", help="that encodes [cpu]")
    encode.add_argument(
        "--dead-letters",
        metavar="DIR|URL",
        help="where to say which pictures are bad [of a log: beside it; of a folder: nowhere]",
    )
    show = command(
        actions,
        "show",
        "show_images",
        "what a folder of features holds",
        "  livectr images show features/",
    )
    show.add_argument("folder", metavar="DIR")
    show.add_argument("--json", action="store_true", help="print JSON in place of a table")
