"""`livectr train`: learn from logs, commit checkpoints, publish versions."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import socket
import sys
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

from livectr.commands.flags import command
from livectr.commands.run.live import add_live, shown_live
from livectr.commands.settings import (
    add_settings,
    given_settings,
    outer_setting,
    settings_of,
    start_log,
)  # fmt: skip
from livectr.config.settings import SECRET, options_of
from livectr.config.supervision import check_supervision, gang_of
from livectr.local.ranks import SET_ASIDE, UNFINISHED
from livectr.secrets import without_flags
from livectr.system.children import follow_parent
from livectr.system.errors import ConfigError
from livectr.system.heap import loading
from livectr.system.logs import tell
from livectr.system.object_store import local_copy
from livectr.system.signals import end_at_sigterm

if TYPE_CHECKING:
    from livectr.config.settings import Settings
    from livectr.trainer.report import Report

ROWS = 4
"""Exit code of a run that came to its end, but of whose rows too many were set aside."""
EXAMPLES = """\
  livectr train --pipeline p.py --source file:/tmp/logs --until-end --report report.json
  livectr train --pipeline p.py --source file:/tmp/logs --until-end --json | jq .auc
  livectr train --pipeline p.py --source kafka://localhost:9092 --checkpoint /data/c --publish redis://r:6379
  livectr train --pipeline p.py … --checkpoint /data/c --ranks 2 --set restarts=3
  livectr train --pipeline p.py … --checkpoint /data/today --warm-start /data/yesterday
  livectr train --pipeline p.py --source file:/tmp/logs --until-end --live  # a page, while it runs
  livectr train --ranks 2 --set nodes=2 node=0 rendezvous=host0:29400 …  # and node=1
  livectr train --set nodes=2 node=auto rendezvous=trainer-0.trainer:29400 until_stopped=true …  # in pods"""


def add(commands: Any) -> None:
    """Add the command."""
    parser = command(
        commands, "train", run, "learn from logs, commit checkpoints, publish versions", EXAMPLES
    )
    add_live(parser)
    add_settings(parser, "train")
    parser.add_argument("--json", action="store_true", help="print the report as JSON in place of a table")


def run(given: argparse.Namespace) -> int:
    """Train in this process (alone, or as a rank of torchrun), or start and supervise the ranks."""
    with ExitStack() as resources:
        return _run(given, resources)


def _run(given: argparse.Namespace, resources: ExitStack) -> int:
    world = os.environ.get("WORLD_SIZE")
    if world is None:  # a rank that ends with 0 before it has begun would mislead its supervisor
        end_at_sigterm(_code(complete=not outer_setting(given, "until_end")))
    # torch's C++ core would write stacks beside our messages.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from livectr.trainer.options import TrainOptions

    start_log(given, "train")
    with loading(lean=given.alone):
        from livectr.trainer.comm.abort import report_failures

        with report_failures():
            pipeline, settings = settings_of(given, "source")
    if world is None:
        end_at_sigterm(_code(complete=not settings.until_end))
    if "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun's agent: no rank outlives it
        follow_parent()
    settings = shown_live(given.live, settings, resources)
    ranks = settings.ranks * settings.nodes
    if world is None or "TORCHELASTIC_RUN_ID" in os.environ:  # not when a supervisor starts ranks again
        _check_age(settings)
    asks = (settings.restarts, settings.until_stopped, settings.start_wait_s, settings.health_listen)
    if world is None and (ranks > 1 or any(asks)):
        return _end(_supervise(given, settings), settings)
    if ranks > 1 and str(ranks) != world:
        raise ConfigError(f"ranks is {ranks}, but torchrun started {world}; leave ranks and nodes out.")
    with loading():
        from livectr.trainer.run import train

    report = train(pipeline, options_of(TrainOptions, settings))
    code = _code(complete=report.complete or not settings.until_end)
    first, supervised = int(os.environ.get("RANK", 0)) == 0, "TORCHELASTIC_RUN_ID" not in os.environ
    if first:
        _show(report, as_json=given.json)
    if settings.until_end and report.complete and (bad := report.too_many_bad(settings.max_bad)):
        if first:
            tell(_set_aside(bad, report, committed=settings.checkpoint is not None))
        return SET_ASIDE if world is not None and supervised else ROWS
    # A supervisor says itself that its ranks were stopped.
    return _end(code, settings) if world is None or (first and not supervised) else code


def _set_aside(bad: str, report: Report, *, committed: bool) -> str:
    """Sentence about rows that were set aside, with what to do."""
    place = f" Dead letters: {report.dead_letter_place}" if report.dead_letter_place else ""
    learned = "what fits was learned" + (" and is committed" if committed else "")
    return f"{bad}; {learned}. Mend the rows, or say --max-bad with the share that may be left out.{place}"


def _show(report: Report, *, as_json: bool) -> None:
    """Print the report for a person, or as a JSON line."""
    if as_json:
        print(json.dumps(dataclasses.asdict(report)), flush=True)
        return
    from livectr.inspection.trained import show_trained

    show_trained(report)
    sys.stdout.flush()


def _code(*, complete: bool) -> int:
    """Exit code of a run without an error."""
    return 0 if complete else UNFINISHED


def _end(code: int, settings: Settings) -> int:
    """Say that the run was stopped before the log's end, if it was; a signal from here on changes nothing."""
    if "WORLD_SIZE" not in os.environ:
        end_at_sigterm(code)
    if code == UNFINISHED:
        how = (
            "what was learned is committed, and the same command resumes from there"
            if settings.checkpoint is not None
            else "without --checkpoint, the same command begins again"
        )
        tell(f"stopped before the log's end; {how}.")
    return code


def _supervise(given: argparse.Namespace, settings: Settings) -> int:
    """Start the ranks as `livectr train` under torchrun; URLs with passwords go through the environment."""
    from livectr.local.pulse import Pulse
    from livectr.local.ranks import Ranks
    from livectr.local.supervise import Supervision, supervise

    check_supervision(settings)
    gang = gang_of(settings, socket.gethostname())
    secret = {name: url for name, url in given_settings(given).items() if name in SECRET}
    words = without_flags(given.arguments, [f"--{name}" for name in secret])
    run = Supervision(
        Ranks(
            (sys.executable, "-m", "livectr", *words),
            settings.ranks,
            {f"LIVECTR_{name.upper()}": url for name, url in secret.items()},
            settings.nodes,
            gang.node if gang is not None else 0,
        ),
        settings.restarts,
        local_copy(settings.checkpoint, settings.checkpoint_copy) if settings.checkpoint else None,
        gang,
        settings.until_stopped,
        settings.start_wait_s,
        settings.until_end,
    )
    if settings.health_listen is None:
        return supervise(run)
    with closing(Pulse(settings.health_listen)) as pulse:
        return supervise(run, pulse.beat)


def _check_age(settings: Settings) -> None:
    """Raise ConfigError for a checkpoint that is too old."""
    from livectr.trainer.checkpoint.age import check_age

    if settings.checkpoint is not None and settings.max_checkpoint_age_s and not settings.accept_stale:
        check_age(settings.checkpoint, settings.max_checkpoint_age_s)
