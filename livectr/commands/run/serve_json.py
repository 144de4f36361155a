"""`livectr serve json`: a server's calls as JSON over HTTP, and a page to try them."""

import argparse
import os
import socket
from typing import Any

from livectr.commands.flags import command, count, duration_s
from livectr.commands.run.access import add_tls, tls_of
from livectr.commands.settings import add_log_flags
from livectr.system.errors import ConfigError
from livectr.system.signals import end_at_sigterm

EXAMPLES = """\
  livectr serve json --target localhost:50051
  curl --json '{"context": {"user_id": 42}, "candidates": {"ad_id": [1, 2, 3]}}' localhost:8080/v1/rank"""


def add(roles: Any) -> None:
    """Add the command to those of `livectr serve`."""
    parser = command(
        roles,
        "json",
        run,
        "answer JSON over HTTP, and show a page to try requests, by asking a server",
        EXAMPLES,
    )
    parser.add_argument("--target", required=True, metavar="HOST:PORT", help="gRPC server to ask")
    parser.add_argument(
        "--listen",
        default="127.0.0.1:8080",
        metavar="HOST:PORT",
        help="address to answer on (port 0: a free one) [127.0.0.1:8080]",
    )
    parser.add_argument(
        "--timeout",
        type=duration_s,
        default=5.0,
        metavar="DURATION",
        help="longest deadline of a request [5s]",
    )
    parser.add_argument(
        "--max-body-bytes", type=count, default=8 << 20, metavar="N", help="largest request [8388608]"
    )
    parser.add_argument(
        "--channels", type=count, default=1, metavar="N", help="connections to the server [1]"
    )
    add_tls(parser)
    add_log_flags(parser, "json")


def run(given: argparse.Namespace) -> int:
    """Answer until SIGTERM or Ctrl-C.

    Raises:
        ConfigError: the packages of `livectr[json]` are missing, or the address cannot be listened on.
    """
    end_at_sigterm()
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        import uvicorn

        from livectr.serving.front.web import WebLimits, web_application
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("livectr"):
            raise
        raise ConfigError(f"the package {error.name} is missing: pip install 'livectr[json]'.") from None
    from livectr.serving.front.requests import EveryClient

    listening = _listen(given.listen)
    host, port = given.listen.rpartition(":")[0], listening.getsockname()[1]
    with EveryClient(given.target, given.timeout, tls=tls_of(given), channels=given.channels) as client:
        application = web_application(client, WebLimits(given.timeout, given.max_body_bytes))
        config = uvicorn.Config(
            application,
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="off",
            timeout_graceful_shutdown=round(given.timeout) + 1,
        )
        print(f"json front ready on http://{host}:{port} (asks {given.target})", flush=True)
        uvicorn.Server(config).run(sockets=[listening])
    return 0


def _listen(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal() and int(port) < 65536):
        raise ConfigError(f"--listen is {address!r}, but must be HOST:PORT with a port up to 65535.")
    try:
        family = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host.strip("[]"), int(port)), family=family)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {address} ({error.strerror}): choose a free HOST:PORT."
        ) from None
