"""Display of a running demo: a table that changes in place; in a log, a line every few seconds."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

from livectr.local.scrape import Samples, total, value

LINE_EVERY_S = 5.0
FOREVER_S = 1e8
"""Length of traffic that nobody waits for."""


@dataclass
class State:
    """The newest figures; None: not known yet. shadow: the name of the model that is compared, if any.

    cold: of ads that were learned fewer than 20 times.
    """

    elapsed_s: float = 0.0
    seconds: float = 0.0
    simulator: dict[str, Any] = field(default_factory=dict)
    examples: float | None = None
    auc: float | None = None
    gauc: float | None = None
    cold_gauc: float | None = None
    shadow: str = ""
    shadow_gauc: float | None = None
    shadow_cold_gauc: float | None = None
    logloss: float | None = None
    calibration: float | None = None
    bayes_auc: float | None = None
    version: float | None = None
    pending: float | None = None
    dead_letters: float | None = None
    freshness_p50_s: float | None = None
    freshness_p99_s: float | None = None
    clients: dict[str, Any] = field(default_factory=dict)

    def read_trainer(self, samples: Samples) -> None:
        """Take the figures of a trainer from a scrape of its metrics."""
        self.examples = value(samples, "livectr_examples_total")
        self.auc = value(samples, "livectr_auc", model="rank")
        self.gauc = value(samples, "livectr_gauc", model="rank")
        self.cold_gauc = value(samples, "livectr_cold_gauc", model="rank")
        self.logloss = value(samples, "livectr_logloss", model="rank")
        self.calibration = value(samples, "livectr_calibration_ratio", model="rank")
        self.shadow_gauc = value(samples, "livectr_gauc", model=self.shadow)
        self.shadow_cold_gauc = value(samples, "livectr_cold_gauc", model=self.shadow)
        self.version = value(samples, "livectr_published_version")
        self.pending = total(samples, "livectr_pending_joins")
        self.dead_letters = total(samples, "livectr_dead_letters_total")


class Screen:
    """Shows States while it is entered."""

    def __init__(self, title: str, console: Console | None = None) -> None:
        self.console = console or Console()
        self._title = title
        self._live = Live(console=self.console, refresh_per_second=4) if self.console.is_terminal else None
        self._next_line = 0.0

    def say(self, text: str) -> None:
        """A line that stays."""
        self.console.print(text, highlight=False, soft_wrap=True)

    def show(self, state: State) -> None:
        """Bring the figures up to date."""
        if self._live:
            self._live.update(self._table(state))
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + LINE_EVERY_S
            self.say(_line(state))

    def conclude(self, report: Mapping[str, Any]) -> None:
        """The report in a few lines."""
        fresh = report["freshness_seconds"]
        self.say(
            f"{report['events']:,} events, {report['examples_trained']:,} examples learned, "
            f"{report['lost_events']} lost, {report['duplicated_events']} learned twice, "
            f"{report['dead_letters']} dead letters"
        )
        shadow: str = next(iter(report["shadows"]), "")
        other = report["shadows"].get(shadow, {})
        self.say(
            f"AUC {_number(report['auc'], 4)} (Bayes {_number(report['bayes_auc'], 4)}), "
            f"GAUC {_beside(report['gauc'], shadow, other.get('gauc'))}, "
            f"log loss {_number(report['logloss'], 4)}, "
            f"calibration {_number(report['calibration'], 3)} in the last fifth"
        )
        whole = report["whole_run"]
        other = whole["shadows"].get(shadow, {})
        self.say(
            f"new ads: AUC {_beside(whole['cold_auc'], shadow, other.get('cold_auc'))}, "
            f"GAUC {_beside(whole['cold_gauc'], shadow, other.get('cold_gauc'))} "
            f"in their first impressions, {whole['cold_examples']:,} of the whole run"
        )
        self.say(
            f"{report['published_versions']} versions, {report['published_rows']:,} rows published; "
            f"event to servable p50 {_number(fresh['p50'], 1)} s, p99 {_number(fresh['p99'], 1)} s"
        )
        for role in ("prerank", "rank"):
            r = report[role]
            self.say(
                f"{role}: {r['requests']:,} requests of {r['candidates']:,} candidates, "
                f"{r['errors']} errors, p50 {_number(r['p50_ms'], 1)} ms, p99 {_number(r['p99_ms'], 1)} ms"
            )

    def _table(self, s: State) -> Table:
        table = Table(title=self._title, show_header=False, min_width=78)
        table.add_column(style="bold")
        table.add_column()
        sim = s.simulator
        end = f" of {s.seconds:.0f} s" if s.seconds < FOREVER_S else " s, until Ctrl-C"
        table.add_row("traffic", f"{s.elapsed_s:.0f}{end}")
        table.add_row(
            "logs",
            f"{_count(sim.get('records'))} events: {_count(sim.get('impressions'))} impressions, "
            f"{_count(sim.get('clicks'))} clicks, {_count(sim.get('duplicates'))} duplicates",
        )
        table.add_row(
            "learned",
            f"{_count(s.examples)} examples, {_count(s.pending)} wait for their label, "
            f"{_count(s.dead_letters)} dead letters",
        )
        table.add_row("AUC", f"{_number(s.auc, 4)}   Bayes {_number(s.bayes_auc, 4)}")
        table.add_row("GAUC", _beside(s.gauc, s.shadow, s.shadow_gauc))
        table.add_row("GAUC, new ads", _beside(s.cold_gauc, s.shadow, s.shadow_cold_gauc))
        table.add_row("log loss", f"{_number(s.logloss, 4)}   calibration {_number(s.calibration, 3)}")
        table.add_row("version", f"{_count(s.version)}   event to servable {_freshness(s)}")
        for role in ("prerank", "rank"):
            c = s.clients.get(role, {})
            table.add_row(
                role,
                f"{_count(c.get('requests'))} requests, {_count(c.get('errors'))} errors, "
                f"p50 {_number(c.get('p50_ms'), 1)} ms, p99 {_number(c.get('p99_ms'), 1)} ms",
            )
        return table

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()


def _line(s: State) -> str:
    parts = [
        f"{s.elapsed_s:4.0f} s",
        f"{_count(s.simulator.get('records'))} events",
        f"{_count(s.examples)} examples",
        f"{_count(s.dead_letters)} dead letters",
        f"AUC {_number(s.auc, 4)} of {_number(s.bayes_auc, 4)}",
        f"GAUC {_beside(s.gauc, s.shadow, s.shadow_gauc)}",
        f"new ads {_beside(s.cold_gauc, s.shadow, s.shadow_cold_gauc)}",
        f"calibration {_number(s.calibration, 2)}",
        f"version {_count(s.version)}",
        f"fresh {_freshness(s)}",
    ]
    for role, c in s.clients.items():
        parts.append(
            f"{role} {_count(c.get('requests'))} ({_count(c.get('errors'))} errors, "
            f"p99 {_number(c.get('p99_ms'), 1)} ms)"
        )
    return "  ".join(parts)


def _beside(value: float | None, shadow: str, other: float | None) -> str:
    """Measure of the rank model, and of the shadow that it is compared with."""
    if not shadow:
        return _number(value, 4)
    return f"{_number(value, 4)} ({shadow.replace('_', ' ')} {_number(other, 4)})"


def _freshness(s: State) -> str:
    return f"p50 {_number(s.freshness_p50_s, 1)} s, p99 {_number(s.freshness_p99_s, 1)} s"


def _count(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
