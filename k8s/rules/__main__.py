"""Write the rules as YAML, for Prometheus and for its operator.

python -m k8s.rules [--docs-url URL]
python -m k8s.rules --drill 30 --to FOLDER     the same alerts, after a thirtieth of the time
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from k8s.rules.alerts import ALERTS
from k8s.rules.objectives import OBJECTIVES

HERE = Path(__file__).parent
WINDOWS = ("5m", "30m", "1h", "2h", "6h", "1d", "3d")
DOCS_URL = "docs/"
"""Folder of the pages in the repository."""
_SECONDS = {"m": 60, "h": 3600, "d": 86_400}
HEAD = "# Written by `python -m k8s.rules`; change k8s/rules/*.py instead.\n"


class _Dumper(yaml.SafeDumper):
    """Writes texts with several lines as blocks."""


def _text(dumper: Any, value: str) -> Any:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


def groups(docs_url: str = DOCS_URL, drill: float = 1.0) -> list[dict[str, Any]]:
    """Rule groups: recorded errors of the objectives, then alerts.

    Args:
        docs_url: address of the pages; an alert names its part of runbook.md there.
        drill: divides all times, so that a fault fires an alert while somebody waits.
    """
    page = "runbook.md" if docs_url == DOCS_URL else "runbook/"
    recorded = [
        {"record": objective.recorded(window), "expr": _hurried(objective.ratio(window), drill)}
        for objective in OBJECTIVES
        for window in WINDOWS
    ]
    alerts = [
        {
            "alert": alert.full_name,
            "expr": _hurried(alert.expr(drill), drill),
            "for": _shorter(alert.after, drill),
            "labels": {"severity": alert.severity},
            "annotations": {
                "summary": alert.summary,
                "runbook_url": f"{docs_url}{page}#{alert.full_name.lower()}",
            },
        }
        for alert in ALERTS
    ]
    return [{"name": "livectr-objectives", "rules": recorded}, {"name": "livectr-alerts", "rules": alerts}]


def _hurried(expr: str, drill: float) -> str:
    """Divide the ranges of PromQL; none becomes shorter than three scrapes of a watched demo."""
    least_s = 15

    def divided(found: re.Match[str]) -> str:
        return f"[{':'.join(_shorter(time, drill, least_s) for time in found[1].split(':'))}]"

    return re.sub(r"\[(\w+(?::\w+)?)\]", divided, expr)


def _shorter(time: str, drill: float, least_s: int = 0) -> str:
    """Divide a time such as 5m."""
    if drill == 1:
        return time
    return f"{max(least_s, round(int(time[:-1]) * _SECONDS[time[-1]] / drill))}s"


def files(docs_url: str = DOCS_URL, drill: float = 1.0) -> Mapping[str, str]:
    """Name of a file → its text."""
    plain = {"groups": groups(docs_url, drill)}
    resource = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "livectr", "labels": {"app.kubernetes.io/part-of": "livectr"}},
        "spec": plain,
    }
    return {"livectr.yaml": _dumped(plain), "operator/prometheusrule.yaml": _dumped(resource)}


def _dumped(value: object) -> str:
    return HEAD + str(yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True))


def main() -> None:
    """Write all files."""
    parser = argparse.ArgumentParser(description="Write the rules as YAML.")
    parser.add_argument("--docs-url", default=DOCS_URL, help="where the docs site is, ending with /")
    parser.add_argument("--drill", type=float, default=1.0, metavar="N", help="divide all times by N")
    parser.add_argument("--to", type=Path, default=HERE, metavar="FOLDER", help="write into this folder")
    given = parser.parse_args()
    for name, text in files(given.docs_url, given.drill).items():
        (given.to / name).parent.mkdir(parents=True, exist_ok=True)
        (given.to / name).write_text(text)


if __name__ == "__main__":
    main()
