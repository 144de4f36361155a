"""Settings of a training run."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from livectr.ingest.content.folders import content_folders
from livectr.ingest.content.refresh_rule import RefreshRule
from livectr.ingest.dead_letters.usable import MIN_USABLE, MOST_BAD
from livectr.ingest.limits import LIMITS, MOST_DEPTH, SPOOL_BYTES, RecordLimits
from livectr.kernels.runtime.compiler import thread_count
from livectr.store.redis_url import SCHEMES as REDIS
from livectr.system.errors import ConfigError
from livectr.system.object_store import is_object_address, local_copy
from livectr.system.process_options import BASICS, WATCHING, ProcessOptions
from livectr.system.settings import check, setting
from livectr.trainer import step_settings
from livectr.trainer.keep_rule import AGES, KeepRule, parse_ages
from livectr.trainer.ramp import FIRST, FIRST_BY_TORCH, BatchRamp
from livectr.trainer.step_settings import (
    Mode,
    Precision,
    Products,
    StepSettings,
    Wire,
    parse_field_exchange,
)
from livectr.trainer.warm_parts import RUN, parse_relearn, parse_warm_parts

KEPT_PREDICTIONS = 1_000_000
"""Predictions of a run without an end: tens of megabytes, and enough to compare two models."""
LEARNING, VERSIONS, RANKS = "Learning", "Freshness and versions", "Ranks"
MEMORY, GPU, RECORDS = "Memory", "GPU", "Bad records"


@dataclass(frozen=True)
class TrainOptions(ProcessOptions):
    """Settings of one training run, the same on every rank.

    Raises:
        ConfigError: a value cannot work, or two do not go together.
    """

    source: str = setting(
        "",
        "the logs: kafka://HOST:PORT[,…] or file:DIR",
        BASICS,
        scheme=("kafka://", "file:"),
        example="URL",
        commands=("train", "versions"),
        flag=True,
    )
    until_end: bool = setting(False, "stop at the end that the logs had at the start", BASICS, flag=True)
    until_idle_s: float | None = setting(None, "stop when no record has come for this time", BASICS, above=0)
    at_end: Literal["auto", "keep", "learn"] = setting(
        "auto",
        "impressions whose label window has not passed at the log's end: learn them, and the next run goes "
        "back before them (auto); keep them in the checkpoint, not learned; learn them for good",
        BASICS,
        see="#a-log-that-goes-on",
    )
    seed: int = setting(1, "seed of initial values", BASICS, least=0)
    max_steps: int | None = setting(None, "stop after this number of steps", BASICS, least=0)
    checkpoint: str | None = setting(
        None,
        "keep checkpoints here, a folder or s3://BUCKET/PREFIX, and resume from the newest",
        BASICS,
        example="DIR",
        commands=("train", "versions"),
        flag=True,
        see="checkpoint.md#keep-it-in-s3",
    )
    publish: str | None = setting(
        None,
        "publish versions to this Redis (redis://, redis+sentinel:// or redis+cluster://)",
        BASICS,
        scheme=REDIS,
        example="URL",
        flag=True,
        see="deploy.md#redis-urls",
    )
    predictions: str | None = setting(
        None, "keep the log of predictions, which are made before learning", BASICS, example="FILE"
    )
    keep_predictions: int | None = setting(
        None,
        "newest examples that the log of predictions keeps at least (0: all; default: all of a run with an "
        "end, else 1,000,000)",
        BASICS,
        least=0,
        see="evaluation.md#the-prediction-log",
    )
    report: str | None = setting(
        None, "write the report (JSON) here at the end", BASICS, example="FILE", flag=True
    )
    run_log: str | None = setting(
        None,
        "log of the run, written while it trains, for `livectr report`",
        BASICS,
        example="FILE",
        see="evaluation.md#a-page-of-a-run",
    )
    batch_size: int = setting(
        4096, "most examples in a step, over all ranks", LEARNING, least=1, commands=("train", "inspect")
    )
    batch_ramp: int | None = setting(
        None,
        "examples in the first batches, which grow with the examples seen to batch_size (0: no ramp; "
        "default: 4, or 64 if torch learns a model)",
        LEARNING,
        least=0,
        see="#batches",
    )
    metrics_window_s: float = setting(
        3600.0, "event time of the window in which AUC and other measures are watched", LEARNING, above=0
    )
    drift_window_s: float = setting(
        86400.0,
        "newest event time whose features are compared with those of the time before (0: no drift of "
        "features is measured)",
        LEARNING,
        least=0,
        see="operate.md#drift-of-features",
    )
    warm_start: str | None = setting(
        None,
        "start a new run with parts of the model in the checkpoint directory of another run",
        LEARNING,
        example="DIR",
        flag=True,
    )
    warm_parts: str = setting(
        "partial",
        "parts of warm_start: network, content, embeddings, or partial (all but embeddings), full, none; or "
        "run: a changed pipeline continues the run where it is",
        LEARNING,
    )
    relearn: str | None = setting(
        None,
        "with warm_parts=run, continue from a checkpoint that is at least so old, such as 1h, and learn "
        "the log since then again (all: the whole log, with a new model)",
        LEARNING,
        example="AGE",
        flag=True,
        see="add-a-feature.md#learn-the-last-hours-again",
    )
    materialized: str | None = setting(
        None,
        "read features from this folder (livectr features materialize), and compute the others",
        LEARNING,
        example="DIR",
    )
    common_features: bool = setting(
        True, "compute the features that examples of a user share once for a batch", LEARNING
    )
    precision: Precision = setting("fp32", "operands of matrix products: fp32 or bf16", LEARNING)
    products: Products = setting(
        "auto", "library of fp32 products: auto, torch or packed", LEARNING, see="#library-of-fp32-products"
    )
    idle_partition_s: float = setting(
        2.0, "a partition that is silent for this time no longer holds the watermark back", VERSIONS, above=0
    )
    batch_interval_ms: int | None = setting(
        None, "also end a batch at every multiple of this event time", VERSIONS, least=1
    )
    batch_wait_s: float | None = setting(
        None,
        "longest time that examples wait for a full batch (0: no limit; default: 1s on a live kafka:// log)",
        VERSIONS,
        least=0,
    )
    checkpoint_copy: str | None = setting(
        None,
        "folder for the working copy of a checkpoint in S3 [one below LIVECTR_CACHE_DIR]",
        VERSIONS,
        example="DIR",
    )
    checkpoint_interval_s: float = setting(
        0.0, "least time between checkpoints (0: a checkpoint with each publish)", VERSIONS, least=0
    )
    order_of: str | None = setting(
        None,
        "form the batches of the run with this checkpoint again, where a clock had decided them",
        VERSIONS,
        example="DIR",
        see="#replays",
    )
    publish_interval_s: float = setting(
        2.0, "time between commits, which publish a version", VERSIONS, above=0
    )
    publish_rate: int = setting(
        0,
        "most rows a second that a complete version writes, over all ranks (0: no limit)",
        VERSIONS,
        least=0,
        see="deploy.md#redis",
    )
    min_examples: int = setting(
        1000,
        "publish no model that has learned fewer examples (those of a warm start count)",
        VERSIONS,
        least=0,
    )
    publish_gate_auc: float = setting(
        0.0,
        "publish no version while AUC is below the usual AUC by more, such as 0.05 (0: always publish)",
        VERSIONS,
        least=0,
        most=1,
        see="operate.md#versions",
    )
    publish_gate_calibration: float = setting(
        0.0,
        "nor while predicted and observed clicks differ by a larger share, such as 0.5 (0: always publish)",
        VERSIONS,
        least=0,
    )
    publish_gate_clicks: float = setting(
        0.0,
        "nor while the click rate differs from the usual by a larger share, such as 1 (0: always publish)",
        VERSIONS,
        least=0,
    )
    publish_gate_window: int = setting(
        20000, "newest examples that the publish gate measures", VERSIONS, least=10
    )
    keep_ages: str = setting(
        AGES,
        "ages of checkpoints that are kept for `livectr versions rollback`, besides the newest two; or none",
        VERSIONS,
        example="AGE,…",
        see="operate.md#versions",
    )
    keep_bytes: int | None = setting(
        None,
        "disk that these may take; the oldest go first (default: 4 times the newest, but at least 1 GiB)",
        VERSIONS,
        least=0,
        example="BYTES",
    )
    take_over: bool = setting(
        False,
        "replace the version of another run, another pipeline or a newer checkpoint in the namespace",
        VERSIONS,
        flag=True,
    )
    content_refresh_s: float = setting(
        0.0,
        "event time in which vectors of images, texts and items are made again, such as 1h (0: each version)",
        VERSIONS,
        least=0,
        see="models.md#many-items",
    )
    content_tolerance: float = setting(
        0.0,
        "compute vectors again before, once a sample of them has moved by more, such as 0.05 (0: never)",
        VERSIONS,
        least=0,
    )
    threads: int | None = setting(
        None,
        "CPU threads of a rank (default: `LIVECTR_THREADS`, else the cores shared by the ranks)",
        RANKS,
        least=1,
    )
    placement: Literal["mod", "balanced"] = setting(
        "mod",
        "placement of fields on ranks: mod (round-robin) or balanced (by measured keys and bytes)",
        RANKS,
        commands=("train", "inspect"),
    )
    aggregate: Mode = setting(
        "reducescatter", "collective that adds partial results: reducescatter or allreduce", RANKS
    )
    field_exchange: str = setting(
        "auto",
        "how a field reaches the rank of the example: auto, partial, vectors, rows; or user=rows,ad=vectors",
        RANKS,
        see="scaling.md#how-auto-chooses",
    )
    wire: Wire = setting("fp32", "numbers between ranks: fp32 or bf16", RANKS)
    rank_memory: int | None = setting(
        None,
        "memory for tables of a rank in placement balanced; larger ones are split by key (default: no limit)",
        MEMORY,
        least=0,
        example="BYTES",
        commands=("train", "inspect"),
        memory=True,
    )
    dram_bytes: int | None = setting(
        None,
        "DRAM for embedding rows of a rank; the other rows go to spill (default: no limit)",
        MEMORY,
        least=1,
        example="BYTES",
    )
    spill: str | None = setting(
        None, "folder on an SSD for embedding rows beyond dram_bytes", MEMORY, example="DIR"
    )
    device: Literal["cpu", "gpu", "auto"] = setting(
        "cpu",
        "device of features, tables and networks: cpu, gpu (needs livectr[gpu]), or auto: a GPU if there is "
        "one, and features where a batch takes less time",
        GPU,
        flag=True,
    )
    gpu_budget: int | None = setting(
        None,
        "device memory for a batch's features; operators that do not fit run on the CPU (default: no limit, "
        "but in training a twelfth of the GPU memory that is free)",
        GPU,
        least=0,
        example="BYTES",
        commands=("train", "inspect"),
        memory=True,
    )
    gpu_rows: int | None = setting(
        None,
        "most rows of a rank's tables on its GPU; the others are in host memory (0: all of them; "
        "default: as many as fit beside features, networks and batches)",
        GPU,
        least=0,
        example="ROWS",
    )
    dead_letters: str | None = setting(
        None,
        "target of records that cannot be used (default: a place beside the source)",
        RECORDS,
        example="DIR",
    )
    dead_letter_spool_bytes: int = setting(
        SPOOL_BYTES,
        "dead letters that may wait on disk for their topic; when it is full, reading waits",
        RECORDS,
        least=1,
    )
    max_record_bytes: int = setting(
        LIMITS.record_bytes, "longest JSON record; a longer one is a dead letter", RECORDS, least=1
    )
    max_record_depth: int = setting(
        LIMITS.depth,
        "deepest nesting of objects and lists in a JSON record",
        RECORDS,
        least=1,
        most=MOST_DEPTH,
    )
    max_message_rows: int = setting(LIMITS.message_rows, "most rows of an Arrow message", RECORDS, least=1)
    max_unpacked_bytes: int = setting(
        LIMITS.unpacked_bytes,
        "largest Arrow message, or batch of messages, once it is decompressed",
        RECORDS,
        least=1,
    )
    min_usable: float = setting(
        MIN_USABLE,
        "least share of a topic's rows that must be usable, else training ends with exit code 3 (0: never)",
        RECORDS,
        least=0,
        most=1,
    )
    max_bad: float = setting(
        MOST_BAD,
        "share of a topic's rows that may be set aside; above it, a run until_end ends with exit code 4",
        RECORDS,
        flag=True,
        least=0,
        most=1,
        example="SHARE",
    )
    group: str | None = setting(
        None,
        "consumer group whose lag Kafka's tools show: offsets are committed after each checkpoint",
        WATCHING,
        example="NAME",
        see="operate.md#lag-in-kafkas-own-tools",
    )

    def __post_init__(self) -> None:
        check(self)
        if not self.source:
            raise ConfigError("source is not set: name the logs, kafka://HOST:PORT[,…] or file:DIR")
        if self.at_end == "keep" and self.checkpoint is None:
            raise ConfigError(
                "at_end is keep, but there is no checkpoint to keep waiting impressions in: name one with "
                "checkpoint, or leave at_end out"
            )
        if self.group is not None:
            check_group(self.group, self.source, self.checkpoint)
        if self.checkpoint_copy is not None and not is_object_address(self.checkpoint):
            raise ConfigError("checkpoint_copy is for a checkpoint in S3 (s3://BUCKET/PREFIX); leave it out")
        if self.gpu_rows and self.device == "cpu":
            raise ConfigError(f"gpu_rows is {self.gpu_rows}, but device is cpu: set device to gpu")
        if 0 < self.drift_window_s < 10:
            raise ConfigError(
                f"drift_window_s is {self.drift_window_s:g}, but must be at least 10, or 0: no drift"
            )
        check_placement(self.placement, self.rank_memory)
        if self.dram_bytes is not None and self.spill is None:
            raise ConfigError("dram_bytes needs spill: name a folder on an SSD for the rows that do not fit")
        if self.spill is not None and self.dram_bytes is None:
            raise ConfigError(
                "spill needs dram_bytes: how much memory the rows may take before others go there"
            )
        _ = self.step_settings, self.content_folders, self.limits, parse_warm_parts(self.warm_parts)
        _ = self.metrics_tls, self.content_rule, self.keep_rule
        if self.continues and self.checkpoint is None:
            raise ConfigError(
                "warm_parts=run makes the checkpoint of the new run from that of the old one: name one with "
                "checkpoint"
            )
        if self.relearn is not None and parse_relearn(self.relearn) is None and self.warm_start is not None:
            raise ConfigError(
                "relearn is all, so that nothing is taken from another run: leave warm_start out"
            )
        if self.relearn_ms is not None and not self.continues:
            raise ConfigError(
                "relearn is for a run that continues another one: name its checkpoint with warm_start, and "
                "set warm_parts=run"
            )

    @property
    def keeps_waiting(self) -> bool:
        """True where impressions wait in a generation of the checkpoint for the next run when the log ends.

        With a checkpoint the next run reads on, and their clicks are in the rows that it reads.
        """
        return self.checkpoint is not None and self.at_end != "learn"

    @property
    def goes_back(self) -> bool:
        """True where this run learns these impressions all the same, after that generation."""
        return self.checkpoint is not None and self.at_end == "auto"

    @property
    def reads_to_end(self) -> bool:
        """True for a run that stops at the log's end."""
        return self.until_end or self.until_idle_s is not None

    @property
    def keep_rule(self) -> KeepRule:
        """Checkpoints that are kept for rollbacks. Raises ConfigError for ages that are no durations."""
        return KeepRule(parse_ages(self.keep_ages), self.keep_bytes)

    @property
    def continues(self) -> bool:
        """True where a new run continues another one with a changed pipeline (trainer.carry)."""
        return self.warm_start is not None and RUN in parse_warm_parts(self.warm_parts)

    @property
    def relearn_ms(self) -> int | None:
        """Least age of the generation that the run continues; None: the newest, or none at all."""
        return None if self.relearn is None else parse_relearn(self.relearn)

    @property
    def longest_wait_s(self) -> float | None:
        """Longest time that examples wait for a full batch; None: no limit."""
        if self.batch_wait_s is not None:
            return self.batch_wait_s or None
        return 1.0 if not self.reads_to_end and self.source.startswith("kafka://") else None

    def ramp(self, *, compiled: bool) -> BatchRamp:
        """Sizes of batches.

        Args:
            compiled: compiled calls learn small batches of every model.
        """
        default = FIRST if compiled else FIRST_BY_TORCH
        return BatchRamp(self.batch_size, default if self.batch_ramp is None else self.batch_ramp)

    @property
    def step_settings(self) -> StepSettings:
        """Execution of steps. Raises ConfigError for an unknown field exchange."""
        exchange = parse_field_exchange(self.field_exchange)
        return StepSettings(
            self.aggregate,
            exchange,
            self.precision,
            self.ramp(compiled=True).choose_from,
            step_settings.ONLINE,
            self.products,
        )

    @property
    def limits(self) -> RecordLimits:
        """Limits of a record. Raises ConfigError for values that cannot work."""
        return RecordLimits(
            self.max_record_bytes, self.max_record_depth, self.max_message_rows, self.max_unpacked_bytes
        )

    @property
    def content_folders(self) -> dict[str, Path]:
        """Content → folder of its features. Raises ConfigError for a text that is no list of name=folder."""
        return content_folders(self.content)

    @property
    def content_rule(self) -> RefreshRule:
        """Vectors that a version computes. Raises ConfigError for values that cannot work."""
        return RefreshRule(int(self.content_refresh_s * 1000), self.content_tolerance)

    @property
    def logged(self) -> bool:
        """Tell if predictions are kept on disk: they are asked for, have a place, or the run has an end."""
        return self._has_end or any((self.predictions, self.report, self.checkpoint))

    @property
    def kept_predictions(self) -> int:
        """Newest predictions that are kept at least; 0: all."""
        if self.keep_predictions is not None:
            return self.keep_predictions
        return 0 if self._has_end else KEPT_PREDICTIONS

    @property
    def _has_end(self) -> bool:
        return self.reads_to_end or self.max_steps is not None

    @property
    def prediction_file(self) -> Path | None:
        """The prediction log; with a checkpoint it survives a restart. None: a temporary file."""
        if self.predictions is not None:
            return Path(self.predictions)
        folder = self.checkpoint_folder
        return folder / "predictions" if folder is not None else None

    @property
    def checkpoint_folder(self) -> Path | None:
        """Folder of the checkpoint, or its working copy if the checkpoint is in an object store."""
        return local_copy(self.checkpoint, self.checkpoint_copy) if self.checkpoint is not None else None

    def check_files(self) -> None:
        """Make the folders of the report and of the logs, before hours of training.

        Raises:
            ConfigError: a file cannot be written.
        """
        for name in ("report", "predictions", "run_log"):
            path = getattr(self, name)
            if path is None:
                continue
            file = Path(path)
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ConfigError(f"{name}: {file.parent} cannot be made ({error.strerror})") from None
            if file.is_dir():
                raise ConfigError(f"{name}: {file} is a directory; name a file")
            if not os.access(file if file.exists() else file.parent, os.W_OK):
                raise ConfigError(f"{name}: {file} cannot be written; name another file")

    def threads_here(self) -> int:
        """CPU threads of this process: `threads`, else LIVECTR_THREADS, else its share of the cores.

        In a pod, all cores of the node look like its own; there LIVECTR_THREADS is the pod's request.

        Raises:
            ConfigError: LIVECTR_THREADS is no number of at least 1.
        """
        if self.threads is not None:
            return self.threads
        if os.environ.get("LIVECTR_THREADS"):
            return thread_count()
        return max(1, len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", 1)))


def check_placement(placement: str, rank_memory: int | None) -> None:
    """Raise ConfigError for settings of a placement that do not go together."""
    if placement not in ("mod", "balanced"):
        raise ConfigError(f"placement is {placement!r}; it must be mod or balanced")
    if rank_memory is not None and placement == "mod":
        raise ConfigError("rank_memory is kept to by placement balanced alone; set that, or no rank_memory")


def check_group(group: str, source: str, checkpoint: str | None) -> None:
    """Raise ConfigError for settings of a consumer group that do not go together."""
    if not group.strip():
        raise ConfigError("group is empty; name the consumer group, or leave the setting out")
    if not source.startswith("kafka://"):
        raise ConfigError(f"group is {group!r}, but only a kafka:// source has consumer groups")
    if checkpoint is None:
        raise ConfigError("group needs checkpoint: offsets are committed to the broker after each checkpoint")
