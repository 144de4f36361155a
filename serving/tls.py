"""TLS of a gRPC server, by PEM files that are read again when they change."""

from __future__ import annotations

from pathlib import Path

import grpc

from livectr.system.errors import ConfigError
from livectr.system.tls import FollowedFiles, TlsFiles


def server_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """Credentials that follow the files: each new connection looks at them.

    Raises:
        ConfigError: a file cannot be read, or they do not fit together.
    """
    followed = FollowedFiles(files, _configuration)
    return grpc.dynamic_ssl_server_credentials(
        followed.current(), followed.newer, require_client_authentication=files.client_ca is not None
    )


def _configuration(files: TlsFiles) -> grpc.ServerCertificateConfiguration:
    files.context()  # gRPC would fail at the first handshake only
    try:
        cert, key, *authorities = [Path(path).read_bytes() for path in files.paths]
    except OSError as error:
        raise ConfigError(f"TLS files {', '.join(files.paths)} cannot be used: {error}") from None
    return grpc.ssl_server_certificate_configuration([(key, cert)], authorities[0] if authorities else None)
