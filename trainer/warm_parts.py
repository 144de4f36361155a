"""The parts of a model that a run may take from another run's checkpoint (trainer.checkpoint.warm_start)."""

from livectr.system.errors import ConfigError

PARTS = ("network", "content", "embeddings")
SHORTHANDS = {"partial": ("network",), "full": PARTS, "none": ()}


def parse_warm_parts(text: str) -> frozenset[str]:
    """The parts of PARTS that "network,embeddings", or a shorthand, names; `network` has `content` with it.

    Raises ConfigError for a word that is neither.
    """
    parts: set[str] = set()
    for word in text.split(","):
        name = word.strip()
        if name not in PARTS and name not in SHORTHANDS:
            raise ConfigError(
                f"warm_parts names {name!r}, which is no part; parts are {', '.join(PARTS)}, and in short "
                "partial (network), full (all) or none"
            )
        parts |= {*SHORTHANDS.get(name, (name,))}
    return frozenset(parts | {"content"} if "network" in parts else parts)
