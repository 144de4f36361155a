"""The stores of a pipeline's content that a run is told of: "images=DIR,texts=DIR2"."""

from __future__ import annotations

from pathlib import Path

from ingest.content import ContentStore
from ingest.pipeline import Pipeline
from kernels.errors import ConfigError


def parse_contents(text: str | None) -> dict[str, Path]:
    """ "name=DIR,name=DIR" → name → folder. Raises ConfigError for anything else."""
    folders: dict[str, Path] = {}
    for part in (text or "").split(","):
        if not part:
            continue
        name, equals, folder = part.partition("=")
        if not equals or not name or not folder:
            raise ConfigError(f'content: {part!r} is not NAME=DIR, as in "images=features/images"')
        if name in folders:
            raise ConfigError(f"content: {name!r} is named twice; name one folder")
        folders[name] = Path(folder)
    return folders


def check_contents(folders: dict[str, Path], pipeline: Pipeline) -> None:
    """Raises ConfigError for a folder of content that the pipeline does not have."""
    for name in folders:
        if name not in pipeline.content:
            known = ", ".join(pipeline.content) or "none"
            raise ConfigError(f"content: the pipeline has no content {name!r}; it has {known}")


def open_contents(pipeline: Pipeline, text: str | None, rank: int, world: int) -> dict[str, ContentStore]:
    """Name → this rank's shards of the store, of the content that has a folder."""
    folders = parse_contents(text)
    check_contents(folders, pipeline)
    found = {}
    for name, folder in folders.items():
        whole = ContentStore.open(folder, shards=())
        found[name] = ContentStore.open(folder, shards=range(rank, whole.shards, world))
    return found
