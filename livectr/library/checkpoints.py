"""A checkpoint, opened to be read: its run may continue beside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from livectr.ingest.pipeline import Pipeline
from livectr.system.errors import ConfigError
from livectr.trainer.checkpoint.lease import hold_newest
from livectr.trainer.checkpoint.manifest import check_identity, identity_of
from livectr.trainer.checkpoint.restored import Restored


@contextmanager
def open_checkpoint(folder: str | Path, pipeline: Pipeline | None = None) -> Iterator[Restored]:
    """The newest whole generation of a checkpoint.

    Args:
        folder: folder, or s3://BUCKET/PREFIX, from which files are downloaded for as long as they are read.
        pipeline: pipeline that it must belong to; None: any.

    Raises:
        ConfigError: the folder holds no checkpoint.
        MismatchError: the checkpoint belongs to another pipeline.
        CheckpointError: no generation is whole.
        ConnectError: the object store is away.
    """
    held = hold_newest(folder, "bring its files back, or name another folder")
    if held is None:
        raise ConfigError(f"{folder} holds no checkpoint; name the folder that training wrote")
    with held:
        if pipeline is not None:
            theirs = held.manifest.identity
            check_identity(held.name, theirs, identity_of(pipeline, theirs["seed"]))
        yield held.restored
