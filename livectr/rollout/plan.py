"""Plan of a rollout from what the user said: names of the new run, its trainer, and who sees to it."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from livectr.config.settings import SECRET, Settings
from livectr.ingest.pipeline import Pipeline, load_pipeline
from livectr.rollout.in_run import InRun, OldRun, with_value
from livectr.rollout.record import Phase, RolloutFolder
from livectr.rollout.requests import refused_requests
from livectr.rollout.rollout import RolloutOptions
from livectr.rollout.rule import Rule
from livectr.rollout.stage import Alone, Stage
from livectr.secrets import has_password
from livectr.system.errors import ConfigError, InUseError
from livectr.system.logs import tell
from livectr.system.object_store import is_object_address
from livectr.trainer.checkpoint.manifest import Folder, identity_of, newest_manifest
from livectr.trainer.warm_parts import ALL
from livectr.up.folder import RunFolder
from livectr.up.runs import from_here, known_folders, running_folders, word_of

OF_ONE_RUN: Mapping[str, str] = {
    "predictions": "predictions",
    "run_log": "run.log",
    "report": "report.json",
    "metrics_port": "",
}
"""Settings that two trainers cannot share → file of the new run; "": none unless a flag says so."""


@dataclass(frozen=True)
class Asked:
    """Words of the command line.

    Args:
        new: file of the new pipeline.
        old: checkpoint of the old run; None: that of a run folder, or of the environment.
        stable: namespace of the old run; None: likewise.
        old_log: prediction log of the old run; None: the one in its checkpoint.
        run: folder of `livectr up`; None: the only one that is up.
        shares: of the canary while both learn, step by step; (): none.
        rule: promotes; None: by hand.
        flags: settings of the new trainer that were given, as text.
        settings: all settings, without its namespace and checkpoint.
        config: file of settings.
    """

    new: str
    old: str | None
    stable: str | None
    old_log: str | None
    run: str | None
    shares: tuple[float, ...]
    rule: Rule | None
    flags: Mapping[str, str]
    settings: Settings
    config: str | None


def planned(asked: Asked, pipeline: Pipeline) -> tuple[RolloutOptions, Stage, str]:
    """Options of a rollout, its stage, and the command line of another shell without its verb.

    Raises:
        ConfigError: something is missing, or the new run has a name of the old one.
    """
    if asked.old is None and (folder := run_folder(asked.run)) is not None:
        return _in_run(asked, pipeline, OldRun.of(folder))
    return _alone(asked, pipeline)


def run_folder(said: str | None) -> RunFolder | None:
    """Run folder that is meant; None: none is up. Raises ConfigError for several."""
    if said is not None:
        folder = RunFolder(Path(said))
        if not folder.running:
            raise ConfigError(f"the run in {said} is not up; `livectr up` starts it.")
        return folder
    found = running_folders()
    if len(found) > 1:
        raise ConfigError(f"several runs are up; say --dir with one of {', '.join(map(word_of, found))}.")
    return found[0] if found else None


def folder_to_act(said: str | None) -> RunFolder | None:
    """Run folder of a rollout that one looks at or ends, also of a run that is down; None: there is none."""
    if said is not None:
        return RunFolder(Path(said))
    if (folder := run_folder(None)) is not None:
        return folder
    found = [one for one in known_folders() if newest_rollout(one) is not None]
    if len(found) > 1:
        raise ConfigError(
            f"several runs had a rollout; say --dir with one of {', '.join(map(word_of, found))}."
        )
    return found[0] if found else None


def newest_rollout(folder: RunFolder) -> RolloutFolder | None:
    """Rollout in a run folder that was written last; None: there was none."""
    found = sorted(folder.path.glob("*/rollout.json"), key=lambda path: path.stat().st_mtime)
    return RolloutFolder(found[-1].parent) if found else None


def words_of_other_shell(verb: str, checkpoint: Path, url: str) -> str:
    """Command line of another shell."""
    publish = "" if has_password(url) else f" --publish {shlex.quote(url)}"
    return f"livectr rollout {verb}{' ' if verb else ''}--checkpoint {shlex.quote(str(checkpoint))}{publish}"


def _in_run(asked: Asked, pipeline: Pipeline, old: OldRun) -> tuple[RolloutOptions, Stage, str]:
    was, checkpoint = old.value("pipeline") or "", old.value("checkpoint") or ""
    if Path(was).resolve() == Path(asked.new).resolve():
        newest = newest_manifest(Path(checkpoint))
        theirs = newest.identity if newest is not None else {}
        if theirs and theirs == identity_of(pipeline, theirs["seed"]):
            copy = Path(asked.new).with_name("new.py")
            raise ConfigError(
                f"{asked.new} runs already, as it is in the file: there is nothing to roll out. Make the "
                f"next change in a copy, and say `livectr rollout {copy}`."
            )
        raise ConfigError(
            f"{asked.new} is the file of the pipeline that runs, and a part that starts again reads it. Undo "
            "the change, and make it in a copy."
        )
    if refused := "; ".join(refused_requests(load_pipeline(was), pipeline)):
        said = f"{asked.new} does not take the requests of {was}: {refused}. Give a new column a `fill`, or "
        if asked.shares:
            raise ConfigError(f"{said}leave --canary out and change the requests with the promotion.")
        tell(f"{said}change the requests with the promotion.")
    stable = asked.stable or old.value("namespace") or asked.settings.namespace
    url = old.value("publish")
    if url is None:
        raise ConfigError(f"the trainer of {word_of(old.folder)} publishes nothing.")
    seed = int(asked.flags.get("seed") or old.value("seed") or asked.settings.seed)
    root = stable.removesuffix(f"-{_name(was)}")
    ours, canary = _names(
        asked, pipeline, seed, checkpoint, str(Path(checkpoint).with_name("checkpoint")), root
    )
    _check_no_other(old.folder, ours)
    old_log = asked.old_log or old.value("predictions") or str(Path(checkpoint) / "predictions")
    own = ("namespace", "checkpoint", "relearn", *SECRET)
    settings = {name: value for name, value in asked.flags.items() if name not in own}
    again = f"livectr rollout --dir {word_of(old.folder)}"
    back, carried = _verb(again, "abort"), asked.settings.relearn != ALL
    stage = InRun(old, asked.new, ours, canary, settings, url, back, carried=carried)
    new_log = Path(settings.get("predictions") or ours / "predictions")
    names = dict(stable=stable, canary=canary, redis=url)
    options = RolloutOptions(
        pipeline=Path(asked.new),
        old=checkpoint,
        old_log=Path(old_log),
        checkpoint=ours,
        new_log=new_log,
        shares=asked.shares,
        rule=asked.rule,
        seed=seed,
        source=old.value("source") or asked.settings.source,
        relearn=asked.settings.relearn,
        **names,
    )
    return options, stage, again


def _check_no_other(run: RunFolder, ours: Path) -> None:
    """Raise InUseError if another rollout of the run has not ended: both would change its servers."""
    trained = {part.setting("checkpoint") for part in run.parts().values()}
    for path in sorted(run.path.glob("*/rollout.json")):
        folder = RolloutFolder(path.parent)
        record = folder.read()
        if record is None or record.phase is not Phase.COMPARING or path.parent == ours.absolute():
            continue
        if folder.running or {str(from_here(path.parent)), str(path.parent)} & trained:
            raise InUseError(
                f"the rollout of {record.pipeline} has not ended: `livectr rollout promote` or `abort` "
                f"ends it (--dir {word_of(run)})."
            )


def _alone(asked: Asked, pipeline: Pipeline) -> tuple[RolloutOptions, Stage, str]:
    settings = asked.settings
    old = asked.old or settings.checkpoint
    for flag, value in (("--from", old), ("--source", settings.source), ("--publish", settings.publish)):
        if not value:
            raise ConfigError(
                f"say {flag}: no `livectr up` runs here that names it; `livectr rollout --help` explains it."
            )
    assert old is not None and settings.publish is not None
    if is_object_address(old) and not ("checkpoint" in asked.flags and asked.old_log):
        raise ConfigError(
            "the old checkpoint is in an object store: say --checkpoint with a folder, and "
            "--from-predictions with the old trainer's log."
        )
    stable = asked.stable or settings.namespace
    checkpoint, canary = _names(asked, pipeline, settings.seed, old, old.rstrip("/"), stable)
    if canary == stable:
        raise ConfigError(f"--namespace {canary} is that of the old run; name another one.")
    if checkpoint.resolve() == Path(old).resolve():
        raise ConfigError(f"--checkpoint {checkpoint} is that of the old run; name another folder.")
    words, environment, new_log = _trainer(asked, checkpoint, old, canary)
    again = words_of_other_shell("", checkpoint, settings.publish)
    folder = RolloutFolder(checkpoint)
    options = RolloutOptions(
        pipeline=Path(asked.new),
        old=old,
        old_log=Path(asked.old_log or settings.predictions or Path(old) / "predictions"),
        checkpoint=checkpoint,
        new_log=new_log,
        redis=settings.publish,
        stable=stable,
        canary=canary,
        shares=asked.shares,
        rule=asked.rule,
        seed=settings.seed,
        source=settings.source,
        relearn=settings.relearn,
    )
    return options, Alone(folder, words, environment, _verb(again, "abort")), again


def _verb(words: str, verb: str) -> str:
    return words.replace("livectr rollout", f"livectr rollout {verb}", 1)


def _name(file: str) -> str:
    """Name that a pipeline file gives its run."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", Path(file).stem)


def _names(
    asked: Asked, pipeline: Pipeline, seed: int, old: str, checkpoint: str, namespace: str
) -> tuple[Path, str]:
    """Checkpoint folder and namespace of the new run: those of the flags, else ones of this pipeline."""
    number = 1
    while True:
        name = _name(asked.new) + (f"-{number}" if number > 1 else "")
        folder = Path(asked.flags.get("checkpoint") or f"{checkpoint}-{name}")
        if "checkpoint" in asked.flags or _fits(folder, pipeline, seed, old, asked.settings.relearn):
            return folder, asked.flags.get("namespace") or f"{namespace}-{name}"
        number += 1


def _fits(folder: Path, pipeline: Pipeline, seed: int, old: str, relearn: str | None) -> bool:
    """Tell if a folder is new, or has a rollout of this very pipeline and old run that was not promoted.

    What it learns again is the same, unless nobody says.
    """
    record = RolloutFolder(folder).read()
    if record is not None and (record.phase is Phase.PROMOTED or record.old != old):
        return False
    if not Folder(folder).generations():
        return True
    if relearn is not None and (record is None or record.relearn != relearn):
        return False
    manifest = newest_manifest(Folder(folder))
    ours = identity_of(pipeline, seed)
    return manifest is not None and manifest.identity == json.loads(json.dumps(ours))


def _trainer(asked: Asked, checkpoint: Path, old: str, canary: str) -> tuple[list[str], dict[str, str], Path]:
    """Words after `livectr` of the new trainer, its variables, and its prediction log."""
    settings, flags = asked.settings, asked.flags
    url = settings.publish or ""
    environment = {"LIVECTR_PUBLISH": url} if has_password(url) else {}
    chosen = {name: value for name, value in flags.items() if name not in (*SECRET, "relearn")}
    for name, file in OF_ONE_RUN.items():
        if name in flags or (getattr(settings, name) in (None, 0) and name != "predictions"):
            continue
        if file:
            chosen[name] = str(checkpoint / file)
        else:
            environment[f"LIVECTR_{name.upper()}"] = "0"
    chosen |= {"pipeline": asked.new, "source": settings.source, "checkpoint": str(checkpoint)}
    chosen |= {"namespace": canary}
    if settings.relearn != ALL:
        chosen |= {"warm_start": old, "warm_parts": "run"}
    words: tuple[str, ...] = ("train",)
    for name, value in chosen.items():
        words = with_value(words, name, value)
    at = words.index("--set")
    config = ["--config", asked.config] if asked.config else []
    publish = [] if environment.get("LIVECTR_PUBLISH") else ["--publish", url]
    return [*words[:at], *config, *publish, *words[at:]], environment, Path(chosen["predictions"])
