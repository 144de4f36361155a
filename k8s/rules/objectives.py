"""Objectives of the service: the share of answers that must be good over 30 days, and how good is counted.

Change a target or a bound here, then run `python -m k8s.rules && python -m k8s.dashboards`.
"""

from __future__ import annotations

from dataclasses import dataclass

LATENCY_S = 0.05
"""Bound of a request's time in the server; a bucket of livectr_request_seconds and livectr_pause_seconds."""
FRESHNESS_S = 102.4
"""Bound of an example's delay after its label window or wait; a bucket of livectr_learning_delay_seconds."""

_CLIENTS = "INVALID_ARGUMENT|FAILED_PRECONDITION|CANCELLED|UNAUTHENTICATED|PERMISSION_DENIED"
"""Codes that are the client's doing."""
_ANSWERED = 'code="OK"'


@dataclass(frozen=True)
class Objective:
    """Promise to the users of the servers.

    Args:
        name: in recorded series.
        title: in dashboards and alerts.
        about: sentence that says what is good.
        target: percent that must be good.
        bad, all: PromQL by namespace, with WINDOW for the range.
        uncounted: the same, for a share that is bad and not in `bad`.
    """

    name: str
    title: str
    about: str
    target: float
    bad: str
    all: str
    uncounted: str = ""

    @property
    def budget(self) -> float:
        """Share that may be bad."""
        return round(1 - self.target / 100, 6)

    def ratio(self, window: str) -> str:
        """PromQL of the bad share over a range."""
        besides = f"\n+\n{self.uncounted}" if self.uncounted else ""
        return f"{self.bad}\n/\n{self.all}{besides}".replace("WINDOW", window)

    def recorded(self, window: str) -> str:
        """Name of the recorded bad share over a range."""
        return f"namespace:livectr_{self.name}_errors:ratio_rate{window}"


def _rate(series: str) -> str:
    return f"sum by (namespace) (rate({series}[WINDOW]))"


def _beyond(histogram: str, bound_s: float, only: str = "") -> str:
    """Rate of the observations above a bound; `only`: matchers of the labels."""
    comma = ", " if only else ""
    within = _rate(f'{histogram}_bucket{{{only}{comma}le="{bound_s}"}}')
    return f"({_rate(_count(histogram, only))} - {within})"


def _count(histogram: str, only: str = "") -> str:
    return f"{histogram}_count{{{only}}}" if only else f"{histogram}_count"


OBJECTIVES = (
    Objective(
        "availability",
        "Availability",
        "Answered requests of those that a client may expect an answer to.",
        99.9,
        _rate(f'livectr_requests_total{{code!~"OK|{_CLIENTS}"}}'),
        _rate(f'livectr_requests_total{{code!~"{_CLIENTS}"}}'),
    ),
    Objective(
        "latency",
        "Latency",
        f"Answers within {LATENCY_S * 1000:g} ms, in servers that run when a request comes.",
        99.0,
        _beyond("livectr_request_seconds", LATENCY_S, _ANSWERED),
        _rate(_count("livectr_request_seconds", _ANSWERED)),
        # No handler measures a request that waits for a process held by its CPU limit.
        f"{_beyond('livectr_pause_seconds', LATENCY_S)} / {_rate('livectr_pause_seconds_count')}",
    ),
    Objective(
        "freshness",
        "Freshness",
        f"Examples that answers know within {FRESHNESS_S:g} s after their label window or wait.",
        99.0,
        _beyond("livectr_learning_delay_seconds", FRESHNESS_S),
        _rate("livectr_learning_delay_seconds_count"),
    ),
)
