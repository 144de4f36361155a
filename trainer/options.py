"""Settings of a training run."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from livectr.ingest.content.folders import content_folders
from livectr.ingest.content.refresh_rule import RefreshRule
from livectr.ingest.dead_letters.usable import MIN_USABLE
from livectr.ingest.limits import LIMITS, SPOOL_BYTES, RecordLimits
from livectr.kernels.runtime.compiler import thread_count
from livectr.system.errors import ConfigError
from livectr.system.object_store import is_object_address, local_copy
from livectr.system.tls import TlsFiles
from livectr.trainer.ramp import LEAST, SLOPE, BatchRamp
from livectr.trainer.step_settings import (
    ONLINE,
    Mode,
    Precision,
    Products,
    StepSettings,
    Wire,
    parse_field_exchange,
)
from livectr.trainer.warm_parts import parse_warm_parts


@dataclass(frozen=True)
class TrainOptions:
    """Settings of one training run, the same on every rank.

    Args:
        source: kafka://HOST:PORT[,…] or file:DIR.
        until_end: end where the log ended when the run started.
        until_idle_s: end when nothing came for so long.
        idle_partition_s: silence after which a partition does not hold the others back.
        batch_size: B, most examples of a step over all ranks.
        batch_ramp, batch_min: batches grow from `batch_min` with the examples seen
            (trainer.ramp.BatchRamp); a ramp of 0 keeps them at `batch_size`.
        online_batch: largest batch with orders learned example by example (trainer.des.online).
        batch_interval_ms: event time that a batch may not cross. A slow stream is then trained without
            waiting for full batches.
        batch_wait_s: longest time by the clock that examples wait for a full batch; 0: for as long as it
            takes; None: 1 second on a live kafka:// log, else 0.
        checkpoint: folder, or s3://BUCKET/PREFIX; None: nothing is kept.
        checkpoint_copy: folder of the working copy of a checkpoint in an object store; None: a folder of the
            address below LIVECTR_CACHE_DIR.
        group: consumer group for which rank 0 commits the offsets of checkpoints to the broker, for Kafka's
            tools alone (trainer.stream.group_offsets); None: none.
        checkpoint_interval_s: least time between checkpoints; 0: one with each publish, as long as they take
            a tenth of the time at most.
        warm_start: another run's checkpoint, whose model a new run begins with; a resumed run ignores it.
        warm_parts: parts of that model: "network,embeddings", or partial, full, none
            (trainer.checkpoint.warm_start).
        order_of: another run's checkpoint, whose batches are formed again as its order log says
            (trainer.stream.order_log); None: the clock decides where the logs do not.
        publish: redis:// URL; None: nothing is published.
        publish_interval_s: least time between commits.
        publish_rate: most rows that a complete version writes in a second, over all ranks; 0: no limit.
        min_examples: least examples of a model that is published; those of the warm start count.
        publish_gate_auc: no version is published while the AUC of the newest window is below the usual AUC by
            more (trainer.quality.gate); 0: never held.
        publish_gate_calibration: nor while predicted clicks exceed observed clicks by a larger share, or
            observed clicks predicted; 0: never held.
        publish_gate_clicks: nor while observed clicks exceed the usual, or the usual observed, by a larger
            share; 0: never held.
        publish_gate_window: examples of that window.
        keep_versions: older generations of the checkpoint that are kept for a rollback.
        keep_every_s: least time between them.
        take_over: replace the version of another run, pipeline or newer checkpoint
            (trainer.publish.succession).
        metrics_window_s: sliding window of the quality gauges, in event time.
        predictions: file for the log of test-then-train predictions.
        report: file for the report (JSON).
        run_log: file for the run log (trainer.quality.run_log); None: none is kept.
        dead_letters: folder or URL for records that cannot be used; None: beside the source.
        dead_letter_spool_bytes: most bytes of letters that wait for their topic, beside the checkpoint.
        max_record_bytes, max_record_depth, max_message_rows, max_unpacked_bytes: see
            ingest.limits.RecordLimits.
        min_usable: least share of usable rows of a topic, judged from 10,000 rows on; 0: not judged.
        materialized: folder of materialized features, which are read; None: all features are computed.
        placement: of fields on ranks: "mod" is round-robin (DES §5), "balanced" uses measured keys and bytes.
        rank_memory: most bytes of tables on a rank with "balanced"; None: no limit.
        dram_bytes: memory for the embedding rows of a rank; None: all rows are in memory.
        spill: folder on an SSD for the other rows. Both or neither of the two.
        device: computes features and trains tables.
        gpu_budget: most bytes of GPU memory for features; None: all.
        gpu_rows: most rows of a rank's tables on the GPU, the others are in host memory; 0: all are there;
            None: see trainer.tables.gpu_tables.FREE_SHARE.
        common_features: compute, send and pool the common features of a user's examples once a batch.
        aggregate, field_exchange, wire, precision, products: execution of a step
            (trainer.step_settings.StepSettings). "auto" products have the checkpoint's library, in a first
            run the one that suits rank 0's CPU.
            field_exchange may name fields: "user=rows,ad=vectors".
        content: folders with the features of the pipeline's content, "images=DIR,texts=DIR2"
            (ingest.content.store). The default for content with a topic is a folder beside the checkpoint, or
            a temporary folder.
        content_refresh_s, content_tolerance: which vectors of content and items a version computes again
            (ingest.content.refresh_rule.RefreshRule).
        metrics_port: Prometheus endpoint; rank r of a machine answers at port + r; 0: none.
        metrics_listen: its address.
        metrics_tls_cert, metrics_tls_key: PEM files with which it answers by https; None: by http.
        metrics_tls_client_ca: PEM file of the authorities of its clients, which then need a certificate.
        threads: CPU threads of this process; None: LIVECTR_THREADS of the environment, else an equal share of
            this machine's cores for each rank.
        max_steps: end after so many steps; None: no limit.

    Raises:
        ConfigError: a value cannot work, or two do not go together.
    """

    source: str
    until_end: bool = False
    until_idle_s: float | None = None
    idle_partition_s: float = 2.0
    batch_size: int = 4096
    batch_ramp: int = SLOPE
    batch_min: int = LEAST
    online_batch: int = ONLINE
    batch_interval_ms: int | None = None
    batch_wait_s: float | None = None
    seed: int = 1
    namespace: str = "livectr"
    checkpoint: str | None = None
    checkpoint_copy: str | None = None
    group: str | None = None
    checkpoint_interval_s: float = 0.0
    warm_start: str | None = None
    warm_parts: str = "partial"
    order_of: str | None = None
    publish: str | None = None
    publish_interval_s: float = 2.0
    publish_rate: int = 0
    min_examples: int = 1000
    publish_gate_auc: float = 0.0
    publish_gate_calibration: float = 0.0
    publish_gate_clicks: float = 0.0
    publish_gate_window: int = 20_000
    keep_versions: int = 2
    keep_every_s: float = 3600.0
    take_over: bool = False
    metrics_window_s: float = 3600.0
    predictions: str | None = None
    report: str | None = None
    run_log: str | None = None
    dead_letters: str | None = None
    dead_letter_spool_bytes: int = SPOOL_BYTES
    max_record_bytes: int = LIMITS.record_bytes
    max_record_depth: int = LIMITS.depth
    max_message_rows: int = LIMITS.message_rows
    max_unpacked_bytes: int = LIMITS.unpacked_bytes
    min_usable: float = MIN_USABLE
    materialized: str | None = None
    placement: Literal["mod", "balanced"] = "mod"
    rank_memory: int | None = None
    dram_bytes: int | None = None
    spill: str | None = None
    device: Literal["cpu", "gpu"] = "cpu"
    gpu_budget: int | None = None
    gpu_rows: int | None = None
    common_features: bool = True
    aggregate: Mode = "reducescatter"
    field_exchange: str = "auto"
    wire: Wire = "fp32"
    precision: Precision = "fp32"
    products: Products = "auto"
    content: str | None = None
    content_refresh_s: float = 0.0
    content_tolerance: float = 0.0
    metrics_port: int = 0
    metrics_listen: str = "127.0.0.1"
    metrics_tls_cert: str | None = None
    metrics_tls_key: str | None = None
    metrics_tls_client_ca: str | None = None
    threads: int | None = None
    max_steps: int | None = None

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ConfigError(f"batch_size is {self.batch_size}; it must be at least 1")
        if self.batch_ramp < 0:
            raise ConfigError(f"batch_ramp is {self.batch_ramp}; it must be at least 0 (0: no ramp)")
        if self.batch_min < 1:
            raise ConfigError(f"batch_min is {self.batch_min}; it must be at least 1")
        if self.online_batch < 0:
            raise ConfigError(f"online_batch is {self.online_batch}; it must be at least 0 (0: none)")
        if self.batch_interval_ms is not None and self.batch_interval_ms < 1:
            raise ConfigError(f"batch_interval_ms is {self.batch_interval_ms}; it must be at least 1")
        if self.batch_wait_s is not None and self.batch_wait_s < 0:
            raise ConfigError(f"batch_wait_s is {self.batch_wait_s}; it must be at least 0 (0: no limit)")
        if self.group is not None:
            check_group(self.group, self.source, self.checkpoint)
        if self.checkpoint_copy is not None and not is_object_address(self.checkpoint):
            raise ConfigError("checkpoint_copy is for a checkpoint in S3 (s3://BUCKET/PREFIX); leave it out")
        if self.device not in ("cpu", "gpu"):
            raise ConfigError(f"device is {self.device!r}; it must be cpu or gpu")
        if self.gpu_rows is not None and self.gpu_rows < 0:
            raise ConfigError(
                f"gpu_rows is {self.gpu_rows}; it must be at least 0 (0: tables in host memory)"
            )
        if self.gpu_rows and self.device == "cpu":
            raise ConfigError(f"gpu_rows is {self.gpu_rows}, but device is cpu: set device to gpu")
        check_placement(self.placement, self.rank_memory)
        if self.dram_bytes is not None and self.spill is None:
            raise ConfigError("dram_bytes needs spill: name a folder on an SSD for the rows that do not fit")
        if self.spill is not None and self.dram_bytes is None:
            raise ConfigError(
                "spill needs dram_bytes: how much memory the rows may take before others go there"
            )
        for name, known in (
            ("aggregate", Mode),
            ("wire", Wire),
            ("precision", Precision),
            ("products", Products),
        ):
            if (value := getattr(self, name)) not in get_args(known):
                raise ConfigError(f"{name} is {value!r}; it must be {' or '.join(get_args(known))}")
        _ = self.step_settings, self.content_folders, self.limits, parse_warm_parts(self.warm_parts)
        _ = self.metrics_tls, self.content_rule
        if not 0 <= self.min_usable <= 1:
            raise ConfigError(f"min_usable is {self.min_usable}; it must be a share from 0 to 1")
        if self.min_examples < 0:
            raise ConfigError(f"min_examples is {self.min_examples}; it must be at least 0")
        if self.publish_interval_s <= 0:
            raise ConfigError(f"publish_interval_s is {self.publish_interval_s}; it must be above 0")
        if self.publish_rate < 0:
            raise ConfigError(f"publish_rate is {self.publish_rate}; it must be at least 0")

    @property
    def longest_wait_s(self) -> float | None:
        """Longest time that examples wait for a full batch; None: no limit."""
        if self.batch_wait_s is not None:
            return self.batch_wait_s or None
        live = not self.until_end and self.until_idle_s is None
        return 1.0 if live and self.source.startswith("kafka://") else None

    @property
    def ramp(self) -> BatchRamp:
        """Sizes of batches."""
        return BatchRamp(self.batch_size, self.batch_ramp, self.batch_min)

    @property
    def step_settings(self) -> StepSettings:
        """Execution of steps. Raises ConfigError for an unknown field exchange."""
        exchange = parse_field_exchange(self.field_exchange)
        return StepSettings(
            self.aggregate,
            exchange,
            self.precision,
            self.ramp.choose_from,
            self.online_batch,
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
    def metrics_tls(self) -> TlsFiles | None:
        """Files of the metrics endpoint. Raises ConfigError for settings that do not go together."""
        return TlsFiles.of_settings(
            self.metrics_tls_cert, self.metrics_tls_key, self.metrics_tls_client_ca, prefix="metrics-"
        )

    @property
    def logged(self) -> bool:
        """Tell if predictions are kept on disk: they are asked for, or the run is bounded."""
        bounded = self.until_end or self.until_idle_s is not None or self.max_steps is not None
        return bounded or self.predictions is not None or self.report is not None

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
