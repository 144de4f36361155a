"""Card, driver and clocks of the first GPU, as nvidia-smi says them."""

from __future__ import annotations

import subprocess

FIELDS = (
    *("name", "uuid", "driver_version", "memory.total", "compute_cap", "clocks.sm", "clocks.max.sm"),
    *("clocks.mem", "power.limit", "temperature.gpu", "pcie.link.gen.max", "pcie.link.width.max"),
)


def card() -> dict[str, str] | None:
    """Field of nvidia-smi → value with its unit; None where there is no card."""
    query = ["nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader", "--id=0"]
    try:
        said = subprocess.run(query, capture_output=True, text=True, check=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    values = [value.strip() for value in said.strip().split(",")]
    return dict(zip(FIELDS, values, strict=False))
