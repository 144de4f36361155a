"""Write every dashboard as JSON: python -m k8s.dashboards [FOLDER]."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from k8s.dashboards.boards import (
    freshness,
    images,
    ingest,
    learning,
    overview,
    platform,
    serving,
    tables,
    training,
)
from k8s.dashboards.marks import mark_models
from k8s.dashboards.panels import Board, build

BOARDS: tuple[Board, ...] = (
    overview.BOARD,
    freshness.BOARD,
    ingest.BOARD,
    learning.BOARD,
    training.BOARD,
    tables.BOARD,
    images.BOARD,
    serving.BOARD,
    platform.BOARD,
)
HERE = Path(__file__).parent


def files() -> Mapping[str, str]:
    """Name of a file → text of the dashboard."""
    return {
        f"livectr-{board.name}.json": json.dumps(_model(board), indent=2, sort_keys=True) + "\n"
        for board in BOARDS
    }


def _model(board: Board) -> dict[str, Any]:
    """Grafana's model of a board, with the annotations of all boards."""
    model: dict[str, Any] = json.loads(json.dumps(build(board), cls=JSONEncoder))
    return model | {"annotations": mark_models()}


def main(folder: Path) -> None:
    """Write all dashboards into a folder."""
    for name, text in files().items():
        (folder / name).write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
