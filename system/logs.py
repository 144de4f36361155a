"""Log of a process on standard error: text for people, or JSON lines for machines.

A JSON line has `time` (UTC), `level`, `logger` and `message`; `release` (of LiveCTR); what the process is:
`role`, and `rank` or `worker` where there are several; where it is known, `version` (the published model that
is served or was published last) and `request_id`; and `exception`, a traceback.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from types import TracebackType

from livectr.system.texts import visible

REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")
"""Id of the request that this thread answers; the client chose it."""
FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")

_fields: dict[str, Callable[[], object]] = {}
_NAME = "livectr"
_LOG = logging.getLogger("livectr")


def add_log_field(name: str, value: Callable[[], object]) -> None:
    """Give every JSON line of this process a field.

    Args:
        name: of the field.
        value: called for each line, from any thread; None leaves the field out.
    """
    _fields[name] = value


def log_to_stderr(format: str, fields: Mapping[str, object] | None = None, level: str = "info") -> None:
    """Write log messages to standard error; a later call replaces an earlier one.

    Args:
        format: one of FORMATS.
        fields: fields of every JSON line.
        level: one of LEVELS; messages below it are left out.
    """
    for name, value in (fields or {}).items():
        add_log_field(name, lambda value=value: value)  # type: ignore[misc]
    handler = logging.StreamHandler()
    if format == "json":
        handler.setFormatter(JsonFormatter())
        sys.excepthook = _log_exception
    else:
        rank = f" rank {os.environ['RANK']}" if int(os.environ.get("WORLD_SIZE", 1)) > 1 else ""
        handler.setFormatter(logging.Formatter(f"%(asctime)s{rank} %(levelname)s %(name)s: %(message)s"))
        sys.excepthook = sys.__excepthook__
    logging.captureWarnings(format == "json")
    root = logging.getLogger()
    for ours in [each for each in root.handlers if each.get_name() == _NAME]:
        root.removeHandler(ours)
    if not root.handlers:  # a program that has its own handlers keeps them
        handler.set_name(_NAME)
        root.addHandler(handler)
        root.setLevel(level.upper())


def logs_json() -> bool:
    """True when standard error takes JSON lines only."""
    return any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers)


def tell(sentence: str) -> None:
    """Write the sentence with which a command ends to standard error, in the format of the log."""
    if logs_json():
        _LOG.error("%s", sentence)
    else:
        print("livectr: " + "\n".join(map(visible, sentence.split("\n"))), file=sys.stderr)


class JsonFormatter(logging.Formatter):
    """Formatter of one JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Line of a record."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, object] = {"time": time.replace("+00:00", "Z"), "level": record.levelname}
        line |= {"logger": record.name, "message": record.getMessage()}
        for name, value in _fields.items():
            found = value()
            if found is not None:
                line[name] = found
        if request_id := REQUEST_ID.get():
            line["request_id"] = request_id
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def _log_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    _LOG.critical("%s: %s", kind.__name__, error, exc_info=(kind, error, trace))
