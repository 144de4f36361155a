"""Server process of a role: it serves until it is told to stop, alone or with several workers."""

from __future__ import annotations

import gc
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial

import torch

from livectr.ingest.pipeline import Pipeline
from livectr.protos import livectr_pb2 as pb
from livectr.serving.canary import SIDE
from livectr.serving.connections import connections
from livectr.serving.describe import described
from livectr.serving.options import ServeOptions
from livectr.serving.pauses import PauseClock
from livectr.serving.probes import NoProbes, Probe, Probes, ProbeServer
from livectr.serving.reply import Reply
from livectr.serving.request.admission import Admission
from livectr.serving.request.parse import message_of
from livectr.serving.server import Method, Server, Transport
from livectr.serving.sides import Sides
from livectr.serving.tracing import tracing
from livectr.serving.workers import StopSignal, supervise
from livectr.system.errors import ConfigError, ConnectError
from livectr.system.heap import tune_malloc
from livectr.system.logs import add_log_field, logs_json
from livectr.system.metrics_server import metrics_server
from livectr.system.threads import watched_threads

log = logging.getLogger(__name__)

MODEL_SERVICE = "livectr.v1.Model"
_AGE_JITTER = 1.2
"""Factor on the age of connections: gRPC spreads it by 10 %, and the last requests take a while."""
_DRAIN_POLL_S = 0.1
_START_PAUSE_S = 1.0
"""Seconds between attempts to reach Redis at the start."""


class App:
    """gRPC server of a role with its version followers.

    Args:
        role: "rank", "prerank" or "recommend".
        reuse_port: share the port with other workers.
        probes: told when the app has started, and when it becomes ready or no longer is.

    Attributes:
        follower: of the stable side; the server's health is its health.

    Raises:
        ConfigError: the role cannot serve the pipeline, or the address cannot be listened on.
    """

    def __init__(
        self,
        role: str,
        pipeline: Pipeline,
        options: ServeOptions,
        *,
        reuse_port: bool = False,
        probes: Probes | None = None,
    ) -> None:
        self.role = role
        self._options = options
        self._probes = probes or NoProbes()
        self._draining = False
        self._readiness = threading.Lock()
        self.sides = Sides(role, pipeline, options)
        self.follower = self.sides.stable.follower
        describe = Method(
            MODEL_SERVICE,
            "Describe",
            partial(message_of, pb.DescribeRequest),
            lambda request, call: Reply(described(role, self.sides, options)),
            admitted=False,
        )
        self.admission = Admission(
            options.max_active, options.max_waiting, options.max_wait_s, options.max_active_bytes
        )
        methods = [*self.sides.methods, describe]
        self.server = Server(role, _transport(options, reuse_port), methods, self.admission)

    def start(self) -> None:
        """Connect to Redis and open the port; health is NOT_SERVING until `wait_ready`.

        Raises:
            ConnectError: Redis cannot be reached; the call may be repeated.
            MismatchError: Redis holds a version of another pipeline.
        """
        self.follower.start()
        self.sides.follow()
        self.server.start()
        self._probes.set(Probe.STARTUP, True)

    def start_when_possible(self, wait: Callable[[float], bool]) -> None:
        """Start; wait for a Redis that does not answer, at most `start_wait_s` seconds.

        Args:
            wait: waits for so many seconds; True: the process was told to stop.

        Raises:
            ConnectError: Redis does not answer in time.
            MismatchError: Redis holds a version of another pipeline.
        """
        limit = time.monotonic() + self._options.start_wait_s
        said = False
        while True:
            try:
                return self.start()
            except ConnectError as error:
                if time.monotonic() + _START_PAUSE_S > limit:
                    raise
                if not said:
                    log.warning("%s server waits: %s", self.role, error)
                    said = True
            self._probes.set(Probe.STARTUP, True)  # a restart would bring Redis no sooner
            if wait(_START_PAUSE_S):
                return None

    def wait_ready(self, timeout_s: float) -> bool:
        """Wait for the first version; True if it is served, and health is SERVING.

        Raises:
            MismatchError: the version belongs to another pipeline.
        """
        if not self.follower.wait_ready(timeout_s):
            return False
        self.follower.health.subscribe(self._set_ready)
        return True

    def drain(self, wait: Callable[[float], bool]) -> None:
        """Be NOT_SERVING for good, and continue answering until clients have gone elsewhere.

            1  `drain_s` seconds: load balancers take the server out of their lists
            2  with `max_connection_age_s`: until every connection has reached its age and was closed

        gRPC drops calls that arrive in the moment when it stops; step 2 leaves none. It is bounded, for
        clients that connect to this very server again.

        Args:
            wait: waits for so many seconds; True: skip further waits.
        """
        with self._readiness:
            self._draining = True
        self._set_ready(False)
        hurried = wait(self._options.drain_s)
        limit = time.monotonic() + _AGE_JITTER * self._options.max_connection_age_s
        while not hurried and time.monotonic() < limit and connections(self.server.port):
            hurried = wait(_DRAIN_POLL_S)

    def stop(self) -> None:
        """Stop taking requests, wait for running requests, then disconnect."""
        self.drain(lambda _: True)
        self.server.stop(self._options.grace_s)
        self.sides.close()

    def _set_ready(self, ready: bool) -> None:
        with self._readiness:
            ready = ready and not self._draining
            self.server.set_ready(ready)
            self._probes.set(Probe.READY, ready)


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


def serve_recommend(pipeline: Pipeline, options: ServeOptions) -> None:
    """Serve recommendations, and what rank and pre-rank servers answer; see `serve_rank`."""
    _serve("recommend", pipeline, options)


def _serve(role: str, pipeline: Pipeline, options: ServeOptions) -> None:
    if options.workers < 1:
        raise ConfigError(f"workers must be at least 1, not {options.workers}")
    if options.workers > 1:
        supervise(lambda own, probes: _run(role, pipeline, own, probes, reuse_port=True), options)
        return
    probes = NoProbes() if options.health_listen is None else ProbeServer(options.health_listen)
    try:
        _run(role, pipeline, options, probes, reuse_port=options.share_port)
    finally:
        probes.close()


def _transport(options: ServeOptions, reuse_port: bool) -> Transport:
    return Transport(
        options.listen,
        options.max_message_bytes,
        reuse_port,
        options.tls,
        options.max_connection_age_s,
        options.grace_s,
        options.token_file,
        options.reflection,
        options.front,
    )


def _run(role: str, pipeline: Pipeline, options: ServeOptions, probes: Probes, *, reuse_port: bool) -> None:
    # Requests are the parallelism; intra-op threads would only contend.
    torch.set_num_threads(1)
    os.environ.setdefault("LIVECTR_THREADS", "1")
    tune_malloc()
    # While a version is loaded, a request must not wait 5 ms (Python's default) for the interpreter lock.
    sys.setswitchinterval(0.0005)
    stop = StopSignal()
    with tracing(role):
        app = App(role, pipeline, options, reuse_port=reuse_port, probes=probes)
        add_log_field("version", lambda: app.follower.current and app.follower.current.number)
        if options.canary is not None:
            add_log_field("side", SIDE.get)
        endpoint = metrics_server(options.metrics_port, options.metrics_listen, options.metrics_tls)
        with endpoint, watched_threads(app.follower.health.fail):
            _serve_until(stop, app)


def _serve_until(stop: StopSignal, app: App) -> None:
    """Serve until a signal comes, then drain.

    Raises:
        ConfigError: the process cannot continue.
        ConnectError: Redis does not answer.
    """
    role, health, stopped = app.role, app.follower.health, stop.stopped
    try:
        app.start_when_possible(stopped.wait)
        waiting = False
        while not (stopped.is_set() or health.fatal or app.wait_ready(0.2)):
            if not waiting:
                log.info("%s server on %s waits for the first version", role, app.server.address)
                waiting = True
        version = app.follower.current
        # Freeze the imported objects out of the GC: it need not traverse them during a request.
        gc.freeze()
        with PauseClock():
            if version is not None:
                ready = f"{role} server ready on {app.server.address} (version {version.number})"
                if logs_json():
                    log.info("%s", ready)
                else:
                    print(ready, flush=True)
            while not stopped.wait(0 if health.fatal else 0.2):
                health.tick()  # the follower's thread may hang in a look
                if health.fatal:
                    raise ConfigError(health.fatal)
            app.drain(stop.hurried.wait)
    finally:
        app.stop()
