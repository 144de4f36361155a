"""What a person sees while it trains: one live line on a terminal, log lines elsewhere."""

import logging
import sys
import time
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from trainer.metrics import Quality

LOG = logging.getLogger(__name__)


class Progress:
    """The progress of a run; `show` may be called at every step.

    Args:
        quiet: show nothing (ranks other than 0).
    """

    def __init__(self, *, quiet: bool = False, every_s: float = 10.0) -> None:
        self._live: Live | None = None
        self._quiet = quiet
        if not quiet and sys.stderr.isatty():
            self._live = Live(console=Console(stderr=True), refresh_per_second=4, transient=True)
            every_s = 0.25
        self._every_s = every_s
        self._next = time.monotonic() + every_s
        self._before = (time.monotonic(), 0)

    def show(self, examples: int, version: int | None, quality: Quality | None) -> None:
        """Tell how far the run is, if it is time to."""
        now = time.monotonic()
        if self._quiet or now < self._next:
            return
        self._next = now + self._every_s
        then, held = self._before
        if now - then > 2:
            self._before = (now, examples)
        rate = (examples - held) / max(now - then, 1e-9)
        parts = [f"{examples:,} examples", f"{rate:,.0f}/s"]
        if quality is not None and quality.examples:
            parts.append(f"AUC {quality.auc:.4f}  GAUC {quality.gauc:.4f}  log loss {quality.logloss:.4f}")
        if version is not None:
            parts.append(f"version {version}")
        line = "  ·  ".join(parts)
        if self._live is not None:
            self._live.update(Text(f"  training  {line}"))
        else:
            LOG.info("%s", line)

    def __enter__(self) -> "Progress":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
