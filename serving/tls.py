"""TLS of a gRPC server, by PEM files that are read again when they change."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import grpc

from livectr.system.errors import ConfigError
from livectr.system.tls import FollowedFiles, TlsFiles


class Certificate(NamedTuple):
    """Certificate of a server, in PEM.

    Args:
        chain: leaf first.
        key: its private key.
        client_ca: authorities of clients, which then must show a certificate; None: any client may connect.
    """

    chain: bytes
    key: bytes
    client_ca: bytes | None


def server_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """Credentials that follow the files: each new connection looks at them.

    Raises:
        ConfigError: a file cannot be read, or they do not fit together.
    """
    followed = FollowedFiles(files, _configuration)
    return grpc.dynamic_ssl_server_credentials(
        followed.current(), followed.newer, require_client_authentication=files.client_ca is not None
    )


def followed_certificate(files: TlsFiles) -> FollowedFiles[Certificate]:
    """Certificate that follows the files. Raises ConfigError, as `server_credentials`."""
    return FollowedFiles(files, _certificate)


def _certificate(files: TlsFiles) -> Certificate:
    files.context()  # gRPC would fail at the first handshake only
    try:
        chain, key, *authorities = [Path(path).read_bytes() for path in files.paths]
    except OSError as error:
        raise ConfigError(f"TLS files {', '.join(files.paths)} cannot be used: {error}") from None
    return Certificate(chain, key, authorities[0] if authorities else None)


def _configuration(files: TlsFiles) -> grpc.ServerCertificateConfiguration:
    found = _certificate(files)
    return grpc.ssl_server_certificate_configuration([(found.key, found.chain)], found.client_ca)
