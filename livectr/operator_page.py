"""The operators of docs/operators.md, made from their docstrings: `python -m livectr.operator_page`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

from livectr.ingest import operators
from livectr.ingest.language import expr, streams

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "operators.md"
BETWEEN = re.compile(r"(<!-- operators -->\n).*(<!-- end of operators -->)", re.DOTALL)

SIGNS: dict[str, Callable[..., Any]] = {
    "`x + y`, `-`, `*`, `/`, `//`, `%`": expr.arithmetic,
    "`x < y`, `<=`, `>`, `>=`, `==`, `!=`": expr.comparison,
    "`c & d`, `|`, `~c`": expr.logic,
}


def page(text: str) -> str:
    """The page's text with the list of today's operators."""
    return BETWEEN.sub(lambda match: f"{match[1]}\n{listing()}\n{match[2]}", text)


def listing() -> str:
    """One Markdown section for each group. Raises ValueError for an operator without group or docstring."""
    listed = {name for names in operators.GROUPS.values() for name in names}
    exported = {name for name in operators.__all__ if not inspect.isclass(getattr(operators, name))}
    if listed != exported:
        raise ValueError(
            f"GROUPS and __all__ of livectr.ingest.operators differ in {', '.join(sorted(listed ^ exported))}"
        )
    sections = [_section("Signs", [_entry(head, function) for head, function in SIGNS.items()])]
    sections.append(_section("Histories", [_function("recent", streams.recent)]))
    for group, names in operators.GROUPS.items():
        sections.append(_section(group, [_function(name, getattr(operators, name)) for name in names]))
    return "\n".join(sections)


def _section(heading: str, entries: list[str]) -> str:
    return "\n".join([f"### {heading}", "", *entries])


def _function(name: str, function: Callable[..., Any]) -> str:
    return _entry(f"`{name}{_signature(function)}`", function)


def _signature(function: Callable[..., Any]) -> str:
    """Parameters and defaults, without types: the text gives the feature language's own."""
    signature = inspect.signature(function)
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))


def _entry(head: str, function: Callable[..., Any]) -> str:
    """A docstring in Markdown: tables of parameters and code stay as they are laid out."""
    doc = inspect.getdoc(function)
    if not doc:
        raise ValueError(f"{head} has no docstring")
    parts = [f"#### {head}\n"]
    for paragraph in doc.split("\n\n"):
        laid_out = re.search(r"^\s|\S {2,}\S", paragraph, re.MULTILINE)
        parts.append(f"```text\n{dedent(paragraph)}\n```\n" if laid_out else f"{_prose(paragraph)}\n")
    return "\n".join(parts)


def _prose(text: str) -> str:
    """Escape signs of Markdown and HTML outside of code."""
    pieces = re.split(r"(`[^`]*`)", text)
    return "".join(p if p.startswith("`") else re.sub(r"^[+-]|[<*]", r"\\\g<0>", p) for p in pieces)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
