"""Running a server process until it is told to stop; several workers when asked to.

Workers are fresh processes started before any gRPC object exists (gRPC does not survive a fork). They share
the port by SO_REUSEPORT: the kernel spreads connections over them.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from livectr.ingest.pipeline import Pipeline, load_pipeline
from livectr.kernels.errors import ConfigError, UserError
from livectr.kernels.process.children import die_with_parent
from livectr.kernels.process.heap import tune_malloc
from livectr.kernels.process.threads import watched_threads
from livectr.protos import livectr_pb2 as pb
from livectr.serving import metrics
from livectr.serving.options import ServeOptions
from livectr.serving.request.admission import Admission
from livectr.serving.request.parse import RequestSchema
from livectr.serving.score import prerank, rank
from livectr.serving.server import Method, Server
from livectr.serving.version.content import Contents
from livectr.serving.version.follower import ModelVersion, VersionFollower

log = logging.getLogger(__name__)

_SERVICES = {"rank": "livectr.v1.Rank", "prerank": "livectr.v1.PreRank"}
MODEL_SERVICE = "livectr.v1.Model"


class App:
    """A server with its follower: `start`, `wait_ready`, `stop`.

    Raises ConfigError for a pipeline that the role cannot serve or an address that cannot be listened on.
    """

    def __init__(
        self, role: str, pipeline: Pipeline, options: ServeOptions, *, reuse_port: bool = False
    ) -> None:
        self.role = role
        self._options = options
        self._pipeline = pipeline
        method: Method[Any]
        if role == "rank":
            self.follower: VersionFollower = rank.rank_follower(pipeline, options)
            ranker = rank.Ranker(pipeline, self.follower, options)
            method = Method(_SERVICES[role], "Rank", pb.RankRequest, ranker.rank)
            self._schema, self._model = ranker.schema, ranker.model
        else:
            self.follower = prerank.prerank_follower(pipeline, options)
            preranker = prerank.PreRanker(pipeline, self.follower, options)
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
        """Connects and serves; not ready before a version is there. Raises ConnectError, MismatchError."""
        self.follower.start()
        self.server.start()

    def wait_ready(self, timeout_s: float) -> bool:
        """Waits for the first version; whether it is there. Raises MismatchError for another pipeline's."""
        if not self.follower.wait_ready(timeout_s):
            return False
        self.follower.health.follow(self.server.set_ready)
        return True

    def stop(self) -> None:
        """Lets requests under way end, then disconnects."""
        self.server.stop(self._options.grace_s)
        self.follower.close()

    def _describe(self, request: Any, deadline: float | None) -> Any:
        served = self.follower.current
        return pb.DescribeResponse(
            role=self.role,
            model=self._model,
            fingerprint=self._pipeline.fingerprint,
            version=served.version if served else 0,
            created_ms=served.manifest.created_ms if served else 0,
            columns=_columns(self._schema),
            max_candidates=self._options.max_candidates,
            items=len(served.items) if served and served.items else 0,
            content=_content(self.follower.contents, served),
            trouble=self.follower.health.reason,
        )


def serve_rank(pipeline: Pipeline, options: ServeOptions) -> None:
    """Serves CTR over gRPC until SIGTERM or SIGINT.

    Prints "rank server ready on HOST:PORT (version v)" when the first version is served. Raises UserError:
    ConnectError, MismatchError, ConfigError.
    """
    _serve("rank", pipeline, options)


def serve_prerank(pipeline: Pipeline, options: ServeOptions) -> None:
    """As `serve_rank`, for the pre-rank model."""
    _serve("prerank", pipeline, options)


def _serve(role: str, pipeline: Pipeline, options: ServeOptions) -> None:
    if options.workers < 1:
        raise ConfigError(f"workers must be at least 1, not {options.workers}")
    if options.workers > 1:
        _supervise(role, options)
    else:
        _run(role, pipeline, options, reuse_port=False)


def _run(role: str, pipeline: Pipeline, options: ServeOptions, *, reuse_port: bool) -> None:
    # Requests run beside each other; threads inside one would only take turns with those of another.
    torch.set_num_threads(1)
    os.environ.setdefault("LIVECTR_THREADS", "1")
    tune_malloc()
    # A request must not wait 5 ms (Python's default) for its turn while a version is being loaded.
    sys.setswitchinterval(0.0005)
    stopped = _stop_signal()
    app = App(role, pipeline, options, reuse_port=reuse_port)
    try:
        metrics.start(options.metrics_port, options.metrics_listen)
    except OSError as error:
        raise ConfigError(
            f"metrics port {options.metrics_port} of {options.metrics_listen} cannot be opened: {error}"
        ) from error
    with watched_threads(app.follower.health.die):
        _serve_until(stopped, app)


def _serve_until(stopped: threading.Event, app: App) -> None:
    """Raises ConnectError when the process cannot go on."""
    role = app.role
    app.start()
    try:
        waiting = False
        while not (stopped.is_set() or app.follower.health.fatal or app.wait_ready(0.2)):
            if not waiting:
                log.info("%s server on %s waits for the first version", role, app.server.address)
                waiting = True
        served = app.follower.current
        # What has been loaded so far stays; the collector need not walk it in the middle of a request.
        gc.freeze()
        if served is not None and not stopped.is_set():
            print(f"{role} server ready on {app.server.address} (version {served.version})", flush=True)
        while not stopped.wait(0 if app.follower.health.fatal else 0.2):
            if app.follower.health.fatal:
                raise ConfigError(app.follower.health.fatal)
    finally:
        app.stop()


def _supervise(role: str, options: ServeOptions) -> None:
    """Starts the workers and waits. When one ends by itself the others are stopped: whoever runs this process
    (Kubernetes, a user) should see the failure."""
    if options.pipeline_file is None:
        raise ConfigError("several workers need the pipeline's file")
    stopped = _stop_signal()
    host, _, port = options.listen.rpartition(":")
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as held:
        # Held, not listened on: all workers get the same free port, and nobody else takes it meanwhile.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            held.bind((host.strip("[]"), int(port)))
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"cannot listen on {options.listen}: choose a free HOST:PORT ({error})"
            ) from error
        listen = f"{host}:{held.getsockname()[1]}"
        workers = [_spawn(role, options, listen, index) for index in range(options.workers)]
        failed: list[int] = []
        try:
            while not stopped.wait(0.2) and not failed:
                failed = [code for worker in workers if (code := worker.poll()) is not None]
        finally:
            _end(workers, options.grace_s)
    if failed and not stopped.is_set():
        if failed[0] == 2:
            raise ConfigError("a worker could not start or go on; its message is above")
        raise RuntimeError(f"a worker of the {role} server ended with status {failed[0]}")


def _spawn(role: str, options: ServeOptions, listen: str, index: int) -> subprocess.Popen[bytes]:
    port = options.metrics_port + index if options.metrics_port else 0
    values = dataclasses.asdict(options) | {"listen": listen, "workers": 1, "metrics_port": port}
    values["pipeline_file"] = str(options.pipeline_file)
    worker = subprocess.Popen(
        [sys.executable, "-m", "livectr.serving.app", role],
        stdin=subprocess.PIPE,  # the options hold a password, and every user can read a command's words
        preexec_fn=die_with_parent(),
    )
    assert worker.stdin is not None
    with suppress(BrokenPipeError), worker.stdin:  # it ended already: its exit code tells
        worker.stdin.write(json.dumps(values).encode())
    return worker


def _end(workers: list[subprocess.Popen[bytes]], grace_s: float) -> None:
    for worker in workers:
        worker.terminate()
    for worker in workers:
        try:
            worker.wait(timeout=grace_s + 5)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()


def _stop_signal() -> threading.Event:
    stopped = threading.Event()
    if threading.current_thread() is threading.main_thread():
        stop: Callable[[int, Any], None] = lambda *_: stopped.set()  # noqa: E731
        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
    return stopped


def _columns(schema: RequestSchema) -> list[Any]:
    return [
        pb.ColumnInfo(name=c.name, dtype=c.dtype, placement=c.placement, required=c.required)
        for c in schema.columns.values()
    ]


def _content(contents: Contents, served: ModelVersion | None) -> list[Any]:
    return [
        pb.ContentInfo(
            name=name,
            fields=source.fields,
            width=source.model.width,
            vectors=len(served.content[name].published) if served else 0,
        )
        for name, source in contents.sources.items()
    ]


def _worker(role: str) -> int:
    """A worker process, with the options as JSON on its standard input; its exit status."""
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
