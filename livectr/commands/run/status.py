"""`livectr status`: one screen for all processes of a run."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

from livectr.commands.flags import command, duration_s
from livectr.commands.run.access import add_tls, tls_of
from livectr.system.errors import ConfigError, ConnectError

if TYPE_CHECKING:
    from livectr.status.figures import Status
    from livectr.status.gather import Gatherer, Places

EXAMPLES = """\
  livectr status
  livectr status my_ads/pipeline.py --watch
  livectr status --redis redis://redis:6379 --prometheus trainer-0:9100 trainer-1:9100 rank:9100
  livectr status --server rank:50051 --checkpoint /data/checkpoint --json | jq .servers"""
NAMESPACE = "livectr"


def add(commands: Any) -> None:
    """Add the command."""
    about = "show what runs: lag, quality, freshness, versions, dead letters, servers, on one screen"
    parser = command(commands, "status", run, about, EXAMPLES)
    parser.add_argument(
        "run_of", nargs="?", metavar="DIR|FILE.py", help="folder of a run of `livectr up`, or its pipeline"
    )
    many: dict[str, Any] = dict(action="extend", nargs="+", default=[])
    parser.add_argument(
        "--prometheus",
        metavar="HOST:PORT",
        help="metrics of trainers' ranks and of servers; URLs, too. Ranks follow their rank 0",
        **many,
    )
    parser.add_argument("--server", metavar="HOST:PORT", help="servers, asked over gRPC", **many)
    parser.add_argument("--redis", metavar="URL", help="Redis that versions are published to")
    parser.add_argument("--namespace", default=NAMESPACE, help=f"prefix of the keys in Redis [{NAMESPACE}]")
    parser.add_argument("--checkpoint", metavar="DIR", help="checkpoints of a trainer", **many)
    parser.add_argument("--timeout", type=duration_s, default=2.0, metavar="DURATION", help="[2s]")
    parser.add_argument("--token-file", metavar="FILE", help="token (first line) where a server asks for one")
    add_tls(parser)
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument(
        "--watch",
        nargs="?",
        type=duration_s,
        const=2.0,
        metavar="DURATION",
        help="look again and again, until Ctrl-C [2s]",
    )
    shown.add_argument("--json", action="store_true", help="print JSON in place of tables")


def run(given: argparse.Namespace) -> int:
    """Show the status. Raises ConnectError when nothing answers."""
    from livectr.status.gather import Gatherer

    places = _places(given)
    gatherer = Gatherer(places)
    if given.watch is not None:
        return _watch(gatherer, given.watch)
    status = gatherer.look()
    if given.json:
        import dataclasses
        import json

        print(json.dumps(dataclasses.asdict(status)))
    else:
        _show(status)
    if not (status.parts or status.trainers or status.servers or status.published or status.checkpoints):
        raise ConnectError("nothing of what was named answers.")
    return 0


def _places(given: argparse.Namespace) -> Places:
    """Places that are named, or the runs of this working directory."""
    from livectr.serving.access.tokens import read_token
    from livectr.status.gather import Places
    from livectr.up.runs import chosen_folder, known_folders

    named = given.prometheus or given.server or given.redis or given.checkpoint
    if given.run_of is not None:
        folders = [chosen_folder(given.run_of)]
    elif named:
        folders = []
    else:
        known = known_folders()
        folders = [folder for folder in known if folder.running] or known
        if not folders:
            raise ConfigError(
                "nothing was run from here: name the folder of a run, or where to look (--prometheus, "
                "--server, --redis, --checkpoint)."
            )
    return Places(
        folders=tuple(folders),
        metrics=tuple(given.prometheus),
        servers=tuple(given.server),
        redis=((given.redis, given.namespace),) if given.redis else (),
        checkpoints=tuple(given.checkpoint),
        tls=tls_of(given),
        token=read_token(given.token_file) if given.token_file else None,
        timeout_s=given.timeout,
    )


def _show(status: Status) -> None:
    from livectr.console import make_console
    from livectr.status.screen import screen

    make_console().print(screen(status))


def _watch(gatherer: Gatherer, every_s: float) -> int:
    """Draw the screen again and again; in a pipe, one after the other."""
    from rich.live import Live

    from livectr.console import make_console
    from livectr.status.screen import screen

    console = make_console()
    if not console.is_terminal:
        while True:
            console.print(screen(gatherer.look()))
            time.sleep(every_s)
    with Live(screen(gatherer.look()), console=console, screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(every_s)
            live.update(screen(gatherer.look()), refresh=True)
