"""One example configuration of every model, for the features of `bench.planted` as the tests use them.

Fields C1 … C6, of which C3 and C6 are lists, sometimes empty, and C6 shares C2's table; dense I1 … I3.
"""

from __future__ import annotations

from models import (
    DCN,
    DIEN,
    DIN,
    DNN,
    FLEN,
    FM,
    LR,
    PNN,
    AutoInt,
    DeepFM,
    ModelConfig,
    TwoTower,
    WideDeep,
    XDeepFM,
)

FIELDS = ("C1", "C2", "C3", "C4", "C5", "C6")
DENSE = ("I1", "I2", "I3")
SHARED = [(6, 2)]
"""As `bench.planted.pipeline` takes it: C6 reads the table of C2."""

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
    "DIN": (DIN(target=("C2",), behaviours=("C6",), dim=4, hidden=(8, 5), attention=(6,)), True),
    "DIN, two lists": (
        DIN(target=("C2", "C1"), behaviours=("C6", "C3"), dim=4, hidden=(8,), attention=(6, 3)),
        True,
    ),
    "DIEN": (DIEN(target=("C2",), behaviours=("C6",), dim=4, hidden=(8, 5), state=3), True),
    "TwoTower": (
        TwoTower(user=("C1", "C3", "C5", "I1"), item=("C2", "C4", "I3"), dim=4, hidden=(8,), out=6),
        False,
    ),
}
"""Name → (configuration, whether it needs a field's every key: `Gathers.sequences`)."""
