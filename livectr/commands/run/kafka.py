"""`livectr local kafka`: a Kafka broker on this machine."""

import argparse
from typing import Any

from livectr.commands.flags import command, count
from livectr.commands.settings import add_log_flags


def add(commands: Any) -> None:
    """Add the command."""
    parser = command(
        commands,
        "kafka",
        run,
        "run a single Kafka broker on this machine (Java 17; the first start fetches it with Maven)",
        "  livectr local kafka --listen 127.0.0.1:9092 --data /tmp/kafka",
    )
    parser.add_argument("--listen", default="127.0.0.1:9092", metavar="HOST:PORT", help="[127.0.0.1:9092]")
    parser.add_argument("--data", metavar="DIR", help="keep the logs here [a temporary folder]")
    parser.add_argument(
        "--partitions", type=count, default=4, help="partitions of topics that are created on first use [4]"
    )
    add_log_flags(parser, "kafka")


def run(given: argparse.Namespace) -> int:
    """Run a broker until SIGTERM or Ctrl-C."""
    from livectr.local.kafka import Broker
    from livectr.local.parts import alive, until_terminated

    with Broker(given.listen, data_dir=given.data, partitions=given.partitions) as broker:
        print(f"Kafka answers at {broker.url}; Ctrl-C stops it.", flush=True)
        until_terminated(lambda: broker.pid is not None and alive(broker.pid), "broker")
    return 0
