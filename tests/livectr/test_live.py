"""The demo's screen shows the known numbers, on a terminal and in a log."""

import io
from collections.abc import Iterator
from dataclasses import replace

import pytest
from prometheus_client import start_http_server
from rich.console import Console

from livectr.demo.live import Screen, State
from livectr.local.ports import free_ports
from livectr.local.scrape import scrape
from livectr.trainer.publish.telemetry import PUBLISHED_VERSION
from livectr.trainer.quality.telemetry import AUC, CALIBRATION, COLD_GAUC, GAUC, LOGLOSS

KNOWN = State(
    elapsed_s=30,
    seconds=60,
    simulator={"records": 60_000, "impressions": 52_000, "clicks": 7_000, "duplicates": 300},
    examples=50_000,
    auc=0.7412,
    gauc=0.7301,
    cold_gauc=0.6511,
    shadow="without_images",
    shadow_gauc=0.7244,
    bayes_auc=0.7655,
    version=17,
    freshness_p50_s=4.1,
    clients={"rank": {"requests": 600, "errors": 0, "p50_ms": 9.5, "p99_ms": 70.1}},
)


@pytest.fixture
def port() -> Iterator[int]:
    """Port of this process's metrics."""
    port = free_ports(1)
    server, thread = start_http_server(port, "127.0.0.1")
    yield port
    server.shutdown()
    server.server_close()
    thread.join()


def test_figures_of_the_trainer_come_from_its_metrics(port: int) -> None:
    by_model = {
        "auc": AUC,
        "gauc": GAUC,
        "cold_gauc": COLD_GAUC,
        "logloss": LOGLOSS,
        "calibration": CALIBRATION,
    }
    for number, gauge in enumerate(by_model.values(), start=1):
        gauge.labels("rank").set(number)
        gauge.labels("compared").set(10 * number)
    PUBLISHED_VERSION.set(7)
    samples = scrape(port)
    assert samples
    state = State(shadow="compared")
    state.read_trainer(samples)
    assert [getattr(state, name) for name in by_model] == [1, 2, 3, 4, 5]
    assert (state.shadow_gauc, state.shadow_cold_gauc, state.version) == (20, 30, 7)
    assert None not in (state.examples, state.pending, state.dead_letters)


def shown(terminal: bool, *states: State) -> str:
    out = io.StringIO()
    with Screen("demo", Console(file=out, force_terminal=terminal, width=200)) as screen:
        for state in states:
            screen.show(state)
    return out.getvalue()


def test_a_log_gets_a_line_now_and_then() -> None:
    lines = shown(False, KNOWN, KNOWN).splitlines()
    assert len(lines) == 1
    for text in (
        "30 s",
        "60,000 events",
        "AUC 0.7412 of 0.7655",
        "GAUC 0.7301 (without images 0.7244)",
        "new ads 0.6511 (without images –)",
        "version 17",
        "rank 600 (0 errors, p99 70.1 ms)",
    ):
        assert text in lines[0]


def test_a_terminal_gets_a_table() -> None:
    text = shown(True, KNOWN)
    for part in (
        "30 of 60 s",
        "52,000 impressions",
        "0.7412",
        "Bayes 0.7655",
        "600 requests",
        "0.7301 (without images 0.7244)",
        "0.6511",
    ):
        assert part in text


def test_nothing_known_yet() -> None:
    assert "–" in shown(False, State())
    assert "–" in shown(True, State())


def test_a_model_that_is_compared_with_none_stands_alone() -> None:
    assert "GAUC 0.7301  new ads 0.6511  " in shown(False, replace(KNOWN, shadow=""))


@pytest.mark.parametrize("compared", [True, False])
def test_the_end_of_a_run(compared: bool) -> None:
    quality: dict[str, object] = {
        "auc": 0.74,
        "gauc": 0.73,
        "logloss": 0.36,
        "calibration": 1.0,
        "bayes_auc": 0.77,
    }
    quality |= {"cold_auc": 0.66, "cold_gauc": None, "cold_examples": 1234}
    other = {"gauc": 0.72, "cold_auc": 0.65, "cold_gauc": None}
    quality["shadows"] = {"without_images": other} if compared else {}
    role = {"requests": 1, "candidates": 2, "errors": 0, "older": 0, "p50_ms": 1.0, "p99_ms": 2.0}
    names = ("events", "examples_trained", "lost_events", "duplicated_events", "dead_letters")
    counts = dict.fromkeys((*names, "published_versions", "published_rows"), 7)
    fresh = {"p50": 1.0, "p99": 2.0}
    report = {
        **quality,
        **counts,
        "freshness_seconds": fresh,
        "rank": role,
        "prerank": role,
        "whole_run": quality,
    }
    out = io.StringIO()
    Screen("demo", Console(file=out, width=200)).conclude(report)
    said = out.getvalue()
    if compared:
        assert "GAUC 0.7300 (without images 0.7200), log loss" in said
        assert "new ads: AUC 0.6600 (without images 0.6500), GAUC – (without images –)" in said
    else:
        assert "GAUC 0.7300, log loss" in said and "new ads: AUC 0.6600, GAUC –" in said
    assert "1,234 of the whole run" in said
