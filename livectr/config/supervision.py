"""Settings of a training run's supervisors: nodes, restarts, and what does not go together."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from livectr.local.gang import Gang
from livectr.system.errors import ConfigError

if TYPE_CHECKING:
    from livectr.config.settings import Settings


def check_supervision(settings: Settings) -> None:
    """Raise ConfigError for settings that do not go together."""
    if settings.checkpoint is None:
        for name in ("restarts", "until_stopped"):
            if getattr(settings, name):
                raise ConfigError(f"{name}: ranks resume from a checkpoint; say --checkpoint DIR too.")
    if settings.until_stopped:
        for name in ("until_end", "until_idle_s", "max_steps", "restarts"):
            if getattr(settings, name):
                raise ConfigError(f"until_stopped starts ranks again and again; leave {name} out.")


def gang_of(settings: Settings, host_name: str | None) -> Gang | None:
    """Nodes of the run; None: one.

    Args:
        settings: of the run.
        host_name: of this machine, for node "auto"; None: it is another machine that will run.

    Raises:
        ConfigError: the settings of nodes do not go together.
    """
    if settings.rendezvous is not None and not re.fullmatch(r".+:\d+", settings.rendezvous):
        raise ConfigError(f"rendezvous is {settings.rendezvous!r}, but must be HOST:PORT.")
    node = settings.node
    if node == "auto":
        number = re.search(r"-(\d+)$", (host_name or "-0").partition(".")[0])
        if number is None:
            raise ConfigError(f"node is auto: the host name {host_name!r} does not end in -NUMBER.")
        node = number[1]
    if not node.isdecimal():
        raise ConfigError(f"node is {node!r}, but must be a number, or auto.")
    if int(node) >= settings.nodes:
        raise ConfigError(f"node is {node}, but the nodes are 0 to {settings.nodes - 1}.")
    if settings.nodes == 1:
        return None
    if settings.rendezvous is None:
        raise ConfigError("several nodes have to meet; set rendezvous to HOST:PORT, an address of node 0.")
    return Gang(settings.nodes, int(node), settings.ranks, settings.generation or "", settings.rendezvous)
