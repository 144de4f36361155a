"""Schema registry: schemas of messages by their id, over HTTP (Confluent's API, which others speak, too).

A message in the registry's wire format is a zero byte, the schema's id in four bytes (big-endian), and the
record in that schema. Schemas never change, so they are kept for good. While the registry is away, reading
waits for it as for a broker.
"""

from __future__ import annotations

import base64
import json
import logging
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from livectr.system.errors import ConfigError, ConnectError

MARK = b"\0"
HEAD_BYTES = 5
_REQUEST_S = 5.0
_BACKOFF_S = (0.2, 5.0)
_WARN_EVERY_S = 30.0
UNKNOWN_S = 30.0
"""Time for which an id without schema is not asked for again."""

_OTHER_FORMATS = (400, 406, 415, 422, 501)
"""Answers of registries that do not know a format."""
_CLOSED = (401, 403, 405, *_OTHER_FORMATS)
"""Answers of registries that do not list versions, or not to us."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Wanted:
    """Columns to read from messages.

    Args:
        columns: their names.
        nanos: those that hold times in nanoseconds.
        key: the only field of a message key is wanted, whatever its name.
    """

    columns: tuple[str, ...]
    nanos: frozenset[str] = frozenset()
    key: bool = False


KEY = Wanted((), key=True)


class SchemaRegistry:
    """Client of a registry.

    Args:
        url: http:// or https:// address, such as `http://registry:8081`.
        auth: "user:password"; None: none is sent.
        ca: PEM file of the authorities of its certificate; None: those of the machine.
        stopping: tells that the run ends, so that waits are given up.

    Raises:
        ConfigError: the file of authorities cannot be used.
    """

    def __init__(
        self,
        url: str,
        *,
        auth: str | None = None,
        ca: str | None = None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self.url = url.rstrip("/")
        self._stopping = stopping
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if auth is not None:
            self._headers["Authorization"] = "Basic " + base64.b64encode(auth.encode()).decode()
        try:
            self._tls = ssl.create_default_context(cafile=ca) if url.startswith("https:") else None
        except OSError as error:
            raise ConfigError(f"schema registry {url}: {ca} cannot be used ({error})") from None
        self._answers: dict[str, Any] = {}
        self._unknown: dict[str, float] = {}

    def check(self) -> None:
        """Check that a registry answers.

        Raises:
            ConnectError: the registry does not answer.
            ConfigError: it refuses us, or it is something else.
        """
        try:
            self._get("/schemas/types")
        except urllib.error.HTTPError as error:
            if error.code in (401, 403):
                raise ConfigError(
                    f"the schema registry {self.url} refuses us ({error}): check registry_auth_file or "
                    "registry_auth_env"
                ) from None
            raise ConfigError(f"{self.url} is no schema registry: /schemas/types gives {error}") from None
        except (OSError, ValueError) as error:
            raise ConnectError(
                f"no schema registry answers at {self.url} ({_why(error)}); start it or correct the address"
            ) from None

    def schema(self, number: int) -> dict[str, Any] | None:
        """Schema of an id: `schema`, `schemaType` and `references`, as the registry has it.

        It waits while the registry is away. None: the registry has no such id.
        """
        found: dict[str, Any] | None = self._wanted(id_path(number))
        return found

    def version(self, subject: str, version: int) -> dict[str, Any] | None:
        """Version of a subject, to which another schema refers; None: not in the registry."""
        found: dict[str, Any] | None = self._wanted(version_path(subject, version))
        return found

    def references(self, found: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Schemas to which a schema refers: name of each reference → schema.

        Raises:
            ValueError: one is not there.
        """
        others = {}
        for reference in found.get("references") or []:
            other = self.version(reference["subject"], reference["version"])
            if other is None:
                raise ValueError(
                    f"it refers to {reference['subject']} {reference['version']}, which is not there"
                )
            path = version_path(reference["subject"], reference["version"])
            others[reference["name"]] = {**other, "path": path}
        return others

    def serialized(self, path: str) -> str | None:
        """Text of a Protobuf schema as a descriptor in base64; None: the registry knows no such format.

        Args:
            path: of the schema, as `/schemas/ids/7`.
        """
        answer = self._wanted(f"{path}?format=serialized", refusals=_OTHER_FORMATS)
        return None if answer is None else str(answer["schema"])

    def siblings(self, number: int) -> Iterator[dict[str, Any]]:
        """Schemas of the subjects that have the schema of an id, newest first, each with its `path`.

        Nothing where the registry does not list them.
        """
        for entry in self._wanted(f"{id_path(number)}/versions", keep=False, refusals=_CLOSED) or []:
            subject = entry["subject"]
            listed = self._wanted(f"/subjects/{_quoted(subject)}/versions", keep=False, refusals=_CLOSED)
            for version in sorted(listed or [], reverse=True):
                path = version_path(subject, version)
                found = self._wanted(path, refusals=_CLOSED)
                if found is not None:
                    yield {**found, "path": path}

    def _wanted(self, path: str, *, keep: bool = True, refusals: tuple[int, ...] = ()) -> Any:
        """Answer of the registry, for which it waits; None: not in the registry.

        Args:
            path: of the question, behind the registry's address.
            keep: the answer never changes.
            refusals: HTTP codes that mean "not in the registry", beside 404.
        """
        if path in self._answers:
            return self._answers[path]
        if time.monotonic() < self._unknown.get(path, 0.0):
            return None
        backoff_s, warned_s = _BACKOFF_S[0], float("-inf")
        while True:
            try:
                answer = self._get(path)
                if not isinstance(answer, dict if keep else list):
                    raise TypeError(f"{path} gives a {type(answer).__name__}")
            except urllib.error.HTTPError as error:
                if error.code == 404 or error.code in refusals:
                    self._unknown[path] = time.monotonic() + UNKNOWN_S
                    return None
                trouble = str(error)
            except (OSError, ValueError, TypeError) as error:
                trouble = _why(error)
            else:
                if warned_s > 0:
                    _log.warning("the schema registry %s answers again", self.url)
                if keep:
                    self._answers[path] = answer
                return answer
            if time.monotonic() - warned_s > _WARN_EVERY_S:
                warned_s = time.monotonic()
                _log.warning("reading waits for the schema registry %s (%s)", self.url, trouble)
            self._rest(backoff_s)
            backoff_s = min(2 * backoff_s, _BACKOFF_S[1])

    def _rest(self, seconds: float) -> None:
        """Sleep. Raises ConnectError when the run ends."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self._stopping():
                raise ConnectError(f"the schema registry {self.url} did not answer until the end of the run")
            time.sleep(0.05)

    def _get(self, path: str) -> Any:
        request = urllib.request.Request(self.url + path, headers=self._headers)
        with urllib.request.urlopen(request, timeout=_REQUEST_S, context=self._tls) as answer:
            return json.loads(answer.read())


def id_path(number: int) -> str:
    """Path of the schema of an id."""
    return f"/schemas/ids/{number}"


def version_path(subject: str, version: int) -> str:
    """Path of a version of a subject."""
    return f"/subjects/{_quoted(subject)}/versions/{version}"


def _quoted(subject: str) -> str:
    return urllib.parse.quote(subject, safe="")


def _why(error: Exception) -> str:
    return str(error.reason if isinstance(error, urllib.error.URLError) else error)
