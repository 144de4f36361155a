"""The settings of docs/configuration.md, made from their declarations: `python -m livectr.config.page`."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from livectr.config.settings import SETTINGS, commands_of
from livectr.system.settings import Setting

PAGE = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"
BETWEEN = re.compile(r"(<!-- settings -->\n).*(<!-- end of settings -->)", re.DOTALL)
TITLES = (
    "Basics",
    "Learning",
    "Freshness and versions",
    "Ranks",
    "Memory",
    "GPU",
    "Bad records",
    "Load and large requests",
    "Starting, stopping, watching",
    "Security",
)
"""Groups of settings, by what a user looks for."""


def page(text: str) -> str:
    """The page's text with the tables of today's settings."""
    return BETWEEN.sub(lambda match: f"{match[1]}\n{tables()}\n{match[2]}", text)


def tables() -> str:
    """One Markdown section for each group."""
    sections = []
    for title, group in by_group(SETTINGS).items():
        rows = ["| setting | default | of | meaning |", "|---|---|---|---|"]
        rows += [
            f"| `{declared.name}` | {shown_default(declared)} | {', '.join(commands_of(declared))} | "
            f"{meaning(declared)} |"
            for declared in group
        ]
        sections.append(f"### {title}\n\n" + "\n".join(rows) + "\n")
    return "\n".join(sections)


def by_group(names: Collection[str]) -> dict[str, list[Setting]]:
    """Title → its settings, in the order of TITLES. Raises ValueError for a group without a place there."""
    groups: dict[str, list[Setting]] = {title: [] for title in TITLES}
    for name in names:
        title = SETTINGS[name].metadata["group"]
        if title not in groups:
            raise ValueError(f"{name} is in group {title!r}, which TITLES lacks")
        groups[title].append(SETTINGS[name])
    return {title: group for title, group in groups.items() if group}


def shown_default(declared: Setting) -> str:
    """Default as TOML has it, – for none."""
    if declared.default in (None, ""):
        return "–"
    return str(declared.default).lower() if declared.kind is bool else str(declared.default)


def meaning(declared: Setting) -> str:
    """Sentence of a setting, its flag, and the place that explains it."""
    text: str = declared.metadata["help"].replace("|", r"\|")
    for name in sorted(SETTINGS, key=len, reverse=True):
        if "_" in name:
            text = re.sub(rf"(?<![`\w]){name}(?![`\w])", f"`{name}`", text)
    if declared.metadata["example"]:
        text += f" (`{declared.metadata['example']}`)".replace("|", r"\|")
    if declared.metadata["flag"]:
        text += f"; `--{declared.name.replace('_', '-')}`"
    return text + (f" ([more]({declared.metadata['see']}))" if declared.metadata["see"] else "")


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
