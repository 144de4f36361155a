"""Channels to a server: a pool with retries and keepalive, with TLS or without.

Retries are gRPC's own, by its service config: an unavailable server is asked again within the deadline, after
a random wait that doubles. Each failure takes a token of 100, and each success gives back a tenth. With 50 or
fewer tokens no call is made again, so that an outage is not made worse (retryThrottling, gRFC A6).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from livectr.system.errors import ConfigError

ChannelOptions = Sequence[tuple[str, Any]]
"""Options of gRPC channels; a later option of a name takes the place of an earlier one."""

KEEPALIVE_S = 30.0
"""Seconds without a message after which the server must answer a ping. Servers take one every 10 s."""
_FIRST_RECONNECT_MS, _RECONNECT_MS = 50, 5_000
"""First and longest wait before a server that was away is tried again.

gRPC's own first wait is 1 s. Calls are made again for a third of that: where a server is replaced on its
port, one connection that the old process resets would fail them all.
"""
_PING_TIMEOUT_MS = 5_000
"""Milliseconds in which a ping must be answered, or the connection is given up."""

_SERVICE_CONFIG = json.dumps(
    {
        # Spread channels over several servers; a channel tries the next server on failure.
        "loadBalancingConfig": [{"pick_first": {"shuffleAddressList": True}}],
        "methodConfig": [
            {
                "name": [{}],
                "retryPolicy": {
                    "maxAttempts": 4,
                    "initialBackoff": "0.05s",
                    "maxBackoff": "1s",
                    "backoffMultiplier": 2,
                    # gRPC's C core answers a call that arrives when a server stops with CANCELLED.
                    "retryableStatusCodes": ["UNAVAILABLE", "CANCELLED"],
                },
            }
        ],
        "retryThrottling": {"maxTokens": 100, "tokenRatio": 0.1},
    }
)

_OPTIONS: ChannelOptions = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.service_config", _SERVICE_CONFIG),
    ("grpc.initial_reconnect_backoff_ms", _FIRST_RECONNECT_MS),
    ("grpc.max_reconnect_backoff_ms", _RECONNECT_MS),
    ("grpc.keepalive_time_ms", round(1000 * KEEPALIVE_S)),
    ("grpc.keepalive_timeout_ms", _PING_TIMEOUT_MS),
    ("grpc.http2.ping_timeout_ms", _PING_TIMEOUT_MS),  # of pings that measure the bandwidth, too
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)


@dataclass(frozen=True)
class ClientTls:
    """PEM files of a client.

    Args:
        ca: authorities that the server's certificate may be of.
        cert: own certificate chain, for servers that ask for one.
        key: its private key.
    """

    ca: str
    cert: str | None = None
    key: str | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """Credentials of a channel. Raises ConfigError when a file cannot be read."""
        try:
            ca, key, cert = (Path(p).read_bytes() if p else None for p in (self.ca, self.key, self.cert))
        except OSError as error:
            raise ConfigError(f"{error.filename} cannot be read: {error.strerror}") from None
        return grpc.ssl_channel_credentials(ca, key, cert)


class ChannelPlan:
    """Channels that will be opened, each with connections of its own.

    Args:
        address: HOST:PORT; any target that gRPC knows.
        count: of channels.
        tls: files for a server with TLS; None: without TLS.
        options: more options of the channels.

    Raises:
        ConfigError: no channel, or a file cannot be read.
    """

    def __init__(self, address: str, count: int, tls: ClientTls | None, options: ChannelOptions) -> None:
        if count < 1:
            raise ConfigError(f"channels is {count}, but must be at least 1")
        # Channels of equal options share connections, unless their pool is their own.
        own = [("grpc.use_local_subchannel_pool", 1)] if count > 1 else []
        self.address, self.count = address, count
        # gRPC would take the first of a name
        self._options = list(dict([*_OPTIONS, *own, *options]).items())
        self._credentials = None if tls is None else tls.credentials()

    def open(self, api: Any) -> list[Any]:
        """Channels of `grpc`, or of `grpc.aio` for the loop that runs."""
        if self._credentials is None:
            return [api.insecure_channel(self.address, options=self._options) for _ in range(self.count)]
        return [
            api.secure_channel(self.address, self._credentials, options=self._options)
            for _ in range(self.count)
        ]
