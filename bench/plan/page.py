"""Predictions of `livectr plan` beside measurements, in docs/scaling.md: `python -m bench.plan.page`."""

from __future__ import annotations

from collections.abc import Sequence

from bench.plan.check import (
    Checked,
    rows_in_memory,
    sent_in_a_step,
    spread,
    steps_of_others,
    steps_over_wires,
    whole_run,
)
from bench.plan.fit import fit, fitted_runs
from bench.scaling_page import PAGE
from bench.sections import fill


def page(text: str) -> str:
    """Text of the page with the tables of the current results."""
    return fill(text, "plan", f"\n{section()}\n")


def section() -> str:
    """Errors by group, and every step without a limit of the network."""
    coefficients, error = fit()
    groups = [
        ("bytes that a rank sends in a step", sent_in_a_step()),
        ("steps at 0.5 to 10 Gbit/s, from the contestant's own step without a limit", steps_over_wires()),
        ("steps without a limit, from the fit", steps_of_others()),
        ("bytes of a row, in a table and in Redis", rows_in_memory()),
        ("CPU time of a whole run, at the speed of its machine", whole_run()),
    ]
    fitted = ", ".join(f"`{name}` {value:.3g}" for name, value in coefficients.items())
    lines = [
        f"Fit of {len(fitted_runs())} steps, median error {error:.0%}, in seconds: {fitted}.",
        "",
        "| predicted | measured points | least error | median | most |",
        "|---|---:|---:|---:|---:|",
        *(_line(name, checked) for name, checked in groups),
        "",
        "Steps without a limit, which were not fitted:",
        "",
        "| run | bench/results | predicted, ms | measured, ms | error |",
        "|---|---|---:|---:|---:|",
        *(
            f"| {one.name} | {one.file} | {1e3 * one.predicted:.1f} | {1e3 * one.measured:.1f} "
            f"| {one.error:+.0%} |"
            for one in steps_of_others()
        ),
    ]
    return "\n".join(lines) + "\n"


def _line(name: str, checked: Sequence[Checked]) -> str:
    errors = " | ".join(f"{error:+.0%}" for error in spread(checked))
    return f"| {name} | {len(checked)} | {errors} |"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
