"""Objects of an S3-compatible store, through pyarrow's file system: multi-part uploads and ranged reads.

An address is s3://BUCKET/PREFIX. Credentials, region and endpoint come from the usual variables
(AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION, AWS_ENDPOINT_URL), from
~/.aws, or from the machine's role; never from the command line.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from livectr.system.errors import ConfigError, ConnectError, UserError

if TYPE_CHECKING:
    from pyarrow import fs

SCHEME = "s3://"
PIECE_BYTES = 8 << 20
"""Bytes of a ranged read."""
CONNECT_S, SILENT_S = 5.0, 30.0
"""Time-outs of a connection, and of a transfer that stands still, in seconds."""
_DENIED = (
    "ACCESS_DENIED",
    "INVALID_ACCESS_KEY_ID",
    "SIGNATURE",
    "INVALID_CLIENT_TOKEN",
    "status 403",
    "status 401",
)


def is_object_address(address: str | Path | None) -> bool:
    """Tell if an address names objects rather than a folder."""
    return isinstance(address, str) and address.startswith(SCHEME)


def local_copy(address: str, folder: str | None = None) -> Path:
    """Folder of the local copy of what an address names: the address itself if it is a folder.

    Args:
        address: a folder, or s3://BUCKET/PREFIX.
        folder: folder of the user's choice; None: a folder of the address below LIVECTR_CACHE_DIR.
    """
    if not is_object_address(address):
        return Path(address)
    if folder is not None:
        return Path(folder)
    cache = Path(os.environ.get("LIVECTR_CACHE_DIR") or Path.home() / ".cache" / "livectr")
    readable = re.sub(r"[^\w.-]+", "-", address.removeprefix(SCHEME)).strip("-")[:80]
    place = f"{_endpoint() or ''} {address.rstrip('/')}"
    return cache / "checkpoints" / f"{readable}-{hashlib.sha256(place.encode()).hexdigest()[:8]}"


def refuse_objects(folder: Path) -> None:
    """Raise ConfigError for a folder that is the address of an object store."""
    if folder.parts[:1] == ("s3:",):
        address = SCHEME + "/".join(folder.parts[1:])
        raise ConfigError(
            f"a folder is read here, not {address}; copy the objects to a folder, such as by "
            f"`aws s3 sync {address} FOLDER`, and name that"
        )


class ObjectStore:
    """Objects below s3://BUCKET/PREFIX. Methods raise OSError if the store is away, and may be repeated.

    Raises:
        ConfigError: the address names no bucket.
    """

    def __init__(self, address: str) -> None:
        from pyarrow import fs

        self._base = address.removeprefix(SCHEME).rstrip("/")
        self.address = SCHEME + self._base
        if not self._base or self._base.startswith("/"):
            raise ConfigError(f"{address} names no bucket; say s3://BUCKET/PREFIX")
        endpoint = urlsplit(_endpoint() or "")
        if endpoint.scheme not in ("", "http", "https"):
            raise ConfigError("AWS_ENDPOINT_URL must begin with http:// or https://")
        self._fs: fs.S3FileSystem = fs.S3FileSystem(
            scheme=endpoint.scheme or "https",
            endpoint_override=endpoint.netloc or None,
            region=os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"),
            connect_timeout=CONNECT_S,
            request_timeout=SILENT_S,
            allow_delayed_open=True,
        )

    def put(self, key: str, data: bytes) -> None:
        """Write an object, in parts if it is large; it exists whole, or as it was before."""
        with self._fs.open_output_stream(self._path(key)) as stream:
            stream.write(data)

    def get(self, key: str, first: int = 0, size: int | None = None) -> bytes:
        """Bytes of an object from `first` on; None: all. Raises FileNotFoundError if it does not exist."""
        with self._fs.open_input_file(self._path(key)) as file:
            end = file.size() if size is None else min(first + size, file.size())
            return b"".join(
                file.read_at(min(PIECE_BYTES, end - at), at) for at in range(first, end, PIECE_BYTES)
            )

    def listed(self, under: str = "") -> list[str]:
        """Keys below the prefix; none if there is no such bucket."""
        from pyarrow import fs

        base = self._path(under).rstrip("/")
        found: list[Any] = self._fs.get_file_info(fs.FileSelector(base, allow_not_found=True, recursive=True))
        return [info.path[len(self._base) + 1 :] for info in found if info.type == fs.FileType.File]

    def remove(self, key: str) -> None:
        """Remove an object; none is fine."""
        try:
            self._fs.delete_file(self._path(key))
        except FileNotFoundError:
            return

    def remove_below(self, key: str) -> None:
        """Remove all objects below a key, a thousand a request."""
        self._fs.delete_dir(self._path(key))

    def explain(self, error: OSError) -> UserError:
        """Sentence of an error that says what to change."""
        text = str(error)
        at = _endpoint() or "AWS"
        if "NO_SUCH_BUCKET" in text:
            bucket = self._base.split("/")[0]
            return ConfigError(f"there is no bucket {bucket} at {at}; create it, or name another one")
        if any(word in text for word in _DENIED):
            return ConfigError(
                f"{at} does not let these credentials use {self.address}; set AWS_ACCESS_KEY_ID and "
                f"AWS_SECRET_ACCESS_KEY, or allow them the bucket ({_short(text)})"
            )
        if "status 301" in text or "REDIRECT" in text.upper():
            return ConfigError(f"the bucket of {self.address} is in another region; set AWS_REGION")
        return ConnectError(
            f"{self.address} cannot be reached at {at} ({_short(text)}); "
            "check AWS_ENDPOINT_URL and AWS_REGION"
        )

    def _path(self, key: str) -> str:
        return f"{self._base}/{key}" if key else self._base


def _endpoint() -> str | None:
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")


def _short(text: str) -> str:
    """The cause at the end of an error of AWS's client."""
    return text.split("operation: ")[-1].split("; Details")[0].split(" (Request ID")[0][:160]
