"""Table of the versions that can be had: the served one in Redis, and the generations of a checkpoint."""

from __future__ import annotations

from datetime import datetime

from rich.table import Table

from livectr.console import make_console
from livectr.store.hold import Hold
from livectr.store.layout import Keyspace
from livectr.store.manifest import VersionManifest
from livectr.store.redis_client import connected
from livectr.system.errors import ConfigError

COLUMNS = ("where", "version", "written", "examples", "AUC", "calibration", "state")


def show_versions(url: str, namespace: str, checkpoint: str | None) -> None:
    """Print the table, and the hold if there is one.

    Args:
        url: of Redis.
        namespace: prefix of its keys.
        checkpoint: folder or s3:// address whose generations are listed, too.

    Raises:
        ConfigError: there is no version anywhere.
        ConnectError: Redis does not answer.
    """
    keys = Keyspace(namespace)
    with connected(url) as client:
        client.ping()  # before the checkpoint, which takes seconds to read
        rows = [] if checkpoint is None else _generations(checkpoint)
        text, hold = client.get(keys.manifest), Hold.of(client.get(keys.hold))
    table = Table(title=f"versions of {namespace}", title_justify="left")
    for name in COLUMNS:
        table.add_column(name, justify="left" if name in ("where", "state") else "right")
    generations = len(rows)
    if text is not None:
        version = VersionManifest.from_json(text)
        written = _time(version.created_ms)
        rows.append(
            (
                "Redis",
                str(version.version),
                written,
                f"{version.examples:,}",
                "",
                "",
                "served" if hold is None else "served, held",
            )
        )
    if not rows:
        raise ConfigError(
            f"nothing is published under the namespace {namespace!r}, and --checkpoint names no generation"
        )
    for row in rows:
        table.add_row(*row)
    console = make_console()
    console.print(table)
    if checkpoint is not None and not generations:
        console.print(f"{checkpoint} holds no checkpoint", highlight=False, markup=False, soft_wrap=True)
    if hold is not None:
        console.print(
            f"held since {_time(hold.since_ms)}: {hold.reason}", highlight=False, markup=False, soft_wrap=True
        )


def _generations(checkpoint: str) -> list[tuple[str, ...]]:
    from livectr.trainer.checkpoint.keeping import KEPT_GENERATIONS, readable
    from livectr.trainer.checkpoint.manifest import MANIFEST, Folder, folder_of
    from livectr.trainer.checkpoint.stored import placed

    rows: list[tuple[str, ...]] = []
    place = placed(checkpoint)
    manifests = readable(place)
    newest = {m.generation for m in manifests[-KEPT_GENERATIONS:]}
    for m in manifests:
        begun = m.cursor is not None and m.cursor["row_set"]
        whole = not isinstance(place, Folder) or all((place.root / f.path).exists() for f in m.files)
        if not whole and not (folder_of(place.root, m.generation) / MANIFEST).exists():
            continue  # the trainer has replaced it
        held, skipped = m.quality.get("held", ""), m.quality.get("skipped", {}).get("batches")
        unlearned = f", {skipped:,} batches in a row were not learned" if skipped and not held else ""
        state = "newest" if m.generation in newest else "kept for rollback"
        rows.append(
            (
                f"generation {m.generation}",
                str(m.cursor["version"]) if begun and m.cursor is not None else "",
                _time(m.created_ms),
                f"{m.examples:,}",
                _number(m.quality.get("auc")),
                _number(m.quality.get("calibration")),
                (state if whole else "lacks files")
                + (f", not published ({held})" if held else "")
                + unlearned,
            )
        )
    return rows


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000).strftime("%Y-%m-%d %H:%M:%S")
