"""Header of a round: numbers by name that every rank sends to all ranks before a cut."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, get_type_hints

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class Flags(NamedTuple):
    """A rank's state in its header, besides its examples.

    Attributes:
        stop: the process was asked to end.
        quiet: nothing has come for so long that the rank would end.
        due: commit that is due by this rank's clock (trainer.schedule.Due); rank 0's counts.
        publish: state of the rank's push (trainer.publish.version.Push).
        rows: rows that the rank has read.
        unusable: rows of these that cannot be used.
        suspect: too many of the rank's rows cannot be used (trainer.stream.data_watch).
        sample: the run log is due for a sample (trainer.quality.run_record); rank 0's counts.
        behind: rows of the rank's partitions that it has not learned (trainer.stream.backlog).
        done: rows that it has read, without those that wait to be learned.
        unread: the same without partitions that are paused, which are ahead of the others.
        written: the rank's files of the checkpoint that has begun are written.
        back: somebody asks the run to go back to an older generation; rank 0's counts.
        paused: the rank's source gives nothing more before impressions that wait for labels are released.
        newest: event time that its partitions have reached.
    """

    stop: bool = False
    quiet: bool = False
    due: int = 0
    publish: int = 0
    rows: int = 0
    unusable: int = 0
    suspect: bool = False
    sample: bool = False
    behind: int = 0
    done: int = 0
    unread: int = 0
    written: bool = False
    back: bool = False
    paused: bool = False
    newest: int = 0


class Header(NamedTuple):
    """State of a rank's examples, which goes before its flags.

    Attributes:
        ready: examples that were sampled.
        frontier: least order that a later example can have.
        strict: the same, moved by no clock.
        ended: no more examples will come.
        moved: the source has moved since the round before.
        overdue: the first example has waited for longer than it may.
        chosen: examples of the batch that another run had cut; -1: they are not ready.
    """

    ready: int
    frontier: int
    strict: int
    ended: bool
    moved: bool
    overdue: bool
    chosen: int

    def encode(self, flags: Flags) -> I64:
        """Pack into int64[WIDTH]."""
        return np.array([*self, *flags], np.int64)


WIDTH = len(Header._fields) + len(Flags._fields)
"""Numbers of an encoded header."""
_KINDS = [get_type_hints(Flags)[name] for name in Flags._fields]


@dataclass(frozen=True)
class Headers:
    """Headers of all N ranks.

    Attributes:
        ready, frontier, strict, chosen: int64[N]; see `Header`.
        ended, moved, overdue: bool[N].
        flags: of each rank.
    """

    ready: I64
    frontier: I64
    strict: I64
    ended: Bools
    moved: Bools
    overdue: Bools
    chosen: I64
    flags: tuple[Flags, ...]

    @staticmethod
    def decode(rows: I64) -> Headers:
        """Unpack the ranks' `Header.encode`, int64[N, WIDTH]."""
        column = dict(zip(Header._fields, rows.T, strict=False))
        flags = tuple(
            Flags._make(kind(value) for kind, value in zip(_KINDS, row, strict=True))
            for row in rows[:, len(Header._fields) :].tolist()
        )
        return Headers(
            ready=column["ready"],
            frontier=column["frontier"],
            strict=column["strict"],
            ended=column["ended"] != 0,
            moved=column["moved"] != 0,
            overdue=column["overdue"] != 0,
            chosen=column["chosen"],
            flags=flags,
        )
