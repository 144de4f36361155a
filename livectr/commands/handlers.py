"""What the commands do with their flags: settings are resolved here, once, and passed on as plain values."""

import argparse
import dataclasses
import json
import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from livectr.config import SECRET, Settings, resolve
from livectr.ingest.pipeline import Pipeline, load_pipeline
from livectr.kernels.errors import ConfigError, InternalError
from livectr.kernels.process.children import follow_parent
from livectr.kernels.process.heap import loading
from livectr.secrets import has_password, read_password, with_password, without_flags

LOG = logging.getLogger(__name__)

Options = TypeVar("Options")


def settings_of(given: argparse.Namespace, *needed: str) -> tuple[Pipeline, Settings]:
    """The pipeline that the settings name, and all settings including its own."""
    flags = _flags(given)
    for name in SECRET:
        if name in flags and has_password(flags[name]):
            LOG.warning(
                "every user of this machine can read the password in --%s; say --redis-password-file FILE, "
                "or set LIVECTR_%s",
                name,
                name.upper(),
            )
    outer = resolve(flags, toml=given.config)
    for name in ("pipeline", *needed):
        if getattr(outer, name) is None:
            raise ConfigError(f"say --{name.replace('_', '-')}, or set LIVECTR_{name.upper()}.")
    assert outer.pipeline is not None
    pipeline = load_pipeline(outer.pipeline)
    return pipeline, resolve(flags, toml=given.config, pipeline=pipeline.settings)


def _flags(given: argparse.Namespace) -> dict[str, Any]:
    """The settings that flags give."""
    return {n.removeprefix("setting_"): v for n, v in vars(given).items() if n.startswith("setting_")}


def train(given: argparse.Namespace) -> int:
    """`livectr train`: by itself, as a rank under torchrun, or as what starts and watches the ranks."""
    from livectr.trainer.process import share_cores

    share_cores()
    os.environ.setdefault(
        "TORCH_CPP_LOG_LEVEL", "ERROR"
    )  # its C++ core would write stacks beside our messages
    from livectr.trainer.options import TrainOptions

    _log_to_stderr()
    with loading():
        from livectr.trainer.comm.abort import telling

        with telling():
            pipeline, settings = settings_of(given, "source")
    world = os.environ.get("WORLD_SIZE")
    if "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun's agent: no rank outlives it
        follow_parent()
    ranks = settings.ranks * settings.nodes
    if world is None and (ranks > 1 or settings.restarts):
        return _supervise(given, settings)
    if ranks > 1 and str(ranks) != world:
        raise ConfigError(f"ranks is {ranks}, but torchrun started {world}; leave ranks and nodes out.")
    with loading():
        from livectr.trainer.run import train as run

    report = run(pipeline, _options(TrainOptions, settings))
    if report is not None and int(os.environ.get("RANK", 0)) == 0:
        print(json.dumps(dataclasses.asdict(report)), flush=True)
    return 0


def _supervise(given: argparse.Namespace, settings: Settings) -> int:
    from livectr.local.supervise import Supervision, supervise

    if settings.restarts and settings.checkpoint is None:
        raise ConfigError("restarts go on from a checkpoint; say --checkpoint DIR too.")
    if settings.nodes > 1 and settings.rendezvous is None:
        raise ConfigError("several nodes have to meet; say --rendezvous HOST:PORT, an address of node 0.")
    if settings.rendezvous is not None and not re.fullmatch(r".+:\d+", settings.rendezvous):
        raise ConfigError(f"rendezvous is {settings.rendezvous!r}, but must be HOST:PORT.")
    if settings.node >= settings.nodes:
        raise ConfigError(f"node is {settings.node}, but the nodes are 0 to {settings.nodes - 1}.")
    secret = {name: url for name, url in _flags(given).items() if name in SECRET}
    words = without_flags(given.arguments, [f"--{name}" for name in secret])
    return supervise(
        Supervision(
            (sys.executable, "-m", "livectr", *words),
            settings.ranks,
            settings.restarts,
            Path(settings.checkpoint) if settings.checkpoint is not None else None,
            {f"LIVECTR_{name.upper()}": url for name, url in secret.items()},
            settings.nodes,
            settings.node,
            settings.rendezvous,
        )
    )


def materialize(given: argparse.Namespace) -> int:
    """`livectr features materialize`."""
    from livectr.commands.materialize import materialize as run

    _log_to_stderr()
    names = [name.strip() for name in given.features.split(",")] if given.features is not None else None
    return run(given.pipeline, source=given.source, out=Path(given.out), names=names)


def encode_images(given: argparse.Namespace) -> int:
    """`livectr images encode`."""
    from livectr.commands.images import EncodeOptions, encode

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
    )
    return encode(options)


def show_images(given: argparse.Namespace) -> int:
    """`livectr images show`."""
    from livectr.commands.images import show

    return show(Path(given.folder), as_json=given.json)


def serve(given: argparse.Namespace) -> int:
    """`livectr serve rank|prerank`: runs until SIGTERM or Ctrl-C."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its C core would write beside our messages
    with loading():
        from livectr.serving.app import serve_prerank, serve_rank
        from livectr.serving.options import ServeOptions

        _log_to_stderr()
        pipeline, settings = settings_of(given)
    assert settings.pipeline is not None
    options = _options(ServeOptions, settings, pipeline_file=Path(settings.pipeline))
    (serve_rank if given.role == "rank" else serve_prerank)(pipeline, options)
    return 0


def _log_to_stderr() -> None:
    rank = f" rank {os.environ['RANK']}" if int(os.environ.get("WORLD_SIZE", 1)) > 1 else ""
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s{rank} %(levelname)s %(name)s: %(message)s")


def _options(kind: type[Options], settings: Settings, **more: Any) -> Options:
    """An options object out of the settings of the same names."""
    names = {f.name for f in dataclasses.fields(cast(Any, kind))} - set(more)
    return kind(**{name: getattr(settings, name) for name in names}, **more)


def example(given: argparse.Namespace) -> int:
    """`livectr example NAME`."""
    from livectr.commands.example import copy_example

    for file in copy_example(given.name, Path(given.to)):
        print(file)
    return 0


def simulate(given: argparse.Namespace) -> int:
    """`livectr simulate`: one line of counts about every second, the last on standard output as JSON."""
    from livectr.logs.formats import iso_ms
    from livectr.simulator.simulate import SimulateOptions
    from livectr.simulator.simulate import simulate as run
    from livectr.simulator.traffic import TrafficOptions
    from livectr.simulator.truth import World

    try:
        start = given.start and iso_ms(int(given.start) if given.start.isdigit() else given.start)
    except ValueError:
        raise ConfigError(
            f"--start is {given.start!r}, but must be ISO 8601 or epoch milliseconds."
        ) from None
    options = SimulateOptions(
        to=given.to,
        world=World(
            users=given.users,
            ads=given.ads,
            ad_interval_s=given.ad_interval,
            ad_life=given.ad_life,
            drift_s=given.drift,
            eye=given.image_effect,
            seed=given.seed,
        ),
        traffic=TrafficOptions(
            rate=given.rate,
            seconds=given.seconds,
            start_ms=start or int(time.time() * 1000),
            label_window_ms=round(given.label_window * 1000),
            tick_ms=round(given.tick * 1000),
        ),
        partitions=given.partitions,
        events=given.events,
        real_time=not given.fast,
        ledger=given.ledger,
        images=not given.no_images,
        hold=given.wait_for_start,
    )
    counts = run(options, progress=lambda some: print(json.dumps(some), file=sys.stderr, flush=True))
    print(json.dumps(counts), flush=True)
    return 0


def replay(given: argparse.Namespace) -> int:
    """`livectr replay`: a progress bar on a terminal, the counts on standard output as JSON."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from livectr.logs.formats import TYPES
    from livectr.logs.replay import ReplayOptions
    from livectr.logs.replay import replay as run

    types = dict(pair.partition("=")[::2] for pair in given.types.split(",") if pair)
    for name, kind in types.items():
        if kind not in TYPES:
            raise ConfigError(f"--types: {name} is {kind!r}, but must be one of {', '.join(TYPES)}.")
    path = Path(given.file)
    options = ReplayOptions(
        file=path,
        format=given.format,
        to=given.to,
        topic=given.topic,
        key=given.key,
        time=given.time,
        types=types,
        partitions=given.partitions,
        rate=given.rate,
        events=given.events,
        table=given.table,
        append=given.append,
        bad_rows=Path(given.bad_rows) if given.bad_rows else None,
    )
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(path.name, total=path.stat().st_size if path.exists() else None)
        counts = run(
            options,
            progress=lambda done, rows: bar.update(
                task, completed=done, description=f"{path.name} {rows:,} rows"
            ),
        )
    for reason in counts.pop("first_bad_rows"):
        print(f"set aside: {path.name} {reason}", file=sys.stderr)
    print(json.dumps(counts))
    return 0


def kafka(given: argparse.Namespace) -> int:
    """`livectr kafka`: runs until Ctrl-C or SIGTERM."""
    from livectr.local.kafka import Broker
    from livectr.local.parts import alive

    with Broker(given.listen, data_dir=given.data, partitions=given.partitions) as broker:
        print(f"Kafka answers at {broker.url}; Ctrl-C stops it.", flush=True)
        _until_told(lambda: broker.pid is not None and alive(broker.pid), "broker")
    return 0


def redis(given: argparse.Namespace) -> int:
    """`livectr redis`: runs until Ctrl-C or SIGTERM; what it holds goes with it."""
    from livectr.local.valkey import LocalRedis

    with LocalRedis(given.listen) as server:
        print(f"Redis answers at {server.url}; Ctrl-C stops it.", flush=True)
        _until_told(lambda: server.running, "Redis server")
    return 0


def _until_told(running: Callable[[], bool], name: str) -> None:
    """Wait for SIGTERM. Raises InternalError when what runs here ends by itself."""
    told = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told.set())
    while not told.wait(0.2):
        if not running():
            raise InternalError(f"the {name} ended by itself.")


def inspect(given: argparse.Namespace) -> int:
    """`livectr inspect`."""
    from livectr.commands.inspect import show_checkpoint, show_pipeline, show_published

    if not (given.pipeline or given.checkpoint or given.redis):
        raise ConfigError("say what to show: --pipeline FILE.py, --checkpoint DIR or --redis URL.")
    flags = _flags(given)
    file = flags.pop("redis_password_file", os.environ.get("LIVECTR_REDIS_PASSWORD_FILE"))
    password = read_password(file) if file and given.redis else ""
    if given.pipeline:
        pipeline = load_pipeline(given.pipeline)
        settings = resolve(flags, toml=given.config, pipeline=pipeline.settings)
        svg = Path(given.svg) if given.svg else None
        show_pipeline(pipeline, rows=settings.batch_size, budget_bytes=settings.gpu_budget, svg=svg)
        if given.ranks:
            _show_ranks(given, pipeline, settings)
    elif given.svg or given.ranks or flags:
        named = [name for name in ("svg", "ranks") if getattr(given, name)]
        name = [*named, *flags][0].replace("_", "-")
        raise ConfigError(f"--{name} is about a pipeline; say --pipeline FILE.py too.")
    if given.checkpoint:
        show_checkpoint(Path(given.checkpoint))
    if given.redis:
        show_published(with_password(given.redis, password) if password else given.redis, given.namespace)
    return 0


def _show_ranks(given: argparse.Namespace, pipeline: Pipeline, settings: Settings) -> None:
    from livectr.placement_plan import measured, show_placement

    numbers = measured(
        pipeline,
        checkpoint=Path(given.checkpoint) if given.checkpoint else None,
        report=Path(given.report) if given.report else None,
    )
    show_placement(
        pipeline,
        numbers,
        world=given.ranks,
        placement=settings.placement,
        rank_memory=settings.rank_memory,
    )


def evaluate(given: argparse.Namespace) -> int:
    """`livectr evaluate`."""
    from livectr.commands.evaluate import EvaluateOptions
    from livectr.commands.evaluate import evaluate as run

    options = EvaluateOptions(
        files=[Path(file) for file in given.files],
        as_json=given.json,
        plot=Path(given.plot) if given.plot else None,
        bars=Path(given.bars) if given.bars else None,
        measure=given.measure,
        period_s=given.period,
        window_s=given.window,
    )
    return run(options)


def compare(given: argparse.Namespace) -> int:
    """`livectr compare`."""
    from livectr.commands.compare import compare as run

    predictions = [Path(file) for file in given.predictions] if given.predictions else None
    return run([Path(file) for file in given.reports], predictions, as_json=given.json)


def ablate(given: argparse.Namespace) -> int:
    """`livectr ablate`: a progress bar on a terminal, else a line a training; then the tables."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from livectr.commands.checkout import import_from_checkout

    ablation = import_from_checkout("bench.ablation.ablate", "ablate")
    cores = len(os.sched_getaffinity(0))
    at_once = given.jobs or cores
    options = ablation.AblateOptions(
        pipeline=given.pipeline,
        source=given.source,
        grids=ablation.grids_named(given.grid),
        out=Path(given.out),
        content=given.content,
        ledger=given.ledger,
        seeds=given.seeds,
        at_once=at_once,
        threads=max(1, cores // at_once),
    )
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("trainings", total=None)

        def progress(name: str, done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, description=name or "trainings")
            if name and not console.is_terminal:
                print(f"{done} of {total}: {name}", file=sys.stderr, flush=True)

        tables = ablation.ablate(options, progress=progress)
    print(tables)
    return 0


def query(given: argparse.Namespace) -> int:
    """`livectr query rank|prerank`."""
    from livectr.commands.query import query as run

    return run(given)


def demo(given: argparse.Namespace) -> int:
    """`livectr demo`."""
    from livectr.demo.demo import DemoOptions
    from livectr.demo.demo import demo as run

    options = DemoOptions(
        seconds=given.seconds,
        log=given.log,
        ranks=given.ranks,
        rate=given.rate,
        seed=given.seed,
        pipeline=given.pipeline,
        keep=Path(given.keep) if given.keep else None,
        report=Path(given.report) if given.report else None,
    )
    run(options)
    return 0


def bench(given: argparse.Namespace) -> int:
    """`livectr bench NAME`."""
    from livectr.commands.bench import bench as run

    return run(given)
