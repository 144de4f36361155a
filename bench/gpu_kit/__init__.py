"""Kit for a machine with a GPU that is at hand for minutes: tests, sanitizers, benchmarks and a report.

    run.sh OUT [--dry]    finds Python and starts `python -m bench.gpu_kit`
    steps.py              the steps, in order of worth, each with a time limit
    runner.py             runs a step; what fails or hangs does not end the rest
    events.py             log of what happened: OUT/events.jsonl
    kernels.py            counts compiled kernels that were brought along, and those that were not
    build.py       builds what is brought along, into .gpu_kit/
    report.py             OUT/report.md and OUT/gpu.json, made again after each step

`--dry` runs the same files in the same order on the emulated device, at small sizes.
"""
