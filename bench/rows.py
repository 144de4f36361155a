"""Row of a benchmark's result."""

from typing import Literal

from livectr.trainer.step_settings import Precision


def row(
    figure: str,
    workload: str,
    unit: str,
    ours: float,
    *,
    peer_name: str | None = None,
    peer: float | None = None,
    better: Literal["more", "less"] = "more",
    goal: float | None = None,
) -> dict[str, object]:
    """Row whose `ratio` is ours to the peer, turned so that more is better; `goal` is the least ratio."""
    ratio = None if peer is None else ours / peer if better == "more" else peer / ours
    return {
        "figure": figure,
        "workload": workload,
        "unit": unit,
        "ours": ours,
        "peer_name": peer_name,
        "peer": peer,
        "ratio": ratio,
        "goal": goal,
        "met": None if goal is None or ratio is None else ratio >= goal,
    }


def bounded(
    figure: str,
    workload: str,
    unit: str,
    ours: float,
    *,
    goal: float | None,
    better: Literal["more", "less"] = "less",
) -> dict[str, object]:
    """Row without a peer; `goal` is the greatest figure, or the least if more is better."""
    met = None if goal is None else ours <= goal if better == "less" else ours >= goal
    return row(figure, workload, unit, ours) | {"goal": goal, "met": met}


def products(precision: Precision) -> str:
    """End of a workload's text: arithmetic of a precision on this CPU; empty for fp32."""
    import torch

    from livectr.models.precision import arithmetic_name

    return "" if precision == "fp32" else f", products in {arithmetic_name(precision, torch.device('cpu'))}"
