"""All settings: those of trainers and servers, and those of the command line.

A name that no setting has is an error in every source: an ignored misspelling would be found in production.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from livectr.serving.options import SERVERS, ServeOptions
from livectr.system.process_options import BASICS, SECURITY, ProcessOptions, StartOptions
from livectr.system.settings import Setting, setting, settings_of_class
from livectr.trainer.options import RANKS, VERSIONS, TrainOptions

TRAIN = ("train",)
EVERY = (*TRAIN, *SERVERS)
Options = TypeVar("Options")


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Pipeline file, and the ranks of a run."""

    pipeline: str | None = setting(
        None,
        "the pipeline file",
        BASICS,
        example="FILE.py",
        flag=True,
        commands=(*EVERY, "verify", "versions"),
    )
    until_stopped: bool = setting(
        False,
        "start all ranks again whenever they end, until this process is told to stop (for pods)",
        BASICS,
        see="processes.md#a-trainer-in-pods",
    )
    max_checkpoint_age_s: float = setting(
        0.0, "refuse to resume from a checkpoint that is older (0: never)", VERSIONS, least=0
    )
    accept_stale: bool = setting(
        False, "resume from a checkpoint that is older than max_checkpoint_age_s", VERSIONS
    )
    ranks: int = setting(1, "processes on this machine that train together", RANKS, least=1, flag=True)
    nodes: int = setting(1, "machines that train together, each with ranks processes", RANKS, least=1)
    node: str = setting(
        "0", "number of this machine, from 0; auto: that at the end of its host name", RANKS, example="K"
    )
    rendezvous: str | None = setting(
        None, "meeting point of several nodes: a free port of node 0", RANKS, example="HOST:PORT"
    )
    restarts: int = setting(
        0,
        "restart all ranks when a rank dies, at most this often in a row without a new checkpoint",
        RANKS,
        least=0,
    )
    generation: str | None = setting(
        None, "any text; only nodes with the same text train together, others wait", RANKS, example="TEXT"
    )
    redis_password_file: str | None = setting(
        None,
        "file whose first line is the password of publish or redis",
        SECURITY,
        example="FILE",
        commands=(*EVERY, "inspect", "verify", "versions"),
        see="#passwords-and-addresses",
    )


@dataclass(frozen=True)
class Settings(ServeOptions, TrainOptions, RunSettings):
    """Settings of every process. `options_of` makes the options of one, which are checked together then."""

    def __post_init__(self) -> None:
        """Check nothing: the source or Redis may be missing, and settings of another process may be there."""


SETTINGS: dict[str, Setting] = settings_of_class(Settings)
SECRET = ("publish", "redis")
"""URLs that may hold a password. A child gets them in its environment, not in its command line."""
_COMMANDS: dict[type, tuple[str, ...]] = {
    TrainOptions: TRAIN,
    ServeOptions: SERVERS,
    RunSettings: TRAIN,
    ProcessOptions: EVERY,
    StartOptions: EVERY,
}
"""Class that declares a setting → the commands that have it, unless the setting says other commands."""


def commands_of(declared: Setting) -> tuple[str, ...]:
    """Commands that have a setting."""
    return declared.metadata["commands"] or _COMMANDS[declared.owner]


def options_of(kind: type[Options], settings: Settings, **more: Any) -> Options:
    """Options object whose fields are settings of the same names, and `more`."""
    names = {f.name for f in dataclasses.fields(cast(Any, kind))} - set(more)
    return kind(**{name: getattr(settings, name) for name in names}, **more)
