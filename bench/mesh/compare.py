"""Rows of `livectr bench mesh`: the paper's Table 4 in shape, and Figure 8's bytes."""

from __future__ import annotations

from bench.launch import launch
from bench.mesh.contest import ASYNCHRONOUS, MODELS, SYNCHRONOUS
from bench.peers.workloads import W
from bench.rows import row

WORLD = 4
TABLE_4 = {"LR": 1.55, "W&D": 4.52, "DeepFM": 3.91}
"""DES Table 4: how many times the samples a second of DiFacto."""


def rows(quick: bool) -> list[dict[str, object]]:
    """All rows."""
    found: dict[str, dict[str, float]] = launch("bench.mesh.contest", *["--quick"] * quick, world=WORLD)
    rows = []
    for model in MODELS:
        ours = found[f"{model}/ours"]
        workload = f"{model}, {W}, {WORLD} ranks"
        for peer in (SYNCHRONOUS, ASYNCHRONOUS):
            theirs = found[f"{model}/{peer}"]
            rows.append(
                row(
                    "training beside a mesh",
                    workload,
                    "samples/s",
                    ours["rate"],
                    peer_name=peer,
                    peer=theirs["rate"],
                    goal=TABLE_4[model],
                )
            )
        rows.append(
            row(
                "bytes of all ranks on loopback",
                workload,
                "MB/step",
                ours["bytes"] / 1e6,
                peer_name=SYNCHRONOUS,
                peer=found[f"{model}/{SYNCHRONOUS}"]["bytes"] / 1e6,
                better="less",
            )
        )
    return rows
