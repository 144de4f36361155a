"""`livectr demo --watch` as a user runs it: all panels and rules have data, and Ctrl-C ends it all."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil
import pytest
import redis

from k8s.rules import __main__ as rules
from livectr.demo.prometheus import Target, command, prometheus_program
from livectr.kernels.errors import ConfigError
from tests.promtool import promtool
from tests.watch.expressions import ABSENT_ON_A_LAPTOP, without_data

DEMO = [sys.executable, "-m", "livectr", "demo", "--watch", "--rate", "300"]
LONGEST_S = 480


def redis_port(family: list[psutil.Process]) -> int:
    """Port of the demo's Redis server."""
    (words,) = (part.cmdline() for part in family if "redis" in part.cmdline())
    return int(words[words.index("--listen") + 1].rpartition(":")[2])


def firing(url: str) -> set[str]:
    """Names of the alerts that fire."""
    with urllib.request.urlopen(f"{url}/api/v1/alerts", timeout=60) as reply:
        alerts = json.load(reply)["data"]["alerts"]
    return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}


@pytest.mark.timeout(900)
def test_every_panel_and_rule_has_data_on_a_laptop(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [*DEMO, "--ranks", "2", "--keep", str(tmp_path / "keep")], stdout=out, stderr=subprocess.STDOUT
        )
    try:
        deadline = time.monotonic() + LONGEST_S
        while "Ctrl-C ends everything" not in log.read_text():
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.5)
        found = re.search(r"^Prometheus +(http://127\.0\.0\.1:\d+)/targets", log.read_text(), re.MULTILINE)
        assert found, log.read_text()
        family = psutil.Process(process.pid).children(recursive=True)
        assert any(Path(part.exe()).name == "prometheus" for part in family)
        while empty := without_data(found[1], ABSENT_ON_A_LAPTOP):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, "\n".join(f"{e.place}: {e.text}" for e in empty)
            time.sleep(5)
        client = redis.Redis(port=redis_port(family))
        client.flushall()
        client.close()
        while "LiveCTRRedisRefilled" not in firing(found[1]):
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(2)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=120) == 0, log.read_text()
        assert not [part for part in family if part.is_running() and part.status() != psutil.STATUS_ZOMBIE]
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(timeout=120)


def test_without_a_prometheus_it_says_where_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(ConfigError, match=r"make setup.*without --watch"):
        prometheus_program()


def test_promtool_accepts_the_configuration(tmp_path: Path) -> None:
    targets = [Target("trainer", "trainer-0", 9100), Target("rank", "rank-0", 9101)]
    words = command(prometheus_program(), tmp_path / "prometheus", 9090, targets)
    settings = tmp_path / "prometheus" / "prometheus.json"
    assert f"--config.file={settings}" in words and "--web.listen-address=127.0.0.1:9090" in words
    found = sum(len(group["rules"]) for group in rules.groups())
    done = subprocess.run(
        [promtool(), "check", "config", str(settings)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0 and f"{found} rules found" in done.stdout, done.stdout + done.stderr


def test_a_watched_demo_has_no_report(tmp_path: Path) -> None:
    done = subprocess.run(
        [*DEMO, "--report", str(tmp_path / "report.json")],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 2 and "--report needs an end" in done.stderr
