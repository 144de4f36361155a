"""Folders of the runs of a working directory."""

from __future__ import annotations

import shlex
from pathlib import Path

from livectr.system.errors import ConfigError, InUseError
from livectr.up.folder import Kind, Part, RunFolder

HOME = Path(".livectr")


def folder_for(pipeline: str, folder: str | None = None) -> RunFolder:
    """Folder of a pipeline's run: the one that is said, or .livectr/<name of the file>.

    A file pipeline.py has the name of its folder, for most are called so.
    """
    if folder is not None:
        return RunFolder(Path(folder))
    path = Path(pipeline)
    name = path.stem if path.stem != "pipeline" else path.absolute().parent.name or path.stem
    return RunFolder(HOME / name)


def known_folders() -> list[RunFolder]:
    """Runs that were ever started in this working directory."""
    return [RunFolder(path.parent) for path in sorted(HOME.glob("*/parts.json"))]


def running_folders() -> list[RunFolder]:
    """Runs of this working directory that are up."""
    return [folder for folder in known_folders() if folder.running]


def chosen_folder(said: str | None) -> RunFolder:
    """Folder of a run.

    Args:
        said: a folder, a pipeline file, or None for the only run of this working directory that is up.

    Raises:
        ConfigError: there is none, or several.
    """
    if said is not None:
        folder = RunFolder(Path(said)) if Path(said).is_dir() else folder_for(said)
        if not folder.exists:
            folder = next((one for one in known_folders() if _serves(one, said)), folder)
        if not folder.exists:
            raise ConfigError(f"{said} is neither the folder of a run nor a pipeline that was run from here.")
        return folder
    found = running_folders()
    if not found:
        raise ConfigError(f"nothing is up in {HOME.absolute()}; name the folder of a run, or its pipeline.")
    if len(found) > 1:
        raise ConfigError(f"several runs are up; say one of {', '.join(map(word_of, found))}.")
    return found[0]


def _serves(folder: RunFolder, pipeline: str) -> bool:
    """Tell if a file is the pipeline that a run's servers serve, as after a rollout was promoted."""
    trainer = served_trainer(folder)
    file = trainer.setting("pipeline") if trainer is not None else None
    return file is not None and Path(file).resolve() == Path(pipeline).resolve()


def served_trainer(folder: RunFolder) -> Part | None:
    """Trainer of a run whose pipeline its servers serve, also beside that of a rollout; None: it has none."""
    parts = folder.parts().values()
    served = {part.setting("pipeline") for part in parts if part.kind is Kind.SERVER}
    trainers = [part for part in parts if part.kind is Kind.TRAINER]
    return next((part for part in trainers if part.setting("pipeline") in served), next(iter(trainers), None))


def check_down(folder: RunFolder) -> None:
    """Raise InUseError if the run is up already."""
    if folder.running:
        said = word_of(folder)
        raise InUseError(
            f"the run in {said} is up already: `livectr status {said}` shows it, and `livectr down {said}` "
            "ends it."
        )


def from_here(path: Path) -> Path:
    """Path relative to the working directory, where it is below."""
    try:
        return path.relative_to(Path.cwd())
    except ValueError:
        return path


def word_of(folder: RunFolder) -> str:
    """Folder as a word of a command."""
    return shlex.quote(str(from_here(folder.path)))
