"""A generation of a checkpoint that is read again."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import safetensors.numpy
import safetensors.torch
import torch
from safetensors import SafetensorError

from livectr.ingest.join.state import SourceState
from livectr.system.errors import CheckpointError
from livectr.trainer.checkpoint.content import Table
from livectr.trainer.checkpoint.manifest import FileEntry, Folder, Manifest
from livectr.trainer.placement.placement import owners_by_key

if TYPE_CHECKING:
    from livectr.trainer.checkpoint.stored import Stored


@dataclass(frozen=True)
class Restored:
    """Verified generation, read part by part; any number of ranks may read it.

    Attributes:
        root: folder of the files.
        stored: object store from which files that are missing there are downloaded.
        home: folder of the checkpoint, if `root` has only the files that are read (trainer.checkpoint.lease).
    """

    root: Path
    manifest: Manifest
    stored: Stored | None = None
    home: Path | None = None

    @property
    def checkpoint(self) -> Path:
        """Folder of the checkpoint."""
        return self.home or self.root

    @staticmethod
    def of(place: Folder | Stored, manifest: Manifest) -> Restored:
        """Generation of a folder or an object store."""
        return Restored(place.root, manifest, None if isinstance(place, Folder) else place)

    def load_tables(
        self, tables: Mapping[str, Table], split: Collection[str] = (), *, rank: int = 0, world: int = 1
    ) -> None:
        """Fill empty tables, whichever rank wrote them: the oldest files first.

        Args:
            tables: name → table.
            split: tables that get this rank's keys only (trainer.placement.placement.owners_by_key).
            rank: of the reader.
            world: N ranks that read.

        Raises:
            CheckpointError: a file does not hold rows of these tables.
        """
        wanted = {f"{name}/{column}" for name in tables for column in ("keys", "erased")}
        for entry in self._files("tables"):
            if self.stored is not None and wanted.isdisjoint(self.stored.tensors_of(entry)):
                continue  # another rank's rows
            path = self._path(entry)
            with _content(entry), safetensors.safe_open(str(path), framework="numpy") as file:
                held = set(file.keys())
                for name, table in tables.items():
                    if f"{name}/erased" in held:
                        table.erase(file.get_tensor(f"{name}/erased"))
                    if f"{name}/keys" not in held:
                        continue
                    tracked = table.tracks and f"{name}/stamps" in held
                    names = ("keys", "rows", "stamps", "counts") if tracked else ("keys", "rows")
                    columns = [file.get_tensor(f"{name}/{column}") for column in names]
                    if name in split:
                        own = owners_by_key(columns[0], world) == rank
                        columns = [column[own] for column in columns]
                    keys, rows, *usage = columns
                    table.assign(keys, rows)
                    if usage:
                        table.set_usage(keys, *usage)

    def some_keys(self, table: str) -> npt.NDArray[Any]:
        """Keys int64[n] of the first file that names any of a table; later files may erase some."""
        for entry in self._files("tables"):
            path = self._path(entry)
            with _content(entry), safetensors.safe_open(str(path), framework="numpy") as file:
                if f"{table}/keys" in file.keys():  # noqa: SIM118 - no mapping
                    return np.asarray(file.get_tensor(f"{table}/keys"))
        return np.empty(0, np.int64)

    def dense(self) -> dict[str, torch.Tensor]:
        """Dense weights and optimiser state of all ranks together; their names differ."""
        merged: dict[str, torch.Tensor] = {}
        for entry in self._files("dense"):
            data = self._path(entry).read_bytes()
            with _content(entry):
                merged.update(safetensors.torch.load(data))
        return merged

    def source(self) -> SourceState:
        """State of the source, of all ranks together."""
        known, histories, rows = (self._by_rank(kind) for kind in ("known", "histories", "rows"))
        ranks = [Path(entry.path).parent.name for entry in self._files("source")]
        return SourceState.merge(
            SourceState.from_parts(parts, known.get(rank, []), histories.get(rank, []), rows.get(rank, []))
            for rank, parts in zip(ranks, self.sources(), strict=True)
        )

    def paths(self, kind: str) -> list[Path]:
        """Files of a kind, in order."""
        return [self._path(entry) for entry in self._files(kind)]

    def _by_rank(self, kind: str) -> dict[str, list[dict[str, npt.NDArray[Any]]]]:
        """Folder of a rank → tensors of its files, in order."""
        found: dict[str, list[dict[str, npt.NDArray[Any]]]] = {}
        for entry in self._files(kind):
            found.setdefault(Path(entry.path).parent.name, []).append(self._tensors(entry))
        return found

    def sources(self) -> list[dict[str, bytes]]:
        """State of the source of each rank that wrote it, without what is saved as changes."""
        read = [self._tensors(entry) for entry in self._files("source")]
        return [{name: part.tobytes() for name, part in tensors.items()} for tensors in read]

    def policies(self) -> list[dict[str, npt.NDArray[Any]]]:
        """State of the table policies of each rank that had any, in the order of the ranks."""
        return [self._tensors(entry) for entry in self._files("policies")]

    def unpublished(self) -> dict[str, npt.NDArray[Any]]:
        """Table → keys int64[n] that the version lacked which Redis held, of all ranks."""
        parts: dict[str, list[npt.NDArray[Any]]] = {}
        for entry in self._files("unpublished"):
            for table, keys in self._tensors(entry).items():
                parts.setdefault(table, []).append(keys)
        return {table: np.concatenate(keys) for table, keys in parts.items()}

    def statistics(self) -> dict[str, npt.NDArray[Any]]:
        """Name → state of the running statistics."""
        return self.state("statistics")

    def state(self, kind: str) -> dict[str, npt.NDArray[Any]]:
        """State that rank 0 wrote, of a part (trainer.part) by its kind; {} if there is none."""
        tensors: dict[str, npt.NDArray[Any]] = {}
        for entry in self._files(kind):
            tensors.update(self._tensors(entry))
        return tensors

    def _tensors(self, entry: FileEntry) -> dict[str, npt.NDArray[Any]]:
        data = self._path(entry).read_bytes()
        with _content(entry):
            tensors: dict[str, npt.NDArray[Any]] = safetensors.numpy.load(data)
        return tensors

    def _path(self, entry: FileEntry) -> Path:
        return self.root / entry.path if self.stored is None else self.stored.ensure(entry)

    def _files(self, kind: str) -> Iterator[FileEntry]:
        return (entry for entry in self.manifest.files if entry.kind == kind)


@contextmanager
def _content(entry: FileEntry) -> Iterator[None]:
    """Turn an error about a file's content into CheckpointError: its digest is right, its form is not."""
    try:
        yield
    except (SafetensorError, ValueError, KeyError) as error:
        raise CheckpointError(
            f"{entry.path} does not hold {entry.kind} that can be read ({error})"
        ) from error
