"""Contents of a checkpoint, for comparisons byte by byte."""

from pathlib import Path

import numpy as np

from livectr.ingest.pipeline import Pipeline
from livectr.trainer.checkpoint.manifest import newest_manifest
from livectr.trainer.checkpoint.restored import Restored


class Kept:
    """Contents of a checkpoint."""

    def __init__(self, root: Path, pipeline: Pipeline) -> None:
        manifest = newest_manifest(root)
        assert manifest is not None
        self.manifest, self.restored = manifest, Restored(root, manifest)
        self.dense = {name: t.numpy() for name, t in self.restored.dense().items()}
        self.statistics = self.restored.statistics()
        self.tables = {spec.table: Rows() for spec in pipeline.fields}
        self.restored.load_tables(self.tables)  # type: ignore[arg-type]  # what loading uses

    def part(self, name: str) -> dict[str, bytes]:
        """Name → bytes of all that belongs to a part."""
        match name:
            case "content" | "network":
                weights = {n: a for n, a in self.dense.items() if not n.startswith(("adam.", "des."))}
                content = name == "content"
                return {n: a.tobytes() for n, a in weights.items() if n.startswith("content.") == content}
            case "statistics":
                return {n: a.tobytes() for n, a in self.statistics.items()}
            case "adam":
                return {n: a.tobytes() for n, a in self.dense.items() if n.startswith("adam.")}
        policies = enumerate(self.restored.policies())
        known = {f"{rank} {n}": a.tobytes() for rank, state in policies for n, a in state.items()}
        return {n: table.bytes() for n, table in self.tables.items()} | known


class Rows:
    """A table of a checkpoint, of any row."""

    tracks = True

    def __init__(self) -> None:
        self.rows: dict[int, bytes] = {}
        self.used: dict[int, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self.rows)

    def bytes(self) -> bytes:
        return repr((sorted(self.rows.items()), sorted(self.used.items()))).encode()

    def assign(self, keys: np.ndarray, rows: np.ndarray) -> None:
        self.rows |= {int(key): row.tobytes() for key, row in zip(keys, rows, strict=True)}

    def erase(self, keys: np.ndarray) -> None:
        for key in keys.tolist():
            self.rows.pop(key, None)

    def set_usage(self, keys: np.ndarray, stamps: np.ndarray, counts: np.ndarray) -> None:
        used = zip(stamps.tolist(), counts.tolist(), strict=True)
        self.used |= dict(zip(keys.tolist(), used, strict=True))
