"""One configuration object, parsed once at process entry.

Four sources are read, the later wins: the pipeline file's `settings=`, a TOML file, environment variables
`LIVECTR_<NAME>`, and command-line flags. A name that no setting has is an error in every source, because a
misspelled setting that is ignored is found in production.

Units are in the names: `*_ms` are int milliseconds, `*_s` float seconds. A value may be a plain number in
that unit or a duration: "500ms", "10s", "2m", "1h", "14d". Memory is in bytes, or "512MiB", "8GiB".
"""

import dataclasses
import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from livectr.ingest.language.byte_units import parse_bytes
from livectr.ingest.language.durations import duration_ms
from livectr.ingest.limits import MOST_DEPTH
from livectr.kernels.errors import ConfigError
from livectr.protos.store import without_password
from livectr.secrets import read_password, with_password
from livectr.serving.options import ServeOptions as S
from livectr.trainer.options import TrainOptions as T

OTHER_ENVIRONMENT = ("LIVECTR_CACHE_DIR", "LIVECTR_THREADS")  # read by kernels.runtime.compiler, not settings
# Kubernetes describes a Service "livectr-rank" to every pod as LIVECTR_RANK_SERVICE_HOST and so on.
SERVICE_LINK = re.compile(r"_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)$")


def setting(
    default: Any,
    help: str,
    *,
    commands: tuple[str, ...],
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
    scheme: tuple[str, ...] = (),
    example: str = "",
) -> Any:
    """A field of Settings: its default, what it does, which sub-commands have its flag, its limits."""
    metadata = dict(
        help=help, commands=commands, least=least, most=most, above=above, scheme=scheme, example=example
    )
    return dataclasses.field(default=default, metadata=metadata)


TRAIN, SERVE, RANK, INSPECT = ("train",), ("rank", "prerank"), ("rank",), ("inspect",)
EVERY = TRAIN + SERVE
REDIS = ("redis://", "rediss://", "unix://")


@dataclass(frozen=True)
class Settings:
    """Every setting of every process. Names and defaults are those of TrainOptions and ServeOptions."""

    pipeline: str | None = setting(None, "the pipeline file", commands=EVERY, example="FILE.py")
    namespace: str = setting(T.namespace, "prefix of everything that is kept in Redis", commands=EVERY)
    metrics_port: int = setting(
        T.metrics_port,
        "Prometheus metrics (0: none; rank r of a trainer, worker w of a server take port + r, w)",
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
        "where the logs are: kafka://HOST:PORT[,…] or file:DIR",
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
    nodes: int = setting(1, "machines that train together, each with so many ranks", commands=TRAIN, least=1)
    node: int = setting(0, "which of the nodes this machine is", commands=TRAIN, least=0)
    rendezvous: str | None = setting(
        None,
        "where the ranks of several nodes meet: a free port of node 0",
        commands=TRAIN,
        example="HOST:PORT",
    )
    restarts: int = setting(
        0,
        "start all ranks again from the checkpoint when one dies, until so many failures without progress",
        commands=TRAIN,
        least=0,
    )
    until_end: bool = setting(T.until_end, "stop at the logs' end as it was at the start", commands=TRAIN)
    until_idle_s: float | None = setting(
        T.until_idle_s, "stop when nothing has come for so long", commands=TRAIN, above=0
    )
    idle_partition_s: float = setting(
        T.idle_partition_s,
        "a partition silent for so long no longer holds event time back",
        commands=TRAIN,
        above=0,
    )
    batch_size: int = setting(
        T.batch_size, "examples in a step, over all ranks", commands=TRAIN + INSPECT, least=1
    )
    batch_interval_ms: int | None = setting(
        T.batch_interval_ms, "also cut a batch at every multiple of this event time", commands=TRAIN, least=1
    )
    seed: int = setting(T.seed, "seed of every initial value", commands=TRAIN, least=0)
    threads: int | None = setting(
        T.threads, "CPU threads of a rank (default: the cores shared by the ranks)", commands=TRAIN, least=1
    )
    placement: str = setting(
        T.placement,
        "which rank holds which field: mod (in turn) or balanced (by measured keys and bytes)",
        commands=TRAIN + INSPECT,
    )
    rank_memory: int | None = setting(
        T.rank_memory,
        "what tables a rank may hold in placement balanced; larger ones are split by key (default: no limit)",
        commands=TRAIN + INSPECT,
        least=0,
        example="BYTES",
    )
    dram_bytes: int | None = setting(
        T.dram_bytes,
        "memory for a rank's embedding rows; the others go to --spill (default: no limit)",
        commands=TRAIN,
        least=1,
        example="BYTES",
    )
    spill: str | None = setting(
        T.spill, "folder on an SSD for embedding rows beyond dram_bytes", commands=TRAIN, example="DIR"
    )
    device: str = setting(
        T.device,
        "where features are extracted and tables trained: cpu or gpu (needs livectr[gpu])",
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
        "most rows of a rank's tables on its GPU; the others are in host memory (0: all there; "
        "default: what half of the GPU memory holds that is free at the start)",
        commands=TRAIN,
        least=0,
        example="ROWS",
    )
    max_steps: int | None = setting(T.max_steps, "stop after so many steps", commands=TRAIN, least=1)
    metrics_window_s: float = setting(
        T.metrics_window_s, "event time over which AUC and the rest are watched", commands=TRAIN, above=0
    )
    checkpoint: str | None = setting(
        T.checkpoint, "keep checkpoints here, and resume from the newest", commands=TRAIN, example="DIR"
    )
    checkpoint_interval_s: float = setting(
        T.checkpoint_interval_s,
        "least time between checkpoints (0: one with each publish)",
        commands=TRAIN,
        least=0,
    )
    warm_start: str | None = setting(
        T.warm_start,
        "begin a new run with parts of the model in this checkpoint directory of another",
        commands=TRAIN,
        example="DIR",
    )
    warm_parts: str = setting(
        T.warm_parts,
        "which parts: network, content, embeddings, or partial (all but embeddings), full, none",
        commands=TRAIN,
    )
    publish: str | None = setting(
        T.publish, "publish versions to this Redis", commands=TRAIN, scheme=REDIS, example="URL"
    )
    publish_interval_s: float = setting(
        T.publish_interval_s, "commit and publish this often", commands=TRAIN, above=0
    )
    min_examples: int = setting(
        T.min_examples,
        "publish no model that has learned fewer (those of a warm start count)",
        commands=TRAIN,
        least=0,
    )
    take_over: bool = setting(
        T.take_over,
        "replace what another run, another pipeline or a newer checkpoint has published in the namespace",
        commands=TRAIN,
    )
    materialized: str | None = setting(
        T.materialized,
        "read the features of this folder (livectr features materialize), compute the others",
        commands=TRAIN,
        example="DIR",
    )
    common_features: bool = setting(
        T.common_features,
        "compute once what a batch's examples of one user have in common",
        commands=TRAIN,
    )
    aggregate: str = setting(
        T.aggregate,
        "how ranks put partial results together: reducescatter or allreduce",
        commands=TRAIN,
    )
    field_exchange: str = setting(
        T.field_exchange,
        "what of a field crosses ranks: auto, partial, vectors, rows, or of fields, user=rows,ad=vectors",
        commands=TRAIN,
    )
    wire: str = setting(T.wire, "how numbers cross ranks: fp32 or bf16", commands=TRAIN)
    precision: str = setting(T.precision, "how networks multiply: fp32 or bf16", commands=TRAIN)
    content: str | None = setting(
        T.content,
        "folders of features of images or texts, images=DIR,texts=DIR2",
        commands=EVERY,
        example="NAME=DIR",
    )
    dead_letters: str | None = setting(
        T.dead_letters,
        "where records go that cannot be read (default: the source's own place)",
        commands=TRAIN,
        example="DIR",
    )
    dead_letter_spool_bytes: int = setting(
        T.dead_letter_spool_bytes,
        "dead letters that may wait on disk for their topic; beyond it reading waits",
        commands=TRAIN,
        least=1,
    )
    max_record_bytes: int = setting(
        T.max_record_bytes, "longest JSON record; a longer one is a dead letter", commands=TRAIN, least=1
    )
    max_record_depth: int = setting(
        T.max_record_depth,
        "most objects and lists within each other in a JSON record",
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
        T.predictions, "keep the log of predictions made before learning", commands=TRAIN, example="FILE"
    )
    report: str | None = setting(
        T.report, "write the report (JSON) here at the end", commands=TRAIN, example="FILE"
    )

    redis: str = setting(
        "redis://127.0.0.1:6379", "what the trainer publishes to", commands=SERVE, scheme=REDIS, example="URL"
    )
    listen: str = setting(
        S.listen, "address to answer on (port 0: a free one)", commands=SERVE, example="HOST:PORT"
    )
    workers: int = setting(S.workers, "processes that share the port", commands=SERVE, least=1)
    max_active: int = setting(S.max_active, "requests computing at once", commands=SERVE, least=1)
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
    max_candidates: int = setting(S.max_candidates, "largest request", commands=SERVE, least=1)
    max_message_bytes: int = setting(
        S.max_message_bytes, "largest request on the wire", commands=SERVE, least=1
    )
    max_list: int = setting(S.max_list, "most values of one list in a request", commands=SERVE, least=1)
    max_string_bytes: int = setting(
        S.max_string_bytes, "longest string in a request", commands=SERVE, least=1
    )
    max_top_k: int = setting(
        S.max_top_k, "most items that a request may ask for", commands=("prerank",), least=1
    )
    max_values: int = setting(
        S.max_values,
        "most values of list features in a request, over all candidates",
        commands=SERVE,
        least=1,
    )
    nearcache_rows: int = setting(
        S.nearcache_rows, "embedding rows kept in the server's memory", commands=SERVE, least=0
    )
    lookup_ttl_s: float = setting(
        S.lookup_ttl_s, "how long a look-up row is used before it is asked again", commands=SERVE, least=0
    )
    lost_grace_s: float = setting(
        S.lost_grace_s,
        "how long a server whose version Redis has lost stays SERVING (replies are marked)",
        commands=SERVE,
        least=0,
    )
    grace_s: float = setting(
        S.grace_s, "time for requests under way when the server is told to stop", commands=SERVE, least=0
    )


SECRET = ("publish", "redis")
"""URLs that may hold a password: they are never handed to a child as words of its command."""
FIELDS: dict[str, dataclasses.Field[Any]] = {f.name: f for f in dataclasses.fields(Settings)}
TYPES: dict[str, Any] = get_type_hints(Settings)
IN_BYTES = {"gpu_budget", "rank_memory", *(name for name in FIELDS if name.endswith("_bytes"))}


def nearest(name: str, known: Any) -> str:
    """A hint for a misspelled name: the closest of `known`, or all of them."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known are {', '.join(sorted(known))}."


def parse(name: str, value: Any, where: str) -> Any:
    """`value` (text, or a TOML or Python value) as the type of setting `name`. Raises ConfigError."""
    if name not in FIELDS:
        raise ConfigError(f"{where}: there is no setting {name!r}; {nearest(name, FIELDS)}")
    metadata, types = FIELDS[name].metadata, TYPES[name]
    optional = type(None) in getattr(types, "__args__", ())
    kind = next(t for t in getattr(types, "__args__", (types,)) if t is not type(None))
    if value is None:
        if optional:
            return None
        raise ConfigError(f"{where}: {name} needs a value.")
    try:
        parsed = _convert(name, value, kind)
    except ValueError as error:
        raise ConfigError(f"{where}: {name} is {value!r}, but {error}.") from None
    if metadata["least"] is not None and parsed < metadata["least"]:
        raise ConfigError(f"{where}: {name} is {value!r}, but must be at least {metadata['least']:g}.")
    if metadata["most"] is not None and parsed > metadata["most"]:
        raise ConfigError(f"{where}: {name} is {value!r}, but must be at most {metadata['most']:g}.")
    if metadata["above"] is not None and parsed <= metadata["above"]:
        raise ConfigError(f"{where}: {name} is {value!r}, but must be more than {metadata['above']:g}.")
    if metadata["scheme"] and not str(parsed).startswith(metadata["scheme"]):
        raise ConfigError(
            f"{where}: {name} is {without_password(str(value))!r}, but must begin with "
            f"{' or '.join(metadata['scheme'])}."
        )
    return parsed


def _convert(name: str, value: Any, kind: type) -> Any:
    unit = 1000.0 if name.endswith("_s") else 1.0
    timed = name.endswith(("_s", "_ms"))
    if isinstance(value, str) and timed and re.search(r"[a-z]", value):
        try:
            value = duration_ms(value, name) / unit
        except ConfigError:
            raise ValueError('must be a number or a duration like "500ms", "10s", "14d"') from None
    if isinstance(value, str) and name in IN_BYTES and re.search(r"[a-zA-Z]\s*$", value):
        try:
            value = parse_bytes(value, name)
        except ConfigError:
            raise ValueError('must be bytes or an amount of memory like "512MiB", "8GiB"') from None
    if kind is bool:
        words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in words:
            return words[value.lower()]
        raise ValueError("must be true or false")
    if kind is str:
        if isinstance(value, str | os.PathLike) and str(value):
            return str(value)
        raise ValueError("must be a text that is not empty")
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("must be a number")
    try:
        number = float(value)
    except ValueError:
        raise ValueError("must be a number") from None
    if not abs(number) < 2**63:  # also infinity and not-a-number
        raise ValueError("must be a number below 2^63")
    if kind is int:
        if number != int(number):
            raise ValueError("must be a whole number")
        return (
            int(value) if isinstance(value, int | str) and re.fullmatch(r"-?\d+", str(value)) else int(number)
        )
    return number


def from_toml(path: str | Path) -> dict[str, Any]:
    """The settings in a TOML file: flat `name = value` lines."""
    try:
        values = tomllib.loads(Path(path).read_text())
    except OSError as error:
        raise ConfigError(f"The configuration file {path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"The configuration file {path} is not TOML: {error}.") from None
    return {name: parse(name, value, str(path)) for name, value in values.items()}


def from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """The settings in `LIVECTR_<NAME>` variables; others with that prefix are an error."""
    values = {}
    for variable, text in environment.items():
        name = variable.removeprefix("LIVECTR_").lower()
        if not variable.startswith("LIVECTR_") or variable in OTHER_ENVIRONMENT:
            continue
        if name not in FIELDS and SERVICE_LINK.search(variable):
            continue
        values[name] = parse(name, text, f"environment variable {variable}")
    return values


def resolve(
    flags: Mapping[str, Any],
    *,
    toml: str | Path | None = None,
    environment: Mapping[str, str] | None = None,
    pipeline: Mapping[str, Any] | None = None,
) -> Settings:
    """Settings from all sources; `flags` are only those that were given, `pipeline` the file's settings.

    The password of `redis_password_file` is in the URLs of the result.
    """
    values: dict[str, Any] = {}
    values.update({n: parse(n, v, "settings of the pipeline") for n, v in (pipeline or {}).items()})
    values.update(from_toml(toml) if toml else {})
    values.update(from_environment(os.environ if environment is None else environment))
    values.update({n: parse(n, v, f"flag --{n.replace('_', '-')}") for n, v in flags.items()})
    if values.get("redis_password_file") is not None:
        password = read_password(values["redis_password_file"])
        for name in SECRET:
            url = values.get(name, FIELDS[name].default)
            values[name] = url and with_password(url, password)
    return Settings(**values)
