"""Lines and table of a rollout."""

from __future__ import annotations

from rich.table import Table

from livectr.analysis.compare import Z95
from livectr.console import make_console
from livectr.rollout.measures import MEASURES, Measures


def progress(seen: Measures | None, count: int, alone: tuple[int, int]) -> str:
    """Line on how a comparison stands.

    Args:
        seen: measures; None: nothing is in both runs yet.
        count: examples in both.
        alone: examples of the old and of the new run without a partner yet.
    """
    if seen is None:
        old, new = alone
        return f"no example is in both yet ({old:,} of the old trainer, {new:,} of the new one)"
    auc = seen.differences["auc"]
    old_rate, new_rate = seen.calibration
    return (
        f"{count:,} examples in both, ΔAUC {auc.difference:+.4f} ± {Z95 * auc.standard_error:.4f}, "
        f"calibration {new_rate:.3f} (old {old_rate:.3f})"
    )


def show(seen: Measures | None, asked: int) -> None:
    """Print the table of what was measured last.

    Args:
        seen: measures; None: nothing is printed.
        asked: examples in both at that time, of which the newer are measured.
    """
    if seen is None:
        return
    newer = f"the newer {seen.examples:,} of " if seen.examples < asked else ""
    table = Table(title=f"{newer}{max(asked, seen.examples):,} examples in both", title_justify="left")
    table.add_column("measure", no_wrap=True)
    for name in ("old", "new", "new − old", "± 95 %"):
        table.add_column(name, justify="right", no_wrap=True)
    for measure, name in MEASURES.items():
        found = seen.differences[measure]
        half = f"{Z95 * found.standard_error:.4f}"
        table.add_row(name, f"{found.a:.4f}", f"{found.b:.4f}", f"{found.difference:+.4f}", half)
    old, new = seen.calibration
    table.add_row("calibration", f"{old:.4f}", f"{new:.4f}", f"{new - old:+.4f}", "")
    make_console().print(table)
