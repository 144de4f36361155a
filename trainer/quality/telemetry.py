"""Prometheus metrics of the quality; `trainer.quality.metrics` computes it."""

from prometheus_client import Counter, Gauge

from livectr.trainer.telemetry import of_rank_0

AUC = Gauge("livectr_auc", "Test-then-train AUC over the sliding window.", ["model"])
GAUC = Gauge("livectr_gauc", "Test-then-train GAUC (by user) over the sliding window.", ["model"])
COLD_AUC = Gauge("livectr_cold_auc", "Test-then-train AUC of cold items over the sliding window.", ["model"])
COLD_GAUC = Gauge(
    "livectr_cold_gauc", "Test-then-train GAUC of cold items over the sliding window.", ["model"]
)
COLD_EXAMPLES = of_rank_0(Gauge("livectr_cold_examples", "Examples of cold items in the sliding window."))
SKIPPED_USERS = of_rank_0(
    Gauge("livectr_gauc_skipped_users", "Users of one class in the sliding window: GAUC leaves them out.")
)
LOGLOSS = Gauge("livectr_logloss", "Test-then-train log loss over the sliding window.", ["model"])
CALIBRATION = Gauge(
    "livectr_calibration_ratio", "Predicted over observed clicks in the sliding window.", ["model"]
)
CALIBRATION_SEGMENTS = of_rank_0(
    Gauge("livectr_calibration_segments", "Segments with a calibration map of their own.")
)
SEGMENT_CALIBRATION = Gauge(
    "livectr_segment_calibration_ratio",
    "Lowest and highest predicted over observed clicks of the segments with 500 clicks, over their window: "
    "of the model's logits (rank) and of the calibrated ones; NaN until there is such a segment.",
    ["model", "bound"],
)
CHAMPION = Gauge(
    "livectr_champion", "1 for the ranking model that is published, 0 for its challengers.", ["model"]
)
CHAMPION_CHANGES = of_rank_0(
    Counter("livectr_champion_changes", "Challengers that this process has promoted.")
)
PREDICTED_VALUE = Counter(
    "livectr_predicted_value",
    "Worth × probability of a label, of its examples before they were learned.",
    ["label"],
)
REALISED_VALUE = Counter("livectr_realised_value", "Worth of the labels that came, by label.", ["label"])
HEAD_WEIGHT = Gauge("livectr_hedge_weight", "Weight of a head in the hedge that ranks.", ["model"])
CONTEST_LOGLOSS = Gauge(
    "livectr_contest_logloss",
    "Test-then-train log loss over the window of the promotion rule, of champion and challengers.",
    ["model"],
)
CONTEST_EXAMPLES = of_rank_0(
    Gauge("livectr_contest_examples", "Examples in the window of the promotion rule.")
)
OBSERVED_CTR = of_rank_0(
    Gauge("livectr_observed_ctr", "Clicked share of the examples in the sliding window; NaN until known.")
)
OBSERVED_CTR.set(float("nan"))
PREDICTED_CTR = Gauge(
    "livectr_predicted_ctr", "Mean predicted click probability in the sliding window.", ["model"]
)
WINDOW_EXAMPLES = of_rank_0(
    Gauge("livectr_window_examples", "Examples in the sliding window of the quality.")
)
WINDOW_CLICKS = of_rank_0(
    Gauge("livectr_window_clicks", "Clicked examples in the sliding window of the quality.")
)
GATE_AUC = of_rank_0(
    Gauge(
        "livectr_publish_gate_auc",
        "AUC over the newest window of the publish gate (newest), and its mean before that (usual).",
        ["of"],
    )
)
GATE_CLICK_RATE = of_rank_0(
    Gauge(
        "livectr_publish_gate_click_rate",
        "Clicked share in the newest window of the publish gate (newest), and its mean before that (usual).",
        ["of"],
    )
)
GATE_CALIBRATION = of_rank_0(
    Gauge(
        "livectr_publish_gate_calibration_ratio",
        "Predicted over observed clicks in the newest window of the publish gate.",
    )
)
DISK_FREE_BYTES = Gauge(
    "livectr_disk_free_bytes", "Bytes that this process can still write on the disk of a folder.", ["folder"]
)
DISK_BYTES = Gauge("livectr_disk_bytes", "Size of the disk of a folder.", ["folder"])
