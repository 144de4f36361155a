"""The flags of every command, with help that teaches. Nothing heavy is imported here: `--help` is quick."""

import argparse
from typing import Any

from livectr import __version__
from livectr.commands.ablate_arguments import add_ablate
from livectr.commands.evaluate_arguments import add_evaluate
from livectr.commands.example import add_example
from livectr.commands.flags import Parser as _Parser
from livectr.commands.flags import command as _command
from livectr.commands.flags import count as _count
from livectr.commands.flags import duration_s as _duration_s
from livectr.commands.flags import positive as _positive
from livectr.commands.flags import seed as _seed
from livectr.commands.image_arguments import add_images

DESCRIPTION = "LiveCTR learns click-through rates from a live log stream and serves them while it learns."
EPILOG = """\
start here:
  livectr demo                     the whole path on this machine: logs, trainer, servers, queries
  livectr demo --log kafka --ranks 2

your own logs:
  livectr example display_ads --to my_ads      a pipeline file to start from
  livectr inspect --pipeline my_pipeline.py
  livectr train --pipeline my_pipeline.py --source kafka://localhost:9092 --publish redis://localhost:6379
  livectr serve rank --pipeline my_pipeline.py --redis redis://localhost:6379 --listen 0.0.0.0:50051
  livectr query rank --server localhost:50051 --context user_id=42 --candidates ad_id=1,2,3

`livectr COMMAND --help` explains a command. Settings are read from the pipeline file, --config FILE.toml,
LIVECTR_<NAME> variables and flags; the later wins."""

FEATURES = """\
Features that hardly change and cost much can be computed once (materialized features). `materialize` reads
the logs
to their end, joins them, computes the features and writes them by instance id. `livectr train --materialized
DIR`
reads them beside the logs and computes the rest: only the log columns that the rest needs are read. A feature
whose expression has changed since is refused; one that is new is computed."""


def build_parser() -> argparse.ArgumentParser:
    """The parser of every command."""
    parser = _Parser(
        prog="livectr",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"livectr {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=_Parser)
    first = (_demo, add_example, _simulate, _replay, _train, _features, add_images, _serve)
    for add in (*first, _query, _kafka, _redis, _inspect, add_evaluate, _compare, add_ablate, _bench):
        add(commands)
    return parser


def _settings(parser: Any, command: str) -> None:
    """A flag for every setting of the command; absent flags leave the other sources alone."""
    from livectr.config import FIELDS, TYPES

    parser.add_argument("--config", metavar="FILE.toml", help="read settings from this file")
    for name, field in FIELDS.items():
        if command not in field.metadata["commands"]:
            continue
        flag, about = "--" + name.replace("_", "-"), field.metadata["help"]
        default = "" if field.default in (None, False) else f" [{field.default}]"
        keywords: dict[str, Any] = dict(
            default=argparse.SUPPRESS, help=about + default, dest=f"setting_{name}"
        )
        if TYPES[name] is bool:
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, **keywords)
        else:
            parser.add_argument(flag, metavar=field.metadata["example"] or name.upper(), **keywords)


def _demo(commands: Any) -> None:
    parser = _command(
        commands,
        "demo",
        "demo",
        "simulator, trainer, servers and queries, together on this machine",
        "  livectr demo --seconds 60\n"
        "  livectr demo --seconds 300 --log kafka --ranks 2 --report report.json",
    )
    parser.add_argument("--seconds", type=_positive, default=60.0, help="simulated traffic [60]")
    parser.add_argument(
        "--log", choices=("file", "kafka"), default="file", help="what carries the logs [file]"
    )
    parser.add_argument("--ranks", type=_count, default=1, help="processes that train together [1]")
    parser.add_argument("--rate", type=_positive, default=2000.0, help="impressions per second [2000]")
    parser.add_argument("--seed", type=_seed, default=1, help="of the simulated market [1]")
    parser.add_argument("--report", metavar="FILE", help="write the report (JSON) here")
    parser.add_argument("--pipeline", metavar="FILE.py", help="another pipeline for the simulator's logs")
    parser.add_argument("--keep", metavar="DIR", help="work in this folder and keep logs, checkpoint, ledger")


def _simulate(commands: Any) -> None:
    parser = _command(
        commands,
        "simulate",
        "simulate",
        "write display-ad traffic with a planted truth to files or Kafka",
        "  livectr simulate --to file:/tmp/logs --seconds 60 --fast --ledger /tmp/ledger.arrows\n"
        "  livectr simulate --to kafka://localhost:9092 --rate 5000 --seconds 3600 --events arrow",
    )
    parser.add_argument("--to", required=True, metavar="URL", help="kafka://HOST:PORT or file:DIR")
    parser.add_argument(
        "--rate", type=_positive, default=1000.0, help="impressions per second of event time [1000]"
    )
    parser.add_argument("--seconds", type=_positive, default=60.0, help="of event time [60]")
    parser.add_argument("--fast", action="store_true", help="as fast as possible, not by the clock")
    parser.add_argument("--start", metavar="TIME", help="event time of the start, ISO 8601 or epoch ms [now]")
    parser.add_argument(
        "--events", choices=("json", "arrow"), default="json", help="one event a message, or many"
    )
    parser.add_argument("--partitions", type=_count, default=4, help="of every topic [4]")
    parser.add_argument("--users", type=_count, default=2000, help="[2000]")
    parser.add_argument("--ads", type=_count, default=200, help="alive at a time [200]")
    parser.add_argument(
        "--ad-interval",
        type=_duration_s,
        default=3600.0,
        metavar="DURATION",
        help="new ads come so often [1h]",
    )
    parser.add_argument(
        "--ad-life", type=_count, default=24, metavar="N", help="intervals that an ad lives [24]"
    )
    parser.add_argument(
        "--drift",
        type=_duration_s,
        default=7 * 86400.0,
        metavar="DURATION",
        help="time constant of tastes [7d]",
    )
    parser.add_argument(
        "--image-effect",
        type=_spreads,
        default=(0.0, 0.35, 0.1),
        metavar="ALL,SEGMENT,OWN",
        help="tastes in pictures: what all share, how age and gender differ, how users do [0,0.35,0.1]",
    )
    parser.add_argument(
        "--tick",
        type=_duration_s,
        default=0.1,
        metavar="DURATION",
        help="event time made at once; longer ticks for days of thin traffic [100ms]",
    )
    parser.add_argument(
        "--label-window",
        type=_duration_s,
        default=2.0,
        metavar="DURATION",
        help="of the pipeline that reads this [2s]",
    )
    parser.add_argument("--seed", type=_seed, default=1, help="the same seed gives the same traffic [1]")
    parser.add_argument(
        "--ledger", metavar="FILE", help="write every impression's true click probability here"
    )
    parser.add_argument(
        "--no-images", action="store_true", help="leave out the ads' pictures (topic ad_images)"
    )
    parser.add_argument(
        "--wait-for-start",
        action="store_true",
        help="write the tables, then wait for a line on standard input",
    )


def _replay(commands: Any) -> None:
    parser = _command(
        commands,
        "replay",
        "replay",
        "send a log file as an event stream",
        "  livectr replay train.txt --format criteo --to kafka://localhost:9092\n"
        "  livectr replay train.gz --format avazu --to file:/tmp/logs --rate 20000\n"
        "  livectr replay items.csv --format csv --to file:/tmp/logs --topic items --key item --table",
    )
    parser.add_argument("file", metavar="FILE", help="the log; .gz is read as it is")
    parser.add_argument("--format", required=True, choices=("criteo", "avazu", "csv", "jsonl", "parquet"))
    parser.add_argument("--to", required=True, metavar="URL", help="kafka://HOST:PORT or file:DIR")
    parser.add_argument("--rate", type=_positive, help="rows per second [as fast as possible]")
    parser.add_argument("--topic", help="[the format's name, or the file's]")
    parser.add_argument("--partitions", type=_count, default=4, help="[4]")
    parser.add_argument(
        "--key",
        metavar="COLUMN",
        help="rows with equal values share a partition [criteo: row, avazu: device_ip]",
    )
    parser.add_argument(
        "--time", metavar="COLUMN", help="turn this column (ISO 8601) into epoch milliseconds"
    )
    parser.add_argument(
        "--types",
        default="",
        metavar="COL=TYPE,…",
        help="int32, int64, float64, string: where the inferred type is wrong",
    )
    parser.add_argument(
        "--events", choices=("arrow", "json"), default="arrow", help="many rows a message, or one [arrow]"
    )
    parser.add_argument(
        "--table", action="store_true", help="make a look-up table: a compacted topic, one row a message"
    )
    parser.add_argument(
        "--append", action="store_true", help="write behind what the topic holds; else it has to be empty"
    )
    parser.add_argument("--bad-rows", metavar="FILE", help="write rows that do not fit here, with the reason")


def _train(commands: Any) -> None:
    parser = _command(
        commands,
        "train",
        "train",
        "learn from logs, commit checkpoints, publish versions",
        "  livectr train --pipeline p.py --source file:/tmp/logs --until-end --report report.json\n"
        "  livectr train --pipeline p.py --source kafka://localhost:9092 --checkpoint /data/c"
        " --publish redis://r:6379\n"
        "  livectr train --pipeline p.py … --checkpoint /data/c --ranks 2 --restarts 3\n"
        "  livectr train --pipeline p.py … --checkpoint /data/today --warm-start /data/yesterday\n"
        "  livectr train --ranks 2 --nodes 2 --node 0 --rendezvous host0:29400 …  # and --node 1",
    )
    _settings(parser, "train")


def _features(commands: Any) -> None:
    parser = commands.add_parser(
        "features",
        help="compute features once, for every training run that follows",
        description=FEATURES,
        epilog="examples:\n"
        "  livectr features materialize --pipeline p.py --source file:logs --out once\n"
        "  livectr features materialize --pipeline p.py --source file:logs --out once \\\n"
        "      --features words,query_x_title\n"
        "  livectr train --pipeline p.py --source file:logs --until-end --materialized once",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    actions = parser.add_subparsers(
        title="actions", metavar="materialize", parser_class=_Parser, required=True
    )
    make = _command(
        actions,
        "materialize",
        "materialize",
        "write the features of every example of a log to Parquet files",
        "  livectr features materialize --pipeline p.py --source file:/data/logs --out /data/materialized",
    )
    make.add_argument("--pipeline", required=True, metavar="FILE.py", help="the pipeline file")
    make.add_argument(
        "--source",
        required=True,
        metavar="URL",
        help="the logs, read to their end: file:DIR or kafka://HOST:PORT",
    )
    make.add_argument("--out", required=True, metavar="DIR", help="a folder that does not exist yet")
    make.add_argument(
        "--features",
        metavar="A,B,…",
        help="which ones [all that do not depend on running statistics]",
    )


def _serve(commands: Any) -> None:
    parser = commands.add_parser(
        "serve", help="answer rank or pre-rank requests over gRPC", allow_abbrev=False
    )
    roles = parser.add_subparsers(
        title="servers", metavar="rank|prerank", parser_class=_Parser, required=True
    )
    for role, help in (
        ("rank", "predict CTR of candidates and order them by expected revenue"),
        ("prerank", "choose the best few of many ads by user and ad vectors"),
    ):
        server = _command(
            roles,
            role,
            "serve",
            help,
            f"  livectr serve {role} --pipeline p.py --redis redis://localhost:6379 --listen 0.0.0.0:50051",
        )
        server.set_defaults(role=role)
        _settings(server, role)


def _query(commands: Any) -> None:
    parser = commands.add_parser("query", help="ask a server", allow_abbrev=False)
    roles = parser.add_subparsers(
        title="questions", metavar="rank|prerank|describe", parser_class=_Parser, required=True
    )
    for role, help, epilog in (
        (
            "rank",
            "order candidates by expected revenue",
            "  livectr query rank --server localhost:50051 --context user_id=42 page=home"
            " --candidates ad_id=1,2,3",
        ),
        (
            "prerank",
            "choose the best of the catalogue, or of some candidates",
            "  livectr query prerank --server localhost:50052 --context user_id=42 --top-k 10",
        ),
        (
            "describe",
            "what a server answers from, and the columns that a request holds",
            "  livectr query describe --server localhost:50051",
        ),
    ):
        query = _command(roles, role, "query", help, epilog)
        query.set_defaults(role=role)
        query.add_argument("--server", required=True, metavar="HOST:PORT")
        query.add_argument("--timeout", type=_duration_s, default=5.0, metavar="DURATION", help="[5s]")
        query.add_argument("--json", action="store_true", help="print JSON in place of a table")
        if role == "describe":
            continue
        many: dict[str, Any] = dict(action="extend", nargs="+", default=[])
        query.add_argument("--context", metavar="COLUMN=VALUE", help="one value a column", **many)
        query.add_argument("--candidates", metavar="COLUMN=V1,V2,…", help="one value a candidate", **many)
        if role == "rank":
            query.add_argument("--bids", default="", metavar="B1,B2,…", help="one a candidate [1]")
        else:
            query.add_argument("--top-k", type=_count, default=10, help="[10]")


def _redis(commands: Any) -> None:
    parser = _command(
        commands,
        "redis",
        "redis",
        "run a Redis-protocol server on this machine (pip install 'livectr[local]')",
        "  livectr redis --listen 127.0.0.1:6379",
    )
    parser.add_argument("--listen", default="127.0.0.1:6379", metavar="HOST:PORT", help="[127.0.0.1:6379]")


def _kafka(commands: Any) -> None:
    parser = _command(
        commands,
        "kafka",
        "kafka",
        "run a single Kafka broker on this machine (Java 17; the first start fetches it with Maven)",
        "  livectr kafka --listen 127.0.0.1:9092 --data /tmp/kafka",
    )
    parser.add_argument("--listen", default="127.0.0.1:9092", metavar="HOST:PORT", help="[127.0.0.1:9092]")
    parser.add_argument("--data", metavar="DIR", help="keep the logs here [a temporary folder]")
    parser.add_argument(
        "--partitions", type=_count, default=4, help="of topics that appear by themselves [4]"
    )


def _inspect(commands: Any) -> None:
    parser = _command(
        commands,
        "inspect",
        "inspect",
        "show a pipeline's features, a checkpoint, or what is published",
        "  livectr inspect --pipeline examples/display_ads/pipeline.py --svg plan.svg\n"
        "  livectr inspect --pipeline examples/display_ads/pipeline.py --gpu-budget 512MiB\n"
        "  livectr inspect --pipeline p.py --ranks 4 --placement balanced --checkpoint /data/c\n"
        "  livectr inspect --checkpoint /data/c\n  livectr inspect --redis redis://localhost:6379",
    )
    parser.add_argument(
        "--pipeline", metavar="FILE.py", help="columns, operators by layer and device, memory, fields, models"
    )
    parser.add_argument("--svg", metavar="FILE", help="draw the pipeline's operators into this file")
    parser.add_argument(
        "--ranks", type=_count, metavar="N", help="which of N ranks would hold which field, and how much"
    )
    parser.add_argument(
        "--report", metavar="FILE", help="of livectr train: what was measured, for --ranks [the checkpoint]"
    )
    _settings(parser, "inspect")
    parser.add_argument("--checkpoint", metavar="DIR", help="generations, positions, rows, sizes")
    parser.add_argument("--redis", metavar="URL", help="the published version")
    parser.add_argument("--namespace", default="livectr", help="of what is kept in Redis [livectr]")


def _compare(commands: Any) -> None:
    parser = _command(
        commands,
        "compare",
        "compare",
        "what a change is worth: the quality of two training runs, and whether they differ by chance",
        "  livectr train … --report a.json --predictions a.log\n"
        "  livectr train … --report b.json --predictions b.log\n"
        "  livectr compare a.json b.json --predictions a.log b.log",
    )
    parser.add_argument("reports", nargs=2, metavar="REPORT.json", help="of livectr train --report")
    parser.add_argument(
        "--predictions",
        nargs=2,
        metavar="FILE",
        help="of livectr train --predictions: compare example by example, with standard errors",
    )
    parser.add_argument("--json", action="store_true", help="print JSON in place of a table")


def _spreads(text: str) -> tuple[float, ...]:
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        values = ()
    if len(values) != 3 or not all(0 <= value < 10 for value in values):
        raise argparse.ArgumentTypeError(f'{text!r} must be three numbers from 0 to 10, as in "0.4,0.6,0.3"')
    return values


def _bench(commands: Any) -> None:
    from livectr.commands.bench import NAMES

    parser = _command(
        commands,
        "bench",
        "bench",
        "measure, and compare with a peer in the same run",
        "  livectr bench tables\n  livectr bench serving --json serving.json",
    )
    parser.add_argument("name", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--json", metavar="FILE", help="write the result here")
    parser.add_argument(
        "--quick", action="store_true", help="small workloads, to see that it runs; no figures to quote"
    )
