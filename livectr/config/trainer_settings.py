"""Settings of `livectr train`."""

from dataclasses import dataclass

from livectr.config.field import EVERY, INSPECT, REDIS, TRAIN, VERIFY, VERSIONS, setting
from livectr.ingest.limits import MOST_DEPTH
from livectr.trainer.options import TrainOptions as T


@dataclass(frozen=True)
class TrainSettings:
    """Settings of a training run; TrainOptions has the same names and defaults."""

    source: str | None = setting(
        None,
        "the logs: kafka://HOST:PORT[,…] or file:DIR",
        commands=TRAIN + VERSIONS,
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
    node: str = setting(
        "0",
        "number of this machine, from 0; auto: that at the end of its host name",
        commands=TRAIN,
        example="K",
    )
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
    until_stopped: bool = setting(
        False,
        "start all ranks again whenever they end, until this process is told to stop (for pods)",
        commands=TRAIN,
    )
    generation: str | None = setting(
        None,
        "any text; only nodes with the same text train together, others wait",
        commands=TRAIN,
        example="TEXT",
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
        T.batch_size, "most examples in a step, over all ranks", commands=TRAIN + INSPECT, least=1
    )
    batch_ramp: int = setting(
        T.batch_ramp,
        "examples seen for each example of a batch; batches grow to batch_size (0: no ramp)",
        commands=TRAIN,
        least=0,
    )
    batch_min: int = setting(T.batch_min, "size of the first batches of a ramp", commands=TRAIN, least=1)
    online_batch: int = setting(
        T.online_batch,
        "largest batch whose first and second order are learned example by example (0: none)",
        commands=TRAIN,
        least=0,
    )
    batch_interval_ms: int | None = setting(
        T.batch_interval_ms, "also end a batch at every multiple of this event time", commands=TRAIN, least=1
    )
    batch_wait_s: float | None = setting(
        T.batch_wait_s,
        "longest time that examples wait for a full batch (0: no limit; default: 1s on a live kafka:// log)",
        commands=TRAIN,
        least=0,
    )
    seed: int = setting(T.seed, "seed of initial values", commands=TRAIN, least=0)
    threads: int | None = setting(
        T.threads,
        "CPU threads of a rank (default: `LIVECTR_THREADS`, else the cores shared by the ranks)",
        commands=TRAIN,
        least=1,
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
        T.checkpoint,
        "keep checkpoints here, a folder or s3://BUCKET/PREFIX, and resume from the newest",
        commands=TRAIN + VERSIONS,
        example="DIR",
    )
    checkpoint_copy: str | None = setting(
        T.checkpoint_copy,
        "folder for the working copy of a checkpoint in S3 [one below LIVECTR_CACHE_DIR]",
        commands=TRAIN,
        example="DIR",
    )
    group: str | None = setting(
        None,
        "consumer group whose lag Kafka's tools show: offsets are committed after each checkpoint",
        commands=TRAIN,
        example="NAME",
    )
    checkpoint_interval_s: float = setting(
        T.checkpoint_interval_s,
        "least time between checkpoints (0: a checkpoint with each publish)",
        commands=TRAIN,
        least=0,
    )
    max_checkpoint_age_s: float = setting(
        0.0, "refuse to go on from a checkpoint that is older (0: never)", commands=TRAIN, least=0
    )
    accept_stale: bool = setting(
        False, "go on from a checkpoint that is older than --max-checkpoint-age-s", commands=TRAIN
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
    order_of: str | None = setting(
        T.order_of,
        "form the batches of the run with this --checkpoint again, where a clock had decided them",
        commands=TRAIN,
        example="DIR",
    )
    publish: str | None = setting(
        T.publish,
        "publish versions to this Redis (redis://, redis+sentinel:// or redis+cluster://)",
        commands=TRAIN,
        scheme=REDIS,
        example="URL",
    )
    publish_interval_s: float = setting(
        T.publish_interval_s, "time between commits, which publish a version", commands=TRAIN, above=0
    )
    publish_rate: int = setting(
        T.publish_rate,
        "most rows a second that a complete version writes, over all ranks (0: no limit)",
        commands=TRAIN,
        least=0,
    )
    min_examples: int = setting(
        T.min_examples,
        "publish no model that has learned fewer examples (those of a warm start count)",
        commands=TRAIN,
        least=0,
    )
    publish_gate_auc: float = setting(
        T.publish_gate_auc,
        "publish no version while AUC is below the usual AUC by more, such as 0.05 (0: always publish)",
        commands=TRAIN,
        least=0,
        most=1,
    )
    publish_gate_calibration: float = setting(
        T.publish_gate_calibration,
        "nor while predicted and observed clicks differ by a larger share, such as 0.5 (0: always publish)",
        commands=TRAIN,
        least=0,
    )
    publish_gate_clicks: float = setting(
        T.publish_gate_clicks,
        "nor while the click rate differs from the usual by a larger share, such as 1 (0: always publish)",
        commands=TRAIN,
        least=0,
    )
    publish_gate_window: int = setting(
        T.publish_gate_window, "newest examples that the publish gate measures", commands=TRAIN, least=10
    )
    keep_versions: int = setting(
        T.keep_versions,
        "checkpoints that are kept for `livectr versions rollback`, beside the newest two",
        commands=TRAIN,
        least=0,
    )
    keep_every_s: float = setting(
        T.keep_every_s,
        "least time between two checkpoints that are kept for a rollback",
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
    products: str = setting(T.products, "library of fp32 products: auto, torch or packed", commands=TRAIN)
    content: str | None = setting(
        T.content,
        "folders of features of images or texts, images=DIR,texts=DIR2",
        commands=EVERY + VERIFY + VERSIONS,
        example="NAME=DIR",
    )
    content_refresh_s: float = setting(
        T.content_refresh_s,
        "event time in which vectors of images, texts and items are made anew, such as 1h (0: each version)",
        commands=TRAIN,
        least=0,
    )
    content_tolerance: float = setting(
        T.content_tolerance,
        "compute vectors again before, once a sample of them has moved by more, such as 0.05 (0: never)",
        commands=TRAIN,
        least=0,
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
    run_log: str | None = setting(
        T.run_log, "log of the run while it goes on, for `livectr report`", commands=TRAIN, example="FILE"
    )
