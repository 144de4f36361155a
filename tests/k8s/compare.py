"""Compare the checkpoints of two trainers of one log; run in a pod: python3 - COMMAND FOLDER… < compare.py

A folder has a checkpoint `run` and a prediction log `predictions`. `step` prints the newest step of one.
`compare` prints a JSON object: what two of them have learned, and how far apart the models are. The second
prediction log may begin earlier. It uses the image's package alone.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import safetensors

from livectr.trainer.checkpoint.manifest import Manifest, newest_manifest
from livectr.trainer.checkpoint.restored import Restored
from livectr.trainer.quality.predictions import COLUMNS, read_predictions


class Rows:
    """Table of a checkpoint: key → row."""

    tracks = False

    def __init__(self) -> None:
        self.rows: dict[int, Any] = {}

    def assign(self, keys: Any, rows: Any) -> None:
        """Take rows[N, width] of N keys."""
        self.rows.update(zip(keys.tolist(), rows, strict=True))

    def erase(self, keys: Any) -> None:
        """Forget keys."""
        for key in keys.tolist():
            self.rows.pop(key, None)


class Model:
    """Newest generation of a folder's checkpoint."""

    def __init__(self, folder: Path) -> None:
        root = folder / "run"
        manifest: Manifest | None = newest_manifest(root)
        assert manifest is not None, f"{root} holds no checkpoint"
        self.manifest, restored = manifest, Restored(root, manifest)
        names: set[str] = set()
        for entry in restored._files("tables"):  # nothing public has the names of the tables
            with safetensors.safe_open(str(root / entry.path), framework="numpy") as file:
                held = set(file.keys())
            names |= {key.rpartition("/")[0] for key in held if key.endswith("/keys")}
        self.tables = {name: Rows() for name in sorted(names)}
        restored.load_tables(self.tables)  # type: ignore[arg-type]
        self.statistics = {name: array.tobytes() for name, array in restored.statistics().items()}
        self.predictions = read_predictions(folder / "predictions")


def compare(left: Model, right: Model) -> dict[str, Any]:
    """Differences between what two models have learned, and between their values.

    Of ids of impressions: `twice` were learned again by the left model; `lost` are those that only the right
    model has learned, and `strange` those that only the left one has.
    """
    count = len(left.predictions)
    ours, theirs = left.predictions, right.predictions[-count:]
    assert len(ours) == len(theirs) > 0, f"{len(ours)} and {len(theirs)} predictions"
    ids, expected = (np.sort(log["instance"]) for log in (ours, theirs))
    same = {name: ours[name] == theirs[name] for name in COLUMNS}
    differing = np.flatnonzero(~np.logical_and.reduce(list(same.values())))
    roles = [name for name in ours.dtype.names or () if name not in COLUMNS]
    tables = {}
    for name, table in right.tables.items():
        one, other = left.tables[name].rows, table.rows
        shared = sorted(one.keys() & other.keys())
        a, b = (np.array([rows[key] for key in shared], np.float64) for rows in (one, other))
        tables[name] = {
            "rows": len(other),
            "others": len(one.keys() ^ other.keys()),
            "apart": float(np.linalg.norm(a - b) / max(float(np.linalg.norm(b)), 1e-12)) if shared else 0.0,
        }
    return {
        "steps": [left.manifest.step, right.manifest.step],
        "examples": [left.manifest.examples, right.manifest.examples],
        "compared": count,
        "twice": count - len(np.unique(ids)),
        "lost": len(np.setdiff1d(expected, ids)),
        "strange": len(np.setdiff1d(ids, expected)),
        "first_difference": int(differing[0]) if len(differing) else None,
        "differences": len(differing),
        "predictions_apart": {role: float(np.abs(ours[role] - theirs[role]).mean()) for role in roles},
        "tenths": {
            role: [float(np.abs(d).mean()) for d in np.array_split(ours[role] - theirs[role], 10)]
            for role in roles
        },
        "statistics_equal": left.statistics == right.statistics,
        "tables": tables,
    }


def main() -> None:
    """Run the command of the command line."""
    kind, *roots = sys.argv[1:]
    if kind == "step":
        manifest = newest_manifest(Path(roots[0], "run"))
        print(manifest.step if manifest is not None else 0)
    else:
        left, right = (Model(Path(root)) for root in roots)
        print(json.dumps(compare(left, right)))


if __name__ == "__main__":
    main()
