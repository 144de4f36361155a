"""Wishes of another shell: `livectr rollout status|promote|abort`, also of a rollout that was killed."""

from __future__ import annotations

import time
from dataclasses import replace

from livectr.rollout.record import Phase, Record, RolloutFolder, lives
from livectr.rollout.rollout import ABORT, PROMOTE
from livectr.rollout.share import published, set_share, share_of, take_share
from livectr.rollout.stage import Stage
from livectr.system.errors import ConfigError, ConnectError, InternalError
from livectr.system.logs import tell
from livectr.up.runs import from_here

LONGEST_S = 300.0
"""Longest wait for a rollout that is asked: its trainer commits and ends, servers change hands."""
POLL_S = 0.1


def record_of(folder: RolloutFolder) -> Record:
    """Record of a rollout. Raises ConfigError: there is none."""
    record = folder.read()
    if record is None:
        raise ConfigError(
            f"there is no rollout in {folder.checkpoint}; say --checkpoint with the new run's folder"
        )
    return record


def status(folder: RolloutFolder, url: str) -> list[str]:
    """Lines on how a rollout stands."""
    record = record_of(folder)
    try:
        share, version = share_of(url, record.stable, record.canary), published(url, record.canary)
        given = "that of the servers' setting canary" if share is None else f"{share:.4g} of the requests"
    except ConnectError as error:
        version, given = 0, f"unknown, for {error}"
    trainer = f"process {record.pid}" if lives(record) else "none"
    if record.before and record.phase is not Phase.ENDED:
        trainer = "a part of the run"
    return [
        f"{record.pipeline}: {record.phase}{'' if folder.running else ', and no rollout is running'}",
        f"  {record.said or 'nothing is compared yet'}",
        f"  old: namespace {record.stable}, checkpoint {record.old}",
        f"  new: namespace {record.canary}, checkpoint {from_here(folder.checkpoint)}, version "
        f"{version or '–'}, trainer: {trainer}",
        f"  share of the canary: {given}",
    ]


def wish(folder: RolloutFolder, url: str, stage: Stage, what: str, reason: str) -> list[str]:
    """Promote or abort; also a rollout that was killed, and go back after a promotion.

    Raises:
        ConfigError: there is nothing to promote or to abort.
        InternalError: the rollout does not answer.
    """
    record = record_of(folder)
    if folder.running:
        folder.ask(what, reason)
        tell(f"waiting for the rollout of {record.pipeline}, which is to {what}; its output tells the steps")
        end = time.monotonic() + LONGEST_S
        while folder.running:
            if time.monotonic() > end:
                raise InternalError(f"the rollout in {folder.checkpoint} does not answer")
            time.sleep(POLL_S)
        return [record_of(folder).said]
    with folder.owned():
        if record.phase is Phase.ENDED:
            raise ConfigError(f"this rollout has ended: {record.said}")
        if what == PROMOTE:
            return _promote(folder, record, url, stage, reason)
        try:
            take_share(url, record.stable, record.canary)
        except ConnectError:
            if record.phase is Phase.PROMOTED and not record.before:
                raise  # the share is for good
        answers = stage.withdraw(record)
        said = f"{'taken back' if record.phase is Phase.PROMOTED else 'not promoted'}: {reason or 'by hand'}"
        folder.write(replace(record, phase=Phase.ENDED, said=said, pid=0, born=0))
        return [said, answers]


def _promote(folder: RolloutFolder, record: Record, url: str, stage: Stage, reason: str) -> list[str]:
    if record.phase is Phase.PROMOTED and stage.is_promoted(record):
        raise ConfigError(f"{folder.checkpoint} is promoted already; {ABORT} goes back")
    if not published(url, record.canary):
        raise ConfigError(
            f"nothing is published in the namespace {record.canary}; there is nothing to promote"
        )
    if record.again and record.phase is Phase.COMPARING:
        raise ConfigError(
            f"the new trainer has not learned all {record.again:,} examples again; the same rollout goes on "
            "with it, or say abort"
        )
    set_share(url, record.stable, record.canary, 1.0, lease=False)
    if record.phase is not Phase.PROMOTED:
        record = replace(record, phase=Phase.PROMOTED, said=f"promoted: {reason or 'by hand'}")
        folder.write(record)
    return [record.said, *stage.promote(record)]
