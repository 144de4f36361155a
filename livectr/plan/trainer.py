"""Trainer: seconds of a step on N ranks, bytes of each field exchange, memory and checkpoints of a rank.

    step(N)     = computing + waits + wire
    computing   = B/N · c / cores     c: core-seconds of an example
    c           = key_s · keys + value_s · F · D + mac_s · parameters, and reading the log
    waits       = wait_s + 2 (N − 1) · latency        (one ring all-reduce; N > 1)
    wire        = 8 · FRAMING · sent(N) / bandwidth    sent: bytes of a rank, by the fastest field exchange

key_s, value_s, mac_s and wait_s are fitted to measured steps (`bench.plan.fit`). With a report of the user's
own run, c is its core-seconds of an example, waits included. Computing does not overlap with the wire.

sent(N) has the field exchange (`trainer.placement.exchange_cost`), the gradients of the networks' shared
parameters (ring all-reduce) and the scores. Fields are equal in size; distinct keys follow Zipf's law.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from livectr.plan.distinct import distinct
from livectr.plan.model import Model
from livectr.plan.points import points, value
from livectr.system.errors import ConfigError
from livectr.trainer.placement.exchange_cost import CostModel, Measured
from livectr.trainer.step_settings import FIELD_EXCHANGES

FRAMING = 1514 / 1448
"""Bytes of a full Ethernet frame to those of TCP in it."""
OWN_EXAMPLES = 4096
"""Examples of a rank in a step if no batch size is given: the most that was measured."""
LOAD = 0.7
"""Share of the trainer's speed that the log may need; the rest catches up after a restart."""
MEMORY_SHARE = 0.8
"""Share of a machine's memory that a rank may have."""
MOST_RANKS = 4096
MIB = 1 << 20


@dataclass(frozen=True)
class Ids:
    """Ids of the log.

    Attributes:
        count: in all tables.
        zipf: exponent of their popularity.
    """

    count: float
    zipf: float


@dataclass(frozen=True)
class Machine:
    """Machine of a rank.

    Attributes:
        gbit: bandwidth in Gbit/s; None: no limit.
        latency_s: of a message between two machines.
        disk: bytes a second that a checkpoint is written with.
    """

    cores: float
    memory_bytes: int
    gbit: float | None
    latency_s: float
    disk: float


@dataclass(frozen=True)
class Step:
    """Step of N ranks, in seconds and in bytes that a rank sends.

    Attributes:
        exchange: fastest field exchange.
        sent: field exchange → bytes of a rank.
        exchange_s: field exchange → seconds of its work, by one thread, and of its wire.
    """

    ranks: int
    batch: int
    computing_s: float
    waits_s: float
    wire_s: float
    exchange: str
    sent: dict[str, float]
    exchange_s: dict[str, float]

    @property
    def seconds(self) -> float:
        """Seconds of a step: computing, waits and wire."""
        return self.computing_s + self.waits_s + self.wire_s

    @property
    def rate(self) -> float:
        """Examples a second."""
        return self.batch / self.seconds


def example_core_s(model: Model, of: Callable[[str], float] = value) -> float:
    """Core-seconds of an example, from measured steps of other models.

    Args:
        model: fields, row and network of the plan.
        of: coefficients by name.
    """
    parts = (
        ("key_s", model.keys),
        ("value_s", model.fields * model.row.dim),
        ("mac_s", model.parameters),
    )
    return sum(of(name) * size for name, size in parts)


def read_s() -> float:
    """Core-seconds of an event until it is features: decoded, joined, extracted."""
    return points()["join"].cores / value("join")


def sent_bytes(model: Model, ids: Ids, ranks: int, batch: float, width: int = 4) -> dict[str, float]:
    """Bytes that a rank sends in a step, by field exchange.

    Args:
        model: fields, row and network of the plan.
        ids: of the log.
        ranks: N.
        batch: examples of all ranks.
        width: bytes of a number on the wire.
    """
    if ranks == 1:
        return dict.fromkeys(FIELD_EXCHANGES, 0.0)
    cost, measured = _exchange_cost(model, ids, ranks, batch, width)
    shared = 2 * (ranks - 1) / ranks * width * (model.parameters - model.field_parameters)
    scores = (ranks - 1) * batch / ranks * 4.125
    return {
        way: cost.bytes(measured, [way] * model.fields) / ranks + shared + scores for way in FIELD_EXCHANGES
    }


def exchange_s(model: Model, ids: Ids, ranks: int, batch: float, gbit: float | None) -> dict[str, float]:
    """Seconds of a rank's work and wire in a step, by field exchange, beside what every exchange costs alike.

    `auto` chooses by them. Work is that of one thread: it is not part of a step's computing on more cores.

    Args:
        model: fields, row and network of the plan.
        ids: of the log.
        ranks: N.
        batch: examples of all ranks.
        gbit: bandwidth in Gbit/s; None: no limit.
    """
    if ranks == 1:
        return dict.fromkeys(FIELD_EXCHANGES, 0.0)
    cost, measured = _exchange_cost(model, ids, ranks, batch)
    linked = replace(cost, gbit=None if gbit is None else gbit / FRAMING)
    return {way: linked.seconds(measured, [way] * model.fields) for way in FIELD_EXCHANGES}


def _exchange_cost(
    model: Model, ids: Ids, ranks: int, batch: float, width: int = 4
) -> tuple[CostModel, Measured]:
    """Cost model of the field exchange, and the sizes of a batch."""
    draws = batch / ranks * model.keys / model.fields
    unique = distinct(draws, ids.count / model.fields, ids.zipf)
    encoded = 8 * unique + draws * math.log2(max(2.0, unique)) / 8
    fields = np.full(model.fields, float(ranks))
    measured = Measured(round(batch), encoded * fields, unique * fields, draws * fields)
    each = model.field_parameters // model.fields
    return CostModel(ranks, model.partial, model.row.dim, [each] * model.fields, width), measured


def wire_s(sent: float, gbit: float | None) -> float:
    """Seconds that a wire takes for bytes."""
    return 0.0 if gbit is None else 8e-9 * FRAMING * sent / gbit


def waits_s(ranks: int, latency_s: float) -> float:
    """Seconds that ranks wait for each other in a step."""
    return 0.0 if ranks == 1 else value("wait_s") + 2 * (ranks - 1) * latency_s


@dataclass(frozen=True)
class Trainer:
    """Trainer of a plan.

    Attributes:
        core_s: core-seconds of an example in a report; None: by `example_core_s`, and reading the log.
        waited: `core_s` includes waits of ranks for each other.
        reported_batch: mean batch of the report; None: there is no report.
        batch: examples of a step over all ranks; None: OWN_EXAMPLES a rank, or fewer if these are enough.
        slow: factor of computing and waits.
    """

    model: Model
    ids: Ids
    machine: Machine
    core_s: float | None = None
    waited: bool = False
    reported_batch: float | None = None
    batch: int | None = None
    slow: float = 1.0

    @property
    def example_s(self) -> float:
        """Core-seconds of an example."""
        return read_s() + example_core_s(self.model) if self.core_s is None else self.core_s

    def step(self, ranks: int, batch: int | None = None) -> Step:
        """Step of N ranks.

        Args:
            ranks: N.
            batch: over all ranks; None: the plan's, or OWN_EXAMPLES a rank.
        """
        batch = batch or self.batch or OWN_EXAMPLES * ranks
        sent = sent_bytes(self.model, self.ids, ranks, batch)
        spent = exchange_s(self.model, self.ids, ranks, batch, self.machine.gbit)
        exchange = min(spent, key=lambda way: spent[way])
        return Step(
            ranks,
            batch,
            self.slow * batch / ranks * self.example_s / self.machine.cores,
            0.0 if self.waited else self.slow * waits_s(ranks, self.machine.latency_s),
            wire_s(sent[exchange], self.machine.gbit),
            exchange,
            sent,
            spent,
        )

    def rank_bytes(self, ranks: int) -> float:
        """Memory of a rank: its rows, and what a process has besides."""
        return self.ids.count / ranks * self.model.row_bytes + value("trainer_memory") * MIB

    @property
    def memory_ranks(self) -> int:
        """Ranks whose memory holds the tables.

        Raises:
            ConfigError: a machine has no memory for rows.
        """
        room = MEMORY_SHARE * self.machine.memory_bytes - value("trainer_memory") * MIB
        if room <= 0:
            raise ConfigError(
                f"--memory leaves no room for rows: besides them a rank needs "
                f"{value('trainer_memory'):,.0f} MiB of {MEMORY_SHARE:.0%} of the machine; give more."
            )
        return math.ceil(self.ids.count * self.model.row_bytes / room)

    def smallest(self, rate: float) -> tuple[Step, str]:
        """Step of the least number of ranks that holds the tables and learns at LOAD, and what limits it.

        Args:
            rate: examples a second.

        Raises:
            ConfigError: no number of ranks does.
        """
        held = self.memory_ranks
        if held > MOST_RANKS:
            raise ConfigError(
                f"the rows need the memory of {held:,} ranks, more than {MOST_RANKS:,}: give more --memory."
            )
        step = self.step(held)
        if step.rate * LOAD >= rate:
            return self._gentle(step, rate), "limited by memory" if held > 1 else "one is enough"
        found = next((n for n in _growing(held) if self.step(n).rate * LOAD >= rate), None)
        if found is None:
            raise ConfigError(self._refusal(rate))
        step = self.step(found)
        parts = {"computing": step.computing_s, "network": step.wire_s, "waits": step.waits_s}
        return self._gentle(step, rate), f"limited by {max(parts, key=lambda part: parts[part])}"

    def _gentle(self, step: Step, rate: float) -> Step:
        """The same ranks with the smallest batch that is enough, doubled from that of one rank."""
        batch = OWN_EXAMPLES
        while self.batch is None and batch < step.batch:
            smaller = self.step(step.ranks, batch)
            if smaller.rate * LOAD >= rate:
                return smaller
            batch *= 2
        return step

    def _refusal(self, rate: float) -> str:
        best = max((self.step(n) for n in _growing(2)), key=lambda step: step.rate)
        return (
            f"no number of ranks up to {MOST_RANKS:,} learns {rate:,.0f} examples a second at {LOAD:.0%} of "
            f"its speed: {best.ranks:,} ranks learn {best.rate:,.0f} with batches of {best.batch:,}; a step "
            f"waits {1e3 * best.waits_s:.3g} ms for ranks, {1e3 * best.wire_s:.3g} ms for the network. "
            "Give a larger --batch-size, more --network, or a smaller --latency."
        )


def _growing(first: int) -> list[int]:
    """Numbers of ranks that are tried: all up to 128, then steps of a 64th."""
    found, n = [], max(1, first)
    while n <= MOST_RANKS:
        found.append(n)
        n += max(1, n // 64)
    return found
