"""All parts of a plan: figures, machines and their cost, and where it leaves what was measured."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import cast

from livectr.config.settings import SETTINGS
from livectr.plan.figure import Beyond, Figure, beyond
from livectr.plan.load import Load
from livectr.plan.points import value
from livectr.plan.serving import Serving
from livectr.plan.store import Store
from livectr.plan.trainer import LOAD, MEMORY_SHARE, Step, Trainer
from livectr.system.byte_units import show_bytes
from livectr.system.errors import ConfigError
from livectr.trainer.checkpoint.table_chain import SWEEP

DEFAULT_BATCH = cast(int, SETTINGS["batch_size"].default)
MOST_TABLE_ROWS = 2**32 - 1
"""Rows of a table on a rank (kernels/runtime/index.cuh)."""


@dataclass(frozen=True)
class Prices:
    """Prices of an hour of a machine, in the user's currency; 0: not asked for.

    Attributes:
        node: of trainers, servers and brokers.
        redis: of a Redis node.
        hours: of the bill.
    """

    node: float
    redis: float
    hours: float


@dataclass(frozen=True)
class Deployment:
    """Plan of a deployment; `serving` is None where no requests were given."""

    load: Load
    trainer: Trainer
    store: Store
    serving: Serving | None
    prices: Prices

    @functools.cached_property
    def limited(self) -> tuple[Step, str]:
        """Step, and what limits the ranks. Raises ConfigError where no number is enough."""
        return self.trainer.smallest(self.load.rate)

    @property
    def ranks(self) -> int:
        """Ranks of the trainer: least number that keeps up and holds the tables."""
        return self.step.ranks

    @property
    def step(self) -> Step:
        """Step of these ranks. Raises ConfigError where no number of ranks is enough."""
        return self.limited[0]

    def parts(self) -> dict[str, list[Figure]]:
        """Part → its figures."""
        found = {
            "Kafka": self.load.figures(self.ranks, self.trainer.machine.gbit),
            "trainer": [*self._ranks(), *self._step(), *self._memory()],
            "Redis": self.store.figures(self.load.rate, self.ranks),
        }
        if self.serving:
            found["servers"] = self.serving.figures()
        return found | {"machines": self._machines()}

    # ── trainer ──

    def _ranks(self) -> list[Figure]:
        machine, step = self.trainer.machine, self.step
        return [
            Figure(
                "ranks", self.ranks, "",
                f"{self.limited[1]}; {machine.cores:g} cores and {show_bytes(machine.memory_bytes)} each",
            ),
            Figure("ranks for memory alone", self.trainer.memory_ranks, "", f"{MEMORY_SHARE:.0%} of it used"),
            *self._slow_ranks(),
            Figure(
                "most examples learned", step.rate, "1/s",
                f"the log needs {self.load.rate / step.rate:.0%} of it; at most {LOAD:.0%} may",
            ),
            Figure("batch", step.batch, "examples", f"{step.batch / step.ranks:,.0f} a rank; set batch_size"),
        ]  # fmt: skip

    def _slow_ranks(self) -> list[Figure]:
        """Ranks if steps are as slow as the slowest that was measured; none where the user's run was."""
        if self.trainer.core_s is not None:
            return []
        slowest = value("slowest")
        try:
            ranks: int | str = replace(self.trainer, slow=slowest).smallest(self.load.rate)[0].ranks
        except ConfigError:
            ranks = "none is enough"
        how = f"{slowest:.2f} times the predicted time; --report replaces the prediction"
        return [Figure("ranks if steps are slow", ranks, "", how, ("slowest",))]

    def _step(self) -> list[Figure]:
        trainer, step = self.trainer, self.step
        own = trainer.core_s is not None
        fit = () if own else ("key_s", "value_s", "mac_s", "join")
        how = "measured by the report" if own else "keys, values, products, and reading the log"
        return [
            Figure("core time of an example", trainer.example_s, "s", how, fit),
            Figure("step: computing", step.computing_s, "s", "linear in cores", fit),
            *([] if step.ranks == 1 else self._exchange()),
        ]

    def _exchange(self) -> list[Figure]:
        """Costs of a step that one rank does not have."""
        trainer, step = self.trainer, self.step
        latency = f"and 2 (N − 1) · {1e6 * trainer.machine.latency_s:.0f} µs"
        how, rests = ("in the computing", ()) if trainer.waited else (latency, ("wait_s",))
        return [
            Figure("step: waits", step.waits_s, "s", how, rests),
            Figure("step: network", step.wire_s, "s", "bytes / bandwidth, not overlapped"),
            *(
                Figure(
                    f"step: bytes of a rank, {way}", sent, "bytes",
                    "the fastest: `auto` takes it" if way == step.exchange else "",
                )
                for way, sent in step.sent.items()
            ),
        ]  # fmt: skip

    def _memory(self) -> list[Figure]:
        trainer, model = self.trainer, self.trainer.model
        each = trainer.ids.count * model.file_bytes / self.ranks
        disk = trainer.machine.disk
        return [
            Figure("a row in memory", model.row_bytes, "bytes", "at most, by its layout", ("table_row",)),
            Figure(
                "memory of a rank", trainer.rank_bytes(self.ranks), "bytes",
                f"{trainer.ids.count / self.ranks:,.0f} rows, and the process without joins and histories",
                ("table_row", "trainer_memory"),
            ),
            Figure(
                "checkpoint", trainer.ids.count * model.file_bytes, "bytes",
                "all rows once; files hold up to three times as much",
            ),
            Figure("first checkpoint", each / disk, "s", f"a rank writes {disk / 1e6:,.0f} MB/s; assumed"),
            Figure(
                "further checkpoints", each / SWEEP / disk, "s",
                f"at least: a {SWEEP}th of the rows, and twice those that changed",
            ),
        ]  # fmt: skip

    # ── machines ──

    def machines(self) -> dict[str, int]:
        """Kind → number of machines."""
        found = {
            "brokers": self.load.brokers(self.trainer.machine.gbit),
            "trainers": self.ranks,
            "Redis nodes": self.store.primaries * self.store.copies,
        }
        return found | ({"servers": self.serving.servers} if self.serving else {})

    def _machines(self) -> list[Figure]:
        found, prices = self.machines(), self.prices
        figures = [Figure(kind, number) for kind, number in found.items()]
        if not prices.node and not prices.redis:
            return figures
        cost = sum(n * (prices.redis if kind == "Redis nodes" else prices.node) for kind, n in found.items())
        return [
            *figures,
            Figure("cost", cost * prices.hours, "", f"{prices.hours:,.0f} hours at the prices given"),
        ]

    # ── honesty ──

    def beyond(self) -> list[Beyond]:
        """Sizes outside of what was measured, and the factor."""
        step, model, machine = self.step, self.trainer.model, self.trainer.machine
        sizes: dict[str, float] = {
            "ranks": step.ranks,
            "examples of a rank": step.batch / step.ranks,
            "cores of a rank": machine.cores,
            "fields": model.fields,
            "keys of an example": model.keys,
            "values of a row": model.row.dim,
            "parameters": model.parameters,
        }
        if self.trainer.core_s is not None:  # its own run measured the model
            sizes = {name: sizes[name] for name in ("ranks", "examples of a rank", "cores of a rank")}
        if machine.gbit is not None and step.ranks > 1:
            sizes["Gbit/s"] = machine.gbit
        found = [
            b for n, size in sizes.items() for b in beyond(n, size, value(f"least {n}"), value(f"most {n}"))
        ]
        most: dict[str, float] = {
            "rows of a table": self.trainer.ids.count / model.tables / self._split,
            "rows in Redis": self.trainer.ids.count,
        }
        if self.serving:
            most |= {"candidates": self.serving.candidates, "items": self.serving.items}
            found += beyond("ids of a candidate", model.fields, value("most ids of an example"), float("inf"))
            found += beyond("ids of a candidate", model.fields, 0, value("most ids of an example"))
        found += beyond("ranks and nodes that publish", min(self.ranks, self.store.primaries), 1, 1)
        for name, size in most.items():
            found += beyond(name, size, 0, value(f"most {name}"))
        return found + beyond("events/s of the whole path", self.load.events, 0, value("held"))

    @property
    def _split(self) -> int:
        """Ranks over which a table is split by key: all, where there are more ranks than tables."""
        return self.ranks if self.ranks > self.trainer.model.tables else 1

    def notes(self) -> list[str]:
        """Advice, and what the plan leaves out."""
        found, model, step = [], self.trainer.model, self.step
        reported = self.trainer.reported_batch
        if reported is not None and reported < step.batch / step.ranks / 4:
            found.append(
                f"the report's steps have {reported:,.0f} examples: its speed may be that of a live log; "
                "report a run that reads a stored log with --until-end and --set batch_ramp=0"
            )
        if step.batch > DEFAULT_BATCH:
            found.append(
                f"a batch of {step.batch:,} is {step.batch / DEFAULT_BATCH:.3g} times the default: try its "
                "AUC on your log with `livectr train --set batch_size=…`"
            )
        if self.limited[1] == "limited by memory":
            found.append(
                "rows may lie on SSD (dram_bytes, spill): with a tenth of them in memory, steps took "
                f"{1 / value('spilled'):.0f} times as long (bench tiers, Zipf 1.05)"
            )
        if self.ranks > model.tables:
            found.append(
                f"{self.ranks:,} ranks share {model.tables:,} tables: set placement balanced and rank_memory"
            )
        if self.trainer.ids.count / model.tables / self._split > MOST_TABLE_ROWS:
            found.append(
                "a rank's part of a table has at most 4.29e9 rows: split it by rank_memory, or add ranks"
            )
        if model.lacks:
            found.append("left out of bytes and time: " + "; ".join(model.lacks))
        return found
