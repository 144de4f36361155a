"""The parts of a run that another run may begin with.

Parts of a model are loaded into a run that reads the log from its beginning (trainer.checkpoint.warm_start).
`RUN` is the run itself, which a changed pipeline continues (trainer.carry), where it is or from an older
generation (trainer.carry.relearn).
"""

from livectr.system.durations import duration_ms
from livectr.system.errors import ConfigError

PARTS = ("network", "content", "embeddings")
RUN = "run"
ALL = "all"
"""Part of the log that is learned again: the whole, by a new model, so that nothing is taken over."""
SHORTHANDS = {"partial": ("network",), "full": PARTS, "none": ()}


def parse_warm_parts(text: str) -> frozenset[str]:
    """The parts of PARTS that "network,embeddings", or a shorthand, names; `network` has `content` with it.

    "run" names RUN alone. Raises ConfigError for a word that is neither.
    """
    if text.strip() == RUN:
        return frozenset({RUN})
    parts: set[str] = set()
    for word in text.split(","):
        name = word.strip()
        if name not in PARTS and name not in SHORTHANDS:
            raise ConfigError(
                f"warm_parts names {name!r}, which is no part; parts are {', '.join(PARTS)}, and in short "
                "partial (network), full (all) or none; run, alone, continues the run itself"
            )
        parts |= {*SHORTHANDS.get(name, (name,))}
    return frozenset(parts | {"content"} if "network" in parts else parts)


def parse_relearn(text: str) -> int | None:
    """Least age in ms of a setting such as "1h"; None: ALL. Raises ConfigError."""
    return None if text.strip() == ALL else duration_ms(text, f"relearn (a duration, or {ALL})")
