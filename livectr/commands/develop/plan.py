"""`livectr plan`: ranks, memory, bytes, nodes and cost of a deployment, by formulas over measured points."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, cast

from livectr.commands.flags import command, count, duration_s, positive
from livectr.config.settings import SETTINGS
from livectr.plan import amounts
from livectr.system.errors import ConfigError
from livectr.system.heap import loading

EXAMPLES = """\
  livectr plan --rate 1M/s --ids 1e10 --dim 16 --cores 32 --memory 256GiB --network 25Gbit/s
  livectr plan --rate 20k/s --ids 50M --requests 2k/s --price-node 1.2
  livectr plan --rate 20k/s --ids 50M --pipeline p.py --report report.json --report-cores 8"""
OPTIMIZERS = ("adagrad", "rowwise_adagrad", "adam", "ftrl", "sgd")
SHAPE = ("fields", "dense", "dim", "hidden", "optimizer")
"""Flags of a DeepFM, in whose place a pipeline file has models."""
CACHED = cast(int, SETTINGS["near_cache_rows"].default)
INTERVAL_S = cast(float, SETTINGS["publish_interval_s"].default)


def add(commands: Any) -> None:
    """Add the command."""
    parser = command(
        commands,
        "plan",
        run,
        "size a deployment: ranks, memory, bytes, nodes and cost, with the measured points that they rest on",
        EXAMPLES,
    )
    _log(parser.add_argument_group("log"))
    _model(parser.add_argument_group("model"))
    _machine(parser.add_argument_group("machines, one for each rank"))
    _serving(parser.add_argument_group("Redis and servers"))
    cost = parser.add_argument_group("cost, by your prices in your currency")
    cost.add_argument("--price-node", type=amounts.price, metavar="PRICE", help="of an hour of a machine")
    cost.add_argument(
        "--price-redis", type=amounts.price, metavar="PRICE", help="of an hour of a Redis node [--price-node]"
    )
    cost.add_argument("--hours", type=positive, default=730.0, help="of the bill [730, a month]")
    parser.add_argument("--json", action="store_true", help="print JSON in place of tables")


def _log(group: Any) -> None:
    group.add_argument(
        "--rate", type=amounts.rate, required=True, metavar="1M/s", help="impressions, which are examples"
    )
    group.add_argument(
        "--ids", type=amounts.quantity, required=True, metavar="1e10", help="ids of all fields: table rows"
    )
    group.add_argument("--zipf", type=positive, default=1.1, help="exponent of the ids' popularity [1.1]")
    group.add_argument(
        "--clicks", type=amounts.share, default=0.05, metavar="SHARE", help="clicks for an impression [0.05]"
    )
    group.add_argument("--bytes-per-event", type=positive, default=300.0, help="bytes in Kafka [300]")
    group.add_argument(
        "--retention", type=duration_s, default=7 * 86400.0, metavar="DURATION", help="of Kafka [7d]"
    )
    group.add_argument("--replication", type=count, default=3, help="copies of a partition [3]")


def _model(group: Any) -> None:
    group.add_argument("--pipeline", metavar="FILE.py", help="take fields, row and networks from this file")
    group.add_argument(
        "--report",
        metavar="FILE",
        help="report of `livectr train`, whose speed and keys replace measured points",
    )
    group.add_argument(
        "--report-cores", type=positive, metavar="N", help="cores that each rank of the report had [--cores]"
    )
    group.add_argument(
        "--keys-per-example", type=positive, metavar="N", help="keys over all fields [one each]"
    )
    group.add_argument("--fields", type=count, metavar="F", help="fields of a DeepFM [39]")
    group.add_argument("--dense", type=count, metavar="N", help="numbers beside the fields [0]")
    group.add_argument("--dim", type=count, metavar="K", help="numbers of a vector [16]")
    group.add_argument("--hidden", type=amounts.widths, metavar="256,128", help="widths of layers [256,128]")
    group.add_argument("--optimizer", choices=OPTIMIZERS, help="of the vectors [adagrad]")
    group.add_argument(
        "--batch-size",
        type=count,
        metavar="N",
        help="over all ranks [as small as can be, at most 4096 a rank]",
    )


def _machine(group: Any) -> None:
    group.add_argument("--cores", type=positive, default=8.0, metavar="N", help="cores of a machine [8]")
    group.add_argument(
        "--memory", type=amounts.memory, default=64 << 30, metavar="SIZE", help="of a machine [64GiB]"
    )
    group.add_argument(
        "--network", type=amounts.bandwidth, default=10.0, metavar="SPEED", help="of a machine [10Gbit/s]"
    )
    group.add_argument(
        "--latency", type=amounts.latency, default=5e-5, metavar="TIME", help="of a message [50us]"
    )
    group.add_argument(
        "--disk", type=amounts.throughput, default=5e8, metavar="SPEED", help="for checkpoints [500MB/s]"
    )
    group.add_argument(
        "--broker-disk", type=amounts.memory, default=10 << 40, metavar="SIZE", help="of a broker [10TiB]"
    )


def _serving(group: Any) -> None:
    group.add_argument(
        "--redis-memory", type=amounts.memory, metavar="SIZE", help="of a Redis node [--memory]"
    )
    group.add_argument(
        "--redis-copies", type=count, default=2, metavar="N", help="of each node, itself included [2]"
    )
    group.add_argument(
        "--publish-interval",
        type=duration_s,
        default=INTERVAL_S,
        metavar="DURATION",
        help="between versions [2s]",
    )
    group.add_argument("--requests", type=amounts.rate, metavar="20k/s", help="rank requests [none]")
    group.add_argument("--candidates", type=count, default=400, metavar="N", help="of a request [400]")
    group.add_argument(
        "--items", type=amounts.quantity, default=20_000.0, metavar="N", help="that may be candidates [20000]"
    )
    group.add_argument(
        "--near-cache-rows", type=count, default=CACHED, metavar="N", help=f"of a worker [{CACHED}]"
    )


def run(given: argparse.Namespace) -> int:
    """Print the plan. Raises ConfigError where no number of machines is enough."""
    if given.pipeline and (flags := [name for name in SHAPE if getattr(given, name) is not None]):
        raise ConfigError(f"--pipeline has the model; leave out --{', --'.join(flags)}.")
    if given.report_cores and not given.report:
        raise ConfigError("--report-cores is about a report; say --report FILE too.")
    with loading():
        from livectr.plan.deployment import Deployment, Prices
        from livectr.plan.load import Load
        from livectr.plan.serving import Serving
        from livectr.plan.show import print_json, show
        from livectr.plan.store import Store
        from livectr.plan.trainer import Ids, Machine, Trainer

        model, measured = _measured(given)
    ids = Ids(given.ids, given.zipf)
    machine = Machine(given.cores, given.memory, given.network, given.latency, given.disk)
    serving = None
    if given.requests:
        serving = Serving(
            model, given.requests, given.candidates, given.items, given.near_cache_rows, given.cores
        )
    price = given.price_node or 0.0
    plan = Deployment(
        Load(
            given.rate,
            given.clicks,
            given.bytes_per_event,
            given.retention,
            given.replication,
            given.broker_disk,
        ),
        Trainer(model, ids, machine, batch=given.batch_size, **measured),
        Store(model, ids, given.redis_memory or given.memory, given.publish_interval, given.redis_copies),
        serving,
        Prices(price, price if given.price_redis is None else given.price_redis, given.hours),
    )
    (print_json if given.json else show)(plan)
    return 0


def _measured(given: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """Model, and what `Trainer` takes from a report."""
    from livectr.plan.model import Shape, deepfm, of_pipeline
    from livectr.plan.report import read_report

    report = read_report(Path(given.report)) if given.report else None
    keys = given.keys_per_example
    if report and keys is None:
        keys = report.keys
    if given.pipeline:
        from livectr.ingest.pipeline import load_pipeline

        pipeline = load_pipeline(given.pipeline)
        if report:
            report.check(pipeline)
        model = of_pipeline(pipeline, keys)
    else:
        own = {name: getattr(given, name) for name in SHAPE if getattr(given, name) is not None}
        if report:
            own = {"fields": report.fields} | own
        model = deepfm(Shape(**own, keys=keys))
    if report is None:
        return model, {}
    core_s = report.core_s(given.report_cores or given.cores)
    return model, dict(core_s=core_s, waited=report.ranks > 1, reported_batch=report.batch)
