"""The parts of a run that another run may begin with.

Parts of a model are loaded into a run that reads the log from its beginning (trainer.checkpoint.warm_start).
`RUN` is the run itself, which a changed pipeline continues (trainer.carry).
"""

from livectr.system.errors import ConfigError

PARTS = ("network", "content", "embeddings")
RUN = "run"
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
