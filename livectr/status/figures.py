"""Figures of a run, as `livectr status --json` prints them; None: not known."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class PartFigures:
    """Part of `livectr up`.

    Args:
        state: a phase, or "down" where nobody sees to the run.
        reason: why it has last ended by itself.
        metrics: Prometheus endpoints of its processes.
    """

    folder: str
    name: str
    address: str
    metrics: list[str]
    state: str
    restarts: int
    reason: str
    log: str


@dataclass(frozen=True)
class Checkpoint:
    """Newest generation of a checkpoint.

    Args:
        generations: that can be restored.
        events: rows by topic, of the whole run.
    """

    folder: str
    generation: int
    created_ms: int
    examples: int
    step: int
    generations: int
    events: dict[str, int]


@dataclass(frozen=True)
class Topic:
    """Log of a trainer.

    Args:
        read: rows that this process has read.
        rows_per_s: speed of reading, mean of the last 10 s; None: not known.
        lag: records up to the end of the log, over all partitions.
        partitions: lag of each partition.
        age_s: age of the newest record that was read, while there are more; the oldest of the partitions.
        committed: rows in the newest checkpoint, of the whole run.
    """

    name: str
    read: float
    rows_per_s: float | None
    lag: float
    partitions: dict[str, float]
    age_s: float
    committed: int | None = None


@dataclass(frozen=True)
class Quality:
    """Measures of a model, each example scored before it was learned.

    Args:
        over: "window", or "since start".
    """

    model: str
    over: str
    examples: float | None
    auc: float | None
    gauc: float | None
    logloss: float | None
    calibration: float | None


@dataclass(frozen=True)
class Gate:
    """Publish gate.

    Args:
        held: reasons for which versions are held.
        auc, usual_auc: of the newest window, and what was usual before.
    """

    held: list[str]
    auc: float | None
    usual_auc: float | None
    click_rate: float | None
    usual_click_rate: float | None
    calibration: float | None


@dataclass(frozen=True)
class Contest:
    """Ranking model of champion and challengers; log loss over the window of the promotion rule."""

    model: str
    champion: bool
    logloss: float | None
    examples: float | None


@dataclass(frozen=True)
class Trainer:
    """Trainer: all of its ranks together.

    Args:
        examples: that this process has learned.
        examples_per_s: mean of the last 10 s; None: not known.
        waiting: impressions that wait for the end of their label window.
        ready: examples with a label that are not learned yet.
        backlog_rows, backlog_s: rows of the logs that no rank has read, and the time until they are; -1: they
            do not grow fewer.
        version, published_ms: newest version that servers can use.
        checkpoint_ms: time of the newest checkpoint, or of the start while there is none.
        checkpoint: what is in it.
        dead_letters: rows that could not be used, by reason.
        skipped: batches that were scored and not learned, since gradients were not finite.
        silent: ranks whose metrics do not answer.
    """

    name: str
    ranks: int
    examples: float | None
    examples_per_s: float | None
    waiting: float
    ready: float
    backlog_rows: float | None
    backlog_s: float | None
    watermark_delay_s: float | None
    version: float | None
    published_ms: float | None
    checkpoint_ms: float | None
    checkpoint: Checkpoint | None
    topics: list[Topic]
    quality: list[Quality]
    gate: Gate
    contest: list[Contest]
    dead_letters: dict[str, float]
    skipped: float | None = None
    silent: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Delay:
    """Time from an event to the first answer of a server that has learned it.

    Args:
        examples: that were measured.
        event_p50_s, event_p99_s: from the event itself.
        label_p50_s, label_p99_s: from the end of its label's wait: what the system adds.
    """

    examples: float
    event_p50_s: float | None
    event_p99_s: float | None
    label_p50_s: float | None
    label_p99_s: float | None


@dataclass(frozen=True)
class Server:
    """Server of a role.

    Args:
        versions: side → version that answers.
        age_s: time since that of the stable side was published.
        answered, failed: requests with an answer; with another status, by status.
        trouble: what the server itself says is wrong.
        held: reason for which no newer version is published.
    """

    name: str
    role: str
    ready: bool | None
    versions: dict[str, int]
    model: str
    age_s: float | None
    answered: float | None
    failed: dict[str, float]
    p50_ms: float | None
    p99_ms: float | None
    degraded: float | None
    delay: Delay | None
    trouble: str = ""
    held: str = ""


@dataclass(frozen=True)
class Published:
    """Version in Redis.

    Args:
        hold: reason of an operator's hold; None: there is none.
    """

    redis: str
    namespace: str
    version: int | None
    created_ms: int | None
    examples: int | None
    champion: str
    rows: int | None
    hold: str | None


@dataclass(frozen=True)
class Silent:
    """Address that cannot be reached, and why."""

    address: str
    why: str


@dataclass(frozen=True)
class Status:
    """Figures of all processes.

    Args:
        at_ms: time of the look, ms since 1970.
    """

    at_ms: int
    parts: list[PartFigures]
    trainers: list[Trainer]
    servers: list[Server]
    published: list[Published]
    checkpoints: list[Checkpoint]
    silent: list[Silent]
