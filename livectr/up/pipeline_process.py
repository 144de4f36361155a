"""Process that tells `livectr up` what it must know of a pipeline.

A supervisor lives for months, and loading a pipeline takes 600 MB. So another process loads it, says what it
is, makes the example query once a server answers, and ends. Lines of JSON go to and fro:

    1  to the supervisor: {"prerank": true}
    2  to this process:   {"server": "127.0.0.1:50051", "source": "file:logs"}
    3  to the supervisor: {"query": "livectr query rank …"}
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
from typing import Any

from livectr.system.children import with_parent
from livectr.system.errors import ConfigError, InternalError


class PipelineProcess:
    """The process, as the supervisor sees it.

    Args:
        pipeline: file of the pipeline.
    """

    def __init__(self, pipeline: str) -> None:
        command = [sys.executable, "-m", "livectr.up.pipeline_process", pipeline]
        self._process = subprocess.Popen(
            with_parent(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C reaches the supervisor alone
        )

    def has_prerank(self) -> bool:
        """Tell if the pipeline has a pre-rank model; waits until it is loaded.

        Raises:
            ConfigError: the pipeline cannot be loaded; the process has said why.
        """
        found = self._read()
        if found is None:
            code = self._process.wait()
            error = ConfigError("the pipeline cannot be loaded.")
            error.told = True
            raise error if code == 2 else InternalError(f"the pipeline's process ended with {code}.")
        return bool(found["prerank"])

    def ask(self, server: str, source: str) -> None:
        """Ask for a query that a server answers."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"server": server, "source": source}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return  # `answer` finds its end

    def answer(self) -> str | None:
        """Query that was asked for; None: it is not there yet. "" if the process has ended without one."""
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], 0)[0]:
            return None
        found = self._read()
        return "" if found is None else str(found["query"])

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._process.wait()

    def _read(self) -> dict[str, Any] | None:
        """Next line; None: the process has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        found: dict[str, Any] | None = json.loads(line) if line else None
        return found


def main(pipeline: str) -> int:
    """Be the process."""
    from livectr.ingest.pipeline import load_pipeline
    from livectr.system.errors import UserError
    from livectr.system.logs import tell
    from livectr.up.example_query import example_query

    try:
        loaded = load_pipeline(pipeline)
    except UserError as error:
        tell(str(error))
        return 2
    print(json.dumps({"prerank": loaded.prerank is not None}), flush=True)
    if line := sys.stdin.readline():
        asked = json.loads(line)
        query = example_query(asked["server"], loaded, asked["source"])
        print(json.dumps({"query": query}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
