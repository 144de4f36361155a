"""TLS of a server, by PEM files that are read again when they change.

cert-manager and its kin renew a certificate by replacing its files. Every new connection looks at the files,
and a change is used from this connection on. Files that do not fit together, as in the middle of a
replacement, leave the certificate in use as it is.
"""

from __future__ import annotations

import logging
import ssl
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import grpc

from livectr.kernels.errors import ConfigError

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

    def credentials(self) -> grpc.ServerCredentials:
        """Credentials that follow the files.

        Raises:
            ConfigError: a file cannot be read, or they do not fit together.
        """
        reload = _Reload(self)  # before the files are read: a change in between is then seen
        return grpc.dynamic_ssl_server_credentials(
            _configuration(self), reload, require_client_authentication=self.client_ca is not None
        )

    @property
    def paths(self) -> list[str]:
        """Paths of all files."""
        return [path for path in (self.cert, self.key, self.client_ca) if path is not None]


class _Reload:
    """Callback of gRPC for each new connection: the new configuration, or None."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._seen: list[tuple[int, int, int]] | None = None
        with suppress(OSError):  # `_configuration` says it in a sentence
            self._seen = self._stamps()

    def __call__(self) -> grpc.ServerCertificateConfiguration | None:
        with self._lock:
            try:
                stamps = self._stamps()
                if stamps == self._seen:
                    return None
                self._seen = stamps
                configuration = _configuration(self._files)
            except (OSError, ConfigError) as error:
                log.error("TLS files changed, but cannot be used; the former ones stay in use: %s", error)
                return None
            log.info("TLS files were read again")
            return configuration

    def _stamps(self) -> list[tuple[int, int, int]]:
        return [(s.st_mtime_ns, s.st_ino, s.st_size) for s in (Path(p).stat() for p in self._files.paths)]


def _configuration(files: TlsFiles) -> grpc.ServerCertificateConfiguration:
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # gRPC would fail at the first handshake only. An encrypted key must not ask for its password.
        context.load_cert_chain(files.cert, files.key, password=lambda: "")
        if files.client_ca is not None:
            context.load_verify_locations(files.client_ca)
        contents = [Path(path).read_bytes() for path in files.paths]
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"TLS files {', '.join(files.paths)} cannot be used: {error}") from None
    cert, key, *authorities = contents
    return grpc.ssl_server_certificate_configuration([(key, cert)], authorities[0] if authorities else None)
