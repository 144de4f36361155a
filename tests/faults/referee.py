"""Asks the rank server as a user does, and recomputes its replies from the trainer's checkpoints.

    python -m tests.faults.referee --pipeline FILE --rank HOST:PORT --redis URL --checkpoint DIR --archive DIR

A reply of version v must have the scores of the model that was committed at the step of v, or be marked
degraded. Look-up rows do not change in the runs that are judged. A behavior history is not versioned: it is
read from Redis before and after each question, and a question whose history changed meanwhile is left out.

Prints a JSON line of counts about every second, and a last one when SIGTERM tells it to stop:

    asked        questions
    errors       by status code; `wrong_status` counts those that a broken Redis does not explain
    degraded     replies that are marked
    judged       unmarked replies that were recomputed
    wrong        unmarked replies whose scores are others; `worst`: the largest difference of a pCTR
    unmarked_loss  unmarked replies for a user whose history is known, while Redis had none
    unknown      unmarked replies of a version without a generation in the archive
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pyarrow as pa
import redis

from livectr.client.clients import RankClient
from livectr.ingest.language import dtypes
from livectr.ingest.language.expr import RecentRef
from livectr.ingest.pipeline import Pipeline, load_pipeline
from livectr.library.scoring import F64, CheckpointScorer
from livectr.simulator.records import CONTEXTS
from livectr.simulator.traffic import TICK_MS
from livectr.simulator.truth import PAGES, POSITIONS
from livectr.store.layout import I64, Keyspace, decode_history, decode_lookup_rows
from livectr.store.manifest import VersionManifest
from livectr.trainer.checkpoint.restored import Restored
from livectr.trainer.content.contents import FOLDER
from tests.faults.archive import Archive
from tests.lookup_columns import lookup_columns

TOLERANCE = 2e-5
"""Largest difference of a pCTR: the reference adds floats in another order."""
EXPLAINED = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}
CANDIDATES = 40
PERIOD_S = 0.25
SETTLE_S = 3.0
"""A generation is in the archive that long after its version was first seen."""


@dataclass(frozen=True)
class Reply:
    """An unmarked reply: its version, pCTR f64[n] in the request's order, the rows that it answers."""

    version: int
    pctr: F64
    batch: pa.RecordBatch
    at: float


class Referee:
    """Asks, collects, judges. users, ads: the ids that are asked for, from 1, all in the look-up tables."""

    def __init__(
        self, pipeline: Pipeline, rank: str, url: str, archive: Archive, *, users: int, ads: int, seed: int
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.worst = 0.0
        self.last_wrong = ""
        self._pipeline, self._archive = pipeline, archive
        self._users, self._ads = users, ads
        self._random = random.Random(seed)
        self._space = Keyspace()
        self._redis: Any = redis.Redis.from_url(url, socket_timeout=2)
        self._client = RankClient(rank, 5.0)
        self._asks: set[str] = set()
        self._facts: dict[str, dict[int, list[object]]] = {}
        self._remembered: set[bytes] = set()
        self._steps: dict[int, int] = {}
        self._replies: dict[int, list[Reply]] = {}

    def prepare(self) -> None:
        """Reads the look-up rows once, while everything is well."""
        self._asks = {column.name for column in self._client.describe().columns}
        for lookup, last in zip(self._pipeline.log.lookups, (self._users, self._ads), strict=True):
            ids = np.arange(1, last + 1)
            values = self._redis.mget(self._space.lookup_rows(lookup.table.topic, ids))
            assert None not in values, f"{lookup.table.topic}: {values.count(None)} rows are not published"
            self._facts[lookup.table.topic] = dict(zip(ids.tolist(), decode_lookup_rows(values), strict=True))

    def ask(self) -> None:
        """One question."""
        pick, now_ms = self._random, int(time.time() * 1000) // TICK_MS * TICK_MS
        user, ads = pick.randint(1, self._users), pick.sample(range(1, self._ads + 1), CANDIDATES)
        context = {
            "user_id": user,
            "context": pick.choice(CONTEXTS),
            "page": pick.choice(PAGES),
            "query": "",
            "position": pick.randrange(POSITIONS),
            "ts": now_ms,
        }
        names = [
            n for root in self._pipeline.history_roots for n in self._space.histories(root.name, _ids(user))
        ]
        before = self._read(names)
        self.counts["asked"] += 1
        try:
            reply = self._client.rank({k: v for k, v in context.items() if k in self._asks}, {"ad_id": ads})
        except grpc.RpcError as error:
            self.errors[error.code().name] += 1
            if error.code() not in EXPLAINED:
                self.counts["wrong_status"] += 1
                self.last_wrong = f"{error.code().name}: {error.details()}"
            return
        if reply.degraded:
            self.counts["degraded"] += 1
            return
        self._watch_versions()
        after = self._read(names)
        if before is None or before != after:
            self.counts["moved"] += 1
            return
        if any(value is None and name in self._remembered for name, value in zip(names, after, strict=True)):
            self.counts["unmarked_loss"] += 1
            self.last_wrong = f"version {reply.version}: the history of user {user} is gone from Redis"
            return
        self._remembered |= {name for name, value in zip(names, after, strict=True) if value is not None}
        pctr = np.empty(CANDIDATES)
        pctr[list(reply.index)] = reply.pctr
        batch = self._batch({**context}, ads, after, now_ms)
        self._replies.setdefault(reply.version, []).append(
            Reply(reply.version, pctr, batch, time.monotonic())
        )

    def judge(self, *, all: bool = False) -> None:
        """Recomputes the replies of one version, the oldest that is old enough; of each, with `all`."""
        self._watch_versions()
        now = time.monotonic()
        for version in sorted(self._replies):
            if self._replies[version][-1].at > now - SETTLE_S and not all:
                continue
            replies = self._replies.pop(version)
            step = self._steps.get(version)
            manifest = None if step is None else self._archive.generation(step)
            if manifest is None:
                self.counts["unknown"] += len(replies)
                continue
            folders = {name: self._archive.checkpoint / FOLDER / name for name in self._pipeline.content}
            reference = CheckpointScorer(self._pipeline, Restored(self._archive.folder, manifest), folders)
            for reply in replies:
                difference = float(np.abs(reference.pctr(reply.batch) - reply.pctr).max())
                self.counts["judged"] += 1
                self.worst = max(self.worst, difference)
                if not difference < TOLERANCE:
                    self.counts["wrong"] += 1
                    self.last_wrong = f"version {version}, step {step}: pCTR differs by {difference:.2g}"
            if not all:
                return
        served = max(self._steps.values(), default=0)  # more replies of it may come
        self._archive.forget(min((self._steps.get(v, 0) for v in self._replies), default=served))

    def summary(self) -> dict[str, Any]:
        names = ("asked", "degraded", "moved", "judged", "unknown", "wrong", "wrong_status", "unmarked_loss")
        held = {name: self.counts[name] for name in names}
        return {**held, "worst": self.worst, "errors": dict(self.errors), "last_wrong": self.last_wrong}

    def _watch_versions(self) -> None:
        """Notes the step of the version that Redis holds."""
        try:
            text = self._redis.get(self._space.manifest)
        except redis.RedisError:
            return
        if text is not None:
            manifest = VersionManifest.from_json(text)
            held = self._steps.setdefault(manifest.version, manifest.step)
            if held != manifest.step:
                self.counts["wrong"] += 1
                self.last_wrong = f"version {manifest.version} is of step {held} and of step {manifest.step}"

    def _read(self, names: list[bytes]) -> list[bytes | None] | None:
        """Histories; None: Redis cannot be asked."""
        try:
            values: list[bytes | None] = self._redis.mget(names)
        except redis.RedisError:
            return None
        return values

    def _batch(
        self, context: dict[str, Any], ads: list[int], histories: list[bytes | None], now_ms: int
    ) -> pa.RecordBatch:
        """The rows of a question, with the columns that the trainer's extractor reads."""
        pipeline, n = self._pipeline, len(ads)
        arrays: dict[str, pa.Array] = {}
        for root in pipeline.request_roots:
            name = root.ref.column
            values = ads if name == "ad_id" else [context[name]] * n
            arrays[root.name] = pa.array(values, dtypes.arrow_type(root.dtype))
        for lookup in pipeline.log.lookups:
            table = lookup.table
            ids = ads if lookup.on == "ad_id" else [context[lookup.on]] * n
            rows = [self._facts[table.topic][id] for id in ids]
            arrays |= lookup_columns(table, rows, pipeline.lookup_roots[table.topic])
        for root, value in zip(pipeline.history_roots, histories, strict=True):
            assert isinstance(root.ref, RecentRef)
            items = recent_items(root.ref, value, now_ms)
            arrays[root.name] = pa.array([items] * n, pa.list_(pa.int64()))
        names = [root.name for root in pipeline.plan.roots]
        return pa.RecordBatch.from_arrays([arrays[name] for name in names], names=names)


def recent_items(ref: RecentRef, value: bytes | None, now_ms: int) -> I64:
    """Items of a history as of `now_ms`, newest last: the last n that are at most `within_ms` old."""
    items, times = decode_history(value or b"")
    recent = (times <= now_ms) & (now_ms - times <= ref.within_ms)
    return items[recent][-ref.n :]


def _ids(user: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array([user], np.int64)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for flag in ("--pipeline", "--rank", "--redis", "--checkpoint", "--archive"):
        parser.add_argument(flag, required=True)
    parser.add_argument("--users", type=int, required=True)
    parser.add_argument("--ads", type=int, required=True)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    archive = Archive(Path(given.checkpoint), Path(given.archive))
    referee = Referee(
        load_pipeline(given.pipeline), given.rank, given.redis, archive,
        users=given.users, ads=given.ads, seed=given.seed,
    )  # fmt: skip
    with archive:
        referee.prepare()
        reported = time.monotonic()
        while not stopping.is_set():
            referee.ask()
            referee.judge()
            if time.monotonic() - reported >= 1:
                reported = time.monotonic()
                print(json.dumps(referee.summary()), flush=True)
            stopping.wait(PERIOD_S)
        time.sleep(SETTLE_S)
        referee.judge(all=True)
    print(json.dumps(referee.summary()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
