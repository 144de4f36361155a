"""`livectr train --live`: the page of `livectr report` during the run."""

from __future__ import annotations

import logging
import os
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from livectr.system.errors import ConfigError
from livectr.system.object_store import local_copy
from livectr.system.scratch import scratch

if TYPE_CHECKING:
    from livectr.config.settings import Settings

LOG = logging.getLogger(__name__)
RUN_LOG = "LIVECTR_RUN_LOG"


def add_live(parser: Any) -> None:
    """Add the flag."""
    parser.add_argument(
        "--live",
        nargs="?",
        const="",
        metavar="[HOST:]PORT",
        help="show the page of livectr report at this port during the run [127.0.0.1:8350]; without "
        "run_log, the run log is CHECKPOINT/run.log, or a temporary file",
    )


def shown_live(live: str | None, settings: Settings, resources: ExitStack) -> Settings:
    """Start the page, if it is asked for; ranks that a supervisor has started leave it to the supervisor.

    Args:
        live: [HOST:]PORT, "" for the default; None: no page.
        settings: of the run.
        resources: ends the page.

    Returns:
        Settings with the run log that the page follows.

    Raises:
        InUseError: the port is taken.
        ConfigError: the text is no [HOST:]PORT, or the address is none of this machine's.
    """
    elastic = "TORCHELASTIC_RUN_ID" in os.environ  # ranks of a user's torchrun have no other supervisor
    alone = "WORLD_SIZE" not in os.environ or (elastic and os.environ["RANK"] == "0")
    if live is None or not (alone or elastic):
        return settings
    if settings.run_log is None:
        if settings.checkpoint is not None:
            path = local_copy(settings.checkpoint, settings.checkpoint_copy) / "run.log"
        elif alone:
            path = resources.enter_context(scratch("live")) / "run.log"
        else:
            raise ConfigError("--live under torchrun needs --set run_log=FILE or --checkpoint DIR")
        settings = replace(settings, run_log=str(path))
    if not alone:
        return settings
    from livectr.analysis.page.live import ADDRESS, PORT, live_page

    host, _, port = (live or str(PORT)).rpartition(":")
    if not port.isdecimal() or int(port) > 65_535:
        raise ConfigError(f"--live {live} is no [HOST:]PORT, such as {PORT} or 0.0.0.0:{PORT}")
    assert settings.run_log is not None
    url = resources.enter_context(live_page(Path(settings.run_log), host or ADDRESS, int(port)))
    if RUN_LOG not in os.environ:
        os.environ[RUN_LOG] = settings.run_log  # the ranks that this process starts read it
        resources.callback(os.environ.pop, RUN_LOG, None)
    LOG.info("the run is shown at %s", url)
    return settings
