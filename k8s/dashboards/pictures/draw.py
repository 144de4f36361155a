#!/usr/bin/env python3
"""Draw dashboards by Grafana's own components in a headless Chromium: draw.py PROMETHEUS FOLDER [BOARD…].

    npm install --prefix k8s/dashboards/pictures
    python k8s/dashboards/pictures/draw.py http://127.0.0.1:24817 /tmp/pictures overview images

The answers are those of a live Prometheus, such as that of `make demo WATCH=1`.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
BOARDS = HERE.parent
RANGE_S, STEP_S = 900, 15
PAGE = """<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="page.css">
<body style="margin:0"><div id="root"></div>
<script>window.drawing = {drawing};</script><script src="page.js"></script>"""
BUNDLE = (
    "--bundle", "--minify", "--jsx=automatic", "--define:global=window", "--loader:.svg=dataurl",
    "--loader:.ttf=empty", '--define:process.env.NODE_ENV="production"', "--log-level=error",
)  # fmt: skip
CHROMIUM = (
    "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
    "--allow-file-access-from-files", "--virtual-time-budget=8000",
)  # fmt: skip


def asked(url: str, **query: str | int | float) -> Any:
    """Result of a query."""
    with urllib.request.urlopen(f"{url}?{urllib.parse.urlencode(query)}", timeout=30) as reply:
        return json.load(reply)["data"]["result"]


def answers(prometheus: str, board: dict[str, Any], end: float) -> dict[int, list[Any]]:
    """Panel id → results of its targets, with all variables set to all."""
    found: dict[int, list[Any]] = {}
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            expr = re.sub(r'"\$\w+"', '".+"', re.sub(r"\$__(rate_)?interval", "1m", target["expr"]))
            if panel["type"] == "stat":
                result = asked(f"{prometheus}/api/v1/query", query=expr, time=end)
            else:
                span = {"start": end - RANGE_S, "end": end, "step": STEP_S}
                result = asked(f"{prometheus}/api/v1/query_range", query=expr, **span)
            found.setdefault(panel["id"], []).append(result)
    return found


def draw(prometheus: str, folder: Path, name: str) -> Path:
    """Write the picture of a board, and return its path."""
    board, end = json.loads((BOARDS / f"livectr-{name}.json").read_text()), time.time()
    drawing = {"board": board, "answers": answers(prometheus, board, end), "start": end - RANGE_S, "end": end}
    page, picture = folder / f"{name}.html", folder / f"{name}.png"
    page.write_text(PAGE.format(drawing=json.dumps(drawing).replace("</", "<\\/")))
    height = 36 * max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"]) + 60
    words = [*CHROMIUM, f"--window-size=1536,{height}", f"--screenshot={picture}", page.as_uri()]
    subprocess.run(words, check=True, stderr=subprocess.DEVNULL)
    return picture


def main() -> None:
    """Bundle the page and draw."""
    prometheus, folder, *names = sys.argv[1:]
    target = Path(folder).resolve()
    target.mkdir(parents=True, exist_ok=True)
    esbuild = HERE / "node_modules" / ".bin" / "esbuild"
    subprocess.run([esbuild, HERE / "page.jsx", *BUNDLE, f"--outfile={target / 'page.js'}"], check=True)
    for name in names or [path.stem.removeprefix("livectr-") for path in sorted(BOARDS.glob("*.json"))]:
        print(draw(prometheus, target, name))


if __name__ == "__main__":
    main()
