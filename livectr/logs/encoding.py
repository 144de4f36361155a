"""Encodings that are not UTF-8, named with the command that rewrites the file."""

from __future__ import annotations

from pathlib import Path

from livectr.system.errors import ConfigError
from livectr.system.file_kinds import kind_of
from livectr.system.texts import wide_encoding

LOOK_BYTES = 1 << 16
NO_TEXT = 0.002
"""Share of zero bytes above which a file is no text; fewer are in some of its values."""
C1 = range(0x80, 0xA0)
"""Bytes that are control characters in Latin-1, and letters in Windows-1252."""


def check_text(first: bytes, path: Path) -> None:
    """Check the first block of a file of lines.

    Raises:
        ConfigError: it is of another kind, UTF-16 or UTF-32, no text, or its lines end with CR alone.
    """
    if kind := kind_of(first):
        raise ConfigError(f"{path} is {kind.name}, not text; {kind.cure}.")
    if name := wide_encoding(first[:LOOK_BYTES]):
        raise ConfigError(f"{path} is {name}, not UTF-8: iconv -f {name} -t UTF-8 {path} > utf8-{path.name}")
    some = first[:LOOK_BYTES]
    if some.count(0) > NO_TEXT * len(some):
        raise ConfigError(f"{path} holds zero bytes, so it is no text; is it of another format?")
    if b"\r" in first and b"\n" not in first:
        raise ConfigError(f"{path}: lines end with CR alone: tr '\\r' '\\n' < {path} > lf-{path.name}")


def not_utf8(row: bytes) -> str:
    """Words on a row that is not UTF-8, with its first wrong bytes and the encoding that it seems to have."""
    try:
        row.decode()
    except UnicodeDecodeError as error:
        wrong = row[error.start : error.end]
        near = row[max(0, error.start - 8) : error.end + 8]
        if wrong[:1] == b"\xed" or row[error.start : error.start + 1] == b"\xed":
            return f"not UTF-8: half of a surrogate pair, in {near.decode('latin-1')!r}"
        name, code = ("Windows-1252", "CP1252") if any(byte in C1 for byte in near) else ("Latin-1", "LATIN1")
        try:
            shown = near.decode(code)
        except UnicodeDecodeError:
            shown, name, code = near.decode("latin-1"), "Latin-1, which it hardly is,", "ENCODING"
        return f"not UTF-8: byte 0x{wrong[0]:02x}; as {name} {shown!r}: iconv -f {code} -t UTF-8"
    raise ValueError("the row is UTF-8")
