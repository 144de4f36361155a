"""Run of one rank that changes its tables at random and commits."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from livectr.kernels.table.layout import AdaGrad, RowLayout, Segment
from livectr.kernels.table.table import DynamicTable
from livectr.trainer.checkpoint.checkpoint import Checkpointer
from livectr.trainer.checkpoint.content import CheckpointState
from livectr.trainer.checkpoint.manifest import Manifest
from livectr.trainer.checkpoint.restored import Restored
from livectr.trainer.comm.control import Control

LAYOUT = RowLayout((Segment("rank.v", 3, AdaGrad(), 0.1),))
IDENTITY = {"fields": [["ad", "ad"], ["user", "user"]], "models": {"rank": "LR()"}}


def new_tables() -> dict[str, DynamicTable]:
    return {name: DynamicTable(LAYOUT, name=name, seed=1) for name in ("ad", "user")}


def content(tables: dict[str, DynamicTable]) -> dict[str, tuple[bytes, bytes]]:
    """Every row of every table, in the order of the keys."""
    found = {}
    for name, table in tables.items():
        keys, rows = table.export()
        order = np.argsort(keys)
        found[name] = (keys[order].tobytes(), rows[order].tobytes())
    return found


class Run:
    """A training run of one rank that changes its tables at random and commits."""

    def __init__(self, root: Path, seed: int = 0) -> None:
        self.root = root
        self.rng = np.random.default_rng(seed)
        self.tables = new_tables()
        self.checkpoint = Checkpointer(root, Control(), IDENTITY)
        self.step = 0

    def train(self, keys: int = 20) -> None:
        self.step += 1
        for table in self.tables.values():
            changed = self.rng.integers(0, 200, keys)
            table.update(changed, self.rng.normal(size=(keys, 3)).astype(np.float32))

    def commit(self) -> Manifest:
        return self.checkpoint.commit(self.state())

    def state(self) -> CheckpointState:
        return CheckpointState(
            step=self.step,
            examples=self.step * 10,
            predictions=self.step * 10,
            cursor={"version": self.step},
            tables=self.tables,
            marks={name: table.mark() for name, table in self.tables.items()},
            dense={"rank.w": torch.full((2, 2), float(self.step)), "adam.step": torch.tensor(3.0)},
            source={"partitions.json": b'{"at": %d}' % self.step, "0/empty.arrow": b""},
            statistics={"zscore-1": np.array([self.step, 0.1, np.inf]), "frequency-2": np.arange(4)},
            field_keys={"user": 10 * self.step, "ad": 30},
        )


def reopen(run: Run) -> Restored | None:
    """Restore as another process would."""
    run.checkpoint.close()
    run.checkpoint = Checkpointer(run.root, Control(), IDENTITY)
    return run.checkpoint.restore()


def restored_tables(restored: Restored) -> dict[str, DynamicTable]:
    tables = new_tables()
    restored.load_tables(tables)
    return tables


def rewrite(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change values of a manifest, with a digest that fits."""
    values = json.loads(json.loads(path.read_bytes())["body"])
    change(values)
    body = json.dumps(values)
    path.write_text(json.dumps({"sha256": hashlib.sha256(body.encode()).hexdigest(), "body": body}))
