"""Bearer tokens of clients, in a file that is read again when it changes.

    # the application
    5bO0rZk2…           Rank Recommend Describe
    # the people on call: every method
    Jq8w1nXc…

A line holds a token and the methods that it may call; none: all. The rest of a line behind # is a comment. A
file that cannot be used, as in the middle of a replacement, leaves the tokens in use as they are.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

from livectr.protos import livectr_pb2 as pb
from livectr.serving.errors import ForbiddenError, UnauthenticatedError
from livectr.system.errors import ConfigError, reason_of

log = logging.getLogger(__name__)

REFLECTION = "ServerReflectionInfo"
METHODS = (
    *(method for service in pb.DESCRIPTOR.services_by_name.values() for method in service.methods_by_name),
    REFLECTION,
)
"""Methods that a line may name."""
_LEAST_CHARACTERS = 16
_SCHEME = "bearer "
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")
"""Characters of a token by RFC 6750."""

_Digests = Sequence[tuple[bytes, frozenset[str]]]


class Tokens:
    """Tokens of a file. Any thread may call it.

    Args:
        path: the file; every check looks whether it has changed.

    Raises:
        ConfigError: the file cannot be used.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._lock = threading.Lock()
        self._stamp = self._stamp_now()
        self._digests = _read(self._path)

    def check(self, method: str, headers: Iterable[tuple[str, str | bytes]]) -> None:
        """Check that a call may be answered.

        Args:
            method: name of the method, without its service.
            headers: metadata of the call; `authorization` holds "Bearer TOKEN".

        Raises:
            UnauthenticatedError: there is no token, or it is not in the file.
            ForbiddenError: the token may not call the method.
        """
        given = next((value for name, value in headers if name == "authorization"), None)
        if not isinstance(given, str) or given[: len(_SCHEME)].lower() != _SCHEME:
            raise UnauthenticatedError('send a token: the header authorization with "Bearer TOKEN"')
        digest, allowed = _digest(given[len(_SCHEME) :].strip()), None
        for known, methods in self._current():  # to the end: the time must not tell which line fits
            if hmac.compare_digest(known, digest):
                allowed = methods
        if allowed is None:
            raise UnauthenticatedError("the token is not known here")
        if allowed and method not in allowed:
            raise ForbiddenError(f"the token may not call {method}")

    def _current(self) -> _Digests:
        stamp = self._stamp_now()
        if stamp != self._stamp:
            with self._lock:
                if stamp != self._stamp:
                    self._stamp = stamp  # before the file is read: a change in between is then seen
                    try:
                        self._digests = _read(self._path)
                        log.info("the tokens were read again")
                    except ConfigError as error:
                        log.error("the former tokens stay in use: %s", error)
        return self._digests

    def _stamp_now(self) -> tuple[int, int, int] | None:
        try:
            stat = self._path.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_ino, stat.st_size


def read_token(path: str | Path) -> str:
    """First token of a file, for a client. Raises ConfigError when the file holds none."""
    return next(iter(_lines(Path(path))))[1]


def _read(path: Path) -> _Digests:
    digests = []
    for number, token, methods in _lines(path):
        if len(token) < _LEAST_CHARACTERS or not _TOKEN.fullmatch(token):
            raise ConfigError(
                f"token_file: line {number} of {path} holds no token of at least {_LEAST_CHARACTERS} "
                "letters, digits or . _ ~ + / = -; make one with `openssl rand -hex 32`"
            )
        if unknown := [name for name in methods if name not in METHODS]:
            raise ConfigError(
                f"token_file: line {number} of {path} names the method {unknown[0]!r}, but there are "
                f"{', '.join(METHODS)}"
            )
        digests.append((_digest(token), frozenset(methods)))
    return digests


def _lines(path: Path) -> list[tuple[int, str, list[str]]]:
    """Number, token and methods of each line."""
    try:
        lines = [line.partition("#")[0].split() for line in path.read_text().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"token_file: {path} cannot be read ({reason_of(error)})") from None
    found = [(number, words[0], words[1:]) for number, words in enumerate(lines, 1) if words]
    if not found:
        raise ConfigError(f"token_file: {path} holds no token; write one a line")
    return found


def _digest(token: str) -> bytes:
    """Digests have one length, so comparing them takes one time."""
    return hashlib.sha256(token.encode()).digest()
