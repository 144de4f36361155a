"""Overview: does the service keep its promises, and does the loop turn?"""

from k8s.dashboards.panels import Board, areas, lines, number, quantile, rate
from k8s.rules.alerts import bound_s
from k8s.rules.objectives import LATENCY_S, OBJECTIVES


def _burn(window: str) -> list[tuple[str, str]]:
    """Errors of each objective as a multiple of those that use its budget up in the whole period."""
    return [
        (f"{o.recorded(window)}{{@rules}} / {o.budget:g}", f"{o.name} {{{{namespace}}}}") for o in OBJECTIVES
    ]


BOARD = Board(
    "overview",
    "LiveCTR / Overview",
    "Objectives of the service, and the loop from event to answer in a few lines.",
    [
        (
            "Objectives",
            [
                number(
                    f"{o.title}, 1 h",
                    f"{o.about} The objective is {o.target:.4g} %. Red: missed over the last hour.",
                    "percentunit",
                    f"1 - max({o.recorded('1h')}{{@rules}})",
                    worst=round(o.target / 100, 6),
                    falls=True,
                )
                for o in OBJECTIVES
            ]
            + [
                number(
                    f"{o.title}, 3 d",
                    f"{o.about} The objective is {o.target:.4g} %. Red: missed over the last three days.",
                    "percentunit",
                    f"1 - max({o.recorded('3d')}{{@rules}})",
                    worst=round(o.target / 100, 6),
                    falls=True,
                )
                for o in OBJECTIVES
            ],
        ),
        (
            "Error budget",
            [
                lines(
                    f"Burn rate over {window}",
                    "1 uses the error budget up in just 30 days. Alerts page at 14.4 (1 h) and 6 (6 h).",
                    "none",
                    *_burn(window),
                    width=12,
                    most=pages_at,
                )
                for window, pages_at in (("1h", 14.4), ("6h", 6))
            ],
        ),
        (
            "Answers",
            [
                areas(
                    "Requests",
                    "Requests by their gRPC status. Anything but OK deserves a look.",
                    "reqps",
                    (
                        rate("livectr_requests_total", "job", "code"),
                        "{{job}} {{code}}",
                    ),
                ),
                lines(
                    "Latency p99",
                    "Time in the server of the slowest answered request of a hundred.",
                    "s",
                    (
                        quantile(0.99, "livectr_request_seconds", "job", only='code="OK"'),
                        "{{job}}",
                    ),
                    most=LATENCY_S,
                ),
                lines(
                    "Freshness",
                    "From an impression to the first answer that has learned it, its label window included.",
                    "s",
                    *(
                        (
                            quantile(q, "livectr_freshness_seconds"),
                            name,
                        )
                        for q, name in ((0.5, "p50"), (0.99, "p99"))
                    ),
                ),
            ],
        ),
        (
            "Loop",
            [
                lines(
                    "Examples learned",
                    "Examples that all ranks learn in a second. 0 while events come: look at Ingest.",
                    "cps",
                    (
                        rate("livectr_examples_total", "namespace"),
                        "{{namespace}}",
                    ),
                ),
                lines(
                    "Lag of the logs",
                    "Age of the newest record that was read, slowest partition. 0: everything is read.",
                    "s",
                    ("max by (topic) (livectr_event_lag_seconds{@})", "{{topic}}"),
                    most=bound_s("LagRises"),
                ),
                lines(
                    "GAUC",
                    "Order of the ads within a user, test-then-train. Compare the model with its shadows.",
                    "none",
                    ("max by (namespace, model) (livectr_gauc{@})", "{{model}}"),
                ),
                lines(
                    "Age of the served version",
                    "Time since the version that answers was made. It grows while nothing is published.",
                    "s",
                    (
                        'max by (pod, job) (livectr_served_version_age_seconds{@, side!="canary"})',
                        "{{pod}}",
                    ),
                    most=bound_s("NoPublish"),
                ),
                lines(
                    "Processes",
                    "Processes by version of LiveCTR. Two versions at once: a roll-out is under way.",
                    "short",
                    ("count by (job, version) (livectr_build_info{@})", "{{job}} {{version}}"),
                ),
                lines(
                    "Firing alerts",
                    "Alerts of LiveCTR that fire. docs/runbook.md says what to do about each.",
                    "short",
                    (
                        'count by (alertname) (ALERTS{@rules, alertname=~"LiveCTR.+", '
                        'alertstate="firing"}) or vector(0)',
                        "{{alertname}}",
                    ),
                ),
            ],
        ),
    ],
)
