"""Table of all settings: defaults, help, the commands that have their flags, limits.

A name that no setting has is an error in every source: an ignored misspelling would be found in production.

Units are in the names: `*_ms` are int milliseconds, `*_s` float seconds. A value may be a plain number in
that unit or a duration: "500ms", "10s", "2m", "1h", "14d". Memory is in bytes, or "512MiB", "8GiB".
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack, get_type_hints

from livectr.ingest.limits import MOST_DEPTH
from livectr.serving.options import ServeOptions as S
from livectr.trainer.options import TrainOptions as T


class Limits(TypedDict, total=False):
    """Values that a setting may have, and the metavariable of its flag."""

    least: float
    most: float
    above: float
    scheme: tuple[str, ...]
    example: str


NO_LIMITS: dict[str, Any] = dict(least=None, most=None, above=None, scheme=(), example="")


def setting(default: Any, help: str, *, commands: tuple[str, ...], **limits: Unpack[Limits]) -> Any:
    """Field of Settings.

    Args:
        default: value when no source has one.
        help: text of `--help`.
        commands: sub-commands that have its flag.
        limits: checked by `livectr.config.parsing.parse`.
    """
    metadata = {"help": help, "commands": commands, **NO_LIMITS, **limits}
    return dataclasses.field(default=default, metadata=metadata)


TRAIN, SERVE, INSPECT = ("train",), ("rank", "prerank"), ("inspect",)
EVERY = TRAIN + SERVE
REDIS = ("redis://", "rediss://", "unix://")


@dataclass(frozen=True)
class Settings:
    """Settings of every process. TrainOptions and ServeOptions have the same names and defaults."""

    pipeline: str | None = setting(None, "the pipeline file", commands=EVERY, example="FILE.py")
    namespace: str = setting(T.namespace, "prefix of all keys in Redis", commands=EVERY)
    metrics_port: int = setting(
        T.metrics_port,
        "port of Prometheus metrics (0: none; rank r or worker w listens on port + r or w)",
        commands=EVERY,
        least=0,
        most=65535,
    )
    metrics_listen: str = setting(
        T.metrics_listen,
        "address that the metrics endpoint answers on (0.0.0.0 or :: are all interfaces)",
        commands=EVERY,
        example="ADDRESS",
    )
    redis_password_file: str | None = setting(
        None,
        "file whose first line is the password of --publish or --redis",
        commands=EVERY + INSPECT,
        example="FILE",
    )

    source: str | None = setting(
        None,
        "the logs: kafka://HOST:PORT[,…] or file:DIR",
        commands=TRAIN,
        scheme=("kafka://", "file:"),
        example="URL",
    )
    ranks: int = setting(
        1,
        "processes on this machine that train together",
        commands=TRAIN,
        least=1,
    )
    nodes: int = setting(
        1, "machines that train together, each with --ranks processes", commands=TRAIN, least=1
    )
    node: int = setting(0, "number of this machine, from 0", commands=TRAIN, least=0)
    rendezvous: str | None = setting(
        None,
        "meeting point of several nodes: a free port of node 0",
        commands=TRAIN,
        example="HOST:PORT",
    )
    restarts: int = setting(
        0,
        "restart all ranks when a rank dies, at most this often in a row without a new checkpoint",
        commands=TRAIN,
        least=0,
    )
    until_end: bool = setting(T.until_end, "stop at the end that the logs had at the start", commands=TRAIN)
    until_idle_s: float | None = setting(
        T.until_idle_s, "stop when no record has come for this time", commands=TRAIN, above=0
    )
    idle_partition_s: float = setting(
        T.idle_partition_s,
        "a partition that is silent for this time no longer holds the watermark back",
        commands=TRAIN,
        above=0,
    )
    batch_size: int = setting(
        T.batch_size, "examples in a step, over all ranks", commands=TRAIN + INSPECT, least=1
    )
    batch_interval_ms: int | None = setting(
        T.batch_interval_ms, "also end a batch at every multiple of this event time", commands=TRAIN, least=1
    )
    seed: int = setting(T.seed, "seed of initial values", commands=TRAIN, least=0)
    threads: int | None = setting(
        T.threads, "CPU threads of a rank (default: the cores shared by the ranks)", commands=TRAIN, least=1
    )
    placement: str = setting(
        T.placement,
        "placement of fields on ranks: mod (round-robin) or balanced (by measured keys and bytes)",
        commands=TRAIN + INSPECT,
    )
    rank_memory: int | None = setting(
        T.rank_memory,
        "memory for tables of a rank in placement balanced; larger ones are split by key (default: no limit)",
        commands=TRAIN + INSPECT,
        least=0,
        example="BYTES",
    )
    dram_bytes: int | None = setting(
        T.dram_bytes,
        "DRAM for embedding rows of a rank; the other rows go to --spill (default: no limit)",
        commands=TRAIN,
        least=1,
        example="BYTES",
    )
    spill: str | None = setting(
        T.spill, "folder on an SSD for embedding rows beyond dram_bytes", commands=TRAIN, example="DIR"
    )
    device: str = setting(
        T.device,
        "device that extracts features and trains tables: cpu or gpu (needs livectr[gpu])",
        commands=TRAIN,
    )
    gpu_budget: int | None = setting(
        T.gpu_budget,
        "device memory for features; operators that do not fit run on the CPU (default: no limit)",
        commands=TRAIN + INSPECT,
        least=0,
        example="BYTES",
    )
    gpu_rows: int | None = setting(
        T.gpu_rows,
        "most rows of a rank's tables on its GPU; the others are in host memory (0: all of them; "
        "default: as many as half of the GPU memory holds that is free at the start)",
        commands=TRAIN,
        least=0,
        example="ROWS",
    )
    max_steps: int | None = setting(T.max_steps, "stop after this number of steps", commands=TRAIN, least=1)
    metrics_window_s: float = setting(
        T.metrics_window_s,
        "event time of the window in which AUC and other measures are watched",
        commands=TRAIN,
        above=0,
    )
    checkpoint: str | None = setting(
        T.checkpoint, "keep checkpoints here, and resume from the newest", commands=TRAIN, example="DIR"
    )
    checkpoint_interval_s: float = setting(
        T.checkpoint_interval_s,
        "least time between checkpoints (0: a checkpoint with each publish)",
        commands=TRAIN,
        least=0,
    )
    warm_start: str | None = setting(
        T.warm_start,
        "start a new run with parts of the model in the checkpoint directory of another run",
        commands=TRAIN,
        example="DIR",
    )
    warm_parts: str = setting(
        T.warm_parts,
        "parts of --warm-start: network, content, embeddings, or partial (all but embeddings), full, none",
        commands=TRAIN,
    )
    publish: str | None = setting(
        T.publish, "publish versions to this Redis", commands=TRAIN, scheme=REDIS, example="URL"
    )
    publish_interval_s: float = setting(
        T.publish_interval_s, "time between commits, which publish a version", commands=TRAIN, above=0
    )
    min_examples: int = setting(
        T.min_examples,
        "publish no model that has learned fewer examples (those of a warm start count)",
        commands=TRAIN,
        least=0,
    )
    take_over: bool = setting(
        T.take_over,
        "replace the version of another run, another pipeline or a newer checkpoint in the namespace",
        commands=TRAIN,
    )
    materialized: str | None = setting(
        T.materialized,
        "read features from this folder (livectr features materialize), and compute the others",
        commands=TRAIN,
        example="DIR",
    )
    common_features: bool = setting(
        T.common_features,
        "compute the features that examples of a user share once for a batch",
        commands=TRAIN,
    )
    aggregate: str = setting(
        T.aggregate,
        "collective that adds partial results: reducescatter or allreduce",
        commands=TRAIN,
    )
    field_exchange: str = setting(
        T.field_exchange,
        "how a field reaches the rank of the example: auto, partial, vectors, rows; or user=rows,ad=vectors",
        commands=TRAIN,
    )
    wire: str = setting(T.wire, "numbers between ranks: fp32 or bf16", commands=TRAIN)
    precision: str = setting(T.precision, "operands of matrix products: fp32 or bf16", commands=TRAIN)
    content: str | None = setting(
        T.content,
        "folders of features of images or texts, images=DIR,texts=DIR2",
        commands=EVERY,
        example="NAME=DIR",
    )
    dead_letters: str | None = setting(
        T.dead_letters,
        "target of records that cannot be used (default: a place beside the source)",
        commands=TRAIN,
        example="DIR",
    )
    dead_letter_spool_bytes: int = setting(
        T.dead_letter_spool_bytes,
        "dead letters that may wait on disk for their topic; when it is full, reading waits",
        commands=TRAIN,
        least=1,
    )
    max_record_bytes: int = setting(
        T.max_record_bytes, "longest JSON record; a longer one is a dead letter", commands=TRAIN, least=1
    )
    max_record_depth: int = setting(
        T.max_record_depth,
        "deepest nesting of objects and lists in a JSON record",
        commands=TRAIN,
        least=1,
        most=MOST_DEPTH,
    )
    max_message_rows: int = setting(
        T.max_message_rows, "most rows of an Arrow message", commands=TRAIN, least=1
    )
    max_unpacked_bytes: int = setting(
        T.max_unpacked_bytes,
        "largest Arrow message, or batch of messages, once it is decompressed",
        commands=TRAIN,
        least=1,
    )
    min_usable: float = setting(
        T.min_usable,
        "least share of a topic's rows that must be usable, else training ends with exit code 3 (0: never)",
        commands=TRAIN,
        least=0,
        most=1,
    )
    predictions: str | None = setting(
        T.predictions,
        "keep the log of predictions, which are made before learning",
        commands=TRAIN,
        example="FILE",
    )
    report: str | None = setting(
        T.report, "write the report (JSON) here at the end", commands=TRAIN, example="FILE"
    )

    redis: str = setting(
        "redis://127.0.0.1:6379",
        "Redis that the trainer publishes to",
        commands=SERVE,
        scheme=REDIS,
        example="URL",
    )
    listen: str = setting(
        S.listen, "address to answer on (port 0: a free one)", commands=SERVE, example="HOST:PORT"
    )
    workers: int = setting(S.workers, "processes that share the port", commands=SERVE, least=1)
    max_active: int = setting(S.max_active, "requests that are computed at a time", commands=SERVE, least=1)
    max_waiting: int = setting(
        S.max_waiting, "requests that may wait; more are refused at once", commands=SERVE, least=0
    )
    max_active_bytes: int = setting(
        S.max_active_bytes,
        "bytes of all requests that compute or wait; more are refused at once",
        commands=SERVE,
        least=1,
    )
    max_wait_s: float = setting(
        S.max_wait_s,
        "longest wait of a request without a deadline",
        commands=SERVE,
        above=0,
    )
    max_candidates: int = setting(S.max_candidates, "most candidates of a request", commands=SERVE, least=1)
    max_message_bytes: int = setting(
        S.max_message_bytes, "largest request on the wire", commands=SERVE, least=1
    )
    max_list: int = setting(S.max_list, "most values of one list in a request", commands=SERVE, least=1)
    max_string_bytes: int = setting(
        S.max_string_bytes, "longest string in a request", commands=SERVE, least=1
    )
    max_top_k: int = setting(S.max_top_k, "largest top_k of a request", commands=("prerank",), least=1)
    max_values: int = setting(
        S.max_values,
        "most values of list features in a request, over all candidates",
        commands=SERVE,
        least=1,
    )
    near_cache_rows: int = setting(
        S.near_cache_rows, "embedding rows kept in the server's memory", commands=SERVE, least=0
    )
    lookup_ttl_s: float = setting(
        S.lookup_ttl_s, "time that a look-up row is used before it is read again", commands=SERVE, least=0
    )
    lost_grace_s: float = setting(
        S.lost_grace_s,
        "time that a server stays SERVING when Redis has lost its version (replies are marked degraded)",
        commands=SERVE,
        least=0,
    )
    grace_s: float = setting(S.grace_s, "time to finish running requests at SIGTERM", commands=SERVE, least=0)


SECRET = ("publish", "redis")
"""URLs that may hold a password. A child gets them in its environment, not in its command line."""
FIELDS: dict[str, dataclasses.Field[Any]] = {f.name: f for f in dataclasses.fields(Settings)}
TYPES: dict[str, Any] = get_type_hints(Settings)
IN_BYTES = {"gpu_budget", "rank_memory", *(name for name in FIELDS if name.endswith("_bytes"))}
