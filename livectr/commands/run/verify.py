"""`livectr query verify`: compare a server's replies with the checkpoint of the version that they name."""

import argparse
from pathlib import Path
from typing import Any

from livectr.commands.flags import command, count, duration_s, positive, seed
from livectr.commands.run.access import access_of, add_server_flags
from livectr.commands.settings import add_settings, settings_of
from livectr.system.heap import loading
from livectr.system.logs import log_to_stderr

EXAMPLES = """\
  livectr query verify --pipeline p.py --server localhost:50051 --checkpoint /data/c
  livectr query verify --pipeline p.py --server RANK:50051 --checkpoint /data/c --redis redis://REDIS:6379
  livectr query verify --pipeline p.py --server RANK:50051 --checkpoint /data/c --source kafka://BROKER:9092

It waits until the server serves a version whose state the checkpoint holds. Then it asks about ids of the
checkpoint, or about a log's impressions, and scores the same rows in plain torch. Look-up rows and histories
are live by design; it reads them from --redis. Exit code 0: replies are equal, and none differs. 1: a reply
differs, or nothing can be said."""


def add(commands: Any) -> None:
    """Add the command."""
    parser = command(
        commands,
        "verify",
        run,
        "compare a server's replies with the checkpoint of the version that they name",
        EXAMPLES,
    )
    add_server_flags(parser)
    parser.add_argument("--checkpoint", required=True, metavar="DIR", help="folder that its trainer writes")
    add_settings(parser, "verify")
    parser.add_argument(
        "--source",
        metavar="URL",
        help="ask about impressions of this log, file:DIR or kafka://HOST:PORT [ids of the checkpoint]",
    )
    parser.add_argument(
        "--requests", type=count, default=100, metavar="N", help="requests, of rank and of pre-rank [100]"
    )
    parser.add_argument("--candidates", type=count, default=50, metavar="N", help="of a request [50]")
    parser.add_argument(
        "--wait",
        type=duration_s,
        default=300.0,
        metavar="DURATION",
        help="time to wait for versions whose state a checkpoint holds [5m]",
    )
    parser.add_argument(
        "--tolerance",
        type=positive,
        default=1e-5,
        metavar="NUMBER",
        help="largest difference of an equal pCTR, and relative difference of a score of pre-rank [1e-5]",
    )
    parser.add_argument("--seed", type=seed, default=0, help="of the choice of requests [0]")
    parser.add_argument("--json", action="store_true", help="print JSON in place of a table")


def run(given: argparse.Namespace) -> int:
    """Verify, and print the counts.

    Raises:
        UserError: server, checkpoint, Redis and pipeline do not fit, or one is not there.
    """
    with loading(lean=given.alone):
        from livectr.ingest.content.folders import content_folders
        from livectr.verify.verify import VerifyOptions, verify

    log_to_stderr("text")
    pipeline, settings = settings_of(given)
    options = VerifyOptions(
        pipeline=pipeline,
        server=given.server,
        checkpoint=Path(given.checkpoint),
        redis=settings.redis,
        namespace=settings.namespace,
        requests=given.requests,
        candidates=given.candidates,
        source=given.source,
        wait_s=given.wait,
        timeout_s=given.timeout,
        tolerance=given.tolerance,
        content=content_folders(settings.content),
        **access_of(given),
        seed=given.seed,
    )
    report = verify(options)
    report.show(as_json=given.json)
    return report.code
