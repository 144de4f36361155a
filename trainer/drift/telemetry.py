"""Prometheus metrics of the drift of features."""

from prometheus_client import Gauge

FEATURE_DRIFT = Gauge(
    "livectr_feature_drift_psi",
    "Population stability index of a feature's newest window of event time against the time before it; "
    "NaN while there are too few examples.",
    ["feature"],
)
