"""Prometheus metric of the program that runs: its version, and Python's."""

from __future__ import annotations

import platform
import sys

from prometheus_client import Gauge

BUILD_INFO = Gauge(
    "livectr_build_info", "1, with the version of LiveCTR and of Python in labels", ["version", "python"]
)
_PACKAGE = sys.modules[__name__.partition(".")[0]]
"""The package that this module is part of; it is always imported first."""
BUILD_INFO.labels(_PACKAGE.__version__, platform.python_version()).set(1)
