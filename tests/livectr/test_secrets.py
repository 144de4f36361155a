"""A Redis password is in no child's arguments, log, metrics, report or checkpoint; a file may hold it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest
import redis

from livectr.cli import main
from livectr.config.sources import resolve
from livectr.local.ports import free_ports
from livectr.local.valkey import LocalRedis
from livectr.secrets import with_password, without_flags
from livectr.store.layout import without_password
from livectr.system.errors import ConfigError
from tests import waiting
from tests.promtool import checked_scrape
from tests.trainer.ad_logs import write_files
from tests.waiting import left_s

ROOT = Path(__file__).parents[2]
LIVECTR = [sys.executable, "-m", "livectr"]
PASSWORD = "hunter2/with@signs"
PIPELINE = "from tests.trainer.ad_logs import ad_pipeline\n\npipeline = ad_pipeline()\n"


@pytest.fixture
def guarded() -> Iterator[str]:
    """URL of a server that asks for a password, without it."""
    with LocalRedis(f"127.0.0.1:{free_ports(1)}") as server:
        redis.Redis.from_url(server.url).config_set("requirepass", PASSWORD)
        yield server.url


@contextmanager
def running(words: list[str], log: Path) -> Iterator[subprocess.Popen[str]]:
    with log.open("w") as said:
        process = subprocess.Popen(
            [*LIVECTR, *words],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=said,
            stderr=said,
            text=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def until(log: Path, text: str, times: int, process: subprocess.Popen[str]) -> None:
    waiting.until(lambda: log.read_text().count(text) >= times, text, process=process, why=log.read_text)


@pytest.mark.full
def test_no_child_log_metric_report_or_checkpoint_shows_the_password(tmp_path: Path, guarded: str) -> None:
    """Two ranks train and two workers serve; the password is in the user's own flag, or in a file."""
    (tmp_path / "pipeline.py").write_text(PIPELINE)
    secret = tmp_path / "secret"
    secret.write_text(PASSWORD + "\n")
    pipeline, port = ["--pipeline", str(tmp_path / "pipeline.py")], free_ports(4)
    train = ["train", *pipeline, "--source", write_files(tmp_path / "logs", 1000), "--ranks", "2"]
    train += [
        "--set",
        "threads=1",
        "batch_size=64",
        "min_examples=0",
        "--publish",
        with_password(guarded, PASSWORD),
    ]
    train += ["--checkpoint", str(tmp_path / "checkpoint"), "--report", str(tmp_path / "report.json")]
    train += ["--set", f"metrics_port={port + 2}"]
    serve = ["serve", "rank", *pipeline, "--workers", "2", "--redis", guarded]
    serve += ["--set", f"redis_password_file={secret}", f"metrics_port={port}"]
    logs = [tmp_path / "train.log", tmp_path / "serve.log"]
    with ExitStack() as stack:
        trainer, server = (
            stack.enter_context(running(words, log)) for words, log in zip((train, serve), logs, strict=True)
        )
        until(logs[1], "ready on", 2, server)
        family = [c for p in (trainer, server) for c in psutil.Process(p.pid).children(recursive=True)]
        assert len(family) >= 4
        shown = [" ".join(one.cmdline()) for one in (*family, psutil.Process(server.pid))]
        assert not [words for words in shown if "hunter2" in words]
        _answers_on_loopback_alone(port)
        scrapes = [checked_scrape(port + process) for process in range(4)]
        assert (
            "livectr_collective_bytes_total" in scrapes[2] and "livectr_collective_bytes_total" in scrapes[3]
        )
        assert not [text for text in scrapes if "hunter2" in text]
        for process in (trainer, server):
            process.send_signal(signal.SIGTERM)
        assert [trainer.wait(left_s()), server.wait(left_s())] == [0, 0]
    assert "set redis_password_file" in logs[0].read_text()
    secret.unlink()
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and b"hunter2" in path.read_bytes()]
    assert not kept and (tmp_path / "report.json").exists()


def _answers_on_loopback_alone(port: int) -> None:
    assert b"livectr_" in urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read()
    listening = [c.laddr.ip for c in psutil.net_connections("tcp") if c.laddr.port == port]
    assert "0.0.0.0" not in listening and "::" not in listening
    with pytest.raises(OSError), socket.create_connection(("127.0.0.2", port), timeout=5):
        pass


def test_a_password_from_a_file(
    tmp_path: Path, guarded: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret"
    for command in (["inspect"], ["versions", "list"], ["versions", "hold"]):
        assert main([*command, "--redis", guarded]) == 4
        assert "correct its user and password (redis_password_file)" in capsys.readouterr().err
    assert main(["inspect", "--redis", guarded, "--redis-password-file", str(secret)]) == 2
    assert "cannot be read" in capsys.readouterr().err
    secret.write_text("\n")
    with pytest.raises(ConfigError, match="is empty"):
        resolve({"redis_password_file": str(secret)}, environment={})
    secret.write_text(PASSWORD)
    assert main(["inspect", "--redis", guarded, "--redis-password-file", str(secret)]) == 2
    assert "nothing" in capsys.readouterr().err.lower()
    found = resolve({"redis_password_file": str(secret), "publish": guarded}, environment={})
    assert redis.Redis.from_url(str(found.publish)).ping()
    own = resolve({"redis": "redis://:own@h:1"}, environment={"LIVECTR_REDIS_PASSWORD_FILE": str(secret)})
    assert own.redis == "redis://:own@h:1" and own.publish is None


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://:hunter2@h:1/0", "redis://:***@h:1/0"),
        ("redis://me:hunter2/a@b@h:1", "redis://me:***@h:1"),
        ("redis://h:1/0?password=hunter2&db=1", "redis://h:1/0?password=***&db=1"),
        ("unix://:hunter2@/run/r.sock", "unix://:***@/run/r.sock"),
        ("redis://h:6379/0", "redis://h:6379/0"),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    assert without_password(url) == shown
    with pytest.raises(ConfigError) as error:
        resolve({"publish": url.replace("redis", "http", 1).replace("unix", "http")}, environment={})
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis://:hunter2/x@h:6379", "%2F"),
        ("redis://me:hunter2#x@h:1", "%23"),
        ("redis://me:hunter2?x@h:1", "%3F"),
        ("redis://me:hun[ter2@h:1", "%5B"),
        ("redis://me:77/hunter2@h:1", "%2F"),
        ("me:hunter2@h:1", "must begin with redis://"),
        ("redis:/me:hunter2@h:1", "must begin with redis://"),
        ("redis://h:1?password=hunter2&bad=2", "no option 'bad'"),
    ],
)
@pytest.mark.parametrize("command", ["serve rank --pipeline p.py", "versions list", "inspect"])
def test_a_wrong_url_is_told_without_its_password(
    url: str, says: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command.split(), "--redis", url]) == 2
    told = capsys.readouterr().err
    assert says in told and "hun" not in told and "Traceback" not in told


@pytest.mark.parametrize(
    "url",
    [
        "redis://me:p%2Fw@h:1/3",
        "redis://me:a@b@h:1",
        "rediss://me@h:1?ssl_ca_certs=/tls/a@b.crt&socket_timeout=3",
        "redis://[::1]:6379",
        "unix://me:pw@/run/r@1.sock",
    ],
)
def test_right_urls_pass(url: str) -> None:
    assert resolve({"redis": url}, environment={}).redis == url


def test_flags_are_taken_out_with_their_values() -> None:
    words = [
        "train",
        "--publish",
        "redis://x",
        "--set",
        "seed=3",
        "--publish=redis://y",
        "--published",
        "--redis",
    ]
    assert without_flags(words, ["--publish", "--redis"]) == ["train", "--set", "seed=3", "--published"]
