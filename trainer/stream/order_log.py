"""Order log: where a clock or the end of a log decided the batches, so that a replay has the same batches.

Batches are a function of the logs, but for two decisions: the merge of a partition continues without a topic
that is silent (ingest.join.decisions), and a batch is cut before it is full, or below a frontier that a
silent partition does not hold back. The field exchange is a third one: ranks on several machines choose it by
a measured link (trainer.comm.link), and each exchange adds floats in an order of its own. A run with a
checkpoint keeps these decisions in it, as lines of JSON:

    ["from", step]                           the parts from here on hold all decisions since this step
    ["batches", step, settings]              sizes of batches from this step on (`BatchSettings`)
    ["clock", partition, number, decision]   the merge of a partition continued (`Decision.as_json`)
    ["cut", step, {partition: examples}]     the batch of this step
    ["exchange", step, ranks, [exchange]]    of every field, of ranks that began at this step

A batch that is not there follows from the logs. A checkpoint may hold the cut of a batch that was not learned
when its process ended; the next process cut that step again, and may not have noted it. So a line of
`batches` ends the cuts of this step and later ones that stand before it.
`trainer.checkpoint.order_parts` stores the lines.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from livectr.ingest.join.decisions import Decision
from livectr.system.errors import ConfigError
from livectr.trainer.ramp import SLOPE

BatchSettings = Mapping[str, int | None]
"""Settings that a replay must share: name → value."""
Made = Mapping[str, Sequence[tuple[int, Any]]]
"""Partition → decisions as JSON, with their numbers."""


class Begun(NamedTuple):
    """Process that began at a step, with its settings of batches."""

    step: int
    settings: BatchSettings


class Decided(NamedTuple):
    """News of a batcher.

    Attributes:
        began: this process; None: it was told before.
        cuts: step → examples of each partition, of batches in which a clock or the end of a log took part.
    """

    began: Begun | None
    cuts: Mapping[int, Mapping[int, int]]


class ChosenExchange(NamedTuple):
    """Exchange of every field that ranks had from a step on.

    Attributes:
        step: at which they began.
        ranks: their number.
        exchange: of every field.
    """

    step: int
    ranks: int
    exchange: Sequence[str]


class Cuts(Mapping[int, Mapping[int, int]]):
    """Step → examples of each partition.

    A line is read when it is asked for: as objects, those of a long run would take gigabytes.

    Args:
        found: step → its line.
    """

    def __init__(self, found: Mapping[int, str]) -> None:
        self._lines = found

    def __getitem__(self, step: int) -> Mapping[int, int]:
        counts = json.loads(self._lines[step])[2]
        return {int(partition): count for partition, count in counts.items()}

    def __iter__(self) -> Iterator[int]:
        return iter(self._lines)

    def __len__(self) -> int:
        return len(self._lines)


@dataclass(frozen=True)
class OrderLog:
    """Decisions of a run, from its first step on.

    Attributes:
        until: steps of the run; from here on nothing is known.
        cuts: step → examples of each partition, of batches that do not follow from the logs.
        decisions: partition → its decisions, in order.
        settings: sizes of batches of each of its processes.
        exchanges: that ranks chose, in order.
        name: of the checkpoint, for messages.
    """

    until: int
    cuts: Mapping[int, Mapping[int, int]]
    decisions: Mapping[int, Sequence[Decision]]
    settings: Sequence[BatchSettings] = ()
    name: str = ""
    exchanges: Sequence[ChosenExchange] = ()

    def exchange(self, step: int, ranks: int) -> Sequence[str] | None:
        """Exchange of every field of `ranks` ranks, which began at `step` or last before it.

        None: no exchange is known.
        """
        known = [chosen for chosen in self.exchanges if chosen.ranks == ranks and chosen.step <= step]
        return known[-1].exchange if known else None

    def check(self, settings: BatchSettings, topics: int) -> None:
        """Raise ConfigError unless a run with these settings and so many topics forms the same batches."""
        for theirs in self.settings:
            if differ := [name for name in settings if settings[name] != theirs.get(name)]:
                each = ", ".join(f"{name} {theirs.get(name)} there, {settings[name]} here" for name in differ)
                raise ConfigError(f"order_of: the batches of {self.name} had other settings ({each})")
        if any(len(made.read) != topics for decisions in self.decisions.values() for made in decisions):
            raise ConfigError(f"order_of: the run of {self.name} has read another number of topics")

    @staticmethod
    def parse(parts: Iterable[bytes], until: int, name: str) -> OrderLog:
        """Read the parts of a checkpoint.

        Args:
            parts: parts of the log, in order.
            until: steps of the checkpoint.
            name: of the checkpoint, for messages.

        Raises:
            ConfigError: the log does not begin with the run.
        """
        cuts: dict[int, str] = {}
        decisions: dict[int, dict[int, Decision]] = {}
        settings: list[BatchSettings] = []
        exchanges: list[ChosenExchange] = []
        begin: int | None = None
        for line in (line for part in parts for line in part.decode().splitlines()):
            if line.startswith('["cut",'):
                cuts[int(line.split(",", 2)[1])] = line
                continue
            kind, *values = json.loads(line)
            if kind == "from":
                begin = values[0] if begin is None else begin
            elif kind == "batches":
                settings.append(_renamed(values[1]))
                while cuts and next(reversed(cuts)) >= values[0]:
                    cuts.popitem()
            elif kind == "exchange":
                exchanges.append(ChosenExchange(*values))
            else:
                partition, number, decision = values
                decisions.setdefault(partition, {})[number] = Decision.from_json(decision)
        if begin:
            raise ConfigError(
                f"order_of: the order log of {name} begins at step {begin}: batches before it are not known; "
                "name a checkpoint whose run has kept its order log from its first step on"
            )
        ordered = {p: [made[n] for n in sorted(made)] for p, made in decisions.items()}
        return OrderLog(until, Cuts(cuts), ordered, settings, name, tuple(exchanges))


def _renamed(settings: BatchSettings) -> BatchSettings:
    """Settings of a run; in 0.2.0, `batch_ramp` was the ramp's slope, and `batch_min` the first size."""
    if "batch_min" not in settings:
        return settings
    slope, first = settings["batch_ramp"], settings["batch_min"]
    own = {name: value for name, value in settings.items() if name != "batch_min"}
    return {**own, "batch_ramp": first if slope == SLOPE else None if slope else 0}


def lines(
    cuts: Mapping[int, Mapping[int, int]],
    made: Iterable[Made],
    began: Begun | None = None,
    exchange: ChosenExchange | None = None,
) -> bytes:
    """Lines of new decisions.

    Args:
        began: process that has begun; None: not since the last call.
        cuts: step → examples of each partition.
        made: decisions of each rank.
        exchange: that the ranks have chosen; None: nothing new.
    """
    found: list[list[Any]] = [] if began is None else [["batches", *began]]
    found += [] if exchange is None else [["exchange", *exchange]]
    found += [
        ["clock", int(partition), number, decision]
        for own in made
        for partition, decisions in own.items()
        for number, decision in decisions
    ]
    found += [["cut", step, {str(p): n for p, n in counts.items()}] for step, counts in sorted(cuts.items())]
    return b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in found)
