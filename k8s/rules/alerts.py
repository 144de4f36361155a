"""Alerts: burn rates of the objectives, and states that cost answers or quality before long.

A page wakes somebody up: users notice, or will within the hour. A ticket waits until the morning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from k8s.rules.objectives import OBJECTIVES, Objective

_OF = "max by (namespace)"
_STABLE = 'side!="canary"'
"""Matcher of the side that the server's health is about."""
_AGE = f"(livectr_served_version_age_seconds{{{_STABLE}}} and livectr_served_version > 0)"

_SERVED = (
    f"(sum by (namespace, role) (rate(livectr_served_pctr_sum{{{_STABLE}}}[5m])) "
    f"/ (sum by (namespace, role) (rate(livectr_served_pctr_count{{{_STABLE}}}[5m])) > 0))"
)


@dataclass(frozen=True)
class Alert:
    """Alert rule.

    Args:
        name: without its prefix.
        severity: page or ticket.
        after: time for which it must hold.
        when: PromQL, with {0}, {1}, … for the signals, and {bound} for a bound in seconds.
        signals: PromQL of what is measured: each has data in a system that is well.
        summary: sentence with labels.
    """

    name: str
    severity: Literal["page", "ticket"]
    after: str
    when: str
    signals: tuple[str, ...]
    summary: str
    bound_s: float = 0.0

    @property
    def full_name(self) -> str:
        """Name in Prometheus."""
        return f"LiveCTR{self.name}"

    def expr(self, drill: float = 1.0) -> str:
        """PromQL that fires.

        Args:
            drill: divides the bound.
        """
        return self.when.format(*self.signals, bound=f"{self.bound_s / drill:g}")


def _burn(objective: Objective, speed: Literal["Fast", "Slowly"]) -> Alert:
    """Multi-window burn rate: a long range that is significant, a short one that ends with the trouble."""
    windows = {"Fast": (("1h", "5m", 14.4), ("6h", "30m", 6)), "Slowly": (("1d", "2h", 3), ("3d", "6h", 1))}
    names: list[str] = []
    terms: list[str] = []
    for long, short, factor in windows[speed]:
        limit = f"{factor * objective.budget:.6g}"
        terms.append(f"({{{len(names)}}} > {limit} and {{{len(names) + 1}}} > {limit})")
        names += [objective.recorded(long), objective.recorded(short)]
    page = speed == "Fast"
    return Alert(
        f"{objective.title}Burns{speed}",
        "page" if page else "ticket",
        "2m" if page else "15m",
        "\nor\n".join(terms),
        tuple(names),
        f"The error budget of {objective.name} in {{{{ $labels.namespace }}}} is used up "
        + ("within hours or a few days" if page else "before its 30 days are over"),
    )


ALERTS = (
    *(_burn(objective, speed) for objective in OBJECTIVES for speed in ("Fast", "Slowly")),
    Alert(
        "NoServer",
        "page",
        "2m",
        "{0} < 1",
        # A server that answers no scrape has `up` alone.
        (
            "sum by (namespace, job) (livectr_server_ready or "
            '0 * up{job=~"(rank|prerank|recommend)(-canary)?"})',
        ),
        "No {{ $labels.job }} server in {{ $labels.namespace }} is ready",
    ),
    Alert(
        "NoPublish",
        "page",
        "5m",
        "{0} > {bound}",
        (f"min by (namespace) {_AGE}",),
        "Servers in {{ $labels.namespace }} answer with a version that is more than 10 minutes old",
        bound_s=600,
    ),
    Alert(
        "PublishHeld",
        "ticket",
        "5m",
        "{0} > 0",
        ("max by (namespace, reason) (livectr_publish_held)",),
        "Versions in {{ $labels.namespace }} are held ({{ $labels.reason }}): none is published",
    ),
    Alert(
        "BatchesSkipped",
        "page",
        "2m",
        "{0} / {1} > 0.1",
        (
            f"{_OF} (rate(livectr_skipped_batches_total[5m]))",
            f"{_OF} (rate(livectr_step_seconds_count[5m]))",
        ),
        "More than 10 % of the batches in {{ $labels.namespace }} are skipped: gradients are not finite",
    ),
    Alert(
        "VersionsSplit",
        "page",
        "5m",
        "{0} - {1} > {bound}",
        (f"{_OF} {_AGE}", f"min by (namespace) {_AGE}"),
        "Pods in {{ $labels.namespace }} answer with versions that are minutes apart",
        bound_s=120,
    ),
    Alert(
        "CheckpointOld",
        "page",
        "5m",
        "{0} > {bound}",
        (f"time() - {_OF} (livectr_checkpoint_timestamp_seconds > 0)",),
        "The newest checkpoint in {{ $labels.namespace }} is more than half an hour old",
        bound_s=1800,
    ),
    Alert(
        "LagRises",
        "page",
        "10m",
        "{0} > {bound} and {1} > 0",
        (
            f"{_OF} (livectr_event_lag_seconds)",
            f"{_OF} (deriv(livectr_event_lag_seconds[15m]))",
        ),
        "The trainer in {{ $labels.namespace }} falls behind its logs, and the lag rises",
        bound_s=120,
    ),
    Alert(
        "CanaryGivesBack",
        "ticket",
        "10m",
        "{0} > 0",
        ('sum by (namespace, reason) (rate(livectr_canary_fallbacks_total{reason!="no_key"}[5m]))',),
        "The canary in {{ $labels.namespace }} is not ready ({{ $labels.reason }}) and gets no requests",
    ),
    Alert(
        "RedisEvicts",
        "page",
        "1m",
        "{0} > 0\nor\n{1} > 0",
        (
            f'{_OF} (livectr_serving_degraded{{kind="evicted"}})',
            f"{_OF} (delta(livectr_redis_evicted_keys[10m]))",
        ),
        "Redis in {{ $labels.namespace }} has evicted rows of the model",
    ),
    Alert(
        "RedisRefilled",
        "page",
        "0m",
        "{0} > 0",
        ("sum by (namespace) (increase(livectr_lost_versions_total[10m]))",),
        "Redis in {{ $labels.namespace }} lost the published version; the trainer publishes it again",
    ),
    Alert(
        "Miscalibrated",
        "ticket",
        "30m",
        "({0} > 1.1 or {0} < 0.9) and {1} >= 1000",
        (
            f'{_OF} (livectr_calibration_ratio{{model="calibrated"}} or on (namespace) '
            "(livectr_calibration_ratio and livectr_champion == 1))",
            f"{_OF} (livectr_window_clicks)",
        ),
        "The model in {{ $labels.namespace }} predicts over 10 % more or fewer clicks than come",
    ),
    Alert(
        "PredictionsMoved",
        "ticket",
        "30m",
        # Replies hold candidates that nobody saw: their mean is not the click rate, but moves as it
        # does. 0.405 is ln(1.5).
        "abs(ln(({0} / {1}) / on (namespace) group_left () ({2} / {3}))) > 0.405\n"
        "and on (namespace) {4} >= 1000",
        (
            _SERVED,
            f"quantile_over_time(0.5, {_SERVED}[1d:5m])",
            f"{_OF} (livectr_observed_ctr)",
            f"{_OF} (quantile_over_time(0.5, livectr_observed_ctr[1d]))",
            f"{_OF} (livectr_window_clicks)",
        ),
        "Predictions of {{ $labels.role }} in {{ $labels.namespace }} have moved by half, unlike the click "
        "rate",
    ),
    Alert(
        "ShadowBetter",
        "ticket",
        "1h",
        "{0} - {1} > 0.005 and {2} >= 10000",
        (
            f'{_OF} (livectr_auc{{model!="prerank"}} unless livectr_champion == 1)',
            f"{_OF} (livectr_auc and livectr_champion == 1)",
            f"{_OF} (livectr_window_examples)",
        ),
        "A shadow in {{ $labels.namespace }} orders ads better than the model that answers",
    ),
    Alert(
        "FeatureDrifts",
        "ticket",
        "1h",
        "{0} > 0.25",
        ("max by (namespace, feature) (livectr_feature_drift_psi)",),
        "The feature {{ $labels.feature }} in {{ $labels.namespace }} differs from the week before",
    ),
    Alert(
        "FeatureSkewed",
        "ticket",
        "1h",
        "{0} > 0.25",
        ("max by (namespace, feature) (livectr_feature_skew_psi)",),
        "Requests in {{ $labels.namespace }} have other values of {{ $labels.feature }} than were learned",
    ),
    Alert(
        "DeadLetters",
        "ticket",
        "30m",
        "{0} / {1} > 0.01",
        (
            "sum by (namespace) (rate(livectr_dead_letters_total[30m]))",
            "sum by (namespace) (rate(livectr_events_total[30m]))",
        ),
        "More than 1 % of the rows in {{ $labels.namespace }} cannot be used",
    ),
    Alert(
        "ClicksUnmatched",
        "ticket",
        "30m",
        "{0} / ({0} + {1}) > 0.2",
        (
            "sum by (namespace) (rate(livectr_unmatched_clicks_total[30m]))",
            "sum by (namespace) (rate(livectr_matched_clicks_total[30m]))",
        ),
        "More than 20 % of the clicks in {{ $labels.namespace }} have no impression",
    ),
    Alert(
        "DiskFills",
        "ticket",
        "30m",
        "{0} < 0.15",
        ("min by (namespace, pod, folder) (livectr_disk_free_bytes / livectr_disk_bytes)",),
        "The disk of {{ $labels.folder }} of {{ $labels.pod }} in {{ $labels.namespace }} is 85 % full",
    ),
)


def bound_s(name: str) -> float:
    """Bound of an alert in seconds, for the line in its panels."""
    (found,) = (alert.bound_s for alert in ALERTS if alert.name == name)
    return found
