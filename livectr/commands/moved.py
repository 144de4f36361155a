"""Commands that have moved, and the words that run them."""

import shlex
from collections.abc import Sequence

from livectr.system.logs import tell

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


def todays(words: Sequence[str]) -> list[str]:
    """Words of a command line as they are today; a command that has moved runs, and a line says its new name.

    Args:
        words: without the program.
    """
    if not words or words[0] not in MOVED:
        return list(words)
    old, new, given = words[0], MOVED[words[0]], list(words[1:])
    if old == "example":
        given = [
            "--out" + word.removeprefix("--to") if word.partition("=")[0] == "--to" else word
            for word in given
        ]
    tell(f"`livectr {old}` is `livectr {new}` now.")
    return [*shlex.split(new), *given]
