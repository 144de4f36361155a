"""Modules that an event, a row and requests pass, measured by a profiler hook: `python -m tests.docs.ways`.

It writes the lists of docs/architecture.md. A way is that of a single event, commit or request of a process
that runs already; what a process does once, at its start, is not on it.
"""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from tests.waiting import until

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
BETWEEN = re.compile(r"(<!-- ways -->\n).*(<!-- end of ways -->)", re.DOTALL)
GOALS = {"event": 28, "row": 16, "request": 8, "read": 28}
"""Most modules that a way should have."""
ABOUT = {
    "event": "An impression and its click, from the file to the gradient",
    "row": "A changed row, from the table through Redis to the server's version",
    "request": "A rank request whose inputs are in memory, from the bytes to the reply",
    "read": "A rank request that reads the user's history from Redis",
}


class Hook:
    """Notes the files whose functions are called, in the order of their first call.

    Args:
        within: the file of a function inside of which calls count; "": everywhere.
        threads: begin of the names of threads that count whatever they call.
    """

    def __init__(self, within: str = "", threads: tuple[str, ...] = ()) -> None:
        self.on = False
        self.files: dict[str, None] = {}
        self._within, self._threads = within, threads
        self._local = threading.local()

    def install(self) -> None:
        """Watch this thread, and all that begin from here on."""
        sys.setprofile(self)
        threading.setprofile(self)

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event not in ("call", "return"):
            return
        file = frame.f_code.co_filename
        if self._within and file.endswith(self._within):
            change = 1 if event == "call" else -1
            self._local.depth = max(0, getattr(self._local, "depth", 0) + change)
        if not self.on or event != "call" or "/livectr/" not in file:
            return
        named = bool(self._threads) and threading.current_thread().name.startswith(self._threads)
        if named or not self._within or getattr(self._local, "depth", 0) > 0:
            self.files[file] = None

    def modules(self) -> list[str]:
        """Paths below the checkout."""
        found = (Path(file).resolve() for file in self.files)
        return [str(file.relative_to(ROOT)) for file in found if file.is_relative_to(ROOT)]


def append(folder: Path, topic: str, partition: int, *records: dict[str, object]) -> None:
    """Append records to a partition's file, at once."""
    (file,) = folder.glob(f"{topic}/{partition:05d}-*")
    with file.open("a") as log:
        log.write("".join(json.dumps(record) + "\n" for record in records))


def trained(hook: Hook, publish: str, then: Callable[[Any, Path], None]) -> None:
    """Train on a small log that does not end, and call `then` in a thread once it has been learned."""
    import livectr.trainer.run as run
    from livectr.trainer.options import TrainOptions
    from tests.trainer.ad_logs import ad_pipeline, write_files

    folder, seen = Path(tempfile.mkdtemp()), {}
    source = write_files(folder / "logs", 600)
    built = run.build  # type: ignore[attr-defined]  # imported there

    def build(*words: Any) -> Any:
        seen["parts"], stages = built(*words)
        return seen["parts"], stages

    def watch() -> None:
        examples, quiet = -1, 0
        while quiet < 20:  # a second in which nothing was learned
            time.sleep(0.05)
            now = seen["parts"].progress.examples if "parts" in seen else -1
            quiet, examples = (quiet + 1, now) if now == examples and now > 0 else (0, now)
        then(seen["parts"], folder / "logs")
        os.kill(os.getpid(), signal.SIGTERM)

    run.build = build  # type: ignore[attr-defined, assignment]  # imported there
    hook.install()
    threading.Thread(target=watch, name="operator").start()
    options: dict[str, Any] = dict(
        batch_size=64, batch_ramp=0, threads=1, publish_interval_s=0.2, idle_partition_s=0.2
    )
    options |= dict(batch_wait_s=0.1, min_examples=0, checkpoint=str(folder / "checkpoint"))
    run.train(ad_pipeline(), TrainOptions(source, publish=publish or None, **options))


def one_more(parts: Any, logs: Path) -> None:
    """Log an impression and its click, then later ones that end its window, and wait until it is learned."""
    from tests.trainer.ad_logs import START_MS

    before, late = parts.progress.examples, START_MS + 3_600_000
    shown = {"request_id": 10**6, "user_id": 4, "ad_id": 3, "ts": late}
    append(logs, "impressions", 0, {**shown, "tags": [1, 2]})
    append(logs, "clicks", 0, {**shown, "ts": late + 100})
    for partition in range(4):
        after = {"request_id": 10**6 + 1 + partition, "user_id": partition, "ad_id": 1, "ts": late + 60_000}
        append(logs, "impressions", partition, {**after, "tags": []})
    until(lambda: parts.progress.examples != before)


def event() -> list[str]:
    """Way of an event."""
    hook = Hook()

    def then(parts: Any, logs: Path) -> None:
        hook.on = True
        one_more(parts, logs)
        hook.on = False

    trained(hook, "", then)
    return [name for name in hook.modules() if not name.startswith(("trainer/checkpoint", "trainer/commit"))]


def row() -> list[str]:
    """Way of a row: inside of a commit, in the thread that publishes, and in the server's follower."""
    from livectr.local.ports import free_ports
    from livectr.local.valkey import LocalRedis
    from livectr.serving.app import App
    from livectr.serving.options import ServeOptions
    from tests.trainer.ad_logs import ad_pipeline

    hook = Hook("trainer/commits.py", ("publish", "rank-follower"))
    with LocalRedis(f"127.0.0.1:{free_ports(1)}") as server:

        def then(parts: Any, logs: Path) -> None:
            app = App("rank", ad_pipeline(), ServeOptions(server.url))
            app.start()
            app.wait_ready(600)

            def serves_all() -> bool:
                """All that was learned is served."""
                served = app.follower.current
                return served is not None and served.manifest.examples == parts.progress.examples

            until(serves_all)
            hook.on = True
            one_more(parts, logs)
            until(serves_all)
            app.stop()  # the follower ends what it does after a swap
            hook.on = False

        trained(hook, server.url, then)
    return [name for name in hook.modules() if not name.startswith("trainer/checkpoint")]


def request() -> list[str]:
    """Way of a request that reads nothing: inside of the server's handler."""
    from tests.fuzz.answers import pipeline

    return answered(pipeline)


def read() -> list[str]:
    """Way of a request that reads a history."""
    from tests.serving.display_pipeline import pipeline

    return answered(pipeline)


def answered(pipeline: Any) -> list[str]:
    """Modules that a request passes inside of the server's handler."""
    from livectr.client.clients import RankClient
    from livectr.local.ports import free_ports
    from livectr.local.valkey import LocalRedis
    from livectr.models.configs import model_configs
    from livectr.models.roles import row_segments
    from livectr.serving.app import App
    from livectr.serving.options import ServeOptions
    from livectr.trainer.des.step import DesStep
    from tests.serving.display_world import NOW_MS, World
    from tests.serving.publication import Publication

    hook, world, step = Hook("serving/server.py"), World(), DesStep(pipeline, seed=1)
    hook.install()
    with LocalRedis(f"127.0.0.1:{free_ports(1)}") as server:
        segments = tuple((s.name, s.dim) for s in row_segments(model_configs(pipeline)))
        published = Publication(server.url, pipeline.fingerprint, segments, seed=1)
        published.lookup_rows("users", world.users)
        published.lookup_rows("ads", world.ads)
        published.publish(
            {name: table.export(state=False) for name, table in step.tables.items()}, step.weights()
        )
        app = App("rank", pipeline, ServeOptions(server.url, front="python"))
        app.start()
        app.wait_ready(600)
        with RankClient(f"127.0.0.1:{app.server.port}") as client:
            context = {"user_id": 7, "ts": NOW_MS, "query": "Hello", "tags": ["x"], "request_id": "r"}
            candidates = {"ad_id": [101, 102, 103], "position": [0, 1, 2]}
            for _ in range(3):  # the first read rows, and compute partial results
                client.rank(context, candidates)
            hook.on = True
            client.rank(context, candidates)
            hook.on = False
        app.stop()
    return hook.modules()


RUNS = 3


def always(way: str) -> list[str]:
    """Modules that every one of RUNS measured ways has: others depend on a moment's timing."""
    first, *others = [measured(way) for _ in range(RUNS)]
    return [name for name in first if all(name in other for other in others)]


def listed(text: str) -> dict[str, list[str]]:
    """Way → its modules on the page."""
    parts = BETWEEN.search(text)
    assert parts, "docs/architecture.md has no list of ways"
    sections = parts[0].split("| | file | is |")[1:]
    return {
        way: re.findall(r"^\| \d+ \| `([^`]+)`", part, re.M)
        for way, part in zip(ABOUT, sections, strict=True)
    }


def measured(way: str) -> list[str]:
    """Modules of a way, measured in a process of its own."""
    command = [sys.executable, "-m", "tests.docs.ways", way]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{way}: {done.stderr}")
    return list(json.loads(done.stdout.splitlines()[-1]))


def about(module: str) -> str:
    """First sentence of a module's docstring."""
    text = ast.get_docstring(ast.parse((ROOT / module).read_text())) or ""
    return text.split("\n\n")[0].replace("\n", " ").split(". ")[0].rstrip(".:").replace("|", r"\|")


def page(text: str, ways: dict[str, list[str]]) -> str:
    """The page's text with these ways."""
    sections = []
    for way, modules in ways.items():
        rows = [f"| {number} | `{name}` | {about(name)} |" for number, name in enumerate(modules, 1)]
        head = f"{ABOUT[way]}: {len(modules)} modules (goal: {GOALS[way]})."
        sections.append("\n".join([head, "", "| | file | is |", "|---|---|---|", *rows]))
    return BETWEEN.sub(lambda match: match[1] + "\n" + "\n\n".join(sections) + "\n\n" + match[2], text)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps({"event": event, "row": row, "request": request, "read": read}[sys.argv[1]]()))
    else:
        PAGE.write_text(page(PAGE.read_text(), {way: always(way) for way in GOALS}))
