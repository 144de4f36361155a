"""Freshness: how old is what the answers know?"""

from k8s.dashboards.panels import Board, heat, lines, number, quantile, rate
from k8s.rules.alerts import bound_s

BOARD = Board(
    "freshness",
    "LiveCTR / Freshness",
    "From an event to the first answer that has learned it, version by version and pod by pod.",
    [
        (
            "Delay",
            [
                heat(
                    "Event to answer",
                    "Delays of all examples, from the impression to the first answer that has learned it. "
                    "Events from before the run's first start are left out.",
                    "livectr_freshness_seconds",
                ),
                heat(
                    "End of the label window, or of the wait, to answer",
                    "The same without the label window or wait, which the pipeline chooses.",
                    "livectr_learning_delay_seconds",
                ),
                lines(
                    "Quantiles",
                    "p50 and p99 with and without the label window, or the wait.",
                    "s",
                    *(
                        (
                            quantile(q, metric),
                            f"{name} p{q * 100:.0f}",
                        )
                        for metric, name in (
                            ("livectr_freshness_seconds", "event"),
                            ("livectr_learning_delay_seconds", "label window"),
                        )
                        for q in (0.5, 0.99)
                    ),
                    width=16,
                ),
                number(
                    "p99 now",
                    "Delay after the label window, or the wait, of the slowest example of a hundred.",
                    "s",
                    quantile(0.99, "livectr_learning_delay_seconds"),
                    worst=60,
                ),
                number(
                    "Oldest version",
                    "Age of the oldest version that answers.",
                    "s",
                    'max(livectr_served_version_age_seconds{@, side!="canary"})',
                    worst=120,
                ),
            ],
        ),
        (
            "Versions",
            [
                lines(
                    "Versions behind",
                    "Published less served version, by pod. A pod that stays behind is on its own.",
                    "none",
                    (
                        'scalar(max(livectr_published_version{namespace=~"$namespace"})) '
                        '- max by (pod, job) (livectr_served_version{@, side!="canary"})',
                        "{{pod}}",
                    ),
                ),
                lines(
                    "Age of the served version",
                    "Time since the version that answers was made, by pod and side.",
                    "s",
                    (
                        "max by (pod, job, side) (livectr_served_version_age_seconds{@})",
                        "{{pod}} {{side}}",
                    ),
                    most=bound_s("NoPublish"),
                ),
                lines(
                    "Swap time",
                    "From the notice of a version to the first answer with it: p99 by role.",
                    "s",
                    (
                        quantile(0.99, "livectr_version_swap_seconds", "role"),
                        "{{role}}",
                    ),
                ),
                lines(
                    "Stale or degraded",
                    "1 while a server cannot read Redis, or what it serves may be incomplete, by kind.",
                    "bool",
                    ("max by (pod, role, side) (livectr_version_stale{@})", "{{pod}} {{side}} stale"),
                    ("max by (kind, side) (livectr_serving_degraded{@})", "{{side}} {{kind}}"),
                ),
                lines(
                    "Publishing",
                    "From the step boundary of a version to the moment at which servers can use it.",
                    "s",
                    *(
                        (
                            quantile(q, "livectr_publish_seconds"),
                            name,
                        )
                        for q, name in ((0.5, "p50"), (0.99, "p99"))
                    ),
                ),
                lines(
                    "Publishes that failed",
                    "Pushes that Redis did not confirm, and versions that it lost. Both are repeated.",
                    "ops",
                    (
                        rate("livectr_failed_publishes_total", "pod"),
                        "failed {{pod}}",
                    ),
                    (rate("livectr_lost_versions_total", "pod"), "lost {{pod}}"),
                ),
                lines(
                    "Versions held",
                    "1 while no version is published: by the publish gate, an operator or a broken model.",
                    "bool",
                    ("max by (reason) (livectr_publish_held{@})", "{{reason}}"),
                ),
                lines(
                    "Versions withheld",
                    "Versions with a number that is not finite. Should be 0; the trainer's log names it.",
                    "ops",
                    (rate("livectr_withheld_versions_total", "namespace"), "{{namespace}}"),
                ),
                lines(
                    "AUC at the publish gate",
                    "Over the newest window, and what is usual. A fall by publish_gate_auc holds versions.",
                    "none",
                    ("max by (of) (livectr_publish_gate_auc{@})", "{{of}}"),
                ),
                lines(
                    "Click rate at the publish gate",
                    "Over the newest window, and what is usual. A fall to 0 is a click topic that fails.",
                    "percentunit",
                    ("max by (of) (livectr_publish_gate_click_rate{@})", "{{of}}"),
                ),
                lines(
                    "Calibration at the publish gate",
                    "Predicted over observed clicks in the newest window. 1 is right.",
                    "none",
                    ("max(livectr_publish_gate_calibration_ratio{@})", "newest"),
                ),
            ],
        ),
    ],
)
