"""The steps of `livectr query verify`.

    1  describe the server, and make the requests
    2  wait until the server serves a version whose state a generation of the checkpoint holds
    3  ask; a reply of another version is not comparable, and is asked again with the next such version
    4  read the live inputs once more, load the generation, and compare

Steps 2 to 4 are repeated until every request has a comparable reply, or the time is over.
"""

from __future__ import annotations

import itertools
import logging
import random
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from livectr.client.clients import ClientTls, PreRankClient, RankClient
from livectr.ingest.pipeline import Pipeline
from livectr.serving.canary import STABLE
from livectr.serving.explore.options import ExploreOptions
from livectr.serving.explore.orders import Explorer
from livectr.store.manifest import VersionManifest
from livectr.system.errors import ConfigError, ConnectError, MismatchError
from livectr.trainer.checkpoint.manifest import Manifest
from livectr.verify.generations import Generations
from livectr.verify.judge import Answer, Judge, answer_of
from livectr.verify.live import LiveInputs, Values
from livectr.verify.report import Report
from livectr.verify.requests import Pool, Request, RequestMaker, rows_of_ids, rows_of_log
from livectr.verify.vectors import PublishedVectors

LOG = logging.getLogger(__name__)
POLL_S = 0.05
READ_EVERY_S = 2.0
"""Seconds between readings of the live inputs while a version is waited for."""
PUSH_S = 3.0
"""Time of a push, after which servers use the look-up rows that it wrote."""
_TTL_SLACK_S = 0.25
"""Seconds beyond the time that a server keeps a look-up row, for a request that began before its end."""
BUSY = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.DEADLINE_EXCEEDED)


@dataclass(frozen=True)
class VerifyOptions:
    """Settings of a verification.

    Args:
        pipeline: the pipeline that is served.
        server: HOST:PORT.
        checkpoint: folder that its trainer writes.
        redis: URL of the Redis that the servers read.
        namespace: prefix of its keys.
        requests: number of requests of each kind that the server answers.
        candidates: of a request.
        source: log of impressions to ask about; None: ids that the checkpoint knows.
        wait_s: seconds to wait for versions that the checkpoint holds.
        timeout_s: seconds of a call.
        tolerance: largest difference of a pCTR.
        content: name of a content → folder of its features; by default the folder beside the checkpoint.
        tls: files for a server with TLS.
        token: for a server that asks for one.
        seed: of the choice of requests.
    """

    pipeline: Pipeline
    server: str
    checkpoint: Path
    redis: str
    namespace: str = "livectr"
    requests: int = 100
    candidates: int = 50
    source: str | None = None
    wait_s: float = 300.0
    timeout_s: float = 5.0
    tolerance: float = 1e-5
    content: Mapping[str, Path] = field(default_factory=dict)
    tls: ClientTls | None = None
    token: str | None = None
    seed: int = 0


def verify(options: VerifyOptions) -> Report:
    """Compare a server's replies with the checkpoints of the versions that they name.

    Raises:
        CheckpointError: a generation is torn.
        ConfigError: the folder holds no checkpoint, or the log no impressions.
        ConnectError: Redis does not answer, or no comparable version was served in time.
        MismatchError: server, checkpoint and pipeline do not belong together.
        CallError: the server does not answer, or refuses a request.
    """
    with (
        RankClient(options.server, options.timeout_s, tls=options.tls, token=options.token) as rank,
        PreRankClient(options.server, options.timeout_s, tls=options.tls, token=options.token) as prerank,
    ):
        # Not a canary's: its versions are of another namespace.
        verification = _Verification(options, rank.on_side(STABLE), prerank.on_side(STABLE))
        try:
            return verification.run()
        finally:
            verification.close()


class _Verification:
    def __init__(self, options: VerifyOptions, rank: RankClient, prerank: PreRankClient) -> None:
        self._options, self._rank, self._prerank = options, rank, prerank
        server = rank.describe()
        _check_server(options, server)
        explore = next((side.explore for side in server.sides if side.name == STABLE), "")
        self._explorer = Explorer(ExploreOptions.parse(explore)) if explore else None
        self._asked = itertools.count()
        self._generations = Generations(options.checkpoint, options.pipeline)
        self._report = Report(options.tolerance)
        self._limit = time.monotonic() + options.wait_s
        self._ttl_s = min(server.lookup_ttl_ms / 1000, PUSH_S) + _TTL_SLACK_S
        self._pipeline = options.pipeline.with_worths
        self._live = LiveInputs(self._pipeline, options.redis, options.namespace)
        self._vectors = PublishedVectors(options.pipeline, options.redis, options.namespace)
        requests = self._requests(server)
        self._waiting = deque((request, self._live.names(request)) for request in requests)
        self._names = [names for _, names in self._waiting]
        self._readings: deque[tuple[float, Values]] = deque(maxlen=3)

    def close(self) -> None:
        self._live.close()
        self._vectors.close()

    def run(self) -> Report:
        """Steps 2 to 4, until all is answered or the time is over."""
        told = False
        while self._waiting and time.monotonic() < self._limit:
            before = self._before()
            server = self._rank.describe()
            generation = self._generations.of_version(server)
            if generation is None or before is None:
                if generation is None and not told:
                    newest, told = self._generations.newest(), True
                    LOG.info(
                        "version %d is served, of step %d; the newest checkpoint is of step %d; waiting at "
                        "most %g s for a version that a checkpoint holds",
                        server.version,
                        server.step,
                        newest.step,
                        self._options.wait_s,
                    )
                time.sleep(POLL_S)
                continue
            manifest = self._vectors.manifest()
            if manifest is not None and manifest.version != server.version:
                time.sleep(POLL_S)
                continue
            answers = self._ask(server.version)
            if not answers or not self._judged(generation, manifest, answers, before):
                self._waiting.extend((answer.request, answer.names) for answer in answers)
                time.sleep(POLL_S)
        self._report.unanswered = len(self._waiting)
        if not self._report.compared and not self._report.degraded:
            raise ConnectError(
                f"{self._options.server} served no version of which {self._options.checkpoint} holds the "
                f"state, in {self._options.wait_s:g} s; say a longer --wait, or let the trainer write "
                "checkpoints more often (checkpoint_interval_s)"
            )
        return self._report

    def _ask(self, version: int) -> list[Answer]:
        """Answers at a version, until the server takes another."""
        answers: list[Answer] = []
        for _ in range(len(self._waiting)):
            request, names = self._waiting[0]
            try:
                reply = self._reply(request)
            except grpc.RpcError as error:
                if error.code() not in BUSY or time.monotonic() > self._limit:
                    raise
                self._report.refused += 1
                break
            if reply.version != version:
                self._report.other_version += 1
                break
            self._waiting.popleft()
            if reply.degraded:
                self._report.add_degraded(reply.degraded_reason)
            else:
                answers.append(answer_of(request, names, reply, self._explorer))
        return answers

    def _reply(self, request: Request) -> Any:
        worths = self._pipeline.worths
        bids = [1.0] * len(request) if worths is not None and worths.needs_bids else []
        if request.kind == "rank":
            # A side that explores draws by the id; without one it has nothing to draw.
            id = "" if self._explorer is None else f"verify-{self._options.seed}-{next(self._asked)}"
            return self._rank.rank(request.context, request.candidates, bids, request_id=id)
        (items,) = request.candidates.values()
        return self._prerank.prerank(request.context, items, len(items), bids)

    def _judged(
        self,
        generation: Manifest,
        manifest: VersionManifest | None,
        answers: list[Answer],
        before: Values,
    ) -> bool:
        """Step 4; False if the trainer has replaced the generation, or the version's vectors."""
        after = self._live.read([answer.names for answer in answers])
        options, held = self._options, self._generations.read(generation)
        if held is None:
            return False
        with held:
            if (vectors := self._vectors.older(manifest)) is None:
                return False
            self._report.vectors |= set(vectors)
            restored = held.restored
            judge = Judge(options.pipeline, restored, options.content, self._live, options.tolerance, vectors)
        self._report.add(judge.judge(answers, before, after), generation)
        self._report.add_inputs(judge, [before[name] for answer in answers for name in answer.names])
        return True

    def _before(self) -> Values | None:
        """Newest reading of the live inputs that no server's look-up rows are older than; None: not yet."""
        now = time.monotonic()
        if not self._readings or now > self._readings[-1][0] + max(READ_EVERY_S, self._ttl_s):
            self._readings.append((now, self._live.read(self._names)))
        wait_s = self._ttl_s if self._live.needed else 0.0
        return next((v for at, v in reversed(self._readings) if at <= time.monotonic() - wait_s), None)

    def _ids(self, source: random.Random) -> tuple[Pool, dict[str, int]]:
        """Rows of ids of the newest generation that has learned examples; a run begins with an empty one."""
        while True:
            newest = self._generations.newest()
            if newest.examples or time.monotonic() > self._limit:
                held = self._generations.read(newest)
                if held is not None:  # else the trainer has replaced it
                    with held:
                        now_ms = time.time_ns() // 1_000_000
                        return rows_of_ids(self._pipeline, held.restored, now_ms, source)
            time.sleep(POLL_S)

    def _requests(self, server: Any) -> list[Request]:
        options, source = self._options, random.Random(self._options.seed)
        if options.source is not None:
            pool = rows_of_log(self._pipeline, options.source)
            self._report.asked_about = f"impressions of {options.source}"
        else:
            pool, known = self._ids(source)
            ids = ", ".join(f"{count:,} of {name}" for name, count in known.items())
            self._report.asked_about = f"ids of the checkpoint: {ids}; other columns are 0 or empty"
        requests = RequestMaker(options.pipeline, server, pool, options.candidates, source)
        asked: list[Request] = []
        if server.role in ("rank", "recommend"):
            asked += [requests.rank(number) for number in range(options.requests)]
        if server.role in ("prerank", "recommend") and options.pipeline.prerank is not None:
            asked += [requests.prerank() for _ in range(options.requests)]
        source.shuffle(asked)
        return asked


def _check_server(options: VerifyOptions, server: Any) -> None:
    if server.fingerprint != options.pipeline.fingerprint:
        raise MismatchError(
            f"{options.server} serves another pipeline (fingerprint {server.fingerprint[:12]}, this one is "
            f"{options.pipeline.fingerprint[:12]}); name the pipeline file that it was started with"
        )
    if not server.version:
        raise ConnectError(f"{options.server} serves no version yet; start the trainer that publishes")
    if not server.run_id:
        raise ConfigError(f"{options.server} does not say which run it serves; update it to this release")
