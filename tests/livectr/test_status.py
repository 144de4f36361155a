"""`livectr status` beside a Prometheus of the same processes: a backlog, two ranks, one of them killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from livectr.cli import main
from livectr.demo.prometheus import prometheus_program
from livectr.local.ports import free_ports
from tests.commands import Command
from tests.waiting import left_s, until
from tests.watch.expressions import Expression, answer

PIPELINE = """\
from livectr import Pipeline, Stream, labelled
from livectr.models import LR

columns = {"user": "int64", "ad": "int64", "click": "int32"}
log = labelled(Stream("shown", key="user", columns=columns), label="click")
pipeline = Pipeline(log, sparse={"user": log.user, "ad": log.ad}, rank=LR(), settings={"threads": 1})
"""
ROWS = 2_000
"""Rows of the log at first; a checkpoint's window has their AUC."""
BACKLOG = 100_000
"""Rows that come at once."""
MORE = 2_000
"""Rows that come at each look, so that a fast machine has a backlog, too."""
RANKS = 2
BOARDS = {
    "lag": 'sum by (topic) (livectr_consumer_lag_records{topic="shown"})',
    "rows/s": 'sum by (topic) (livectr_events_per_second{topic="shown"})',
    "read": 'sum by (topic) (livectr_events_total{topic="shown"})',
    "backlog rows": "livectr_backlog_rows",
    "backlog s": "livectr_backlog_seconds",
    "examples": "livectr_examples_total",
    "examples/s": "sum by (namespace) (livectr_examples_per_second)",
    "AUC": 'livectr_auc{model="rank"}',
}
"""Number → PromQL of the boards."""


class Log:
    """Pipeline and its log of two partitions.

    Args:
        folder: of both.
    """

    def __init__(self, folder: Path) -> None:
        (folder / "p.py").write_text(PIPELINE)
        self._folder, self._draw, self._files = folder / "logs" / "shown", np.random.default_rng(0), 0
        self._folder.mkdir(parents=True)

    def grow(self, rows: int) -> None:
        """Log impressions more, a file for each partition."""
        for number in range(RANKS):
            ad = self._draw.integers(0, 50, rows // RANKS)
            click = (self._draw.random(len(ad)) < np.where(ad % 3 == 0, 0.4, 0.05)).astype(np.int32)
            user = 2 * self._draw.integers(0, 500, len(ad)) + number
            name = f"{number:05}-{self._files:06}.parquet"
            pq.write_table(pa.table({"user": user, "ad": ad, "click": click}), self._folder / f".{name}")
            (self._folder / f".{name}").rename(self._folder / name)
        self._files += 1


class Moments:
    """Endpoints of the ranks as they were at one moment, for several readers.

    Numbers of a trainer move between two scrapes; so status and Prometheus read the same answers.

    Args:
        ports: of the ranks' metrics.
    """

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports, self._pages, self.number = ports, [""] * len(ports), 0
        pages = self._pages

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                page = pages[int(self.path.split("/")[1])].encode()
                self.send_response(200 if page else 503)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write(page)

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    @property
    def urls(self) -> list[str]:
        """Endpoints."""
        return [
            f"http://127.0.0.1:{self.server.server_port}/{rank}/metrics" for rank in range(len(self._ports))
        ]

    def take(self) -> str:
        """Keep this moment, which `livectr_moment` numbers; returns the text of rank 0."""
        self.number += 1
        for rank, port in enumerate(self._ports):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=left_s()) as page:
                text = page.read().decode()
            self._pages[rank] = f"{text}livectr_moment {self.number}\n"
        return self._pages[0]

    @contextmanager
    def served(self) -> Iterator[None]:
        """Answer until the end."""
        thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield
        finally:
            self.server.shutdown()
            thread.join()
            self.server.server_close()


@contextmanager
def prometheus(folder: Path, moments: Moments) -> Iterator[str]:
    """URL of a Prometheus that scrapes the moments twice a second."""
    port = free_ports(1)
    jobs = [
        {
            "job_name": f"rank-{rank}",
            "metrics_path": f"/{rank}/metrics",
            "static_configs": [{"targets": [url.split("/")[2]]}],
        }
        for rank, url in enumerate(moments.urls)
    ]
    every = {"scrape_interval": "500ms", "scrape_timeout": "500ms"}
    (folder / "prometheus.json").write_text(json.dumps({"global": every, "scrape_configs": jobs}))
    words = [f"--config.file={folder / 'prometheus.json'}", f"--storage.tsdb.path={folder / 'data'}"]
    words += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"]
    with subprocess.Popen([prometheus_program(), *words]) as process:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def by_prometheus(url: str, moments: Moments) -> dict[str, Any]:
    """Numbers of the boards at the moment that is kept."""

    def number(text: str) -> float | None:
        found = answer(url, Expression("status", text))
        return found[0] if found else None

    def is_there() -> bool:
        moment = f"count(livectr_moment == {moments.number})"
        return answer(url, Expression("moment", moment)) == [RANKS]

    def numbers() -> dict[str, Any] | None:
        """All of them; None: a scrape was late before or after."""
        found = {name: number(text) for name, text in BOARDS.items()} if is_there() else None
        return found if is_there() else None

    return until(numbers, despite=OSError) or {}


def by_status(moments: Moments, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The same numbers by `livectr status --json`; {} before the logs are open."""
    assert main(["status", "--json", "--prometheus", *moments.urls]) == 0
    (trainer,) = json.loads(capsys.readouterr().out)["trainers"]
    if not trainer["topics"]:
        return {}
    (topic,) = trainer["topics"]
    window = [one for one in trainer["quality"] if (one["model"], one["over"]) == ("rank", "window")]
    return {
        "lag": topic["lag"],
        "rows/s": topic["rows_per_s"],
        "read": topic["read"],
        "backlog rows": trainer["backlog_rows"],
        "backlog s": trainer["backlog_s"],
        "examples": trainer["examples"],
        "examples/s": trainer["examples_per_s"],
        "AUC": window[0]["auc"] if window else None,
    }


def test_its_numbers_are_those_of_prometheus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """While a backlog is learned, and after a rank was killed."""
    log, port, out = Log(tmp_path), free_ports(RANKS), tmp_path / "out.txt"
    moments = Moments([port, port + 1])
    train = [sys.executable, "-m", "livectr", "train", "--pipeline", "p.py", "--source", "file:logs"]
    train += ["--ranks", str(RANKS), "--checkpoint", "checkpoint"]

    def start(*words: str) -> Command:
        with out.open("w") as file:
            return Command([*train, *words], cwd=tmp_path, stdout=file, stderr=file, text=True)

    def equal() -> None:
        """Compare a moment at which all numbers are there."""

        def taken() -> bool:
            moments.take()
            seen.clear()
            seen.update(by_status(moments, capsys))
            return bool(seen) and all(seen.values())

        def turn() -> None:
            log.grow(MORE)
            time.sleep(0.2)  # a look costs a core what it costs a trainer

        seen: dict[str, Any] = {}
        until(taken, despite=OSError, process=trainer, turn=turn, why=lambda: f"{seen}\n{out.read_text()}")
        assert by_prometheus(url, moments) == seen

    log.grow(ROWS)
    with start("--until-end") as before:
        assert before.wait(left_s()) == 0, out.read_text()
    log.grow(BACKLOG)
    trainer = start("--set", "restarts=3", f"metrics_port={port}")
    try:
        with moments.served(), prometheus(tmp_path, moments) as url:
            equal()
            ranks = psutil.Process(trainer.pid).children()
            os.kill(ranks[-1].pid, signal.SIGKILL)
            psutil.wait_procs(ranks, left_s())
            equal()
    finally:
        trainer.terminate()
        assert trainer.wait(left_s()) == 0, out.read_text()


def test_a_folder_without_a_checkpoint_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    words = ["status", "--json", "--checkpoint", str(tmp_path / "nowhere"), str(tmp_path / "empty")]
    assert main(words) == 4
    said = capsys.readouterr()
    assert json.loads(said.out)["silent"] == [
        {"address": str(tmp_path / "nowhere"), "why": "there is no such folder"},
        {"address": str(tmp_path / "empty"), "why": "holds no checkpoint"},
    ]
    assert "nothing of what was named answers" in said.err


def test_checkpoints_are_read_before_what_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Else a trainer would have committed more than it has learned."""
    later = tmp_path / "later"

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            later.mkdir(exist_ok=True)
            self.send_response(200)
            self.end_headers()
            page = b"livectr_pending_joins 0\nlivectr_examples_total 5\nlivectr_skipped_batches_total 3\n"
            self.wfile.write(page)

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            words = ["status", "--prometheus", f"127.0.0.1:{server.server_port}", "--checkpoint", str(later)]
            assert main(words) == 0
        finally:
            server.shutdown()
    said = capsys.readouterr().out
    assert "there is no such folder" in said, said
    assert "NOT LEARNED" in said and "3 batches: their gradients are not finite" in said, said
