"""Manifest of a generation: its rename makes the generation exist; it names the pipeline and the files."""

import hashlib
import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from livectr.ingest.pipeline import Pipeline
from livectr.store.plain import from_plain, read_json
from livectr.system.errors import CheckpointError, MismatchError
from livectr.system.object_store import refuse_objects

if TYPE_CHECKING:
    from livectr.trainer.comm.control import Control  # it loads torch, and `livectr status` reads a manifest


LOG = logging.getLogger(__name__)
MANIFEST = "MANIFEST.json"
FORMAT = 5
"""Format of the manifest and its files: it rises with every change of a key's name or meaning."""
READ = (4, FORMAT)
"""Formats that are read. Format 4 has the rows of look-up tables whole, in the state of the source."""
SOURCES = {"kafka": "Kafka topics", "file": "files"}
"""Scheme of a source → its logs."""
MAP_OF_DENSE = "map of dense features"
"""Part of a pipeline's identity."""
_LATER = {"began_ms", "created_ms", "products", "quality", "resumes", "seen", "source"}
"""Fields that the manifest of an older program lacks."""


@dataclass(frozen=True)
class FileEntry:
    """File of a generation.

    Attributes:
        path: relative to the checkpoint.
        kind: tables, unpublished, policies, dense, source, known, histories, rows, statistics, order
            (trainer.checkpoint.order_parts), predictions (trainer.checkpoint.prediction_parts), or that of a
            part (trainer.part).
        rows: rows, and keys that were erased.
    """

    path: str
    kind: str
    bytes: int
    sha256: str
    rows: int = 0


@dataclass(frozen=True)
class Manifest:
    """Description of a generation.

    Attributes:
        predictions: records of the prediction log at this step.
        identity: description of the pipeline.
        cursor: version that Redis holds with this generation (trainer.publish.succession.Cursor).
        row: layout of a table row (kernels.table.layout.RowLayout.describe).
        table_rows: table → rows on all ranks.
        field_keys: field → keys that were learned (of common features once a group). With the rows,
            `trainer.placement.balance` places by them.
        counts: nested counters of the run, over all ranks: events by topic, dead letters, versions.
        predictions_sha256: of the prediction log up to this generation; empty: it is not kept.
        began_ms: time at which the run's first process began, ms since 1970; 0: an older program wrote this.
        created_ms: time of the rename, ms since 1970; 0: an older program wrote this.
        seen: examples and late positives of all batches; 0: an older program wrote this.
        quality: measures of the newest window of the publish gate, once it was full; `held`: reason for which
            no version was published then, or ""; `skipped`: batches in a row, up to this step, that were not
            learned, if there were some.
        products: library of the networks' fp32 products (models.library); "": an older program wrote this.
        source: kind of the logs that the positions are of (SOURCES); "": an older program wrote this.
        resumes: generation from which a run resumes: this one has learned, at the log's end, impressions
            before their label window had passed. 0: this one.
    """

    generation: int
    world: int
    step: int
    examples: int
    predictions: int
    identity: dict[str, Any]
    cursor: dict[str, Any] | None
    files: tuple[FileEntry, ...]
    row: tuple[str, ...]
    table_rows: dict[str, int]
    field_keys: dict[str, int]
    counts: dict[str, Any]
    predictions_sha256: str
    began_ms: int = 0
    created_ms: int = 0
    seen: int = 0
    quality: dict[str, Any] = field(default_factory=dict)
    products: str = ""
    source: str = ""
    resumes: int = 0

    @property
    def ramped(self) -> int:
        """Examples from which the batch ramp resumes."""
        return self.seen or self.examples

    @property
    def sound(self) -> bool:
        """Tell if versions were published, and batches learned, when this was written."""
        return not self.quality.get("held") and not self.quality.get("skipped")

    def to_json(self) -> bytes:
        """JSON in UTF-8: the SHA-256 of the body, and the body, which is JSON with the format's number."""
        body = json.dumps({"format": FORMAT, **asdict(self)}, sort_keys=True)
        return json.dumps({"sha256": hashlib.sha256(body.encode()).hexdigest(), "body": body}).encode()

    @staticmethod
    def from_json(text: bytes) -> "Manifest":
        """Parse a manifest.

        Raises:
            CheckpointError: it is torn.
            MismatchError: it has another format.
        """
        try:
            outer = read_json(text)
            body = outer["body"]
            if hashlib.sha256(body.encode()).hexdigest() != outer["sha256"]:
                raise CheckpointError("its digest is wrong")
            values = read_json(body)
            written = values.pop("format", 1)
            if written not in READ:
                raise MismatchError(
                    f"the checkpoint has format {written!r}, and this LiveCTR reads formats "
                    f"{' and '.join(map(str, READ))}; use the release that wrote it, or another directory"
                )
            if set(values) | _LATER != {f.name for f in fields(Manifest)}:
                raise CheckpointError("it has other fields than this program's")
            manifest: Manifest = from_plain(Manifest, values)
            return manifest
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"it is not a manifest ({error})") from error


def identity_of(pipeline: Pipeline, seed: int) -> dict[str, Any]:
    """Describe a checkpoint's pipeline part by part, so that an error can name the part that differs."""
    challengers = repr(list(pipeline.challengers.items()))
    features, weights = {**pipeline.plan.sparse, **pipeline.plan.dense}, pipeline.example_weights
    return {
        "features": {name: node.meaning[:16] for name, node in features.items()},
        "fields": [[spec.name, spec.table] for spec in pipeline.fields],
        "dense": list(pipeline.plan.dense_names),
        **({MAP_OF_DENSE: pipeline.map_of_dense} if pipeline.map_of_dense else {}),
        "rank model": repr(pipeline.rank),
        "prerank model": repr(pipeline.prerank),
        **({"challenger models": challengers} if pipeline.challengers else {}),
        "shadow models": repr(list(pipeline.shadows.items())),
        **({"calibration": repr(pipeline.calibration.by)} if pipeline.calibration is not None else {}),
        **({"weights": list(weights.meaning)} if weights is not None else {}),
        **({"targets": repr([t.meaning for t in pipeline.targets])} if pipeline.targets else {}),
        "table policies": repr(sorted(pipeline.table_policies.items())),
        "seed": seed,
        "fingerprint": pipeline.fingerprint,
    }


def check_identity(root: Path | str, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """Check that a checkpoint belongs to this pipeline.

    Args:
        root: the checkpoint, for the message.
        theirs: identity in its manifest: name → value.
        ours: identity of the pipeline.

    Raises:
        MismatchError: they differ; names what.
    """
    differ = [name for name in sorted({*theirs, *ours}) if theirs.get(name) != ours.get(name)]
    if {*differ} == {"features", "fingerprint"} and "features" not in theirs:
        raise MismatchError(
            f"the checkpoint in {root} was written before LiveCTR 0.2, and its features cannot be compared "
            f"with the pipeline's; begin another one from its tables: --checkpoint DIR --warm-start {root}"
        )
    if {*differ} == {MAP_OF_DENSE, "fingerprint"}:
        raise MismatchError(
            f"the checkpoint in {root} was written by a LiveCTR whose networks take large dense features in "
            "another way; use the release that wrote it, or continue its run with this one: --checkpoint NEW "
            f"--warm-start {root} --set warm_parts=run"
        )
    if differ:
        # The fingerprint also covers what is named; alone it means that the logs differ. The map follows
        # from models and features.
        named = [
            name + _values(theirs.get(name), ours.get(name))
            for name in differ
            if name not in ("fingerprint", MAP_OF_DENSE)
        ] or ["logs"]
        raise MismatchError(
            f"the checkpoint in {root} belongs to another pipeline, which differs in {', '.join(named)}; "
            "use the pipeline that wrote it, or continue its run with this one: --checkpoint NEW "
            f"--warm-start {root} --set warm_parts=run"
        )


def check_source(root: Path | str, theirs: str, ours: str) -> None:
    """Check that the positions of a checkpoint are of such logs.

    Args:
        root: the checkpoint, for the message.
        theirs: kind in its manifest; "": unknown.
        ours: URL of the source; "": nothing is read.

    Raises:
        MismatchError: an offset in a file is none of a topic.
    """
    kind = ours.partition(":")[0]
    if theirs and kind and theirs != kind:
        raise MismatchError(
            f"the checkpoint in {root} goes on in {SOURCES.get(theirs, theirs)} where it has read them, and "
            f"the source is {SOURCES.get(kind, kind)}: name the source that it has read, or begin another "
            f"checkpoint from its tables: --checkpoint DIR --warm-start {root}"
        )


def _values(theirs: object, ours: object, limit: int = 40) -> str:
    """Text of two values that differ: of lists what is only in one, of others all if it is short."""
    if isinstance(theirs, list) and isinstance(ours, list):
        there, here = (
            [_item(x) for x in one if x not in other] for one, other in ((theirs, ours), (ours, theirs))
        )
        if not there and not here:
            return " (their order)"
        parts = [f"{', '.join(only[:5])}{', …' if len(only) > 5 else ''} only {place}"
                 for only, place in ((there, "there"), (here, "here")) if only]  # fmt: skip
        return f" ({'; '.join(parts)})"
    if isinstance(theirs, dict) and isinstance(ours, dict):
        changed = [name for name in ours if ours[name] != theirs.get(name, ours[name])]
        return f" ({', '.join(changed[:5])}{', …' if len(changed) > 5 else ''})" if changed else ""
    texts = [json.dumps(value) for value in (theirs, ours)]
    return f" ({texts[0]} there, {texts[1]} here)" if max(map(len, texts)) <= limit else ""


def _item(value: object) -> str:
    """Item of a list; a field with another table than its own name is "field (table)"."""
    if isinstance(value, list):
        name, table = value
        return str(name) if name == table else f"{name} (table {table})"
    return str(value)


def path_of(root: Path, entry: FileEntry) -> Path:
    """Path of a file. Raises CheckpointError if it lies outside the checkpoint."""
    path = root / entry.path
    if not path.resolve().is_relative_to(root.resolve()):
        raise CheckpointError(f"{entry.path} lies outside the checkpoint")
    return path


def verify_file(root: Path, entry: FileEntry) -> None:
    """Raise CheckpointError unless a file is what was written."""
    check_digest(path_of(root, entry), entry)


def check_digest(path: Path, entry: FileEntry) -> None:
    """Raise CheckpointError unless a file has the digest of an entry."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != entry.sha256:
        raise CheckpointError(f"{entry.path} is not what was written")


def folder_of(root: Path, generation: int) -> Path:
    """Folder of a generation."""
    return root / f"gen-{generation:08d}"


def number(directory: Path) -> int:
    """Number of a generation, by its folder; 0 for any other folder."""
    match = re.fullmatch(r"gen-(\d+)", directory.name)
    return int(match[1]) if match else 0


class Place(Protocol):
    """Generations of a checkpoint, in a folder or an object store (trainer.checkpoint.stored)."""

    @property
    def root(self) -> Path:
        """Folder in which `ensure` gives files."""

    @property
    def name(self) -> str:
        """Folder or address, for messages."""

    def generations(self) -> list[int]:
        """Numbers of the generations that have a manifest, in any order."""

    def manifest(self, generation: int) -> Manifest:
        """Parse a manifest. Raises CheckpointError, MismatchError or FileNotFoundError."""

    def share(self, manifest: Manifest, control: "Control") -> Sequence[FileEntry]:
        """Files that this rank verifies; each file is in the share of one rank."""

    def ensure(self, entry: FileEntry) -> Path:
        """Verified file. Raises CheckpointError or OSError."""


@dataclass(frozen=True)
class Folder:
    """Generations in a folder. Raises ConfigError for the address of an object store."""

    root: Path

    def __post_init__(self) -> None:
        refuse_objects(self.root)

    @property
    def name(self) -> str:
        """Path of the folder, for messages."""
        return str(self.root)

    def generations(self) -> list[int]:
        """Numbers of the generations that have a manifest, in any order."""
        return [number(path.parent) for path in self.root.glob(f"gen-*/{MANIFEST}")]

    def manifest(self, generation: int) -> Manifest:
        """Parse a manifest. Raises CheckpointError, MismatchError or FileNotFoundError."""
        return Manifest.from_json((folder_of(self.root, generation) / MANIFEST).read_bytes())

    def share(self, manifest: Manifest, control: "Control") -> Sequence[FileEntry]:
        """Every N-th file, beginning with the rank's number."""
        return manifest.files[control.rank :: control.world]

    def ensure(self, entry: FileEntry) -> Path:
        """Path of a file whose SHA-256 was verified. Raises CheckpointError or OSError."""
        verify_file(self.root, entry)
        return self.root / entry.path


def newest_whole(
    place: Place | Path,
    control: "Control",
    help: str,
    *,
    predictions: Callable[[int, str], str] | None = None,
    resumes: bool = False,
) -> Manifest | None:
    """Find the newest whole generation; None if there is no generation. Collective.

    Args:
        place: generations; a path is that of a `Folder`.
        control: spreads the verification over the ranks.
        help: advice in the error, for the user.
        predictions: check of the prediction log by its number of records and their SHA-256; returns a
            complaint or "".
        resumes: for a run that goes on: find the generation from which the newest one says to resume.

    Raises:
        CheckpointError: generations exist, but none is whole.
        ConnectError: the object store is away.
    """
    place = Folder(place) if isinstance(place, Path) else place
    numbers = place.generations() if control.rank == 0 else []
    numbers = sorted(numbers, reverse=True)
    generations = control.broadcast_json(resumed_first(place, numbers) if resumes else numbers)
    reason = ""
    for generation in generations:
        manifest, reason = _verified(place, generation, control, predictions)
        if manifest is not None:
            return manifest
    if generations:
        raise CheckpointError(
            f"{place.name}: every generation is torn ({', '.join(map(str, generations))}: {reason}); {help}"
        )
    return None


def resumed_first(place: Place, numbers: Sequence[int]) -> list[int]:
    """Generations, newest first, each behind the one from which it says to resume."""
    found: dict[int, None] = {}
    for generation in numbers:
        try:
            before = place.manifest(generation).resumes
        except (CheckpointError, MismatchError, OSError):
            before = 0  # `_verified` says so
        found |= dict.fromkeys([before, generation] if before in numbers else [generation])
    return [*found]


def _verified(
    place: Place, generation: int, control: "Control", predictions: Callable[[int, str], str] | None
) -> tuple[Manifest | None, str]:
    """Verify all files of a generation, which the ranks share: (manifest, "") or (None, reason)."""
    reason = ""
    manifest = None
    try:
        manifest = place.manifest(generation)
        for entry in place.share(manifest, control):
            place.ensure(entry)
        if predictions is not None and control.rank == 0 and manifest.predictions_sha256:
            reason = predictions(manifest.predictions, manifest.predictions_sha256)
    except (CheckpointError, OSError) as error:
        reason = str(error)
    reasons = [r for r in control.gather_json(reason) if r]
    if reasons:
        LOG.warning("checkpoint %s: generation %d is torn: %s", place.name, generation, reasons[0])
        return None, reasons[0]
    return manifest, ""


def newest_manifest(place: Place | Path) -> Manifest | None:
    """Newest manifest that can be read, for `livectr inspect`; None: no manifest can be read."""
    place = Folder(place) if isinstance(place, Path) else place
    gone = True
    while gone:  # a running trainer replaces generations
        gone = False
        for generation in sorted(place.generations(), reverse=True):
            try:
                return place.manifest(generation)
            except FileNotFoundError:
                gone = True
            except CheckpointError as error:
                LOG.warning("generation %d of %s is torn: %s", generation, place.name, error)
    return None
