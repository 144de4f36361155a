"""Learning: is the model good, is it calibrated, and is it better than its challengers and shadows?"""

from k8s.dashboards.panels import Board, Panel, lines, number

_CHAMPION = "livectr_champion{@} == 1"
"""The ranking model that is published; of a pipeline without challengers always "rank"."""
_OTHERS = f'livectr_gauc{{@, model!="prerank"}} unless {_CHAMPION}'


def _measure(
    title: str, about: str, metric: str, *, least: float | None = None, most: float | None = None
) -> Panel:
    query = f"max by (namespace, model) ({metric}{{@}})", "{{model}}"
    return lines(title, about, "none", query, least=least, most=most)


BOARD = Board(
    "learning",
    "LiveCTR / Learning",
    "Test-then-train quality over the sliding window: every example is scored before it is learned.",
    [
        (
            "Now",
            [
                number(
                    "AUC now", "Order over all examples.", "none", f"max(livectr_auc{{@}} and {_CHAMPION})"
                ),
                number("GAUC now", "Order within a user.", "none", f"max(livectr_gauc{{@}} and {_CHAMPION})"),
                number(
                    "GAUC over shadow",
                    "GAUC of the model less that of its best shadow. Red: the shadow is better.",
                    "none",
                    f"max(livectr_gauc{{@}} and {_CHAMPION}) - max({_OTHERS})",
                    worst=0,
                    falls=True,
                ),
                number(
                    "Calibration now",
                    "Predicted over observed clicks; 1 is right. An alert fires outside .9 to 1.1.",
                    "none",
                    'max(livectr_calibration_ratio{@, model="calibrated"} or on (namespace) '
                    f"(livectr_calibration_ratio{{@}} and {_CHAMPION}))",
                ),
                number(
                    "Examples in the window",
                    "Examples that these measures are taken over. Few: they say little.",
                    "short",
                    "max(livectr_window_examples{@})",
                ),
                number(
                    "Clicks in the window",
                    "Clicked examples among them.",
                    "short",
                    "max(livectr_window_clicks{@})",
                ),
            ],
        ),
        (
            "Order",
            [
                _measure(
                    "AUC",
                    "Order over all examples, by model. Shadows learn the same examples.",
                    "livectr_auc",
                ),
                _measure("GAUC", "Order within a user, by model.", "livectr_gauc"),
                lines(
                    "GAUC less shadow",
                    "GAUC of the model less that of each shadow. Below 0 the shadow is better.",
                    "none",
                    (
                        f"scalar(max(livectr_gauc{{@}} and {_CHAMPION})) - max by (model) ({_OTHERS})",
                        "less {{model}}",
                    ),
                    least=0,
                ),
                _measure(
                    "AUC of cold items",
                    "Over items that were learned fewer than 20 times. What content is for.",
                    "livectr_cold_auc",
                ),
                _measure("GAUC of cold items", "Order within a user, of cold items.", "livectr_cold_gauc"),
                lines(
                    "Cold examples",
                    "Share of the window's examples whose item is cold.",
                    "percentunit",
                    ("max(livectr_cold_examples{@}) / max(livectr_window_examples{@})", "cold"),
                ),
                lines(
                    "Users that GAUC leaves out",
                    "Users whose examples in the window are all clicked, or all not. Many: GAUC says little.",
                    "short",
                    ("max by (namespace) (livectr_gauc_skipped_users{@})", "{{namespace}}"),
                ),
            ],
        ),
        (
            "Probabilities",
            [
                lines(
                    "Click rates",
                    "Clicked share of the window's examples, and mean predicted probability of each model.",
                    "percentunit",
                    ("max by (namespace) (livectr_observed_ctr{@})", "observed"),
                    ("max by (namespace, model) (livectr_predicted_ctr{@})", "{{model}}"),
                ),
                _measure(
                    "Calibration",
                    "Predicted over observed clicks; 1 is right.",
                    "livectr_calibration_ratio",
                    least=0.9,
                    most=1.1,
                ),
                lines(
                    "Calibration by segment",
                    "Lowest and highest of segments with 500 clicks: of the model (rank), and calibrated. "
                    "Empty: nothing is calibrated.",
                    "none",
                    (
                        "max by (namespace, model, bound) (livectr_segment_calibration_ratio{@})",
                        "{{model}}, {{bound}}",
                    ),
                ),
                lines(
                    "Calibration of value",
                    "Worth × probability over the worth of the labels that came; 1 is right. "
                    "Empty: the pipeline has no value.",
                    "none",
                    (
                        "sum by (label) (rate(livectr_predicted_value_total{@}[$__rate_interval]))"
                        " / sum by (label) (rate(livectr_realised_value_total{@}[$__rate_interval]))",
                        "{{label}}",
                    ),
                ),
                lines(
                    "Calibration segments",
                    "Segments with a map of their own, at most 1,000; others have the map of all examples.",
                    "short",
                    ("max by (namespace) (livectr_calibration_segments{@})", "segments"),
                    least=0,
                ),
                _measure("Log loss", "Mean cross entropy in nats; less is better.", "livectr_logloss"),
            ],
        ),
        (
            "Features",
            [
                lines(
                    "Drift of features",
                    "Population stability index of the newest day against the week before: below .1 little "
                    "has moved. An alert fires above .25.",
                    "none",
                    ("max by (namespace, feature) (livectr_feature_drift_psi{@})", "{{feature}}"),
                    most=0.25,
                ),
                lines(
                    "Training-serving skew",
                    "Population stability index of served requests against the examples that were learned "
                    "of the same hours. An alert fires above .25.",
                    "none",
                    ("max by (namespace, feature) (livectr_feature_skew_psi{@})", "{{feature}}"),
                    most=0.25,
                ),
            ],
        ),
        (
            "Champion and challengers",
            [
                lines(
                    "Heads of the hedge",
                    "Weight of each head in the mixture that ranks. Empty: the model is no hedge.",
                    "percentunit",
                    ("max by (namespace, model) (livectr_hedge_weight{@})", "{{model}}"),
                    least=0,
                ),
                _measure("Champion", "1: the ranking model that is published.", "livectr_champion"),
                lines(
                    "Changes of the champion",
                    "Challengers that were promoted. Many: the margin is small, or the window short.",
                    "short",
                    (
                        "sum by (namespace) (increase(livectr_champion_changes_total{@}[$__rate_interval]))",
                        "changes",
                    ),
                ),
                _measure(
                    "Log loss of the contest",
                    "Over the window of the promotion rule. Empty: the pipeline has no challengers.",
                    "livectr_contest_logloss",
                ),
                lines(
                    "Examples of the contest",
                    "Examples in the window of the promotion rule. 0: the pipeline has no challengers.",
                    "short",
                    ("max by (namespace) (livectr_contest_examples{@})", "{{namespace}}"),
                ),
            ],
        ),
    ],
)
