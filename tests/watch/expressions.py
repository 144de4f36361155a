"""Every expression of the dashboards and rules, and what a live Prometheus answers to it.

    python -m tests.watch.expressions http://127.0.0.1:9090 [--lab]

asks for all of them and fails if one has no data; `--lab` leaves out what k8s/overlays/local cannot have.
"""

from __future__ import annotations

import json
import math
import re
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k8s.dashboards.marks import MARKS
from k8s.dashboards.panels import filled
from k8s.rules.alerts import ALERTS
from k8s.rules.objectives import OBJECTIVES
from tests.waiting import left_s

DASHBOARDS = Path(__file__).parents[2] / "k8s" / "dashboards"
FOREIGN = {
    "container_": "metrics of a kubelet",
    "DCGM_": "metrics of NVIDIA's exporter on a node with a GPU",
}
"""Begin of a metric's name → where it comes from: no part of LiveCTR."""
ABSENT_ON_A_LAPTOP = {
    **FOREIGN,
    "livectr_contest_logloss": "a pipeline with challengers",
    "livectr_canary_": "a server with a canary",
    "livectr_content_drift_ratio": "a trainer with content_tolerance",
    "livectr_served_log_dropped": "a server with a served log",
    "livectr_segment_calibration_ratio": "a pipeline with calibration",
    "livectr_hedge_weight": "a pipeline with a hedge",
    "livectr_label_events_total": "a pipeline with labels of their own streams",
    "livectr_(predicted|realised)_value_total": "a pipeline with a value",
    "livectr_feature_(drift|skew)_psi": "a log of days",
}
"""Begin of a metric's name (regular expression) → where it comes from."""
ABSENT_IN_THE_LAB = {
    **ABSENT_ON_A_LAPTOP,
    "container_": "metrics of a kubelet; the component's Prometheus has no token for it",
}


@dataclass(frozen=True)
class Expression:
    """PromQL, and the panel or rule that it is part of."""

    place: str
    text: str

    def comes_from(self, sources: Mapping[str, str]) -> bool:
        """Tell if it reads a metric whose name begins so."""
        return any(re.search(rf"\b{begin}", self.text) for begin in sources)


def panels(dashboard: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Panels of a dashboard, those inside rows included."""
    for panel in dashboard.get("panels", []):
        if panel["type"] != "row":
            yield panel
        yield from panels(panel)


def of_dashboards() -> Iterator[Expression]:
    """Expressions of all panels, with all variables set to all."""
    for file in sorted(DASHBOARDS.glob("*.json")):
        dashboard = json.loads(file.read_text())
        for panel in panels(dashboard):
            for target in panel["targets"]:
                text = re.sub(r"\$__(rate_)?interval", "1m", target["expr"])
                yield Expression(f"{file.stem}: {panel['title']}", re.sub(r'"\$\w+"', '".+"', text))


def of_marks() -> Iterator[Expression]:
    """Signals of the annotations."""
    for mark in MARKS:
        yield Expression(f"mark {mark.name}", re.sub(r'"\$\w+"', '".+"', filled(mark.signal)))


def of_rules() -> Iterator[Expression]:
    """Records of every rule, and every signal that an alert measures.

    A subquery looks at multiples of its step alone: one of five minutes would be waited for, by the clock.
    """
    for objective in OBJECTIVES:
        yield Expression(f"objective {objective.name}", objective.ratio("5m"))
    for alert in ALERTS:
        for signal in alert.signals:
            yield Expression(alert.full_name, re.sub(r"(\[\w+:)5m\]", r"\g<1>10s]", signal))


def answer(url: str, expression: Expression) -> list[float]:
    """Numbers that Prometheus answers with, NaN left out.

    Raises:
        AssertionError: it refuses the expression.
        OSError: it does not answer.
    """
    query = urllib.parse.urlencode({"query": expression.text})
    try:
        with urllib.request.urlopen(f"{url}/api/v1/query?{query}", timeout=left_s()) as reply:
            data = json.load(reply)["data"]
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{expression.place}: {json.load(error)['error']}: {expression.text}") from None
    samples = [data["result"]] if data["resultType"] == "scalar" else [s["value"] for s in data["result"]]
    return [value for _, text in samples if not math.isnan(value := float(text))]


def wanted(absent: Mapping[str, str]) -> list[Expression]:
    """Expressions that should have data where these sources of metrics are absent."""
    return [e for e in (*of_dashboards(), *of_marks(), *of_rules()) if not e.comes_from(absent)]


def without_data(url: str, absent: Mapping[str, str]) -> list[Expression]:
    """Expressions that have no data though they should."""
    return [expression for expression in wanted(absent) if not answer(url, expression)]


def main() -> int:
    """Ask for all expressions; 1 if any has no data, 2 at once if Prometheus does not answer."""
    url = sys.argv[1]
    try:
        empty = without_data(url, ABSENT_IN_THE_LAB if "--lab" in sys.argv else ABSENT_ON_A_LAPTOP)
    except OSError as away:
        print(f"Prometheus at {url} does not answer ({away})", file=sys.stderr)
        return 2
    for expression in empty:
        print(f"EMPTY {expression.place}: {expression.text}")
    return 1 if empty else 0


if __name__ == "__main__":
    sys.exit(main())
