"""Run of the kit: `python -m bench.gpu_kit OUT [--dry] [--seconds N]`, which run.sh starts."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from bench.gpu_kit import events, report, runner
from bench.gpu_kit.mode import DRY
from bench.gpu_kit.steps import steps

SECONDS = 560.0
"""Time of all steps: a machine with a GPU is lent for ten minutes a command."""
DRY_FACTOR = 6
"""Limits of a dry run, in those of a GPU: its machine is small, and busy."""


def main() -> None:
    """Run all steps, and write the report after each. The exit code is 1 if a step failed."""
    parser = argparse.ArgumentParser(prog="bench/gpu_kit/run.sh", description=__doc__)
    parser.add_argument("out", type=Path, help="folder of report, results and log")
    parser.add_argument("--dry", action="store_true", help="on the emulated device, at small sizes")
    parser.add_argument("--seconds", type=float, help=f"most seconds of all steps [{SECONDS:.0f}]")
    arguments = parser.parse_args()
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    for name in (events.FILE, runner.LOG, *report.FILES):
        (out / name).unlink(missing_ok=True)
    os.environ[events.OUT] = str(out)
    os.environ.pop(DRY, None)
    if arguments.dry:
        os.environ[DRY] = "1"
    factor = DRY_FACTOR if arguments.dry else 1
    end = time.monotonic() + (arguments.seconds or factor * SECONDS)
    failed = 0
    for step in steps(dry=arguments.dry):
        left = end - time.monotonic()
        failed += runner.run(step, out, min(factor * step.limit_s, left)) == "failed"
        report.write(out)
    print(f"report: {out / report.REPORT}", flush=True)
    raise SystemExit(int(failed > 0))


if __name__ == "__main__":
    main()
