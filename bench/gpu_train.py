"""Training end to end, out of a log of files, with the device on and off: `livectr train --device gpu`.

There is no broker and no Redis where a GPU is lent for minutes: nothing is published.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from unittest.mock import patch

from bench.environment import ROOT
from bench.gpu_timing import Rows, Target
from bench.rows import bounded, row
from livectr.ingest.extract.device_extractor import DeviceExtractor
from livectr.ingest.pipeline import load_pipeline
from livectr.kernels.runtime.device import EmulatedDevice
from livectr.system.children import with_parent
from livectr.trainer import main_step, step_settings
from livectr.trainer.options import TrainOptions
from livectr.trainer.report import Report
from livectr.trainer.run import train
from livectr.trainer.stream import extraction
from livectr.trainer.tables.gpu_tables import GpuTables

PIPELINE = ROOT / "bench" / "plan" / "pipeline.py"
RATE = 5000
"""Impressions a second of event time."""
AUC = 0.005
"""Greatest difference of AUC between the devices, which round differently."""


def measure(target: Target, device: str, *, small: bool) -> Rows:
    """Rows of two runs of one log."""
    seconds, batch = (2, 512) if small else (120, 4096)
    with tempfile.TemporaryDirectory(prefix="livectr-bench-") as folder:
        simulate(Path(folder, "log"), seconds)
        source = f"file:{folder}/log"
        on_gpu, on_cpu = (learned(source, batch, target if on else None) for on in (True, False))
    examples = f"{on_gpu.examples_trained:,} examples of JSON"
    workload = f"{examples}, 16 fields, DeepFM 256-128, K = 16, batch {batch:,}, features and tables, too"
    apart = abs((on_gpu.auc or 0.0) - (on_cpu.auc or 0.0))
    return [
        row("training end to end", workload, "examples/s", on_gpu.examples_per_second,
            peer_name="device cpu: all cores of the host", peer=on_cpu.examples_per_second),
        bounded("AUC, difference of the devices", workload, "of 1", apart, goal=AUC),
    ]  # fmt: skip


def simulate(folder: Path, seconds: int) -> None:
    """Write a log of the simulator. Raises RuntimeError with what it said."""
    target = [
        "--to",
        f"file:{folder}",
        "--seconds",
        str(seconds),
        "--rate",
        str(RATE),
        "--fast",
        "--no-images",
    ]
    command = with_parent([sys.executable, "-m", "livectr", "logs", "simulate", *target])
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"livectr logs simulate ended with {done.returncode}: {done.stderr[-2000:]}")


def learned(source: str, batch: int, target: Target | None) -> Report:
    """Learn the log with features, tables and network on a device; None: on the host."""
    options = TrainOptions(
        source,
        until_end=True,
        batch_size=batch,
        batch_ramp=0,
        device="cpu" if target in (None, EmulatedDevice) else "gpu",
    )
    with ExitStack() as patches:
        # rows on a GPU are learned by batch
        patches.enter_context(patch.object(step_settings, "ONLINE", 0))
        if target is EmulatedDevice:  # what device=gpu chooses, but for the network
            extractor = partial(DeviceExtractor, target=EmulatedDevice)
            for owner, name, value in (
                (main_step, "gpu_tables", lambda options: GpuTables(1_000_000, EmulatedDevice)),
                (extraction, "compiler", lambda device, **budget: partial(extractor, **budget)),
            ):
                patches.enter_context(patch.object(owner, name, value))
        return train(load_pipeline(PIPELINE), options)
