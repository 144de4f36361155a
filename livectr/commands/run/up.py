"""`livectr up`: a pipeline's trainer and servers on this machine."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import rmtree
from typing import Any

from livectr.commands.flags import command, count
from livectr.commands.settings import given_settings, start_log
from livectr.config.settings import EVERY, SETTINGS, commands_of
from livectr.config.sources import resolve
from livectr.secrets import has_password, without_flags
from livectr.system.errors import ConfigError
from livectr.system.heap import loading
from livectr.up.folder import RunFolder

EXAMPLES = """\
  livectr up my_ads/pipeline.py --source kafka://localhost:9092
  livectr up my_ads/pipeline.py --source file:my_ads/logs --ranks 2 --detach
  livectr up my_ads/pipeline.py --redis redis://redis:6379 --listen 0.0.0.0:50051
  livectr up my_ads/pipeline.py --print    # the commands that it runs
  livectr up    # after `livectr down`, or after a rollout: what ran before"""
OWN = ("pipeline", "source", "publish", "redis", "listen", "ranks", "share_port")
"""Settings that the command itself gives the parts."""


def add(commands: Any) -> None:
    """Add the command."""
    about = "run a pipeline on this machine: trainer and servers, and the Redis that they need"
    up = command(commands, "up", run, about, EXAMPLES)
    up.add_argument(
        "pipeline",
        metavar="FILE.py",
        nargs="?",
        help="the pipeline file [go on with the run of this directory as it was left]",
    )
    up.add_argument(
        "--source", metavar="URL", help="the logs: kafka://HOST:PORT[,…] or file:DIR [logs beside the file]"
    )
    up.add_argument("--kafka", action="store_true", help="start a broker, too, and learn from it")
    up.add_argument("--redis", metavar="URL", help="publish to this Redis [a server that is started]")
    up.add_argument(
        "--listen",
        metavar="HOST:PORT",
        help="address of the rank server; others take the ports after it [127.0.0.1:50051, or a free port]",
    )
    up.add_argument("--ranks", type=count, help="processes that train together [1]")
    up.add_argument("--config", metavar="FILE.toml", help="read settings from this file")
    up.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="extend",
        nargs="+",
        default=[],
        dest="assigned",
        help="settings of the trainer and the servers (docs/configuration.md)",
    )
    up.add_argument(
        "--dir", metavar="DIR", help="folder of checkpoint and log files [.livectr/<name of the pipeline>]"
    )
    up.add_argument("--detach", action="store_true", help="return once all is ready; `livectr down` ends it")
    up.add_argument("--print", action="store_true", help="print the commands that it would run, and end")
    free = [n for n, s in SETTINGS.items() if set(commands_of(s)) & set(EVERY) and n not in OWN]
    up.assignable = {name: SETTINGS[name].kind for name in free}
    up.set_defaults(assignable=tuple(free), flagged=("source", "redis", "listen", "ranks"))


def run(given: argparse.Namespace) -> int:
    """Run a pipeline until Ctrl-C, or detached."""
    from livectr.up.runs import check_down, folder_for

    start_log(given, "up")
    again = given.pipeline is None
    folder = _last_run(given) if again else folder_for(given.pipeline, given.dir)
    if not given.print:
        check_down(folder)
    if not again:
        _check_there(given)
    with _removed_if_refused(folder):
        return _run(given, folder, again=again)


def _check_there(given: argparse.Namespace) -> None:
    """Look for the pipeline file and the folder of the logs, before anything is started.

    Raises:
        ConfigError: one of them is not there.
    """
    from livectr.ingest.addresses import log_folder

    if not Path(given.pipeline).is_file():
        from livectr.ingest.pipeline import pipeline_file

        pipeline_file(given.pipeline)
    of_files = given.source is not None and given.source.startswith("file:")
    if of_files and not (root := log_folder(given.source)).is_dir():
        raise ConfigError(f"there is no folder {root}; name the folder that holds a folder for each topic")


@contextmanager
def _removed_if_refused(folder: RunFolder) -> Iterator[None]:
    """Remove the folder of a run that has no parts, as one whose pipeline cannot be loaded."""
    path, new, alone = folder.path, not folder.path.exists(), not folder.path.parent.exists()
    try:
        yield
    finally:
        if new and path.exists() and not folder.exists:
            rmtree(path, ignore_errors=True)
            if alone:
                with suppress(OSError):  # another run has begun beside it
                    path.parent.rmdir()


def _run(given: argparse.Namespace, folder: RunFolder, *, again: bool) -> int:
    if given.detach and not given.print:
        return _detached(given, folder)
    from livectr.up.plan import UpOptions, command_of, plan
    from livectr.up.runs import from_here

    if again and given.print:
        for part in folder.parts().values():
            print(command_of(part))
        return 0
    if again:
        from livectr.up.start import up

        return up(None, folder)
    assigned = given_settings(given)
    said = {"source": given.source, "publish": given.redis, "ranks": given.ranks, "listen": given.listen}
    outer = resolve(
        assigned | {name: value for name, value in said.items() if value is not None}, toml=given.config
    )
    options = UpOptions(
        pipeline=given.pipeline,
        source=outer.source or None,
        listen=given.listen,
        redis=outer.publish,
        kafka=given.kafka,
        ranks=outer.ranks,
        settings=assigned,
        config=given.config,
    )
    if given.print:
        with loading(lean=given.alone):
            from livectr.ingest.pipeline import load_pipeline

            has_prerank = load_pipeline(given.pipeline).prerank is not None
        for part in plan(options, from_here(folder.path), folder.parts(), has_prerank=has_prerank):
            print(command_of(part))
        return 0
    from livectr.up.start import up

    return up(options, folder)


def _last_run(given: argparse.Namespace) -> RunFolder:
    """Folder of the run to go on with."""
    from livectr.up.runs import known_folders, word_of

    said = [
        name for name in ("source", "redis", "listen", "ranks", "config") if getattr(given, name) is not None
    ]
    said += [name for name in ("kafka", "set") if getattr(given, "assigned" if name == "set" else name)]
    if said:
        raise ConfigError(f"--{said[0]} makes other parts than the run had: say the pipeline file, too.")
    found = [RunFolder(Path(given.dir))] if given.dir is not None else known_folders()
    found = [folder for folder in found if folder.exists]
    if not found:
        raise ConfigError("nothing was run here before: say the pipeline file.")
    if len(found) > 1:
        raise ConfigError(f"say --dir with one of {', '.join(map(word_of, found))}, or a pipeline file.")
    return found[0]


def _detached(given: argparse.Namespace, folder: RunFolder) -> int:
    """Run the same command without --detach in a process of its own."""
    from livectr.up.detached import up_detached

    words, environment = [word for word in given.arguments if word != "--detach"], {}
    if given.redis is not None and has_password(given.redis):  # every user can read words
        words, environment = without_flags(words, ["--redis"]), {"LIVECTR_PUBLISH": given.redis}
    return up_detached(words, environment, folder)
