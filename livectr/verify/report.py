"""Result of a verification: counts, a table, and the exit code."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from livectr.console import make_console
from livectr.system.logs import tell
from livectr.trainer.checkpoint.manifest import Manifest
from livectr.verify.judge import Judge, Judgement
from livectr.verify.vectors import ITEMS

SHOWN = 5
"""Candidates that differ, and are shown."""
SURE = 100
"""Live inputs that may be new, all of them; of more, one at least is in a Redis that has them."""


class Report:
    """Counts of a verification.

    Args:
        tolerance: largest difference of a reply that counts as equal.

    Attributes:
        asked_about: source of the requests, in words.
        equal, different: replies by the comparison.
        unanswered: requests without a comparable reply.
        other_version: replies of a version without a generation; asked again.
        refused: replies that the server refused or did not give in time; asked again.
        degraded: replies that the server marked; not compared.
        vectors: content, or `ITEMS`, whose vectors were taken as they were published, as some were older than
            the version.
    """

    def __init__(self, tolerance: float) -> None:
        self._tolerance = tolerance
        self.asked_about = ""
        self.unanswered = self.other_version = self.refused = self.degraded = 0
        self.versions: dict[int, Manifest] = {}
        self.vectors: set[str] = set()
        self.compared: Counter[str] = Counter()
        self.candidates = self.equal = self.different = 0
        self.difference = self.logit_difference = 0.0
        self._keys = self._known = self._live = self._live_there = 0
        self._degraded_reason = ""
        self._different: list[tuple[float, dict[str, Any]]] = []

    @property
    def undecided(self) -> int:
        """Replies of which a live input changed, so that a difference says nothing."""
        return self.compared.total() - self.equal - self.different

    @property
    def code(self) -> int:
        """0: replies are equal, none differs, and their inputs are not lost; else 1."""
        return 0 if self.equal and not self.different and not self._lost else 1

    @property
    def _lost(self) -> bool:
        """Tell if Redis has no live input at all: server and comparison then do equally without."""
        return self._live > SURE and not self._live_there

    def add_degraded(self, reason: str) -> None:
        """Count a reply that is marked degraded."""
        self.degraded += 1
        self._degraded_reason = reason

    def add(self, judgements: Sequence[Judgement], generation: Manifest) -> None:
        """Count answers that were compared with a generation."""
        for judged in judgements:
            answer = judged.answer
            self.versions[answer.version] = generation
            self.compared[answer.request.kind] += 1
            self.candidates += len(answer.request)
            self.different += bool(judged.different.any())
            self.equal += not (judged.different | judged.open).any()
            self.difference = np.fmax(self.difference, judged.difference)
            self.logit_difference = np.fmax(self.logit_difference, judged.logit_difference)
            self._note_worst(judged)

    def add_inputs(self, judge: Judge, live: Sequence[bytes | None]) -> None:
        """Count the keys that were looked up, and the live inputs."""
        self._keys, self._known = self._keys + judge.keys, self._known + judge.known
        self._live, self._live_there = self._live + len(live), self._live_there + len(live) - live.count(None)

    def show(self, *, as_json: bool) -> None:
        """Print the counts and the worst candidates; what is wrong as a sentence on standard error."""
        if self.code:
            tell(self._verdict)
        if as_json:
            print(json.dumps({**self.facts(), "different_candidates": self._worst}))
            return
        from rich.table import Table

        console, table = make_console(), Table(show_header=False)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for name, text in self._lines().items():
            table.add_row(name, text)
        console.print(table)
        for worst in self._worst:
            about = ", ".join(f"{n}={v}" for n, v in worst["candidate"].items())
            console.print(
                f"different: version {worst['version']}, {worst['kind']} of {about}: "
                f"{worst['served']:.8g} served, {worst['expected']:.8g} by the checkpoint",
                highlight=False, markup=False, soft_wrap=True,
            )  # fmt: skip
        if not self.code:
            console.print(self._verdict, highlight=False, markup=False, soft_wrap=True)

    def facts(self) -> dict[str, Any]:
        """Counts by name."""
        return {
            "compared": dict(self.compared),
            "candidates": self.candidates,
            "versions": {str(version): m.step for version, m in self.versions.items()},
            "equal": self.equal,
            "different": self.different,
            "largest_pctr_difference": float(self.difference),
            "largest_logit_difference": float(self.logit_difference),
            "degraded": self.degraded,
            "undecided": self.undecided,
            "other_version": self.other_version,
            "refused": self.refused,
            "unanswered": self.unanswered,
            "known_keys": self._known / self._keys if self._keys else 0.0,
            "live_inputs": self._live,
            "live_inputs_in_redis": self._live_there,
            "asked_about": self.asked_about,
            "content_as_published": sorted(self.vectors - {ITEMS}),
            "items_as_published": ITEMS in self.vectors,
        }

    def _lines(self) -> dict[str, str]:
        versions = [f"{v} (step {m.step:,}, {m.examples:,} examples)" for v, m in self.versions.items()]
        known = f"{self._known / self._keys:.1%}" if self._keys else "none"
        return {
            "asked about": self.asked_about,
            "replies compared": ", ".join(f"{n:,} of {kind}" for kind, n in self.compared.items()) or "none",
            "candidates": f"{self.candidates:,}",
            "versions": ", ".join(versions) or "none",
            f"replies equal to {self._tolerance:g}": f"{self.equal:,}",
            "replies that differ": f"{self.different:,}",
            "largest difference of a pCTR or score": f"{self.difference:.2g}",
            "largest difference of a logit": f"{self.logit_difference:.2g}",
            "degraded replies": f"{self.degraded:,}" + f" ({self._degraded_reason})" * bool(self.degraded),
            "replies of other versions, asked again": f"{self.other_version:,}",
            "refused by a busy server, asked again": f"{self.refused:,}",
            "requests without a comparable reply": f"{self.unanswered:,}",
            "keys that have a trained row": known,
            "live inputs: look-up rows, histories": f"{self._live:,}, {self._live_there:,} of them in Redis",
            "replies that nothing can be said of": f"{self.undecided:,}"
            + " (live inputs changed meanwhile)" * bool(self.undecided),
        } | ({"vectors taken as published": ", ".join(sorted(self.vectors))} if self.vectors else {})

    @property
    def _verdict(self) -> str:
        if self._lost:
            return (
                f"None of {self._live:,} look-up rows and histories of these requests is in Redis. Name "
                "the --redis and --namespace that the trainer publishes to. If they are right, the rows are "
                "lost: a run with a new --checkpoint publishes them."
            )
        if self.different:
            return f"{self.different:,} replies differ from the checkpoint of the version that they name."
        if not self.equal:
            return "Nothing can be said: the replies were degraded, or their live inputs changed meanwhile."
        return "Every compared reply is what the checkpoint of its version gives."

    @property
    def _worst(self) -> list[dict[str, Any]]:
        return [facts for _, facts in sorted(self._different, key=lambda pair: -pair[0])[:SHOWN]]

    def _note_worst(self, judged: Judgement) -> None:
        answer = judged.answer
        for i in np.flatnonzero(judged.different)[:SHOWN].tolist():
            served, expected = float(answer.values[i]), float(judged.expected[i])
            about = {name: values[i] for name, values in answer.request.candidates.items()}
            facts = {"version": answer.version, "kind": answer.request.kind, "candidate": about,
                     "served": served, "expected": expected}  # fmt: skip
            apart = abs(served - expected)
            self._different.append((apart if apart == apart else float("inf"), facts))
