"""Annotations of all boards: moments that explain a change of the lines, from Prometheus alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from k8s.dashboards.panels import SOURCE, filled


@dataclass(frozen=True)
class Mark:
    """Annotation.

    Args:
        name: of its switch above the board.
        signal: PromQL with `@`, which has data in a system that is well.
        when: comparison after it; a mark is where it holds.
        title, text: with {{label}}.
        color: of the line.
    """

    name: str
    signal: str
    when: str
    title: str
    text: str
    color: str

    @property
    def expr(self) -> str:
        """PromQL of the marks."""
        return filled(f"{self.signal} {self.when}")


_VERSIONS = "count by (job, version) (livectr_build_info{@}"
MARKS = (
    Mark(
        "Starts",
        "max by (job, pod) (process_start_time_seconds{@})",
        "> time() - 60",
        "{{job}} starts",
        "{{pod}}",
        "blue",
    ),
    Mark(
        "Roll-outs",
        f"{_VERSIONS})",
        f"unless {_VERSIONS} offset 5m)",
        "{{job}} becomes {{version}}",
        "Another version of LiveCTR runs.",
        "purple",
    ),
    Mark(
        "Complete versions",
        'sum by (namespace) (increase(livectr_published_versions_total{@, rows="all"}[2m]))',
        "> 0",
        "all rows published",
        "{{namespace}}",
        "green",
    ),
    Mark(
        "Champions",
        "sum by (namespace) (increase(livectr_champion_changes_total{@}[2m]))",
        "> 0",
        "another champion",
        "{{namespace}}",
        "orange",
    ),
    Mark(
        "Versions held",
        "max by (namespace, reason) (livectr_publish_held{@})",
        "> 0",
        "versions held",
        "{{namespace}} {{reason}}",
        "red",
    ),
)


def mark_models() -> dict[str, Any]:
    """Grafana's model of all marks. The SDK's builder has no field for their texts."""
    source = {"type": SOURCE.type_val, "uid": SOURCE.uid}
    return {
        "list": [
            {
                "name": mark.name,
                "datasource": source,
                "enable": True,
                "hide": False,
                "iconColor": mark.color,
                "expr": mark.expr,
                "step": "60s",
                "titleFormat": mark.title,
                "textFormat": mark.text,
            }
            for mark in MARKS
        ]
    }
