"""Access to a server that a command asks: its address, time-out, token and TLS."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from livectr.commands.flags import duration_s
from livectr.system.errors import ConfigError

if TYPE_CHECKING:
    from livectr.client.clients import ClientTls


def add_server_flags(parser: Any) -> None:
    """Add the flags of a server that is asked, for `access_of`."""
    parser.add_argument("--server", required=True, metavar="HOST:PORT")
    parser.add_argument("--timeout", type=duration_s, default=5.0, metavar="DURATION", help="[5s]")
    parser.add_argument("--token-file", metavar="FILE", help="token (first line) where it asks for one")
    add_tls(parser)


def add_tls(parser: Any) -> None:
    """Add the flags of a client's TLS, for `tls_of`."""
    parser.add_argument("--tls-ca", metavar="FILE", help="authorities (PEM) of a server with TLS")
    parser.add_argument("--tls-cert", metavar="FILE", help="own certificate (PEM), where it asks for one")
    parser.add_argument("--tls-key", metavar="FILE", help="private key (PEM) of --tls-cert")


def access_of(given: argparse.Namespace) -> dict[str, Any]:
    """TLS and token of a client. Raises ConfigError for flags or a file that do not fit."""
    from livectr.serving.access.tokens import read_token

    return {"tls": tls_of(given), "token": read_token(given.token_file) if given.token_file else None}


def tls_of(given: argparse.Namespace) -> ClientTls | None:
    """Files of the flags; None: no TLS. Raises ConfigError: a flag is missing."""
    from livectr.client.clients import ClientTls

    if (given.tls_cert is None) != (given.tls_key is None):
        raise ConfigError("a certificate needs its key: say --tls-cert and --tls-key.")
    if given.tls_ca is None:
        if given.tls_cert is not None:
            raise ConfigError("say --tls-ca, too: the authorities of the server.")
        return None
    return ClientTls(given.tls_ca, given.tls_cert, given.tls_key)
