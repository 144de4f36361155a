"""Account of a log file: every row that was read is kept, or set aside with its reason.

Rows in = kept + set aside. A command ends with an error if more than a hundredth of the whole file was set
aside, and nothing of a half-read file is left behind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from livectr.ingest.limits import LIMITS
from livectr.system.errors import ConfigError, RowsError
from livectr.system.texts import visible

MOST_SET_ASIDE = 0.01
"""Share of a file's rows above which a command ends with an error, if nobody says more."""
LONGEST_ROW = LIMITS.record_bytes
"""Bytes of a row, in every format: of its line, or of its values. A longer one is set aside."""
LONGEST_LINE = 256 << 20
"""Bytes without a line end above which a file is none of lines."""
SHOWN = 3
LONGEST_SHOWN = 60

Keep = Callable[[int, str, str], None]
"""Gets place, reason and text of a row that was set aside."""


@dataclass
class Reason:
    """Rows that were set aside for a reason.

    Attributes:
        count: of the rows.
        place: line of the first, or its row in a file without lines.
        what: of the first row, in words.
        where: of the first row, as "line 7".
    """

    count: int
    place: int
    what: str
    where: str


@dataclass
class Account:
    """Account of a file's rows.

    Args:
        path: of the file, or of a folder of files.
        unit: "line", or "row" in a file without lines; both count from 1.
        keep: gets every row that is set aside.

    Attributes:
        kept: rows that fit.
        reasons: kind of reason → rows that were set aside.
        remarks: what a user should know of the file, in sentences.
        inside: file of a folder that is read at present; "" for a file.
        paths: column → path of its values in the rows, for `livectr.logs.names.one_column`.
    """

    path: Path
    unit: str = "line"
    keep: Keep | None = None
    kept: int = 0
    reasons: dict[str, Reason] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    inside: str = ""
    paths: dict[str, str] = field(default_factory=dict)

    def of_file(self, path: Path) -> Account:
        """Account of a file in the folder, whose rows are counted here; they are named by the file."""
        self.inside = path.relative_to(self.path).as_posix()
        return Account(
            path,
            keep=self.keep,
            reasons=self.reasons,
            remarks=self.remarks,
            inside=self.inside,
            paths=self.paths,
        )

    def remark(self, words: str) -> None:
        """Say something of the file, once."""
        if words not in self.remarks:
            self.remarks.append(words)

    def where(self, place: int) -> str:
        """Place for a person: "line 7", or "dt=2026-11-24/part.csv line 7"."""
        return f"{self.inside} {self.unit} {place}".lstrip()

    def set_aside(self, place: int, kind: str, what: str, text: str) -> None:
        """Set a row aside.

        Args:
            place: its line or row.
            kind: reason without the row's values: rows of a kind are counted together.
            what: reason with the row's values.
            text: of the row.
        """
        known = self.reasons.setdefault(kind, Reason(0, place, what, self.where(place)))
        known.count += 1
        if self.keep is not None:
            self.keep(place, what, text)

    def set_aside_long(self, place: int, text: str) -> None:
        """Set aside a row of more than LONGEST_ROW bytes, of which `text` is the beginning."""
        self.set_aside(place, "long", f"longer than {LONGEST_ROW >> 20} MiB", text)

    def no_lines(self, line: int) -> ConfigError:
        """Error for a line of more than LONGEST_LINE bytes."""
        return ConfigError(
            f"{self.path}: line {line} is longer than {LONGEST_LINE >> 20} MiB; is this a file of lines?"
        )

    @property
    def count(self) -> int:
        """Rows that were set aside."""
        return sum(reason.count for reason in self.reasons.values())

    @property
    def rows(self) -> int:
        """Rows that were read."""
        return self.kept + self.count

    @property
    def first(self) -> list[str]:
        """The commonest reasons, each with its first row."""
        return [
            f"{reason.where}: {visible(reason.what, LONGEST_SHOWN * 4)}"
            + (f", and {reason.count - 1:,} more such" if reason.count > 1 else "")
            for reason in sorted(self.reasons.values(), key=lambda one: (-one.count, one.place))[:SHOWN]
        ]

    def line(self) -> str:
        """The account, on a line."""
        if not self.count:
            return f"{self.rows:,} rows read, all kept"
        return (
            f"{self.rows:,} rows read: {self.kept:,} kept, {self.count:,} set aside ({'; '.join(self.first)})"
        )

    def judge(self, most: float = MOST_SET_ASIDE) -> None:
        """Raise RowsError if more than a share `most` of all rows was set aside."""
        if self.count > most * self.rows:
            raise RowsError(
                f"{self.path}: {self.count:,} of {self.rows:,} rows do not fit "
                f"({'; '.join(self.first)}); mend the file, or say --max-bad with the share that may be left "
                "out."
            )
