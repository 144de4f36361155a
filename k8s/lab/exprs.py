#!/usr/bin/env python3
"""Ask a live Prometheus for every expression of dashboards and rules; an empty answer is a failure."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

_COMPARISON = re.compile(r"\s(?:[<>]=?|==|!=)\s*(?:bool\s+)?[-\d.e]+(?=[\s)]|$)")


def of_dashboard(file: Path) -> Iterator[tuple[str, str]]:
    """Place and expression of every target. Variables match everything; intervals are short."""

    def panels(found: list[Any]) -> Iterator[Any]:
        for panel in found:
            yield panel
            yield from panels(panel.get("panels", []))

    for panel in panels(json.loads(file.read_text())["panels"]):
        for target in panel.get("targets", []):
            expression = re.sub(r"\$__(?:rate_)?interval", "1m", target["expr"])
            expression = re.sub(r"\$\{?__range\}?", "5m", expression)
            expression = re.sub(r'=~?"\$\{?\w+(?::\w+)?\}?"', '=~".*"', expression)
            yield f"{file.name}: {panel.get('title', '')}", expression


def of_rules(file: Path) -> Iterator[tuple[str, str]]:
    """Place and expression of every rule, without comparisons to numbers: a quiet alert has no data."""
    import yaml

    content = yaml.safe_load(file.read_text())
    for group in content.get("spec", content)["groups"]:
        for rule in group["rules"]:
            name = rule.get("alert") or rule.get("record")
            yield f"{file.name}: {name}", _COMPARISON.sub("", rule["expr"].strip())


def ask(url: str, expression: str) -> tuple[int, str]:
    """Number of series, and the reason if Prometheus refuses the expression. OSError: it does not answer."""
    try:
        with urlopen(f"{url}/api/v1/query?{urlencode({'query': expression})}", timeout=30) as answer:
            return len(json.load(answer)["data"]["result"]), ""
    except HTTPError as error:
        return 0, error.read().decode(errors="replace")


def main() -> int:
    """Print a line an expression; 1 if any has no data, 2 at once if Prometheus does not answer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="address of Prometheus, such as http://127.0.0.1:9090")
    parser.add_argument("files", type=Path, nargs="+", help="dashboards (.json) and rules (.yaml)")
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="BEGIN",
        help="leave out metrics whose name begins so: container_ (a kubelet's), DCGM_ (a GPU's)",
    )
    given = parser.parse_args()
    empty = 0
    for file in given.files:
        for place, expression in of_dashboard(file) if file.suffix == ".json" else of_rules(file):
            if any(re.search(rf"\b{begin}", expression) for begin in given.without):
                print("skip ", 0, place)
                continue
            try:
                count, error = ask(given.url, expression)
            except OSError as away:
                asked = " ".join(expression.split())
                print(f"Prometheus at {given.url} does not answer ({away}): {asked}", file=sys.stderr)
                return 2
            empty += count == 0
            print("ok   " if count else "EMPTY", count, place, expression.replace("\n", " "), error)
    return 1 if empty else 0


if __name__ == "__main__":
    sys.exit(main())
