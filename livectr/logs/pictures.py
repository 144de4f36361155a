"""Pictures by id, out of a folder of files or out of a topic, in batches."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from livectr.ingest.chunks import BEGINNING
from livectr.ingest.content.store import ContentStore, digest_of
from livectr.ingest.content.topic import ContentTopic
from livectr.ingest.dead_letters.letters import DeadLetters
from livectr.ingest.language.content import Content
from livectr.ingest.language.keys import hash_strings
from livectr.ingest.language.tables import Table
from livectr.system.errors import ConfigError

I64 = npt.NDArray[np.int64]

SUFFIXES = (".jpg", ".jpeg", ".png", ".gif", ".webp", ".bmp")


KEPT_BYTES = 64 << 20
"""Changed pictures that may wait for the end."""


@dataclass(frozen=True)
class Picture:
    """Origin of a picture, for its dead letter. name: of the file or the column."""

    topic: str
    partition: int
    offset: int
    index: int
    name: str


@dataclass(frozen=True)
class Batch:
    """n pictures: ids int64[n], their bytes, and where they come from."""

    ids: I64
    values: list[bytes]
    pictures: list[Picture]


Wanted = Callable[[I64], npt.NDArray[np.bool_]]
"""True for each of n ids that this process encodes."""


class Pictures(ABC):
    """All pictures of a source, once; those of other processes are left out by `only`."""

    def __init__(self) -> None:
        self._wanted: Wanted = lambda ids: np.ones(len(ids), bool)

    def only(self, wanted: Wanted) -> None:
        """Leave out what another process encodes. Call it before `batches`."""
        self._wanted = wanted

    @property
    @abstractmethod
    def behind(self) -> int:
        """Pictures that `batches` has not given yet, about."""

    @abstractmethod
    def batches(self, rows: int) -> Iterator[Batch]:
        """The pictures, in batches of about `rows`."""

    @abstractmethod
    def close(self) -> None:
        """Stop reading."""


def open_pictures(
    source: str, *, topic: str | None, key: str, image: str, dead_letters: DeadLetters
) -> Pictures:
    """The pictures of a folder, of `file:DIR` or of `kafka://HOST:PORT[/TOPIC]`.

    topic, key, image: of a log, its topic and its columns of ids (`name` or `name:dtype`) and pictures.
    Raises ConfigError.
    """
    if not source.startswith(("file:", "kafka:")):
        return Folder(Path(source), dead_letters)
    address = re.fullmatch(r"(kafka://[^/?]+)/([^/?]+)(\?.*)?", source)
    if address is not None:
        if topic is not None and topic != address[2]:
            raise ConfigError(f"{source} names a topic, and so does --topic {topic}; leave one out")
        source, topic = address[1] + (address[3] or ""), address[2]
    if topic is None:
        raise ConfigError(f"{source} holds many topics; say which one has the pictures: --topic ad_images")
    return Topic(source, topic, key, image, dead_letters)


class Folder(Pictures):
    """Picture files below a folder.

    A file's id is its name without the suffix: that integer, or the 64-bit key of the text (as features have
    it).
    """

    def __init__(self, root: Path, dead_letters: DeadLetters) -> None:
        super().__init__()
        if not root.is_dir():
            raise ConfigError(f"there is no folder {root}; name a folder of pictures, file:DIR or kafka://…")
        paths = [path for path in root.rglob("*") if path.suffix.lower() in SUFFIXES]
        self._files = sorted(path for path in paths if not path.name.startswith(".") and path.is_file())
        if not self._files:
            raise ConfigError(f"{root} has no pictures ({' '.join(SUFFIXES)})")
        self._root = root
        self._topic = str(root.resolve())
        dead_letters.resume({(self._topic, 0): BEGINNING})  # letters of an earlier run are there
        self._ids = ids_of([path.stem for path in self._files])
        _, first, count = np.unique(self._ids, return_index=True, return_counts=True)
        if (twice := first[count > 1]).size:
            one = self._ids[twice[0]]
            names = [str(self._files[place].relative_to(root)) for place in np.flatnonzero(self._ids == one)]
            raise ConfigError(f"{' and '.join(names[:2])} in {root} have the same id; keep one of them")
        # A letter's place is its file's, whatever other files come and go.
        self._places = hash_strings([str(path.relative_to(root)) for path in self._files]) & (2**63 - 1)
        self._left = len(self._files)

    @property
    def behind(self) -> int:
        """Number of files that `batches` has not given yet."""
        return self._left

    def batches(self, rows: int) -> Iterator[Batch]:
        """Ids i64[k], bytes and places of the files, k ≤ `rows`, by name."""
        mine = np.flatnonzero(self._wanted(self._ids))
        self._left = len(mine)
        for start in range(0, len(mine), rows):
            part = mine[start : start + rows]
            files = [self._files[place] for place in part.tolist()]
            self._left -= len(files)
            pictures = [
                Picture(self._topic, 0, place, 0, str(path.relative_to(self._root)))
                for path, place in zip(files, self._places[part].tolist(), strict=True)
            ]
            yield Batch(self._ids[part], [path.read_bytes() for path in files], pictures)

    def close(self) -> None:
        """Nothing: each file is closed when it has been read."""
        pass


class Topic(Pictures):
    """Pictures of a topic, up to the end that it has at the start.

    Letters about records that hold none are written while they are read.
    """

    def __init__(self, url: str, topic: str, key: str, image: str, dead_letters: DeadLetters) -> None:
        super().__init__()
        self._key, _, dtype = key.partition(":")
        self._image = image
        table = Table(topic, key=self._key, columns={self._key: dtype or "int64", image: "image"})
        content = Content((self._key,), None, topic=table, encoder="given beside it")
        self._topic = ContentTopic(
            content,
            url,
            lambda ids: np.ones(len(ids), bool),
            until_end=True,
            letters=dead_letters,
            own_letters=dead_letters,
        )

    @property
    def behind(self) -> int:
        """Number of records that are not read yet, about."""
        return self._topic.behind

    def batches(self, rows: int) -> Iterator[Batch]:
        """Ids i64[k], bytes and places of the records, k ≤ `rows`, in the order in which they are read."""
        while True:
            ended = self._topic.at_end
            read = self._topic.poll(0.0 if ended else 0.1)
            mine = self._wanted(np.array([record.id for record in read], np.int64))
            records = [record for record, wanted in zip(read, mine.tolist(), strict=True) if wanted]
            for start in range(0, len(records), rows):
                part = records[start : start + rows]
                pictures = [
                    Picture(
                        self._topic.topic,
                        one.partition,
                        one.offset,
                        one.index,
                        f"column {self._image} of {self._key} {one.id}",
                    )
                    for one in part
                ]
                yield Batch(
                    np.array([one.id for one in part], np.int64), [one.value for one in part], pictures
                )
            if ended and not read:
                return

    def close(self) -> None:
        """Stop the reading thread."""
        self._topic.close()


def changed_last(batches: Iterator[Batch], store: ContentStore) -> Iterator[Batch]:
    """Move changed pictures to the end, and keep the last of each id.

    A changed picture has an id that the store holds with other bytes. A topic that is read again gives old
    pictures of an id before the stored picture: they must neither replace it nor be encoded again.
    """
    kept: dict[int, tuple[bytes, Picture]] = {}
    kept_bytes = 0
    for batch in batches:
        stored, known = store.digests(batch.ids)
        now = []
        for place, (one, value) in enumerate(zip(batch.ids.tolist(), batch.values, strict=True)):
            if one in kept:
                kept_bytes -= len(kept.pop(one)[0])
            if known[place] and int(stored[place]) != digest_of(value):
                kept[one] = value, batch.pictures[place]
                kept_bytes += len(value)
            else:
                now.append(place)
        if now:
            values = [batch.values[place] for place in now]
            yield Batch(batch.ids[now], values, [batch.pictures[place] for place in now])
        if kept_bytes > KEPT_BYTES:
            yield _batch_of(kept)
            kept, kept_bytes = {}, 0
    if kept:
        yield _batch_of(kept)


def _batch_of(kept: dict[int, tuple[bytes, Picture]]) -> Batch:
    values, pictures = zip(*kept.values(), strict=True)
    return Batch(np.array(list(kept), np.int64), list(values), list(pictures))


def ids_of(names: list[str]) -> I64:
    """int64[n]: the integer that a text is, as it would be printed, else the key of the text."""
    ids = hash_strings(names)
    for place, name in enumerate(names):
        if (
            re.fullmatch(r"-?\d{1,19}", name)
            and str(number := int(name)) == name
            and -(2**63) <= number < 2**63
        ):
            ids[place] = number
    return ids
