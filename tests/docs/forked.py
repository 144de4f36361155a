"""A `livectr` on the PATH of a page's shell whose commands are forked (`tests/commands.py`).

shell ─► livectr, a small Python program ─► socket ─► thread of the test ─► Command

The program hands over its words, folder, environment and files, passes signals on, and ends as the command
ends. When it is killed, the command is.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.commands import Command

_PROGRAM = """\
#!{python} -IS
import json, os, signal, socket, sys

server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
job = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(server, [len(job).to_bytes(4, "big")], [0, 1, 2])
server.sendall(job)
answers = server.makefile()
pid = int(answers.readline())
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, lambda number, _: os.kill(pid, number))
code = int(answers.readline())
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


class ForkedOnPath:
    """A folder with the program, while it is entered.

    Args:
        folder: to work in.

    Attributes:
        path: the folder to put on PATH.
        commands: how many commands were begun.
    """

    def __init__(self, folder: Path) -> None:
        self.path, self.commands = folder / "bin", 0
        self._server = socket.socket(socket.AF_UNIX)
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self.path.mkdir(parents=True)
        program, address = self.path / "livectr", str(self.path / "socket")
        program.write_text(_PROGRAM.format(python=sys.executable, address=address))
        program.chmod(0o755)
        self._server.bind(address)
        self._server.listen()
        self._begin(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._server.close()

    def _begin(self, work: object, *given: object) -> None:
        thread = threading.Thread(target=work, args=given)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:  # the end
                return
            self._begin(self._command, client)

    def _command(self, client: socket.socket) -> None:
        with client:
            length, files, _, _ = socket.recv_fds(client, 4, 3)
            with client.makefile("rb") as sent:
                words, folder, environment = json.loads(sent.read(int.from_bytes(length, "big")))
            command = [str(Path(sys.executable).with_name("livectr")), *words]
            stdin, stdout, stderr = files
            process = Command(command, cwd=folder, env=environment, stdin=stdin, stdout=stdout, stderr=stderr)
            self.commands += 1
            for file in files:
                os.close(file)
            ended = os.pidfd_open(process.pid)
            try:
                client.sendall(b"%d\n" % process.pid)
                watched: list[int | socket.socket] = [ended, client]
                ready, _, _ = select.select(watched, [], [])
                if ended not in ready:  # the program was killed
                    process.kill()
                code = process.wait()
                if ended in ready:
                    client.sendall(b"%d\n" % code)
            finally:
                os.close(ended)
