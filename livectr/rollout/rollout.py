"""Rollout: a changed pipeline learns beside the old one, is compared, and takes its place or goes.

    1  carry the old run's newest generation, or an older one (trainer.carry.relearn), over to the new
       pipeline: what cannot continue is refused here, before anything is started
    2  start the new trainer: it publishes into a namespace of its own. What it learns again comes first
    3  pair what both score before they learn it, and ask the rule (livectr.rollout.rule)
    4  give the canary its share once the new namespace has a version: a lease, renewed while this runs. Of
       several shares each is a step, and 3 begins again with it
    5  promote: the share is 1 for good, then the stage changes hands; or
    6  withdraw: the share is gone, the new trainer ends, the old side is what it was

Ctrl-C, SIGTERM, `rollout abort`, a rule that says no, and any error end in 6. A rollout that is killed leaves
a lease that expires and a trainer that goes on; the same command takes that trainer over.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from livectr.ingest.pipeline import Pipeline
from livectr.rollout.catching_up import CatchingUp
from livectr.rollout.comparison import LINE_EVERY_S, NOT_PROMOTED, Comparison
from livectr.rollout.defaults import DEFAULT
from livectr.rollout.record import Phase, Record, RolloutFolder
from livectr.rollout.rule import Outcome, Rule
from livectr.rollout.screen import show
from livectr.rollout.share import LEASE_S, TAKEN_S, published, set_share, take_share
from livectr.rollout.stage import Stage
from livectr.store.layout import without_password
from livectr.system.errors import ConfigError, ConnectError, UserError
from livectr.system.file_locks import is_held
from livectr.system.logs import tell
from livectr.trainer.carry.carry import EarlierRun, carry
from livectr.trainer.checkpoint.folder import lock, remove_unfinished
from livectr.trainer.checkpoint.manifest import Folder, newest_manifest
from livectr.trainer.checkpoint.stored import placed
from livectr.trainer.process import stop_signals
from livectr.trainer.warm_parts import parse_relearn

LOOK_S = 0.5
STOPPED = 130
"""Exit code after Ctrl-C."""
PROMOTE, ABORT, SHARE = "promote", "abort", "share"
"""Wishes of another shell."""


@dataclass(frozen=True)
class RolloutOptions:
    """Options of a rollout.

    Args:
        pipeline: file of the new pipeline.
        old: checkpoint of the old run.
        old_log: its prediction log.
        checkpoint: folder of the new run's checkpoint.
        new_log: its prediction log.
        redis: URL that both publish to, with its password.
        stable: namespace of the old run.
        canary: namespace of the new one.
        shares: of the requests while both are compared; the rule has to hold at each. (): none.
        rule: promotes; None: by hand.
        seed: of both runs.
        source: URL of the log.
        relearn: age of the generation that is carried, or warm_parts.ALL: none; None: the newest is.
    """

    pipeline: Path
    old: str
    old_log: Path
    checkpoint: Path
    new_log: Path
    redis: str
    stable: str
    canary: str
    shares: tuple[float, ...] = ()
    rule: Rule | None = None
    seed: int = 1
    source: str = ""
    relearn: str | None = None


def roll_out(
    options: RolloutOptions, pipeline: Pipeline, stage: Stage, say: Callable[[str], None], *, again: str
) -> int:
    """Run a rollout to its end.

    Args:
        options: of it.
        pipeline: of the new file.
        stage: starts and ends what runs.
        say: prints a line.
        again: command line for another shell, without its verb.

    Returns:
        Exit code: 0 promoted; NOT_PROMOTED; STOPPED.

    Raises:
        UserError: the old run cannot continue with the pipeline; nothing was started.
    """
    folder = RolloutFolder(options.checkpoint)
    with _removed_if_refused(options.checkpoint), folder.owned(), stop_signals() as stopped:
        before = folder.read()
        if before is not None and before.phase is Phase.PROMOTED:
            raise ConfigError(
                f"{options.checkpoint} was promoted already; `rollout abort` goes back, and another "
                "--checkpoint begins another rollout"
            )
        if before is not None and stage.runs(before):
            record, same = before, True
        else:
            url = without_password(options.redis)
            fresh = Record(
                *(str(options.pipeline), options.old, url, options.stable, options.canary),
                relearn=options.relearn or "",
            )
            record, same = _carried(options, pipeline, fresh, before, say), False
        return _Rollout(options, folder, stage, say, again, record, taken_up=same).run(
            replace(record, phase=Phase.COMPARING), stopped
        )


@contextmanager
def _removed_if_refused(checkpoint: Path) -> Iterator[None]:
    """Remove the folder of a run that cannot begin."""
    new = not checkpoint.exists()
    try:
        yield
    except UserError:
        if new and not Folder(checkpoint).generations():
            shutil.rmtree(checkpoint, ignore_errors=True)
        raise


def _carried(
    options: RolloutOptions,
    pipeline: Pipeline,
    fresh: Record,
    before: Record | None,
    say: Callable[[str], None],
) -> Record:
    """Step 1; says what is carried. A rollout that goes on has its own generations."""
    root, age_ms = options.checkpoint, None if options.relearn is None else parse_relearn(options.relearn)
    with closing(lock(root)):
        if Folder(root).generations():
            if options.relearn is not None and (before is None or before.relearn != options.relearn):
                raise ConfigError(
                    f"{root} has a run that does not learn {options.relearn} again; name another "
                    "--checkpoint, or leave --relearn out to go on with it"
                )
            say(f"goes on with the checkpoint {root}")
            if before is None:
                return fresh
            passed = before.passed
            newest = newest_manifest(placed(str(root)))
            if before.phase is Phase.ENDED and newest is not None:
                passed = passed[0], newest.predictions
                say(
                    f"compares anew: what the new trainer has scored up to {newest.examples:,} does not count"
                )
            return replace(fresh, relearn=before.relearn, again=before.again, passed=passed)
        remove_unfinished(root)
        newest = newest_manifest(placed(options.old))
        if options.relearn is not None and age_ms is None and newest is not None:
            say(f"learns again: the whole log; {options.old} has learned {newest.examples:,} examples of it")
            return replace(fresh, again=newest.examples, passed=(newest.predictions, 0))
        carried = carry(EarlierRun(options.old, options.source, age_ms), pipeline, options.seed, root)
        for line in carried.lines():
            say(line)
        part = carried.again
        return fresh if part is None else replace(fresh, again=part.examples, passed=part.passed)


class _Rollout:
    """Steps 2 to 6."""

    def __init__(
        self,
        options: RolloutOptions,
        folder: RolloutFolder,
        stage: Stage,
        say: Callable[[str], None],
        again: str,
        record: Record,
        *,
        taken_up: bool,
    ) -> None:
        self._options, self._folder, self._stage, self._say = options, folder, stage, say
        self._again, self._taken_up = again, taken_up
        rule = options.rule or Rule.parse(DEFAULT)
        self._compared = Comparison(options.old_log, options.new_log, rule, passed=record.passed)
        self._paired = self._compared.paired
        self._catching_up, self._fresh_only = CatchingUp(record.again), record.again > 0
        self._version = 0
        self._version_before: int | None = None
        self._offered = self._away = False
        self._share, self._step = 0.0, 0
        self._by_hand: float | None = None  # the step's share in place of the rollout's
        self._first: tuple[int, int] | None = None
        self._next_lease = 0.0
        self._taken_at = 0.0  # servers have looked at the share by then
        self._next_line = time.monotonic() + LINE_EVERY_S

    def run(self, record: Record, stopped: Callable[[], bool]) -> int:
        """Run steps 2 to 6; return the exit code."""
        options = self._options
        try:
            record = self._stage.start(record)
            self._folder.write(record)
            self._say(f"the new trainer runs; its output is in {self._stage.output}")
            if not is_running(options.old):
                self._say(f"no trainer runs on {options.old}: start it, or there is nothing to compare")
            if options.rule is None:
                self._say(f"by hand: `{self._to(PROMOTE)}` or `{self._to(ABORT)}`, from another shell")
            code, reason = self._until_decided(stopped, record)
            if code:
                return self._withdraw(record, reason, code)
            told = self._promote(record, reason)
        except BaseException as error:
            self._withdraw(record, str(error) or type(error).__name__, NOT_PROMOTED)
            raise
        show(self._compared.seen, self._compared.of)
        self._say(f"promoted {options.pipeline}: {reason}.")
        for line in told:
            self._say(line)
        return 0

    def _to(self, verb: str) -> str:
        """Command line of another shell."""
        return self._again.replace("rollout", f"rollout {verb}", 1)

    def _until_decided(self, stopped: Callable[[], bool], record: Record) -> tuple[int, str]:
        """Steps 3 and 4. Returns the exit code, and its reason."""
        while True:
            if stopped():
                return STOPPED, "it was stopped"
            asked = self._folder.asked()
            if asked is not None and asked[0] == ABORT:
                return NOT_PROMOTED, asked[1] or "it was aborted by hand"
            if asked is not None and asked[0] == SHARE:
                self._by_hand, self._next_lease = float(asked[1]), 0.0
                if self._below_step():
                    step = self._options.shares[self._step]
                    self._say(
                        f"the rule is not asked while the share is below that of the rollout, {step:.4g}"
                    )
            ended = self._stage.ended()
            if ended:
                return NOT_PROMOTED, f"the new trainer {ended}"
            self._paired.look()
            self._follow(ended=ended == "")
            record = replace(record, again=self._catching_up.left)
            over = ended == "" and not is_running(self._options.old)
            if not over and self._waits_for_share():
                self._compared.begin()
            asked_rule = self._compared.judge(over=over)
            verdict = self._compared.verdict
            if asked_rule:
                self._say(f"{self._at_step()}{verdict.outcome}: {verdict.reason}")
            learns = ended == "" or self._learns()
            served = f"version {self._version}" if self._version else "no version yet"
            line = (
                self._catching_up.line(self._paired.read[1])
                or f"{self._compared.line()}; {served}, canary {self._share:.4g}"
            )
            if time.monotonic() >= self._next_line:
                self._next_line = time.monotonic() + LINE_EVERY_S
                self._say(line)
                self._folder.write(replace(record, said=line))
            if asked is not None and asked[0] == PROMOTE:
                if self._version and learns:
                    return 0, asked[1] or "by hand"
                since = " since it has learned all again" if record.passed[0] else " so far"
                self._say(f"not yet: the new trainer has published nothing to {self._options.canary}{since}")
            if self._options.rule is not None:
                if verdict.outcome is Outcome.REFUSE:
                    return NOT_PROMOTED, f"{self._at_step()}{verdict.reason}"
                if verdict.outcome is Outcome.PROMOTE and self._version and learns:
                    if self._step + 1 >= len(self._options.shares):
                        return 0, verdict.reason
                    if over:
                        return NOT_PROMOTED, f"{self._at_step()}the log ended before the canary's next share"
                    self._next_step()
                elif verdict.outcome is Outcome.PROMOTE and over:
                    return NOT_PROMOTED, f"nothing was published in the namespace {self._options.canary}"
            time.sleep(LOOK_S)

    def _learns(self) -> bool:
        """Tell if the new trainer has learned or published something since the rollout began.

        The logs and the namespace may be those of a rollout before.
        """
        state = self._paired.read[1], self._version
        self._first = self._first or state
        return state != self._first

    def _at_step(self) -> str:
        """Beginning of an answer of the rule, which is asked at each step."""
        steps = len(self._options.shares)
        return f"step {self._step + 1} of {steps}: " if steps > 1 else ""

    @property
    def _step_share(self) -> float:
        """Share of requests that the canary is to have; 0 without one."""
        shares = self._options.shares
        return self._by_hand if self._by_hand is not None else shares[self._step] if shares else 0.0

    def _below_step(self) -> bool:
        """Tell if the share that was said by hand is less than the one that the rule is to hold at."""
        shares = self._options.shares
        return bool(shares) and self._by_hand is not None and self._by_hand < shares[self._step]

    def _waits_for_share(self) -> bool:
        """Tell if examples do not count yet: servers may answer with less than the step's share."""
        late = self._share != self._step_share or time.monotonic() < self._taken_at
        return self._below_step() or (self._offered and len(self._options.shares) > 1 and late)

    def _next_step(self) -> None:
        """Let the canary have its next share, and ask the rule anew, once servers have that of this step."""
        if self._share == self._step_share:
            self._step, self._by_hand = self._step + 1, None
            self._compared.begin()
            self._next_lease = 0.0

    def _follow(self, *, ended: bool) -> None:
        """Step 4: look at the new namespace, and renew the lease of the share."""
        options = self._options
        if time.monotonic() < self._next_lease and self._version:
            return
        try:
            version = published(options.redis, options.canary)
            if self._catching_up.left:
                # No version is fit to answer before the model has learned what the old one has.
                self._version_before = version
                self._catching_up.look(self._paired.count)
            elif self._version_before is None:
                self._version_before = 0 if self._taken_up else version
            fit = not self._fresh_only or version != self._version_before or ended
            self._version = version if fit else 0
            # A version that an earlier rollout has left in the namespace is not fit to answer.
            share = self._step_share
            if self._version and version != self._version_before and (share or self._share):
                if not self._offered:
                    self._stage.offer()
                    self._offered = True
                set_share(options.redis, options.stable, options.canary, share, lease=True)
                if share != self._share:
                    # A log that has ended brings no examples to wait for.
                    self._taken_at = 0.0 if ended else time.monotonic() + TAKEN_S
                    self._say(f"the canary gets {share:.4g} of the requests")
                self._share = share
            self._away = False
        except ConnectError as error:
            if not self._away:
                self._say(f"{error}; trying again")
            self._away = True
        self._next_lease = time.monotonic() + LEASE_S / 6

    def _promote(self, record: Record, reason: str) -> list[str]:
        """Step 5; returns what to do next."""
        options = self._options
        set_share(options.redis, options.stable, options.canary, 1.0, lease=False)
        promoted = replace(record, phase=Phase.PROMOTED, said=f"promoted: {reason}", again=0)
        self._folder.write(promoted)
        return self._stage.promote(promoted)

    def _withdraw(self, record: Record, reason: str, code: int) -> int:
        """Step 6."""
        options = self._options
        try:
            take_share(options.redis, options.stable, options.canary)
        except ConnectError as error:
            self._say(f"{error}; the canary's share ends by itself in {LEASE_S} s")
        answers = self._stage.withdraw(record)
        left = self._catching_up.left
        ended = replace(record, phase=Phase.ENDED, said=f"not promoted: {reason}", pid=0, born=0, again=left)
        self._folder.write(ended)
        show(self._compared.seen, self._compared.of)
        tell(
            f"{options.pipeline} was not promoted: {reason}. {answers} The new trainer has ended; its "
            f"checkpoint is {options.checkpoint}."
        )
        return code


def is_running(checkpoint: str) -> bool:
    """Tell if a trainer runs on a checkpoint folder; of one in an object store, yes."""
    return "://" in checkpoint or is_held(Path(checkpoint) / "LOCK")
