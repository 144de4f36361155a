"""A checkpoint, opened to be read: no lock is taken, so that a run may continue beside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from livectr.ingest.pipeline import Pipeline
from livectr.system.errors import CheckpointError, ConfigError
from livectr.trainer.checkpoint.manifest import check_identity, identity_of, newest_whole
from livectr.trainer.checkpoint.restored import Restored
from livectr.trainer.checkpoint.stored import placed
from livectr.trainer.comm.control import Control


@contextmanager
def open_checkpoint(folder: str | Path, pipeline: Pipeline | None = None) -> Iterator[Restored]:
    """The newest whole generation of a checkpoint.

    Args:
        folder: folder, or s3://BUCKET/PREFIX, from which files are downloaded for as long as they are read.
        pipeline: pipeline that it must belong to; None: any.

    Raises:
        ConfigError: the folder holds no checkpoint.
        MismatchError: the checkpoint belongs to another pipeline.
        CheckpointError: no generation is whole, or a run replaced it while it was read.
        ConnectError: the object store is away.
    """
    place = placed(folder)
    manifest = newest_whole(place, Control(), "bring its files back, or name another folder")
    if manifest is None:
        raise ConfigError(f"{place.name} holds no checkpoint; name the folder that training wrote")
    if pipeline is not None:
        check_identity(place.name, manifest.identity, identity_of(pipeline, manifest.identity["seed"]))
    try:
        yield Restored.of(place, manifest)
    except FileNotFoundError:
        raise CheckpointError(
            f"generation {manifest.generation} of {place.name} was replaced while it was read; read it again"
        ) from None
