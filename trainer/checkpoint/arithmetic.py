"""Arithmetic of a run's products: its library, which a checkpoint keeps, and what the log tells of it."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from livectr.models.library import rates, suited
from livectr.trainer.checkpoint.restored import Restored
from livectr.trainer.comm.control import Control
from livectr.trainer.options import TrainOptions
from livectr.trainer.step_settings import Library, StepSettings

if TYPE_CHECKING:
    from livectr.trainer.des.step import DesStep

LOG = logging.getLogger(__name__)
SLOWER = 0.5
"""Share of the other library's rate below which the log warns; other work on a machine costs a third."""


def settled(options: TrainOptions, control: Control, restored: Restored | None) -> StepSettings:
    """Execution of the run's steps, with the library of rank 0 on every rank. Collective.

    A library's sums differ in the last bits from another's, so "auto" is the checkpoint's library, and in a
    first run the one that suits rank 0's CPU.

    Args:
        options: `products` names the library, or is "auto".
        control: broadcasts rank 0's choice.
        restored: the checkpoint; None in a first run.
    """
    before = restored.manifest.products if restored is not None else ""
    wanted: str | None = None
    if control.rank == 0:
        wanted = (before or suited()) if options.products == "auto" else options.products
        if before and wanted != before:
            LOG.warning(
                "products is %s, but the checkpoint's steps had %s: the model differs in its last bits from "
                "that of an unbroken run",
                wanted,
                before,
            )
    library: Library = "packed" if control.broadcast_json(wanted) == "packed" else "torch"
    return replace(options.step_settings, products=library)


def tell(step: DesStep, options: TrainOptions) -> None:
    """Log the arithmetic of the networks; warn of a setting that has no effect, or costs speed."""
    LOG.info("networks multiply in %s", step.precision)
    if options.precision != step.precision == "fp32":
        LOG.warning(
            "precision is %s, but this CPU has no products of bf16 (AMX or AVX512-BF16): "
            "networks multiply in fp32, no faster than with precision fp32",
            options.precision,
        )
    if step.rank == 0 and step.precision == "fp32" and step.spec.settings.library == "packed":
        _tell_rates()


def _tell_rates() -> None:
    found = rates()
    LOG.info("fp32 products: %.0f GFLOP/s packed, %.0f GFLOP/s by torch", found["packed"], found["torch"])
    if found["packed"] < SLOWER * found["torch"]:
        LOG.warning("products is packed, but torch was faster in a measurement: compare products=torch")
