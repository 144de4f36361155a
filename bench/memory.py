"""Resident memory of a trainer over an hour of the demo's traffic, with users and ads that stay the same.

The hour is simulated first and then read as fast as the trainer can, with checkpoints and versions published
all the while, so that its queues, windows, histories, joins and prediction log pass an hour's worth. Ids do
not grow, so neither may memory: its end is compared with its first quarter, after tables, pools and the
join's 10 minutes of known keys have filled.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.process_memory import memory_mib
from bench.rows import row
from livectr.local.ports import free_ports
from livectr.local.scrape import scrape, value
from livectr.local.valkey import LocalRedis
from livectr.system.children import with_parent

ROOT = Path(__file__).resolve().parent.parent
PIPELINE = "examples/display_ads/pipeline.py"
RATE = 800
"""Impressions per second of event time."""
GOAL = 0.95
"""Memory after a quarter, as a share of that at the end."""

Sample = tuple[float, float]
"""Examples trained, MiB resident."""


def run(quick: bool = False) -> list[dict[str, object]]:
    """Rows of `livectr bench memory`."""
    seconds = 120 if quick else 3600
    with (
        tempfile.TemporaryDirectory(prefix="livectr-bench-") as folder,
        LocalRedis(f"127.0.0.1:{free_ports(1)}") as server,
    ):
        logs = f"file:{folder}/logs"
        simulate = ["logs", "simulate", "--to", logs, "--seconds", str(seconds), "--rate", str(RATE)]
        subprocess.run(
            [*_livectr(), *simulate, "--fast", "--events", "arrow"],
            cwd=ROOT,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        samples = train(logs, Path(folder) / "checkpoint", server.url)
    trained = samples[-1][0]
    early = [mib for examples, mib in samples if 0.2 <= examples / trained <= 0.3]
    late = [mib for examples, mib in samples if examples / trained >= 0.9 and mib]
    return [
        row(
            "resident memory of the trainer, last tenth of the run",
            f"{seconds} s of demo traffic, {trained:,.0f} examples, with checkpoints and publishing",
            "MiB",
            statistics.median(late),
            peer_name="the same run after a quarter",
            peer=statistics.median(early),
            better="less",
            goal=None if quick else GOAL,
        )
    ]


def train(
    logs: str,
    checkpoint: Path,
    redis: str,
    *,
    pipeline: str = PIPELINE,
    look: Callable[[float], None] = lambda examples: None,
) -> list[Sample]:
    """A trainer over the whole of `logs`, sampled ten times a second from its first examples to its end.

    look: called with each sample's examples.
    """
    port = free_ports(1)
    command = [*_livectr(), "train", "--pipeline", pipeline, "--source", logs, "--until-end"]
    command += ["--checkpoint", str(checkpoint), "--publish", redis, "--set", f"metrics_port={port}"]
    errors = checkpoint.with_suffix(".log")
    samples: list[Sample] = []
    with errors.open("wb") as log:
        process = subprocess.Popen(with_parent(command), cwd=ROOT, stdout=log, stderr=log)
        try:
            while process.poll() is None:
                examples = value(scrape(port), "livectr_examples_total")
                if examples:
                    samples.append((examples, memory_mib(process.pid, "VmRSS:")))
                    look(examples)
                time.sleep(0.1)
        finally:
            process.kill()
            status = process.wait()
    if status or not samples:
        raise RuntimeError(f"the trainer ended with status {status}: {errors.read_text()[-2000:]}")
    return samples


def _livectr() -> list[str]:
    return [sys.executable, "-m", "livectr"]


if __name__ == "__main__":
    print(json.dumps(run(quick="--quick" in sys.argv), indent=2))
