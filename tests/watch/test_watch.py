"""`livectr demo --watch` as a user runs it: all panels and rules have data, and Ctrl-C ends it all."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from k8s.rules import __main__ as rules
from livectr.demo.demo import UNTIL_IDLE_S
from livectr.demo.prometheus import Target, command, prometheus_program
from livectr.system.errors import ConfigError
from tests.commands import run
from tests.promtool import promtool
from tests.waiting import left_s
from tests.watch.demos import DEMO, WatchedDemo
from tests.watch.drills import stopped
from tests.watch.expressions import ABSENT_ON_A_LAPTOP, Expression, answer, without_data


@pytest.mark.early
@pytest.mark.full
def test_every_panel_and_rule_has_data_on_a_laptop(tmp_path: Path) -> None:
    with WatchedDemo(tmp_path, "--ranks", "2") as demo:
        assert any(Path(part.exe()).name == "prometheus" for part in demo.family)
        missing = without_data(demo.url, ABSENT_ON_A_LAPTOP)

        def all_have_data() -> bool:
            """Ask for those that had none; when all had some, for all at once."""
            missing[:] = [e for e in missing if not answer(demo.url, e)]
            if not missing:
                missing[:] = without_data(demo.url, ABSENT_ON_A_LAPTOP)
            return not missing

        demo.until(all_have_data, lambda: [f"{e.place}: {e.text}" for e in missing])
        with stopped(demo.processes("logs", "simulate", "--to")):
            caught_up = "sum(livectr_consumer_lag_records) == 0"
            demo.until(lambda: demo.holds(caught_up), lambda: "the trainer does not catch up")
            time.sleep(UNTIL_IDLE_S + 4)  # the trainer waits for more
            (learned,) = answer(demo.url, Expression("learned", "max(livectr_examples_total)"))
        demo.until(lambda: demo.holds(f"max(livectr_examples_total) > {learned}"))
        demo.redis.flushall()
        demo.until(lambda: "LiveCTRRedisRefilled" in demo.firing())


@pytest.mark.full
@pytest.mark.early
def test_every_part_is_scraped(tmp_path: Path) -> None:
    """Tests of their files tell that panels and rules ask for what exists; `make test-full` asks for all."""
    with WatchedDemo(tmp_path) as demo:
        demo.until(lambda: demo.holds("min(up) == 1"), lambda: answer(demo.url, Expression("parts", "up")))
        demo.until(lambda: demo.holds("max(livectr_examples_total) > 0"))
        demo.until(lambda: demo.holds("max(livectr_published_version) > 1"))


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
        timeout=left_s(),
    )
    assert done.returncode == 0 and f"{found} rules found" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--report", "report.json"], "--report needs an end"),
        (["--rules", "nowhere.yaml"], "there is no file nowhere.yaml"),
    ],
)
def test_options_that_do_not_go_together(words: list[str], sentence: str, tmp_path: Path) -> None:
    done = run([*DEMO, *words], capture_output=True, text=True, check=False, timeout=left_s(), cwd=tmp_path)
    assert done.returncode == 2 and sentence in done.stderr
