"""Gathering of nodes: ranks of several machines start together, and end together.

Every node has a supervisor (`livectr.local.supervise`). Node 0's supervisor is the meeting point; each
supervisor, also node 0's own, is connected to it by TCP and sends lines of JSON.

    1  hello   a supervisor says which node it is, of which gang: number of nodes, ranks a node, generation
    2  start   every node of the gang is there: node 0 starts a round, with a free port for the ranks' store
    3  ended   the ranks of a node have ended or failed, or its connection broke
    4  over    the others are told; each ends its own ranks, and goes to 1

A node that says nothing for SILENT_S is gone. Nodes of another gang wait: in a rolling update or a resize,
pods of two kinds are there at a time, and must not train together. A round has a port of its own, so that
ranks of an earlier round cannot join.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

BEAT_S, SILENT_S = 1.0, 20.0
"""Seconds between signs of life; after SILENT_S a node is gone."""


@dataclass(frozen=True)
class Gang:
    """Nodes that train together. Only nodes with equal values, the number apart, do.

    Args:
        nodes: machines.
        node: number of this machine.
        ranks: ranks of a machine.
        generation: any text, such as the revision of a deployment.
        rendezvous: HOST:PORT of node 0.
    """

    nodes: int
    node: int
    ranks: int
    generation: str
    rendezvous: str

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the rendezvous."""
        host, _, port = self.rendezvous.rpartition(":")
        return host.strip("[]"), int(port)

    @property
    def identity(self) -> str:
        """Text that is equal for nodes that may train together."""
        ranks = f"{self.nodes} nodes with {self.ranks} rank{'s' if self.ranks > 1 else ''} each"
        return f"{ranks}, generation {self.generation!r}" if self.generation else ranks


@dataclass(frozen=True)
class Round:
    """One life of all ranks.

    Args:
        host, port: address for the ranks' store (MASTER_ADDR, MASTER_PORT).
    """

    host: str
    port: int


class End(StrEnum):
    """Ways in which a round ends at a node."""

    DONE = "done"
    """Its ranks ended with 0; those of all nodes do."""
    STOPPED = "stopped"
    """It was told to stop before its ranks had begun."""
    UNFINISHED = "unfinished"
    """Its ranks have committed and ended before the end of a bounded log; those of all nodes do."""
    FAILED = "failed"
    """A rank failed."""
    AWAY = "away"
    """A rank found no broker, topic or Redis."""
    GONE = "gone"
    """Its supervisor is gone: it was killed, or its machine is lost."""


@dataclass(frozen=True)
class Over:
    """End of a round at another node.

    Args:
        end: how.
        why: the same as a sentence.
    """

    end: End
    why: str
