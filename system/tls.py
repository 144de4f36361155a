"""TLS by PEM files that are read again when they change.

cert-manager and its kin renew a certificate by replacing its files. Every new connection looks at the files,
and a change is used from this connection on. Files that do not fit together, as in the middle of a
replacement, leave the certificate in use as it is.
"""

from __future__ import annotations

import logging
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Self, TypeVar

from livectr.system.errors import ConfigError

T = TypeVar("T")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TlsFiles:
    """PEM files of a server.

    Args:
        cert: chain of the server's certificate, leaf first.
        key: its private key.
        client_ca: authorities of clients; clients must then show a certificate. None: any client may connect.
    """

    cert: str
    key: str
    client_ca: str | None = None

    @classmethod
    def of_settings(
        cls, cert: str | None, key: str | None, client_ca: str | None, *, prefix: str = ""
    ) -> Self | None:
        """Files of three settings; None: all are left out.

        Args:
            cert: file of the certificate.
            key: file of its key.
            client_ca: file of the authorities of clients.
            prefix: of the settings' names, "metrics_" for `metrics_tls_cert`.

        Raises:
            ConfigError: a setting needs another one.
        """
        names = f"{prefix}tls_cert and {prefix}tls_key"
        if (cert is None) != (key is None):
            raise ConfigError(f"TLS needs both files: set {names}")
        if cert is None or key is None:
            if client_ca is not None:
                raise ConfigError(f"clients show certificates only over TLS: set {names}, too")
            return None
        return cls(cert, key, client_ca)

    @property
    def paths(self) -> list[str]:
        """Paths of all files."""
        return [path for path in (self.cert, self.key, self.client_ca) if path is not None]

    def context(self) -> ssl.SSLContext:
        """Context of a server with these files.

        Raises:
            ConfigError: a file cannot be read, or they do not fit together.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            # An encrypted key must not ask for its password.
            context.load_cert_chain(self.cert, self.key, password=lambda: "")
            if self.client_ca is not None:
                context.load_verify_locations(self.client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"TLS files {', '.join(self.paths)} cannot be used: {error}") from None
        return context

    def stamps(self) -> list[tuple[int, int, int]]:
        """Time, inode and size of each file. Raises OSError for a file that is not there."""
        return [(s.st_mtime_ns, s.st_ino, s.st_size) for s in (Path(p).stat() for p in self.paths)]


class FollowedFiles(Generic[T]):
    """Value that is made of TLS files, made again when they change. Any thread may call it.

    Args:
        files: the files.
        make: makes the value; raises ConfigError for files that cannot be used.

    Raises:
        ConfigError: the files cannot be used.
    """

    def __init__(self, files: TlsFiles, make: Callable[[TlsFiles], T]) -> None:
        self._files, self._make = files, make
        self._lock = threading.Lock()
        self._seen: list[tuple[int, int, int]] | None = None
        with suppress(OSError):  # `make` says it in a sentence
            self._seen = files.stamps()  # before the files are read: a change in between is then seen
        self._value = make(files)

    def current(self) -> T:
        """Value of the files as they are, or the former one while they cannot be used."""
        self.newer()
        return self._value

    def newer(self) -> T | None:
        """Value of files that have changed since the last call; None: they have not, or cannot be used."""
        with self._lock:
            try:
                stamps = self._files.stamps()
                if stamps == self._seen:
                    return None
                self._seen = stamps
                self._value = self._make(self._files)
            except (OSError, ConfigError) as error:
                log.error("TLS files changed, but cannot be used; the former ones stay in use: %s", error)
                return None
            log.info("TLS files were read again")
            return self._value
