"""Example configurations of every model, for the features of `bench.planted` as the tests use them.

Fields C1 … C6, of which C3 and C6 are lists, sometimes empty, and C6 shares C2's table; dense I1 … I3.
"""

from __future__ import annotations

from typing import Any

from livectr.models import (
    DCN,
    DICM,
    DIEN,
    DIN,
    DNN,
    FLEN,
    FM,
    LR,
    PLE,
    PNN,
    AutoInt,
    DeepFM,
    MMoE,
    ModelConfig,
    SharedBottom,
    TwoTower,
    WideDeep,
    XDeepFM,
)

FIELDS = ("C1", "C2", "C3", "C4", "C5", "C6")
DENSE = ("I1", "I2", "I3")
SHARED = [(6, 2)]
"""Argument of `bench.planted.pipeline`: C6 reads the table of C2."""

EXAMPLES: dict[str, tuple[ModelConfig, bool]] = {
    "LR": (LR(), False),
    "FM": (FM(dim=4), False),
    "DNN": (DNN(dim=4, hidden=(8, 5)), False),
    "WideDeep": (WideDeep(dim=4, hidden=(8, 5)), False),
    "DeepFM": (DeepFM(dim=4, hidden=(8, 5)), False),
    "PNN inner": (PNN(product="inner", dim=4, hidden=(6, 5)), False),
    "PNN outer": (PNN(product="outer", dim=4, hidden=(6, 5)), False),
    "DCN": (DCN(dim=4, layers=3, hidden=(8, 5)), False),
    "FLEN": (FLEN(groups=(("C1", "C3"), ("C2", "C6"), ("C5",)), dim=4, hidden=(8, 5)), False),
    "xDeepFM": (XDeepFM(dim=4, cin=(3, 2), hidden=(8, 5)), False),
    "AutoInt": (AutoInt(dim=4, layers=2, heads=2, out=3), False),
    "AutoInt+": (AutoInt(dim=4, layers=1, heads=2, out=3, deep=(8, 5)), False),
    "DIN": (DIN(target=("C2",), behaviors=("C6",), dim=4, hidden=(8, 5), attention=(6,)), True),
    "DIN, two lists": (
        DIN(target=("C2", "C1"), behaviors=("C6", "C3"), dim=4, hidden=(8,), attention=(6, 3)),
        True,
    ),
    "DIEN": (DIEN(target=("C2",), behaviors=("C6",), dim=4, hidden=(8, 5), state=3), True),
    "SharedBottom": (SharedBottom(dim=4, hidden=(8, 5), tower=(4,)), False),
    "MMoE": (MMoE(dim=4, experts=3, hidden=(6, 5), tower=(4,)), False),
    "MMoE, linear": (MMoE(dim=4, experts=2, hidden=(6,), tower=()), False),
    "PLE": (PLE(dim=4, experts=2, shared_experts=1, levels=3, hidden=(6, 5), tower=(4,)), False),
    "CGC": (PLE(dim=4, experts=1, shared_experts=2, levels=1, hidden=(6,), tower=(4,)), False),
    "TwoTower": (
        TwoTower(user=("C1", "C3", "C5", "I1"), item=("C2", "C4", "I3"), dim=4, hidden=(8,), out=6),
        False,
    ),
}
"""Name → (configuration, whether it needs a field's every key: `Gathers.sequences`)."""


def dicm(**settings: Any) -> DICM:
    """C2 is the ad and its image, C6 the clicked ads and theirs."""
    named: dict[str, Any] = {"target": ("C2",), "behaviors": ("C6",), "concat_length": 2}
    small: dict[str, Any] = {"image_dim": 3, "dim": 4, "hidden": (8, 5), "attention": (6,)}
    return DICM(ad_image="C2", behavior_images="C6", ad="C1", **(named | small | settings))


CONTENT_EXAMPLES: dict[str, tuple[ModelConfig, bool, tuple[str, ...]]] = {
    "DICM": (dicm(), False, ("C2", "C6")),
    "DICM on LR": (dicm(basic="lr"), False, ("C2", "C6")),
    "DICM on DIN": (dicm(basic="din", aggregator="attentive"), True, ("C2", "C6")),
    "DICM on Wide&Deep": (dicm(basic="wide_deep"), False, ("C2", "C6")),
    "DICM, max": (dicm(aggregator="max", images="behaviors"), False, ("C6",)),
    "DICM, concat": (dicm(aggregator="concat"), False, ("C2", "C6")),
    "TwoTower with images": (
        TwoTower(
            user=("C1", "C5", "I1"),
            item=("C2", "C4", "I3"),
            user_images=("C6", "C3"),
            item_images=("C2",),
            image_dim=3,
            dim=4,
            hidden=(8,),
            out=6,
        ),
        False,
        ("C6", "C3", "C2"),
    ),
}
"""Name → as above, and the fields that are ids of content, whose vectors have 3 numbers."""
