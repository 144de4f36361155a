"""`livectr versions`: list versions, hold them, roll back to a kept one."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from livectr.commands.flags import command, count, group
from livectr.commands.settings import add_settings, given_settings, outer_setting, settings_of, start_log
from livectr.config.settings import SECRET
from livectr.config.sources import resolve
from livectr.system.errors import ConfigError
from livectr.system.heap import loading

if TYPE_CHECKING:
    from livectr.config.settings import Settings

REDIS = ("redis", "namespace", "redis_password_file")


def add(commands: Any) -> None:
    """Add the command and its commands."""
    actions = group(
        commands,
        "versions",
        "list published versions, hold them, roll back to a kept one",
        "list|hold|release|rollback",
    )
    listing = command(
        actions,
        "list",
        run_list,
        "list the served version and those of a checkpoint",
        "  livectr versions list    # of what `livectr up` runs here\n"
        "  livectr versions list --redis redis://r:6379 --checkpoint /data/c",
    )
    add_settings(listing, "versions", only=(*REDIS, "checkpoint"))
    holding = command(
        actions,
        "hold",
        run_hold,
        "keep the served version: the trainer continues learning and publishes nothing until `release`",
        "  livectr versions hold --redis redis://r:6379 --reason 'sale until Monday'",
    )
    add_settings(holding, "versions", only=REDIS)
    _add_reason(holding)
    releasing = command(
        actions,
        "release",
        run_release,
        "let the trainer publish again, after `hold`, `rollback` or although its publish gate says no",
        "  livectr versions release --redis redis://r:6379",
    )
    add_settings(releasing, "versions", only=REDIS)
    rolling = command(
        actions,
        "rollback",
        run_rollback,
        "publish the model of a kept checkpoint as a new version, and hold it",
        "  livectr versions rollback    # what `livectr up` runs here\n"
        "  livectr versions rollback --pipeline p.py --checkpoint /data/c --redis redis://r:6379\n"
        "  livectr versions rollback --pipeline p.py --checkpoint /data/c --generation 41 --and-train",
    )
    add_settings(rolling, "versions")
    rolling.add_argument(
        "--and-train",
        action="store_true",
        help="let the trainer go on from there, too: it learns the log again from its positions",
    )
    rolling.add_argument(
        "--generation",
        type=count,
        metavar="N",
        help="generation of the checkpoint, as `livectr versions list` shows it [newest kept one that passed "
        "the publish gate, learned its batches and is a minute older than what is served; of a younger run "
        "the oldest]",
    )
    _add_reason(rolling)


def _take_the_run(given: argparse.Namespace) -> None:
    """Without any setting: take those of the only run of `livectr up` here, if there is one.

    Raises:
        ConfigError: there are several.
    """
    from livectr.up.runs import running_folders, served_trainer, word_of

    if given_settings(given) or given.config or {"LIVECTR_REDIS", "LIVECTR_PUBLISH"} & {*os.environ}:
        return
    found = running_folders()
    if len(found) > 1:
        raise ConfigError(
            f"several runs are up ({', '.join(map(word_of, found))}): say the settings of the one that is "
            "meant, such as --redis; `livectr up --print --dir DIR` prints them."
        )
    trainer = served_trainer(found[0]) if len(found) == 1 else None
    if trainer is None:
        return
    for name in {*given.flagged, *given.assignable} - {*SECRET}:
        if (value := trainer.setting(name)) is not None:
            setattr(given, f"setting_{name}", value)
    if (url := trainer.setting("publish")) is not None:
        os.environ["LIVECTR_REDIS"] = url  # it may have a password, which no flag should


def _nothing_is_up() -> str:
    """Words on why no run of `livectr up` is meant."""
    from livectr.up.runs import known_folders, word_of

    down = known_folders()
    if len(down) == 1:
        said = word_of(down[0])
        return f"the run in {said} is down: start it by `livectr up --dir {said}`"
    return "nothing is up here: start a run by `livectr up`"


def _add_reason(parser: Any) -> None:
    parser.add_argument("--reason", default="", metavar="TEXT", help="sentence for others, shown by `list`")


def _settings(given: argparse.Namespace) -> Settings:
    """Settings whose `redis` is that of the flag, else what a trainer of the same settings publishes to."""
    _take_the_run(given)
    flags = given_settings(given)
    settings = resolve(flags, toml=given.config)
    url = settings.redis if "redis" in flags else settings.publish or settings.redis
    return replace(settings, redis=url)


def run_list(given: argparse.Namespace) -> int:
    """Print the versions."""
    from livectr.versions.listing import show_versions

    settings = _settings(given)
    show_versions(settings.redis, settings.namespace, settings.checkpoint)
    return 0


def run_hold(given: argparse.Namespace) -> int:
    """Hold the namespace."""
    from livectr.versions.holding import hold

    settings = _settings(given)
    print(hold(settings.redis, settings.namespace, given.reason))
    return 0


def run_release(given: argparse.Namespace) -> int:
    """Release the namespace."""
    from livectr.versions.holding import release

    settings = _settings(given)
    print(release(settings.redis, settings.namespace))
    return 0


def run_rollback(given: argparse.Namespace) -> int:
    """Publish a kept generation, and hold it."""
    start_log(given, "versions")
    with loading(lean=given.alone):
        from livectr.versions.rollback import roll_back

    _take_the_run(given)
    if not given_settings(given) and outer_setting(given, "pipeline") is None:
        raise ConfigError(f"{_nothing_is_up()}, or say --pipeline, --checkpoint and --redis.")
    pipeline, settings = settings_of(given, "checkpoint")
    settings = replace(settings, redis=_settings(given).redis)
    said = roll_back(pipeline, settings, given.generation, given.reason, and_train=given.and_train)
    print(said, flush=True)
    return 0
