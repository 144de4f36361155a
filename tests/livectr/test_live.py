"""The demo's screen shows what is known, on a terminal and in a log."""

import io

from rich.console import Console

from livectr.live import Screen, State

KNOWN = State(
    elapsed_s=30,
    seconds=60,
    simulator={"records": 60_000, "impressions": 52_000, "clicks": 7_000, "duplicates": 300},
    examples=50_000,
    auc=0.7412,
    bayes_auc=0.7655,
    version=17,
    freshness_p50_s=4.1,
    clients={"rank": {"requests": 600, "errors": 0, "p50_ms": 9.5, "p99_ms": 70.1}},
)


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
        "version 17",
        "rank 600 (0 errors, p99 70.1 ms)",
    ):
        assert text in lines[0]


def test_a_terminal_gets_a_table() -> None:
    text = shown(True, KNOWN)
    for part in ("30 of 60 s", "52,000 impressions", "0.7412", "Bayes 0.7655", "600 requests"):
        assert part in text


def test_nothing_known_yet() -> None:
    assert "–" in shown(False, State())
    assert "–" in shown(True, State())
