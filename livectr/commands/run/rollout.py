"""`livectr rollout`: change what is learned: train beside, compare, promote or not."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from livectr.commands.flags import command, count
from livectr.commands.settings import add_settings, given_settings, start_log
from livectr.config.settings import SETTINGS, commands_of
from livectr.config.sources import resolve
from livectr.rollout.defaults import DEFAULT
from livectr.system.errors import ConfigError
from livectr.system.heap import loading

if TYPE_CHECKING:
    from livectr.config.settings import Settings
    from livectr.up.folder import RunFolder

EXAMPLES = """\
  livectr rollout v2.py    # beside what `livectr up` runs here
  livectr rollout v2.py --relearn 1h    # what is new learns the last hour before it is compared
  livectr rollout v2.py --from /data/c --source kafka://b:9092 --publish redis://r:6379
  livectr rollout v2.py … --canary 10% --promote 'examples >= 50000 and auc > 0'
  livectr rollout v2.py … --canary 5%,25%,50%    # the rule has to hold at each
  livectr rollout v2.py … --promote by-hand
  livectr rollout status    # from another shell; or promote, abort
  livectr rollout share 25% --from-namespace livectr --namespace livectr-v2 --publish redis://r:6379"""
BY_HAND = "by-hand"
STATUS, PROMOTE, ABORT, SHARE = "status", "promote", "abort", "share"
ACTIONS = (STATUS, PROMOTE, ABORT, SHARE)
OWN = ("pipeline", "warm_start", "warm_parts")
"""Settings of the new trainer that the rollout gives it."""


def add(commands: Any) -> None:
    """Add the command."""
    parser = command(
        commands,
        "rollout",
        run,
        "change what is learned: train a new pipeline beside the old, compare, promote or end it",
        EXAMPLES,
    )
    parser.add_argument(
        "what", metavar="NEW.py|status|promote|abort|share", help="file of the new pipeline, or what to do"
    )
    parser.add_argument("value", nargs="?", metavar="SHARE", help="share of the requests, of `share`")
    parser.add_argument(
        "--dir", metavar="DIR", help="folder of the run of `livectr up` [the only one that is up]"
    )
    parser.add_argument(
        "--from",
        dest="old",
        metavar="CHECKPOINT",
        help="checkpoint of the old trainer, which goes on [that of the run]",
    )
    parser.add_argument(
        "--from-namespace", metavar="NS", help="namespace that the servers serve [that of the environment]"
    )
    parser.add_argument(
        "--from-predictions", metavar="FILE", help="log of the old trainer [CHECKPOINT/predictions]"
    )
    parser.add_argument(
        "--canary",
        default="0",
        metavar="SHARE[,SHARE…]",
        help="share of the requests while both learn, as 10%%; several: the rule must hold at each [0]",
    )
    parser.add_argument(
        "--promote", default=DEFAULT, metavar=f"RULE|{BY_HAND}", help=f"promote by a rule [{DEFAULT}]"
    )
    parser.add_argument(
        "--most",
        type=count,
        default=0,
        metavar="N",
        help="examples after which to give up [10 times the rule's]",
    )
    parser.add_argument(
        "--reason", default="", metavar="TEXT", help="sentence for others, of promote and abort"
    )
    ours = [n for n, s in SETTINGS.items() if "train" in commands_of(s) and n not in OWN]
    add_settings(parser, "train", only=ours)


def run(given: argparse.Namespace) -> int:
    """Run a rollout, or do something to one."""
    start_log(given, "rollout")
    if given.value is not None and given.what != SHARE:
        raise ConfigError(f"{given.value!r} is too much; `livectr rollout --help` explains the words.")
    if given.what == SHARE:
        return _share(given)
    if given.what in ACTIONS:
        return _act(given)
    if not given.what.endswith(".py") and not Path(given.what).exists():
        near = difflib.get_close_matches(given.what, ACTIONS, n=1)
        raise ConfigError(
            f"{given.what!r} is neither a pipeline file nor one of {', '.join(ACTIONS)}"
            + (f"; did you mean {near[0]}?" if near else ".")
        )
    return _roll_out(given)


def parse_share(text: str) -> float:
    """Share of "10%", "10 %" or "0.1". Raises ConfigError."""
    found = re.fullmatch(r"(\d*\.?\d+) *(%?)", text.strip())
    share = float(found[1]) / (100 if found[2] else 1) if found else -1.0
    if not 0 <= share <= 1:
        raise ConfigError(
            f"a share is {text!r}, but must be a number from 0 to 1, or a percentage such as 10%"
        )
    return share


def parse_steps(text: str, *, by_hand: bool) -> tuple[float, ...]:
    """Shares of "5%,25%"; () of "0". Raises ConfigError: they do not grow, or there is no rule."""
    shares = tuple(map(parse_share, text.split(",")))
    if shares == (0.0,):
        return ()
    if not shares[0] or any(a >= b for a, b in pairwise(shares)):
        raise ConfigError(
            f"--canary {text}: each share must be larger than the one before, as in 5%,25%,50%."
        )
    if by_hand and len(shares) > 1:
        raise ConfigError(
            f"--canary {text}: a rule goes from one share to the next. Say one with --promote, or one share: "
            "`livectr rollout share` moves it by hand."
        )
    return shares


def _settings(given: argparse.Namespace, pipeline: Mapping[str, Any] | None = None) -> Settings:
    """Settings but for the namespace and the checkpoint, whose flags are about the new run."""
    flags = {n: v for n, v in given_settings(given).items() if n not in ("namespace", "checkpoint")}
    return resolve(flags, toml=given.config, pipeline=pipeline)


def _share(given: argparse.Namespace) -> int:
    """Set the live share, or ask the rollout beside `livectr up` to do so."""
    settings, flags = _settings(given), given_settings(given)
    if given.value is None:
        raise ConfigError("say the share, such as `livectr rollout share 25%`.")
    share = parse_share(given.value)
    if "namespace" not in flags:
        return _ask_for_share(given, share)
    if settings.publish is None:
        raise ConfigError("say --publish with the Redis, beside --namespace.")
    from livectr.rollout.share import set_share

    stable = given.from_namespace or settings.namespace
    set_share(settings.publish, stable, flags["namespace"], share, lease=False)
    print(f"servers of {stable} with a canary of {flags['namespace']} give it {share:.4g} of the requests")
    return 0


def _ask_for_share(given: argparse.Namespace, share: float) -> int:
    """Let the rollout that runs beside `livectr up` give its canary another share."""
    from livectr.rollout.plan import folder_to_act, newest_rollout

    up = folder_to_act(given.dir)
    folder = newest_rollout(up) if up is not None else None
    record = folder.read() if folder is not None else None
    if folder is None or record is None:
        raise _none(up, "say --namespace with that of the canary, and --publish with the Redis.")
    if not folder.running:
        raise ConfigError(
            f"the rollout of {record.pipeline} is not running: {record.said or 'it was killed'}. Say "
            "--namespace with that of the canary, and --publish with the Redis."
        )
    folder.ask(SHARE, str(share))
    print(f"the canary of {record.pipeline} gets {share:.4g} of the requests, once it has a version")
    return 0


def _none(up: RunFolder | None, elsewhere: str) -> ConfigError:
    """Error of an action without a rollout, beside the run of `livectr up` in this folder if there is one."""
    if up is None:
        return ConfigError(f"no rollout was run from here: {elsewhere}")
    from livectr.up.runs import word_of

    return ConfigError(f"no rollout was begun beside {word_of(up)}: `livectr rollout NEW.py` begins one.")


def _act(given: argparse.Namespace) -> int:
    """Look at a rollout, promote it, or abort it."""
    from livectr.rollout.in_run import InRun, OldRun
    from livectr.rollout.plan import folder_to_act, newest_rollout, words_of_other_shell
    from livectr.rollout.record import RolloutFolder
    from livectr.rollout.stage import Alone, Stage
    from livectr.rollout.wishes import record_of, status, wish
    from livectr.up.runs import word_of

    settings, flags = _settings(given), given_settings(given)
    up = folder_to_act(given.dir)
    folder = newest_rollout(up) if up is not None else None
    if "checkpoint" in flags:
        folder = RolloutFolder(Path(flags["checkpoint"]))
    if folder is None:
        raise _none(up, "say --checkpoint with the folder of the new run.")
    record = record_of(folder)
    stage: Stage | None = None
    url = settings.publish or record.redis
    if up is not None and record.before:
        old = OldRun.of(up)
        url = old.value("publish") or url
        back = f"livectr rollout abort --dir {word_of(up)}"
        stage = InRun(old, record.pipeline, folder.checkpoint, record.canary, {}, url, back)
    if given.what == STATUS:
        lines = status(folder, url)
    else:
        stage = stage or Alone(folder, (), {}, words_of_other_shell(ABORT, folder.checkpoint, url))
        lines = wish(folder, url, stage, given.what, given.reason)
    print("\n".join(lines))
    return 0


def _roll_out(given: argparse.Namespace) -> int:
    with loading(lean=given.alone):
        from livectr.ingest.pipeline import load_pipeline
        from livectr.rollout.plan import Asked, planned
        from livectr.rollout.rollout import roll_out
        from livectr.rollout.rule import Rule

    rule = None if given.promote == BY_HAND else Rule.parse(given.promote, given.most)
    pipeline = load_pipeline(given.what)
    asked = Asked(
        new=given.what,
        old=given.old,
        stable=given.from_namespace,
        old_log=given.from_predictions,
        run=given.dir,
        shares=parse_steps(given.canary, by_hand=rule is None),
        rule=rule,
        flags={name: str(value) for name, value in given_settings(given).items()},
        settings=_settings(given, pipeline.settings),
        config=given.config,
    )
    options, stage, again = planned(asked, pipeline)
    return roll_out(options, pipeline, stage, lambda line: print(line, flush=True), again=again)
