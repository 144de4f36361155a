"""The large day: what is done to a real trainer and a real Redis, and what they show meanwhile.

1  growth     the first half of the day lies there and is read as fast as it goes, until two tables are full
2  afternoon  the log grows as fast as a site has visits; it is watched once Redis has caught up
3  restart    the trainer is killed (SIGKILL) and started again, while the log continues
4  new Redis  the evening lies there at once; Redis ends, and an empty one starts at its address
"""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread

import redis

from bench.large_day.log import HOUR_MS, NEW_EARLY, NEW_LATE, START_MS, DayLog
from bench.large_day.watch import Moment, Trainer
from livectr.local.ports import free_ports
from livectr.local.valkey import LocalRedis
from livectr.store.keyspace import Keyspace
from livectr.store.manifest import VersionManifest
from livectr.system.errors import InternalError

PIPELINE = Path(__file__).with_name("pipeline.py")
TABLES = ("seen", "user_x_seen")
PIECE_S = 0.25
"""Time between two files of the afternoon."""
LIVE_HOUR_S = 20.0
"""Seconds of an hour of the afternoon."""
CAUGHT_UP = 0.05
"""Share of all rows that a version holds when Redis has caught up with the morning."""
LIMIT_S = 600.0


@dataclass(frozen=True)
class Sizes:
    """Extent of a run.

    Args:
        morning: impressions of each hour until noon.
        users: who come.
        rows: that both tables must have by then.
        live: impressions a second of the afternoon.
        evening: impressions of the evening.
        watched_s: of the afternoon that are watched.
        before_s: of the evening before Redis ends.
    """

    morning: int
    users: int
    rows: int
    live: int
    evening: int
    watched_s: float
    before_s: float


FULL = Sizes(40_000, 20_000, 10_000_000, live=1000, evening=3_000_000, watched_s=60.0, before_s=15.0)
QUICK = Sizes(300, 500, 50_000, live=400, evening=150_000, watched_s=6.0, before_s=1.0)


@dataclass(frozen=True)
class Day:
    """Figures of a run.

    Args:
        growth, afternoon, evening, copy: courses of the trainer; of the evening until Redis ends, and from
            then until the new one holds a version.
        restored_s: from the start of the second process until it has read its checkpoint.
        first: second process, when its first version was served.
        first_s: from its start until then.
        restored_rows: of all tables, when it had read them.
        empty_s: from the answer of the new Redis until it held a version.
        copied_rows: of that version, as its manifest says.
        copied_keys: in the new Redis.
        trainer_mib: most memory of both trainers.
        copy_mib: most memory of the trainer during the copy, and the last before.
        redis_mib: of both Redis servers, the most.
    """

    growth: list[Moment]
    afternoon: list[Moment]
    evening: list[Moment]
    copy: list[Moment]
    restored_s: float
    first: Moment
    first_s: float
    restored_rows: float
    empty_s: float
    copied_rows: int
    copied_keys: int
    trainer_mib: tuple[float, float]
    redis_mib: tuple[float, float]


def play(sizes: Sizes) -> Day:
    """Play the day. Raises PartError: the trainer ended, or something did not come in time."""
    with tempfile.TemporaryDirectory(prefix="livectr-bench-") as folder, ExitStack() as stack:
        return _Play(sizes, Path(folder), stack).run()


class _Live:
    """Appends to the log at a rate, from a thread, while it is open."""

    def __init__(self, log: DayLog, per_s: int) -> None:
        self._log, self._per_s, self._ended = log, per_s, Event()
        self._thread = Thread(target=self._write, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _write(self) -> None:
        span_ms = round(PIECE_S / LIVE_HOUR_S * HOUR_MS)
        due = time.monotonic()
        while not self._ended.wait(max(0.0, due - time.monotonic())):
            self._log.write(round(self._per_s * PIECE_S), span_ms, new=NEW_LATE)
            due += PIECE_S


class _Play:
    def __init__(self, sizes: Sizes, folder: Path, stack: ExitStack) -> None:
        self._sizes, self._folder, self._stack = sizes, folder, stack
        port = free_ports(2)
        self._metrics, self._address = port, f"127.0.0.1:{port + 1}"
        self._log = DayLog(folder / "logs", sizes.users)

    def run(self) -> Day:
        sizes, log = self._sizes, self._log
        for _ in range(12):
            log.write(sizes.morning, HOUR_MS, new=NEW_EARLY)
        old = self._stack.enter_context(ExitStack())
        first = old.enter_context(LocalRedis(self._address))
        trainer = self._start()
        with _Live(log, sizes.live):
            growth = self._grow(trainer, 12 * sizes.morning)
            begin_s = time.monotonic()
            trainer.until(lambda m: m.at_s > begin_s + sizes.watched_s, LIMIT_S, "afternoon")
            afternoon = trainer.between(begin_s, time.monotonic())
            peak, redis_peak = trainer.peak_mib, _used_mib(first.url)
            trainer.kill()
            trainer = self._start()
            restored_s = trainer.says("resumed after step", LIMIT_S)
            restored = trainer.until(lambda m: m.all_rows > 0, LIMIT_S, "row")
            served = trainer.until(_has_published, LIMIT_S, "version after the restart")
            trainer.until(lambda m: m.examples > 0 and _lag(m) < 2 * sizes.live, LIMIT_S, "end of the log")
        log.write(sizes.evening, max(HOUR_MS, START_MS + 24 * HOUR_MS - log.now_ms), new=NEW_LATE)
        begun = trainer.until(lambda m: _lag(m) > sizes.live, LIMIT_S, "evening")
        until_s = begun.at_s + sizes.before_s
        trainer.until(lambda m: m.at_s > until_s and m.examples > begun.examples, LIMIT_S, "evening")
        evening = trainer.between(begun.at_s, time.monotonic())
        before = trainer.last.versions("all")
        old.close()
        ended_s = time.monotonic()
        second = self._stack.enter_context(LocalRedis(self._address))
        answered_s = time.monotonic()
        copied = trainer.until(lambda m: m.versions("all") > before, LIMIT_S, "copy for the new Redis")
        manifest, keys = _held(second.url)
        day = Day(
            growth=growth,
            afternoon=afternoon,
            evening=evening,
            copy=trainer.between(ended_s, copied.at_s),
            restored_s=restored_s,
            first=served,
            first_s=served.at_s - trainer.began_s,
            restored_rows=restored.all_rows,
            empty_s=copied.at_s - answered_s,
            copied_rows=sum(manifest.tables.values()),
            copied_keys=keys,
            trainer_mib=(peak, trainer.peak_mib),
            redis_mib=(redis_peak, _used_mib(second.url)),
        )
        trainer.stop()
        return day

    def _start(self) -> Trainer:
        words = ["--pipeline", str(PIPELINE), "--source", f"file:{self._folder}/logs"]
        words += ["--checkpoint", str(self._folder / "checkpoint"), "--publish", f"redis://{self._address}"]
        number = len(list(self._folder.glob("trainer-*.log")))
        trainer = Trainer(words, self._metrics, self._folder / f"trainer-{number}.log")
        self._stack.callback(trainer.stop)
        return trainer

    def _grow(self, trainer: Trainer, impressions: int) -> list[Moment]:
        """Course until the tables are full; waits for a checkpoint after that, and for Redis to catch up."""
        rows = self._sizes.rows
        full = trainer.until(
            lambda m: m.examples >= impressions and all(m.rows(table) >= rows for table in TABLES),
            LIMIT_S,
            f"{rows:,} rows in {' and '.join(TABLES)}",
        )
        course = trainer.between(trainer.began_s, full.at_s)
        checkpoints = "livectr_checkpoint_seconds_count"
        least = full.value(checkpoints) + 1
        trainer.until(lambda m: m.value(checkpoints) >= least, LIMIT_S, "checkpoint")
        trainer.until(_CaughtUp(), LIMIT_S, "small version")
        return course


class _CaughtUp:
    """Tells, moment after moment, if the last version held few of all rows."""

    def __init__(self) -> None:
        self._before: Moment | None = None

    def __call__(self, moment: Moment) -> bool:
        before = self._before
        versions = moment.versions("changed")
        if before is not None and versions == before.versions("changed"):
            return False
        self._before = moment
        if before is None:
            return False
        rows = (moment.published_rows - before.published_rows) / (versions - before.versions("changed"))
        return rows < CAUGHT_UP * moment.all_rows


def _has_published(moment: Moment) -> bool:
    return moment.versions("all") + moment.versions("changed") > 0


def _lag(moment: Moment) -> float:
    """Impressions and clicks that were not read, and impressions that were not learned."""
    return sum(v for (name, _), v in moment.samples.items() if name == "livectr_consumer_lag_records")


def _held(url: str) -> tuple[VersionManifest, int]:
    """Version that a Redis serves, and its keys. Raises InternalError if there is no version."""
    with redis.Redis.from_url(url) as client:
        text, keys = client.get(Keyspace("livectr").manifest), client.dbsize()
    if not isinstance(text, bytes):
        raise InternalError("the new Redis holds no version")
    return VersionManifest.from_json(text), int(keys)


def _used_mib(url: str) -> float:
    """Most memory that a Redis has used."""
    with redis.Redis.from_url(url) as client:
        return float(client.info("memory")["used_memory_peak"]) / 2**20
