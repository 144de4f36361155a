"""`livectr serve rank|prerank|recommend`: answer requests over gRPC."""

import argparse
import os
from typing import Any

from livectr.commands.flags import command, group
from livectr.commands.run import serve_json
from livectr.commands.settings import add_settings, settings_of, start_log
from livectr.config.settings import options_of
from livectr.system.heap import loading
from livectr.system.signals import end_at_sigterm

ROLES = {
    "rank": "predict CTR of candidates and order them by expected revenue",
    "prerank": "choose the best few of many ads by user and ad vectors",
    "recommend": "choose by pre-rank and order by rank in one call, and answer rank and pre-rank, too",
}


def add(commands: Any) -> None:
    """Add the commands."""
    about = "answer rank, pre-rank or recommend requests over gRPC"
    roles = group(commands, "serve", about, "rank|prerank|recommend|json")
    for role, help in ROLES.items():
        server = command(
            roles,
            role,
            run,
            help,
            f"  livectr serve {role} --pipeline p.py --redis redis://localhost:6379 --listen 0.0.0.0:50051",
        )
        server.set_defaults(role=role)
        add_settings(server, role)
    serve_json.add(roles)


def run(given: argparse.Namespace) -> int:
    """Serve until SIGTERM or Ctrl-C."""
    end_at_sigterm()
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its C core would write beside our messages
    with loading(lean=True):
        from livectr.serving.app import serve_prerank, serve_rank, serve_recommend
        from livectr.serving.options import ServeOptions

        start_log(given, given.role)
        pipeline, settings = settings_of(given)
    options = options_of(ServeOptions, settings)
    serve = {"rank": serve_rank, "prerank": serve_prerank, "recommend": serve_recommend}[given.role]
    serve(pipeline, options)
    return 0
