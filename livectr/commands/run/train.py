"""`livectr train`: learn from logs, commit checkpoints, publish versions."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from livectr.commands.flags import command
from livectr.commands.settings import add_settings, given_settings, log_to_stderr, options_of, settings_of
from livectr.config.settings import SECRET
from livectr.kernels.errors import ConfigError
from livectr.kernels.process.children import follow_parent
from livectr.kernels.process.heap import loading
from livectr.secrets import without_flags

if TYPE_CHECKING:
    from livectr.config.settings import Settings

EXAMPLES = """\
  livectr train --pipeline p.py --source file:/tmp/logs --until-end --report report.json
  livectr train --pipeline p.py --source kafka://localhost:9092 --checkpoint /data/c --publish redis://r:6379
  livectr train --pipeline p.py … --checkpoint /data/c --ranks 2 --restarts 3
  livectr train --pipeline p.py … --checkpoint /data/today --warm-start /data/yesterday
  livectr train --ranks 2 --nodes 2 --node 0 --rendezvous host0:29400 …  # and --node 1"""


def add(commands: Any) -> None:
    """Add the command."""
    parser = command(
        commands, "train", run, "learn from logs, commit checkpoints, publish versions", EXAMPLES
    )
    add_settings(parser, "train")


def run(given: argparse.Namespace) -> int:
    """Train in this process (alone, or as a rank of torchrun), or start and supervise the ranks."""
    from livectr.trainer.process import share_cores

    share_cores()
    # torch's C++ core would write stacks beside our messages.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from livectr.trainer.options import TrainOptions

    log_to_stderr()
    with loading():
        from livectr.trainer.comm.abort import report_failures

        with report_failures():
            pipeline, settings = settings_of(given, "source")
    world = os.environ.get("WORLD_SIZE")
    if "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun's agent: no rank outlives it
        follow_parent()
    ranks = settings.ranks * settings.nodes
    if world is None and (ranks > 1 or settings.restarts):
        return _supervise(given, settings)
    if ranks > 1 and str(ranks) != world:
        raise ConfigError(f"ranks is {ranks}, but torchrun started {world}; leave ranks and nodes out.")
    with loading():
        from livectr.trainer.run import train

    report = train(pipeline, options_of(TrainOptions, settings))
    if report is not None and int(os.environ.get("RANK", 0)) == 0:
        print(json.dumps(dataclasses.asdict(report)), flush=True)
    return 0


def _supervise(given: argparse.Namespace, settings: Settings) -> int:
    """Start the ranks as `livectr train` under torchrun; URLs with passwords go through the environment."""
    from livectr.local.supervise import Supervision, supervise

    if settings.restarts and settings.checkpoint is None:
        raise ConfigError("restarts go on from a checkpoint; say --checkpoint DIR too.")
    if settings.nodes > 1 and settings.rendezvous is None:
        raise ConfigError("several nodes have to meet; say --rendezvous HOST:PORT, an address of node 0.")
    if settings.rendezvous is not None and not re.fullmatch(r".+:\d+", settings.rendezvous):
        raise ConfigError(f"rendezvous is {settings.rendezvous!r}, but must be HOST:PORT.")
    if settings.node >= settings.nodes:
        raise ConfigError(f"node is {settings.node}, but the nodes are 0 to {settings.nodes - 1}.")
    secret = {name: url for name, url in given_settings(given).items() if name in SECRET}
    words = without_flags(given.arguments, [f"--{name}" for name in secret])
    return supervise(
        Supervision(
            (sys.executable, "-m", "livectr", *words),
            settings.ranks,
            settings.restarts,
            Path(settings.checkpoint) if settings.checkpoint is not None else None,
            {f"LIVECTR_{name.upper()}": url for name, url in secret.items()},
            settings.nodes,
            settings.node,
            settings.rendezvous,
        )
    )
