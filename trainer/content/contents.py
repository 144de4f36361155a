"""Content of a run on one rank: its stores of features, and the threads that add to them.

Rank r of N holds the shards s with s mod N = r of every store, as the AMS expects (trainer.content.ams).
"""

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import numpy.typing as npt

from livectr.ingest.content.store import ContentStore
from livectr.ingest.content.topic import ContentTopic
from livectr.ingest.dead_letters.letters import DeadLetters
from livectr.ingest.language.content import Content
from livectr.ingest.limits import LIMITS, RecordLimits
from livectr.models.encoders import Encoder, load_encoder
from livectr.system.errors import ConfigError, InternalError
from livectr.system.scratch import scratch
from livectr.trainer.comm.control import Control
from livectr.trainer.content.encoding import Encoding

FOLDER = "content"
"""Folder of the stores, beside the generations of a checkpoint."""
LOOK_EVERY_S = 1.0
"""Interval at which rows of other processes are loaded."""
TURN_S = 0.1
_WAITING, _DONE, _STOPPED, _FAILED = range(4)

I64 = npt.NDArray[np.int64]


class Contents:
    """Stores of a pipeline's content, and the threads that encode new pictures.

    A store is in the folder that is given for its content. Without a folder, content with an encoder has its
    store beside the checkpoint, or in a temporary folder of the run. A missing store is created if the
    content has an encoder.

    Args:
        contents: name → content.
        folders: name → folder of its store.
        checkpoint: of the run; None: no checkpoint.
        rank: this rank.
        world: N ranks.

    Raises:
        ConfigError: a folder is given for unknown content, has no store or that of another encoder, or an
            encoder is unknown.

    Attributes:
        stores: name → features of this rank's shards; content without features has none
    """

    def __init__(
        self,
        contents: Mapping[str, Content],
        folders: Mapping[str, Path],
        *,
        checkpoint: Path | None,
        rank: int,
        world: int,
    ) -> None:
        for name in folders:
            if name not in contents:
                known = ", ".join(contents) or "none"
                raise ConfigError(f"content names {name!r}, but the content of the pipeline is {known}")
        self._contents = dict(contents)
        self._encoders: dict[str, Encoder] = {}
        self._running: dict[str, Encoding] = {}
        self._next_look = 0.0
        self._resources = ExitStack()
        self.stores: dict[str, ContentStore] = {}
        for name, content in contents.items():
            folder = folders.get(name)
            if content.encoder is not None:
                try:
                    encoder = self._encoders[name] = load_encoder(content.encoder)
                except ValueError as error:
                    raise ConfigError(f"content {name!r}: {error}") from None
                folder = folder or self._own_folder(checkpoint, name)
                ContentStore.ensure(folder, width=encoder.width, encoder=encoder.name, own_shards=())
            if folder is not None:
                shards = ContentStore.open(folder, ()).shards
                self.stores[name] = ContentStore.open(folder, range(rank, shards, world))
                self.stores[name].verify()

    def _own_folder(self, checkpoint: Path | None, name: str) -> Path:
        if checkpoint is not None:
            return checkpoint / FOLDER / name
        return self._resources.enter_context(scratch("content"))

    def start(
        self,
        url: str,
        *,
        until_end: bool,
        letters: DeadLetters,
        own_letters: DeadLetters,
        limits: RecordLimits = LIMITS,
    ) -> None:
        """Start to read the topics and to encode their pictures (ContentTopic, Encoding)."""
        for name, encoder in self._encoders.items():
            store = self.stores[name]
            topic = ContentTopic(
                self._contents[name],
                url,
                held_by(store),
                until_end=until_end,
                letters=letters,
                own_letters=own_letters,
                limits=limits,
            )
            self._running[name] = Encoding(name, topic, store, encoder)

    def wait(self, control: Control, stop: Callable[[], bool]) -> None:
        """Wait until every rank has encoded the pictures that its topics had at the start. Collective.

        Args:
            control: of this rank.
            stop: True if the process is asked to stop; then no rank waits any more.

        Raises:
            Exception: the error of a thread of this rank.
            InternalError: a thread of another rank failed.
        """
        while self._encoders:
            states = control.gather(np.array([self._state(stop)]))[:, 0]
            if (states == _FAILED).any():
                self.follow()  # raises where it failed
                failed = int(np.argmax(states == _FAILED))
                raise InternalError(f"encoding failed on rank {failed}; see its log")
            if (states == _STOPPED).any() or (states == _DONE).all():
                return
            time.sleep(TURN_S)

    def follow(self) -> None:
        """Load rows that other processes have stored, between two steps; raises the error of a thread."""
        for encoding in self._running.values():
            encoding.check()
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + LOOK_EVERY_S
            for store in self.stores.values():
                store.refresh()

    def close(self) -> None:
        """Stop encoding; idempotent."""
        for encoding in self._running.values():
            encoding.close()
        self._resources.close()

    def _state(self, stop: Callable[[], bool]) -> int:
        if any(encoding.error is not None for encoding in self._running.values()):
            return _FAILED
        if stop():
            return _STOPPED
        return _DONE if all(encoding.caught_up for encoding in self._running.values()) else _WAITING


def held_by(store: ContentStore) -> Callable[[I64], npt.NDArray[np.bool_]]:
    """Function of ids int64[n]: those whose shards the store holds, bool[n]."""
    held = np.zeros(store.shards, bool)
    held[list(store.own_shards)] = True
    return lambda ids: np.asarray(held[store.shard_of(ids)])
