"""A real Kafka broker on this machine: one KRaft node from Maven Central's jars.

It serves the demo, the tests and a laptop; a cluster brings its own brokers. Maven puts the jars into
the cache folder once; later starts need no network. The broker keeps every record, however old its
event time, until its data folder is deleted.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from kafka.errors import TopicAlreadyExistsError

from livectr.ingest.addresses import connect_admin
from livectr.local.ports import free_ports, listens
from livectr.system.children import with_parent
from livectr.system.errors import ConfigError, ConnectError, InternalError
from livectr.system.scratch import remove_scratch, scratch_folder

KAFKA_VERSION = "4.1.1"
START_S = 300.0
"""Patience with a start: seconds on a quiet machine. A broker that dies ends the wait at once."""
_LOG4J_VERSION = "2.24.3"  # the version that Kafka's own log4j-core is pinned to
_JAVA_HINT = "install a Java 17 runtime and Maven, e.g. apt-get install openjdk-17-jre-headless maven"

_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>livectr</groupId>
  <artifactId>broker</artifactId>
  <version>{KAFKA_VERSION}</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{KAFKA_VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId>
      <version>{_LOG4J_VERSION}</version>
    </dependency>
  </dependencies>
</project>
"""

_LOGGING = """rootLogger.level = WARN
rootLogger.appenderRefs = stdout
rootLogger.appenderRef.stdout.ref = STDOUT
appenders = stdout
appender.stdout.type = Console
appender.stdout.name = STDOUT
appender.stdout.layout.type = PatternLayout
appender.stdout.layout.pattern = [%d] %p %m (%c)%n
"""


class Broker:
    """One KRaft node, controller and broker in one process; a context manager.

    `with Broker() as broker: broker.url` gives `kafka://127.0.0.1:<free port>`.

    Args:
        listen: HOST:PORT of the clients' listener; port 0 or None picks a free port.
        data_dir: folder of the logs, which survives a stop; None: a temporary folder, removed at the stop.
        partitions: partitions of topics that are created on first use; None: topics have to be created first
            (`create_topics`).
        heap_mb: size of the Java heap in MiB.
    """

    def __init__(
        self,
        listen: str | None = None,
        *,
        data_dir: str | Path | None = None,
        partitions: int | None = None,
        heap_mb: int = 512,
        max_message_bytes: int = 16 << 20,
    ) -> None:
        host, _, port = (listen or "127.0.0.1:0").rpartition(":")
        if not port.isdigit():
            raise ConfigError(f"listen address {listen!r} is not HOST:PORT, e.g. 127.0.0.1:9092")
        self._host = host.strip("[]") or "127.0.0.1"
        self._port = int(port)
        self._temporary = data_dir is None
        self._data = Path(data_dir).absolute() if data_dir is not None else None
        self._partitions = partitions
        self._heap_mb = heap_mb
        self._max_message_bytes = max_message_bytes
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """`kafka://host:port` of the running broker."""
        return f"kafka://{self._host}:{self._port}"

    @property
    def pid(self) -> int | None:
        """Process id, None while the broker is down."""
        return self._process.pid if self._process is not None else None

    @property
    def log(self) -> Path:
        """The broker's own log file."""
        if self._data is None:
            raise InternalError("the broker was never started")
        return self._data / "broker.log"

    def start(self, timeout_s: float = START_S) -> Self:
        """Start and wait until a client call succeeds; a data folder in use before is taken up again.

        Raises ConfigError without Java or Maven, InternalError when the broker dies or stays silent.
        """
        if self._process is not None:
            return self
        libs = broker_jars()
        if self._data is None:
            self._data = scratch_folder("kafka")
        self._data.mkdir(parents=True, exist_ok=True)
        self._port = self._port or free_ports(1, self._host)
        self._check_port()
        properties = self._write_properties()
        if not (self._data / "log" / "meta.properties").exists():
            self._format(libs, properties)
        self._process = self._java(libs, "kafka.Kafka", str(properties))
        try:
            self._wait_ready(time.monotonic() + timeout_s)
        except BaseException:
            self.stop()
            raise
        return self

    def _check_port(self) -> None:
        """Raises ConfigError for a listener that somebody else has: that broker would answer for ours."""
        try:
            family, _, _, _, address = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)[0]
            with socket.socket(family) as listener:
                # As Java binds: half-closed connections of an earlier broker are no obstacle.
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(address)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"no broker can listen at {self._host}:{self._port} ({error}); choose another HOST:PORT"
            ) from None

    def stop(self) -> None:
        """Stop the process (kill after 15 s) and remove a temporary data folder."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._temporary and self._data is not None:
            remove_scratch(self._data)
            self._data = None

    def kill(self) -> None:
        """Kill the process as a crash would; the data folder stays for the next start."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _format(self, libs: Path, properties: Path) -> None:
        """Format the log folder: Kafka's tool does so once, and what it wrote is copied later.

        The tool is a Java process, a third of the work of a start. Apart from the ids, its result depends on
        Kafka's version alone.
        """
        assert self._data is not None
        log, features = self._data / "log", libs.with_name("bootstrap.checkpoint")
        if features.exists():
            log.mkdir(exist_ok=True)
            shutil.copyfile(features, log / features.name)
            ids = f"cluster.id={_new_id()}\ndirectory.id={_new_id()}\n"
            (log / "meta.properties").write_text(f"version=1\nnode.id=1\n{ids}")
            return
        # Joined by "=", because an id may begin with a dash.
        arguments = ["format", f"--cluster-id={_new_id()}", f"--config={properties}"]
        if self._java(libs, "kafka.tools.StorageTool", *arguments).wait() != 0:
            raise InternalError(f"the Kafka log folder cannot be formatted: {self._last_words()}")
        with contextlib.suppress(OSError):  # a cache that is brought along cannot be written
            beside = features.with_name(f".{features.name}.{os.getpid()}")
            shutil.copyfile(log / features.name, beside)
            beside.replace(features)

    def _write_properties(self) -> Path:
        assert self._data is not None
        controller = free_ports(1)
        settings: dict[str, object] = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://{self._host}:{self._port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://{_reachable(self._host)}:{self._port}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": self._data / "log",
            "num.partitions": self._partitions or 1,
            "auto.create.topics.enable": str(self._partitions is not None).lower(),
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            # Event times may lie years back; retention by time would delete replayed logs at once.
            "log.retention.ms": -1,
            "log.cleaner.dedupe.buffer.size": 16 << 20,
            "message.max.bytes": self._max_message_bytes,
            "replica.fetch.max.bytes": self._max_message_bytes,
            # After a crash the controller waits this long for the broker that it remembers, itself.
            "broker.session.timeout.ms": 3000,
            "broker.heartbeat.interval.ms": 500,
            # The quorum has a single voter: there is nothing to wait for.
            "controller.quorum.election.timeout.ms": 100,
            "controller.quorum.fetch.timeout.ms": 200,
            # No record of the metadata says every half second that the controller lives.
            "metadata.max.idle.interval.ms": 0,
        }
        path = self._data / "server.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        (self._data / "log4j2.properties").write_text(_LOGGING)
        return path

    def _java(self, libs: Path, main: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [
            _find_program("java"),
            f"-Xmx{self._heap_mb}m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1" if main.endswith("StorageTool") else "-XX:+ExitOnOutOfMemoryError",
            "-Djava.awt.headless=true",
            f"-Dlog4j2.configurationFile={self.log.with_name('log4j2.properties')}",
            "-cp",
            f"{libs}/*",
            main,
            *arguments,
        ]
        with self.log.open("ab") as log:
            # Its own session: Ctrl-C reaches the command line first, which stops the broker last.
            return subprocess.Popen(
                with_parent(command),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def _wait_ready(self, deadline: float) -> None:
        assert self._process is not None
        while True:
            if self._process.poll() is not None:
                raise InternalError(f"the Kafka broker ended while starting: {self._last_words()}")
            if listens(_reachable(self._host), self._port):
                with contextlib.suppress(ConnectError), connect_admin(self.url) as admin:
                    admin.list_topics()
                    return
            if time.monotonic() > deadline:
                raise InternalError(f"the Kafka broker does not answer: {self._last_words()}")
            time.sleep(0.05)

    def _last_words(self) -> str:
        return self.log.read_text(errors="replace")[-2000:].strip() or "its log is empty"


def broker_jars(timeout_s: float = 600.0) -> Path:
    """Folder of the broker's jars; Maven fetches them into the cache on the first call.

    Raises ConfigError without Java or Maven, or when Maven cannot fetch.
    """
    _find_program("java")
    home = _cache_dir() / "kafka" / KAFKA_VERSION
    libs = home / "libs"
    if libs.is_dir():
        return libs
    home.mkdir(parents=True, exist_ok=True)
    # Fetched beside and renamed: a broken download or a second process never leaves half a folder.
    with tempfile.TemporaryDirectory(dir=home) as scratch:
        (Path(scratch) / "pom.xml").write_text(_POM)
        command = [_find_program("mvn"), "-q", "-B", "dependency:copy-dependencies"]
        command += ["-DincludeScope=runtime", "-DoutputDirectory=libs"]
        done = subprocess.run(
            command, cwd=scratch, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        if done.returncode != 0:
            words = (done.stdout + done.stderr).strip()[-1500:]
            raise ConfigError(f"Maven could not fetch the Kafka {KAFKA_VERSION} jars: {words}")
        with contextlib.suppress(OSError):  # another process was first
            (Path(scratch) / "libs").rename(libs)
    return libs


def create_topics(url: str, topics: Mapping[str, int], *, compacted: Iterable[str] = ()) -> None:
    """Create topics, and wait until every partition has a leader. Topics that exist stay as they are.

    Args:
        url: of the broker.
        topics: name → partitions.
        compacted: names of look-up table topics, of which the broker keeps the last record per key.

    Raises:
        ConnectError: no broker answers.
    """
    compacted = set(compacted)
    with connect_admin(url) as admin:
        existing = set(admin.list_topics())
        wanted = {
            name: {
                "num_partitions": count,
                "configs": {"cleanup.policy": "compact"} if name in compacted else {},
            }
            for name, count in topics.items()
            if name not in existing
        }
        if wanted:
            with contextlib.suppress(TopicAlreadyExistsError):  # another process was first
                admin.create_topics(wanted, wait_for_metadata=True)


def _new_id() -> str:
    """Kafka's form of a random UUID."""
    return urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()


def _cache_dir() -> Path:
    return Path(os.environ.get("LIVECTR_CACHE_DIR") or Path.home() / ".cache" / "livectr")


def _find_program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise ConfigError(f"the program {name!r} is missing: {_JAVA_HINT}")
    return path


def _reachable(host: str) -> str:
    return socket.gethostname() if host in ("0.0.0.0", "::") else host
