"""Commands that have moved, and the words that run them."""

import shlex
from collections.abc import Sequence

from livectr.secrets import has_password

MOVED = {
    "kafka": "local kafka",
    "redis": "local redis",
    "simulate": "logs simulate",
    "replay": "logs replay",
    "example": "init --example",
    "images": "features",
    "kernels": "features compile",
    "verify": "query verify",
    "tune": "experiment tune",
    "ablate": "experiment ablate",
    "compare": "experiment compare",
}
"""First word of a former command → its words."""


def moved(words: Sequence[str]) -> str:
    """Sentence about a command that has moved, with its new words; "" for any other command.

    Args:
        words: of the command line, without the program. Those with a password are not repeated.
    """
    if not words or words[0] not in MOVED:
        return ""
    old, new, given = words[0], MOVED[words[0]], list(words[1:])
    if old == "example":
        given = [
            "--out" + word.removeprefix("--to") if word.partition("=")[0] == "--to" else word
            for word in given
        ]
    said = f"`livectr {old}` is `livectr {new}` now"
    if not given or any(map(has_password, given)):
        return f"{said}."
    return f"{said}: livectr {new} {shlex.join(given)}"
