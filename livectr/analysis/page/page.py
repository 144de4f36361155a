"""The whole page: cards, sections, style and script in one file that loads nothing."""

from __future__ import annotations

from html import escape
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from livectr.analysis.page import quality, state
from livectr.analysis.page.parts import cards, moment, number
from livectr.analysis.page.reading import RunData

if TYPE_CHECKING:
    from livectr.analysis.page.importance import Importance

TEMPLATE = Path(__file__).with_name("template.html")
POLL_MS = 2000


def page(data: RunData, importance: Importance | None = None) -> str:
    """The page of a run as HTML."""
    return frame(data.name, content(data, importance))


def frame(name: str, main: str, *, live: bool = False) -> str:
    """HTML document around the content of its main element.

    Args:
        name: of the run log.
        main: HTML of the main element.
        live: the page asks its server for new content every POLL_MS.
    """
    text = Template(TEMPLATE.read_text(encoding="utf-8"))
    return text.substitute(
        title=escape(f"{name} · LiveCTR"),
        heading=escape(f"Training run {name}"),
        main=main,
        live="true" if live else "false",
        poll_ms=POLL_MS,
    )


def content(data: RunData, importance: Importance | None = None) -> str:
    """Content of the page's main element."""
    sections = [*quality.sections(data), *state.sections(data, importance)]
    links = "".join(f'<li><a href="#{s.key}">{escape(s.title)}</a></li>' for s in sections)
    return "".join(
        [
            f'<p class="state">{escape(_state(data))}</p>',
            cards(_cards(data)),
            f'<nav aria-label="Sections"><ul>{links}</ul></nav>',
            *(section.html() for section in sections),
        ]
    )


def _state(data: RunData) -> str:
    text = f"Begun {moment(data.head['began_ms'])} UTC, pipeline {data.head['fingerprint'][:12]}"
    if len(data.starts) > 1:
        text += f", started {len(data.starts)} times"
    if data.end is None:
        return f"{text}. No report yet: it runs, or it was killed."
    done = "finished" if data.report["complete"] else "stopped"
    return f"{text}; {done} {moment(data.end['at_ms'])} UTC."


def _cards(data: RunData) -> list[tuple[str, str, str]]:
    """Figures of the run: of its report, or of what is known before it."""
    report: dict[str, Any] = data.report
    model = data.models[0]
    measured = {name: report.get(name) for name in ("auc", "gauc", "logloss", "calibration")}
    whole = any(value is not None for value in measured.values())
    values = measured if whole else {name: quality.newest(data, model, name) for name in measured}
    remark = "whole run" if whole else "last 20 %"
    last = data.samples[-1] if data.samples else {}
    examples = report.get("examples_trained", last.get("examples", 0))
    letters = report.get("dead_letters", sum(last.get("dead_letters", {}).values()))
    return [
        ("Examples", f"{examples:,}", f"{report['steps']:,} steps" if report else "learned so far"),
        ("AUC", number(values["auc"]), remark),
        ("GAUC", number(values["gauc"]), remark),
        ("Log loss", number(values["logloss"]), remark),
        ("Calibration", number(values["calibration"]), f"{remark}; 1 is right"),
        ("Dead letters", f"{letters:,}", "rows"),
    ]
