"""Checkpoint in an object store: what it holds is durable, and the folder is a working copy.

    PREFIX/OWNER                                 token of the trainer that writes
    PREFIX/gen-00000007/MANIFEST.json            put last: a put is atomic, so it makes the generation exist
    PREFIX/gen-00000007/rank-0.TOKEN/…           files of a rank (trainer.checkpoint.checkpoint)
    PREFIX/gen-00000007/rank-0.TOKEN/predictions-0.bin   part of the prediction log

The trainer that starts last owns the prefix. Another one finds its token replaced when it would put the next
manifest, and stops. Files of two trainers never have the same key, as keys hold the token.

Files are uploaded by threads, after they are written to the working copy. A store that is away is asked again
until it answers: meanwhile training continues, and no other checkpoint begins.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TypeVar

from livectr.system.disk import writing
from livectr.system.errors import CheckpointError, ConnectError, MismatchError
from livectr.system.object_store import ObjectStore, is_object_address
from livectr.system.scratch import remove_scratch, scratch_folder
from livectr.trainer.checkpoint import telemetry
from livectr.trainer.checkpoint.manifest import (
    MANIFEST,
    FileEntry,
    Folder,
    Manifest,
    folder_of,
    number,
    path_of,
    verify_file,
)
from livectr.trainer.comm.control import Control

LOG = logging.getLogger(__name__)
OWNER = "OWNER"
PREDICTIONS = "predictions"
"""Kind of a file: part of the prediction log."""
UPLOADS = 4
"""Files that are uploaded at a time; each is held in memory, and large ones go in several parts at once."""
READ_DEADLINE_S = 60.0
"""Longest wait for a store that is away while a checkpoint is read."""
LAST_DEADLINE_S = 300.0
"""Longest wait for a store that is away when the run ends."""
LONGEST_PAUSE_S = 10.0
CLOSE_DEADLINE_S = 10.0
"""Longest wait for the removal of old objects when the run ends."""

T = TypeVar("T")


class Stored:
    """Objects of a checkpoint.

    Args:
        store: where they are.
        root: folder of the working copy.
        log: prediction log, of which each checkpoint stores what is new; None: none is kept.

    Attributes:
        token: of this run's process; every rank has rank 0's.
    """

    def __init__(self, store: ObjectStore, root: Path, log: Path | None = None) -> None:
        self.store, self.root, self.log = store, root, log
        self.token = os.urandom(4).hex()
        self._pool = ThreadPoolExecutor(UPLOADS, thread_name_prefix="upload")
        self._closed = threading.Event()
        self._deadline_s = float("inf")
        self._away = False  # the last request failed, and the log says so
        self._collecting: Future[None] | None = None
        self._whole: set[str] = set()  # paths whose digests this process has checked

    @staticmethod
    def at(address: str | None, root: Path, log: Path | None = None) -> Stored | None:
        """Objects of an address; None if it is a folder."""
        if address is None or not is_object_address(address):
            return None
        return Stored(ObjectStore(address), root, log)

    @staticmethod
    def temporary(address: str) -> Stored:
        """Objects of an address for a reader, whose downloads are removed when it ends. Raises as `reach`."""
        folder = scratch_folder("checkpoint")
        stored = Stored(ObjectStore(address), folder)
        weakref.finalize(stored, remove_scratch, folder)
        stored.reach()
        return stored

    def reach(self) -> None:
        """Ask the store once. Raises ConfigError or ConnectError with what to change."""
        try:
            self.store.listed()
        except OSError as error:
            raise self.store.explain(error) from None

    def own(self) -> None:
        """Become the owner; on rank 0. Raises as `reach`."""
        try:
            self._put_owner()
        except OSError as error:
            raise self.store.explain(error) from None

    def _put_owner(self) -> None:
        owner = {"token": self.token, "host": socket.gethostname(), "pid": os.getpid(), "at_s": time.time()}
        self.store.put(OWNER, json.dumps(owner).encode())

    @property
    def name(self) -> str:
        """Address of the checkpoint, for messages."""
        return self.store.address

    def generations(self) -> list[int]:
        """Numbers of the generations that have a manifest, in any order."""
        keys = self._read(self.store.listed)
        return [number(Path(key).parent) for key in keys if Path(key).name == MANIFEST]

    def manifest(self, generation: int) -> Manifest:
        """Parse a manifest. Raises CheckpointError or MismatchError."""
        key = f"{folder_of(Path(), generation)}/{MANIFEST}"
        return Manifest.from_json(self._read(lambda: self.store.get(key)))

    def share(self, manifest: Manifest, control: Control) -> Sequence[FileEntry]:
        """Files that the rank of the same number wrote: most are those that it reads.

        Parts of the prediction log are left out; they are verified when they are read (`bring_back`).
        """
        rank, world = control.rank, control.world
        files = [entry for entry in manifest.files if entry.kind != PREDICTIONS]
        if manifest.world != world:
            return files[rank::world]
        return [entry for entry in files if _writer(entry) % world == rank]

    def ensure(self, entry: FileEntry) -> Path:
        """File of the working copy, downloaded unless it is there.

        Raises:
            CheckpointError: the object is not what was written.
            FileNotFoundError: there is no such object.
            ConnectError: the store is away.
        """
        path = path_of(self.root, entry)
        if entry.path in self._whole:
            return path
        try:
            verify_file(self.root, entry)
        except (FileNotFoundError, CheckpointError):
            data = self.read(entry)
            with writing("the local copy of the checkpoint", self.root):
                path.parent.mkdir(parents=True, exist_ok=True)
                scratch = path.with_name(f".{path.name}.{os.getpid()}")
                scratch.write_bytes(data)
                scratch.replace(path)
        self._whole.add(entry.path)
        return path

    def read(self, entry: FileEntry) -> bytes:
        """Bytes of an object. Raises as `ensure`."""
        data = self._read(lambda: self.store.get(entry.path))
        if hashlib.sha256(data).hexdigest() != entry.sha256:
            raise CheckpointError(f"{self.store.address}/{entry.path} is not what was written")
        return data

    def tensors_of(self, entry: FileEntry) -> set[str]:
        """Names of the tensors in a file, by its header alone."""
        path = self.root / entry.path
        if entry.path in self._whole:
            with path.open("rb") as file:
                return set(json.loads(file.read(int.from_bytes(file.read(8), "little"))))
        size = int.from_bytes(self._read(lambda: self.store.get(entry.path, 0, 8)), "little")
        return set(json.loads(self._read(lambda: self.store.get(entry.path, 8, size))))

    def upload(self, key: str, data: Callable[[], bytes]) -> Future[None]:
        """Upload bytes, which are read when their turn has come."""

        def send() -> None:
            held = data()
            self._write(key, lambda: self.store.put(key, held))

        return self._pool.submit(send)

    def seal(self, manifest: Manifest) -> Future[None]:
        """Put the manifest, if this trainer is still the owner; on rank 0.

        The future raises MismatchError if another trainer has taken the prefix.
        """
        key = f"{folder_of(Path(), manifest.generation)}/{MANIFEST}"

        def put() -> None:
            self._check_owner()
            self.store.put(key, manifest.to_json())

        return self._pool.submit(self._write, key, put)

    def _check_owner(self) -> None:
        try:
            owner = json.loads(self.store.get(OWNER))
        except FileNotFoundError:
            self._put_owner()
            return
        if owner["token"] != self.token:
            raise MismatchError(
                f"another trainer (process {owner['pid']} of {owner['host']}) has begun on the checkpoint "
                f"{self.store.address}, and this one stops; let one trainer run, or name another prefix"
            )

    def collect(self, manifests: Sequence[Manifest], below: int) -> None:
        """Remove objects of generations before `below` that no manifest names, in the background."""
        kept = {m.generation for m in manifests}
        named = {file.path for m in manifests for file in m.files}

        def remove() -> None:
            try:
                self._remove([key for key in self.store.listed() if _old(key, kept, below)], named)
            except OSError as error:
                LOG.warning(
                    "old objects of %s stay until the next checkpoint (%s)", self.store.address, error
                )

        if self._collecting is None or self._collecting.done():
            self._collecting = self._pool.submit(remove)

    def _remove(self, keys: Iterable[str], named: Set[str]) -> None:
        """Remove keys; manifests first, so that none names a missing object."""
        folders: dict[str, list[str]] = {}
        for key in keys:
            folders.setdefault(key.split("/")[0], []).append(key)
        for folder, held in folders.items():
            self.store.remove(f"{folder}/{MANIFEST}")
            if named.isdisjoint(held):
                self.store.remove_below(folder)
                continue
            for key in held:
                if key not in named:
                    self.store.remove(key)

    def remove_unfinished(self) -> None:
        """Remove what a killed process left behind: it is newer than every manifest. On rank 0."""
        keys = self._read(self.store.listed)
        newest = max((number(Path(key).parent) for key in keys if Path(key).name == MANIFEST), default=0)
        for folder in sorted({key.split("/")[0] for key in keys}):
            if number(Path(folder)) > newest:
                self._read(lambda folder=folder: self.store.remove_below(folder))  # type: ignore[misc]

    def hurry(self) -> None:
        """Give up a store that is away for long: the run ends."""
        self._deadline_s = time.monotonic() + LAST_DEADLINE_S

    def close(self) -> None:
        """End the threads, after old objects are removed; what is not uploaded is given up."""
        if self._collecting is not None:
            wait([self._collecting], CLOSE_DEADLINE_S)
        self._closed.set()
        self._pool.shutdown(cancel_futures=True)

    def _write(self, key: str, attempt: Callable[[], None]) -> None:
        """Try until it succeeds, the run is closed or its last deadline has passed."""
        self._repeat(attempt, lambda: self._deadline_s, f"{key} is not stored yet")

    def _read(self, attempt: Callable[[], T]) -> T:
        deadline_s = time.monotonic() + READ_DEADLINE_S
        return self._repeat(attempt, lambda: deadline_s, "the checkpoint cannot be read yet")

    def _repeat(self, attempt: Callable[[], T], deadline: Callable[[], float], what: str) -> T:
        pause_s = 0.5
        while True:
            try:
                result = attempt()
                if self._away:
                    LOG.info("%s answers again", self.store.address)
                self._away = False
                return result
            except FileNotFoundError:
                raise
            except OSError as error:
                telemetry.CHECKPOINT_STORE_FAILURES.inc()
                reason = self.store.explain(error)
                if not self._away:
                    LOG.warning("%s: %s; it is tried again until it succeeds", what, reason)
                self._away = True
                if self._closed.wait(pause_s) or time.monotonic() > deadline():
                    raise ConnectError(f"{what}, and the run ends: {reason}") from None
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def placed(address: str | Path) -> Folder | Stored:
    """Generations of a folder or an object store, to be read."""
    if isinstance(address, str) and is_object_address(address):
        return Stored.temporary(address)
    return Folder(Path(address))


def _writer(entry: FileEntry) -> int:
    """Rank that wrote a file, by its folder: rank-1.TOKEN, or rank-1."""
    return int(Path(entry.path).parent.name.removeprefix("rank-").split(".")[0])


def _old(key: str, kept: Collection[int], below: int) -> bool:
    generation = number(Path(key.split("/")[0]))
    return 0 < generation < below and generation not in kept
