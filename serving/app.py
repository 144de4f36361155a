"""Server process of a role: it serves until it is told to stop, alone or with several workers."""

from __future__ import annotations

import gc
import json
import logging
import os
import sys
import threading
from pathlib import Path
from typing import Any

import torch

from livectr.ingest.pipeline import Pipeline, load_pipeline
from livectr.kernels.errors import ConfigError, UserError
from livectr.kernels.process.heap import tune_malloc
from livectr.kernels.process.threads import watched_threads
from livectr.protos import livectr_pb2 as pb
from livectr.serving import metrics
from livectr.serving.options import ServeOptions
from livectr.serving.request.admission import Admission
from livectr.serving.request.parse import RequestSchema
from livectr.serving.score.prerank import PreRanker, prerank_follower
from livectr.serving.score.rank import Ranker, rank_follower
from livectr.serving.server import Method, Server
from livectr.serving.version.content import Contents
from livectr.serving.version.follower import VersionFollower
from livectr.serving.version.loader import ModelVersion
from livectr.serving.workers import stop_signal, supervise

log = logging.getLogger(__name__)

_SERVICES = {"rank": "livectr.v1.Rank", "prerank": "livectr.v1.PreRank"}
MODEL_SERVICE = "livectr.v1.Model"


class App:
    """gRPC server of a role with its version follower.

    Args:
        role: "rank" or "prerank".
        reuse_port: share the port with other workers.

    Raises:
        ConfigError: the role cannot serve the pipeline, or the address cannot be listened on.
    """

    def __init__(
        self, role: str, pipeline: Pipeline, options: ServeOptions, *, reuse_port: bool = False
    ) -> None:
        self.role = role
        self._options = options
        self._pipeline = pipeline
        method: Method[Any]
        if role == "rank":
            self.follower: VersionFollower = rank_follower(pipeline, options)
            ranker = Ranker(pipeline, self.follower, options)
            method = Method(_SERVICES[role], "Rank", pb.RankRequest, ranker.rank)
            self._schema, self._model = ranker.schema, ranker.model
        else:
            self.follower = prerank_follower(pipeline, options)
            preranker = PreRanker(pipeline, self.follower, options)
            method = Method(_SERVICES[role], "PreRank", pb.PreRankRequest, preranker.prerank)
            self._schema, self._model = preranker.schema, preranker.model
        describe = Method(MODEL_SERVICE, "Describe", pb.DescribeRequest, self._describe, admitted=False)
        self.admission = Admission(
            options.max_active, options.max_waiting, options.max_wait_s, options.max_active_bytes
        )
        self.server = Server(
            role,
            options.listen,
            [method, describe],
            self.admission,
            max_message_bytes=options.max_message_bytes,
            reuse_port=reuse_port,
        )

    def start(self) -> None:
        """Connect to Redis and open the port; health is NOT_SERVING until `wait_ready`.

        Raises:
            ConnectError: Redis cannot be reached.
            MismatchError: Redis holds a version of another pipeline.
        """
        self.follower.start()
        self.server.start()

    def wait_ready(self, timeout_s: float) -> bool:
        """Wait for the first version; True if it is served, and health is SERVING.

        Raises:
            MismatchError: the version belongs to another pipeline.
        """
        if not self.follower.wait_ready(timeout_s):
            return False
        self.follower.health.subscribe(self.server.set_ready)
        return True

    def stop(self) -> None:
        """Wait for running requests, then disconnect."""
        self.server.stop(self._options.grace_s)
        self.follower.close()

    def _describe(self, request: Any, deadline: float | None) -> Any:
        version = self.follower.current
        return pb.DescribeResponse(
            role=self.role,
            model=self._model,
            fingerprint=self._pipeline.fingerprint,
            version=version.number if version else 0,
            created_ms=version.manifest.created_ms if version else 0,
            columns=_columns(self._schema),
            max_candidates=self._options.max_candidates,
            items=len(version.items) if version and version.items else 0,
            content=_content(self.follower.contents, version),
            trouble=self.follower.health.reason,
        )


def serve_rank(pipeline: Pipeline, options: ServeOptions) -> None:
    """Serve click probabilities over gRPC until SIGTERM or SIGINT.

    Prints "rank server ready on HOST:PORT (version v)" when the first version is served.

    Raises:
        UserError: ConnectError, MismatchError or ConfigError.
    """
    _serve("rank", pipeline, options)


def serve_prerank(pipeline: Pipeline, options: ServeOptions) -> None:
    """Serve the pre-rank model; see `serve_rank`."""
    _serve("prerank", pipeline, options)


def _serve(role: str, pipeline: Pipeline, options: ServeOptions) -> None:
    if options.workers < 1:
        raise ConfigError(f"workers must be at least 1, not {options.workers}")
    if options.workers > 1:
        supervise(role, options)
    else:
        _run(role, pipeline, options, reuse_port=False)


def _run(role: str, pipeline: Pipeline, options: ServeOptions, *, reuse_port: bool) -> None:
    # Requests are the parallelism; intra-op threads would only contend.
    torch.set_num_threads(1)
    os.environ.setdefault("LIVECTR_THREADS", "1")
    tune_malloc()
    # While a version is loaded, a request must not wait 5 ms (Python's default) for the interpreter lock.
    sys.setswitchinterval(0.0005)
    stopped = stop_signal()
    app = App(role, pipeline, options, reuse_port=reuse_port)
    try:
        metrics.start(options.metrics_port, options.metrics_listen)
    except OSError as error:
        raise ConfigError(
            f"metrics port {options.metrics_port} of {options.metrics_listen} cannot be opened: {error}"
        ) from error
    with watched_threads(app.follower.health.fail):
        _serve_until(stopped, app)


def _serve_until(stopped: threading.Event, app: App) -> None:
    """Serve until `stopped` is set.

    Raises:
        ConfigError: the process cannot go on.
    """
    role, health = app.role, app.follower.health
    app.start()
    try:
        waiting = False
        while not (stopped.is_set() or health.fatal or app.wait_ready(0.2)):
            if not waiting:
                log.info("%s server on %s waits for the first version", role, app.server.address)
                waiting = True
        version = app.follower.current
        # Freeze the imported objects out of the GC: it need not traverse them during a request.
        gc.freeze()
        if version is not None and not stopped.is_set():
            print(f"{role} server ready on {app.server.address} (version {version.number})", flush=True)
        while not stopped.wait(0 if health.fatal else 0.2):
            if health.fatal:
                raise ConfigError(health.fatal)
    finally:
        app.stop()


def _columns(schema: RequestSchema) -> list[Any]:
    return [
        pb.ColumnInfo(name=c.name, dtype=c.dtype, placement=c.placement, required=c.required)
        for c in schema.columns.values()
    ]


def _content(contents: Contents, version: ModelVersion | None) -> list[Any]:
    return [
        pb.ContentInfo(
            name=name,
            fields=raw.fields,
            width=raw.model.width,
            vectors=len(version.content[name].published) if version else 0,
        )
        for name, raw in contents.raw.items()
    ]


def _worker(role: str) -> int:
    """Run a worker process with the options as JSON on standard input; return its exit status."""
    fields = json.load(sys.stdin)
    options = ServeOptions(**{**fields, "pipeline_file": Path(fields["pipeline_file"])})
    assert options.pipeline_file is not None
    try:
        _run(role, load_pipeline(options.pipeline_file), options, reuse_port=True)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(_worker(sys.argv[1]))
