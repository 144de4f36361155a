"""Tables of `livectr query describe`: columns of a request, kept versions, sides."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any


def show_described(described: Any) -> None:
    """Print a DescribeResponse."""
    from rich.console import Console

    from livectr.console import make_console
    from livectr.serving.front import answers

    console = Console()
    columns = answers.columns(described)
    names = list(columns[0]) if columns else ["column"]
    console.print(_table(names, (map(str, row.values()) for row in columns)))
    many = len(described.sides) > 1
    if described.versions:
        heads = [*(["side"] if many else []), "version", "published", "champion", "examples", "rows", "state"]
        served = {v.side: v.number for v in described.versions if v.served}
        rows = (
            [*([v.side] if many else []), *_version(v, served.get(v.side, 0))] for v in described.versions
        )
        make_console().print(_table(heads, rows))
    held = f", held: {described.held}" if described.held else ""
    # Not a table's caption: it would be as narrow as the table.
    lines = [f"{described.role} server, version {described.version} of {described.model}{held}"]
    lines += [_side(side) for side in described.sides if many]
    lines += [f"{side.name} explores: {side.explore}" for side in described.sides if side.explore]
    if described.value:
        lines.append(
            f"value: {described.value}{', of which requests bring the bids' if described.needs_bids else ''}"
        )
    lines += [f"trouble: {described.trouble}"] if described.trouble and not many else []
    for line in lines:
        console.print(line, highlight=False, markup=False)


def _version(version: Any, served: int) -> list[str]:
    """Cells of a VersionInfo; a version that the server has not seen is known by its number alone.

    Args:
        version: message of the server.
        served: number of the version that its side serves; 0: none.
    """
    if version.served:
        state = "served, may be pinned" + (", held" if version.held else "")
    else:
        state = "kept for servers that lag" if version.number < served else "not loaded"
    if not version.created_ms:
        return [str(version.number), "", "", "", "", state]
    published = datetime.fromtimestamp(version.created_ms / 1000).strftime("%Y-%m-%d %H:%M:%S")
    counts = [f"{version.examples:,}", f"{version.rows:,}"]
    return [str(version.number), published, version.champion, *counts, state]


def _side(side: Any) -> str:
    serves = f"version {side.version} of {side.model}" if side.version else "no version"
    trouble = f" ({side.trouble})" if side.trouble else ""
    return f"{side.name}: {side.share:.4g} of the requests by {side.by}, {side.namespace}, {serves}{trouble}"


def _table(names: Iterable[str], rows: Iterable[Iterable[str]]) -> Any:
    from rich.table import Table

    table = Table()
    for name in names:
        table.add_column(name, justify="left" if name in ("side", "state") else "right")
    for row in rows:
        table.add_row(*row)
    return table
