"""Rollback: the model of a kept generation becomes a version again, under a new number.

A row in Redis holds the newest version of itself and the one before, so that older versions are not in Redis
any more. A checkpoint's generation has all rows. The steps:

    1  hold the namespace: from here on no trainer flips a version over this one;
    2  take a new epoch, and leave the owner as it is: the running trainer continues afterwards;
    3  write all rows, weights and vectors under a row set of their own;
    4  flip, although the namespace is held. It stays held until `livectr versions release`;
    5  remove the rows of the version before.

Where it is wanted, the trainer goes on from there, too (trainer.checkpoint.step_back): it learns the log
again from the generation's positions.

Look-up rows and behavior histories are facts about users and items, and no part of a model: they stay as the
trainer writes them. After the release the trainer publishes its own model, complete, under a higher number.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from livectr.config.settings import Settings
from livectr.ingest.content.folders import content_folders
from livectr.ingest.dead_letters.letters import DeadLetters
from livectr.ingest.extract.extractor import Extractor
from livectr.ingest.extract.statistics import Statistics
from livectr.ingest.join.counters import Counters
from livectr.ingest.join.lookups import Lookups
from livectr.ingest.pipeline import Pipeline
from livectr.store.hold import Hold
from livectr.store.manifest import VersionManifest
from livectr.system.errors import CheckpointError, ConfigError, InUseError, MismatchError, UserError
from livectr.trainer.checkpoint.age import in_words
from livectr.trainer.checkpoint.folder import lock
from livectr.trainer.checkpoint.keeping import KEPT_GENERATIONS, readable
from livectr.trainer.checkpoint.lease import Held, hold
from livectr.trainer.checkpoint.manifest import Folder, Manifest, check_identity, identity_of
from livectr.trainer.checkpoint.restored import Restored
from livectr.trainer.checkpoint.step_back import MARK, ask, step_back
from livectr.trainer.checkpoint.stored import Stored, placed
from livectr.trainer.comm.collectives import connect
from livectr.trainer.comm.control import Control
from livectr.trainer.content.contents import Contents
from livectr.trainer.des.step import DesStep
from livectr.trainer.publish.garbage import collect_garbage
from livectr.trainer.publish.items import ItemCopier
from livectr.trainer.publish.lineage import row_set_name
from livectr.trainer.publish.publisher import COLLECT_AFTER_S
from livectr.trainer.publish.push import PUSH_ERRORS, Share
from livectr.trainer.publish.redis_store import RedisStore
from livectr.trainer.publish.snapshot import Snapshotter
from livectr.trainer.publish.store_errors import FencedError, LostError
from livectr.trainer.publish.values import ValueCopier
from livectr.trainer.publish.version import PublishedModel, VersionSnapshot
from livectr.trainer.quality.champion import CONTEST, champion_of

FOLLOW_S = 120.0
"""Longest wait for a trainer to follow: its step may be long, and it looks once a second."""
POLL_S = 0.1
SEEN_AFTER_S = 60
"""Time from the begin of trouble until somebody sees it: a younger generation has most of it already."""

if TYPE_CHECKING:
    from livectr.ingest.join.examples import ExampleSource


def roll_back(
    pipeline: Pipeline, settings: Settings, generation: int | None, reason: str, *, and_train: bool = False
) -> str:
    """Publish a generation of `settings.checkpoint` as a new version, and hold it.

    Args:
        pipeline: that the generation belongs to.
        settings: name checkpoint, redis, namespace, and source where the pipeline has a pre-rank model.
        generation: its number; None: as `chosen` says.
        reason: of the hold.
        and_train: the trainer goes on from the generation.

    Returns:
        Sentence on what is served.

    Raises:
        ConfigError: there is no such generation, or a setting is missing.
        CheckpointError: the generation is not whole.
        MismatchError: the generation or the served version is of another pipeline or run.
        ConnectError: Redis does not answer.
        UserError: the version could not be written; the version before is served, and the namespace is held.
            Or the named generation holds numbers that are not finite; nothing has changed.
    """
    place = placed(settings.checkpoint or "")
    if isinstance(place, Stored):
        _check_stored(place, pipeline, settings, and_train=and_train)
    if not readable(place):
        raise ConfigError(f"{place.name} holds no checkpoint; name what training wrote")
    facts, broken = _Facts({}, Counters(pipeline)), list[int]()
    with closing(RedisStore(settings.redis, settings.namespace)) as store, connect() as collectives:
        before = _served(store)
        while True:
            manifest = chosen(place, generation, before, broken)
            check_identity(place.name, manifest.identity, identity_of(pipeline, manifest.identity["seed"]))
            _check_same(store, before, manifest, pipeline)
            if pipeline.prerank is not None and pipeline.items is not None and not settings.source:
                raise ConfigError(
                    "the pipeline has a pre-rank model: say --source, whose items get their vectors."
                )
            with held_generation(place, manifest) as held:
                step, contents = _step(pipeline, settings, held.restored, collectives)
                with closing(contents):
                    if settings.source and pipeline.items is not None and not broken:
                        facts = _Facts.read(pipeline, settings.source)
                    snapshot, model = _snapshot(pipeline, held.restored, step, facts, store)
                    if not snapshot.broken:
                        because = Hold.at_once(reason or f"rolled back to generation {manifest.generation}")
                        version = _publish(store, manifest, snapshot, model, because)
                        trained = _go_on(place.root, held) if and_train else ""
                        break
            if generation is not None:
                raise UserError(
                    f"generation {generation} holds numbers that are not finite ({snapshot.broken}); nothing "
                    "has changed: name an older one, or none"
                )
            broken.append(manifest.generation)
    return (
        f"version {version.version} is served: the model of generation {manifest.generation}, which has "
        f"learned {manifest.examples:,} examples{_measured(manifest)}. {_forgotten(manifest, before)}. "
        f"{_passed_over(broken)}It is held until `livectr versions release`{trained}"
    )


def _check_stored(place: Stored, pipeline: Pipeline, settings: Settings, *, and_train: bool) -> None:
    """Raise ConfigError for what needs the folder of a checkpoint that is in an object store."""
    if and_train:
        raise ConfigError(
            f"--and-train needs a checkpoint in a folder, and {place.name} is in an object store: roll back "
            "without it, and release once the trainer's own model is good"
        )
    folders = content_folders(settings.content)
    if lacking := [name for name, one in pipeline.content.items() if one.encoder and name not in folders]:
        words = ",".join(f"{name}=FOLDER" for name in lacking)
        raise ConfigError(
            f"features of {', '.join(lacking)} are beside the trainer's copy of the checkpoint, and not in "
            f"{place.name}: say --set content={words}"
        )


def chosen(
    place: Folder | Stored, generation: int | None, served: VersionManifest, without: Collection[int] = ()
) -> Manifest:
    """Manifest of a generation.

    Args:
        place: the checkpoint.
        generation: its number; None: the newest that is kept for rollbacks, was sound when it was written
            (Manifest.sound), has learned less than what is served and is SEEN_AFTER_S older; of a younger run
            the oldest.
        served: version in Redis.
        without: numbers that are not chosen, unless they are named.

    Raises:
        ConfigError: there is none.
    """
    manifests = {m.generation: m for m in readable(place)}
    numbers = ", ".join(map(str, manifests))
    if generation is not None:
        if generation not in manifests:
            raise ConfigError(f"{place.name} has no generation {generation}; it has {numbers}")
        return manifests[generation]
    kept = list(manifests.values())[:-KEPT_GENERATIONS]
    whole = [m for m in kept if m.sound and m.generation not in without]
    older = [m for m in whole if m.examples < served.examples]
    if not older:
        raise ConfigError(
            f"{place.name} keeps no generation that has learned less than what is served (keep_ages, "
            "keep_bytes), passed the publish gate, and whose batches were learned and numbers finite; say "
            f"--generation, one of {numbers}"
        )
    seen_ms = served.created_ms - 1000 * SEEN_AFTER_S
    return next((m for m in reversed(older) if m.created_ms <= seen_ms), older[0])


def _measured(manifest: Manifest) -> str:
    auc = manifest.quality.get("auc")
    return "" if auc is None else f" (AUC {auc:.4f} at the publish gate)"


def _passed_over(broken: Sequence[int]) -> str:
    """Sentence on generations that were tried before; "" without any."""
    if not broken:
        return ""
    return f"Generations with numbers that are not finite were passed over: {', '.join(map(str, broken))}. "


def _forgotten(manifest: Manifest, before: VersionManifest) -> str:
    """Sentence on what the served version knew and the generation does not."""
    examples = before.examples - manifest.examples
    if examples < 0:
        return f"Version {before.version} had {before.examples:,}, {-examples:,} less"
    ago_s = max(0, before.created_ms - manifest.created_ms) / 1000
    return f"{examples:,} examples of {in_words(ago_s)} before version {before.version} are forgotten"


def _go_on(root: Path, held: Held) -> str:
    """Let the trainer go on from a generation: a running one, or the next.

    Raises:
        UserError: the trainer that holds the lock does not follow.
    """
    newest = max(Folder(root).generations())
    try:
        with closing(lock(root)):
            step_back(root, held.manifest, held.restored.root)
        return "; no trainer runs, and the next one goes on from there"
    except InUseError:
        ask(root, held.manifest, held.restored.root)
    deadline = time.monotonic() + FOLLOW_S
    while (root / MARK).exists():
        if time.monotonic() > deadline:
            raise UserError(
                f"the rollback is served and held, but the trainer on {root} has not followed within "
                f"{FOLLOW_S:.0f} s; it does so at its next step, or stop it and start it again"
            ) from None
        time.sleep(POLL_S)
    if newest in Folder(root).generations():
        raise UserError("the rollback is served and held, but the trainer could not follow; its log says why")
    return "; the trainer goes on from there, and learns what came after it again"


def held_generation(place: Folder | Stored, manifest: Manifest) -> Held:
    """Hold a generation while its trainer runs on.

    Raises:
        ConfigError: it has gone since it was chosen.
        CheckpointError: it is torn.
    """
    try:
        return hold(place, manifest.generation)
    except FileNotFoundError:
        raise ConfigError(
            f"{place.name} has no generation {manifest.generation} any more; `livectr versions list` names "
            "others"
        ) from None
    except CheckpointError as error:
        raise CheckpointError(f"generation {manifest.generation} of {place.name} is torn: {error}") from None


@dataclass(frozen=True)
class _Facts:
    """Look-up tables of a source, as a snapshot asks for them; it changes nothing of the users' histories."""

    tables: Mapping[str, Any]
    counters: Counters

    @staticmethod
    def read(pipeline: Pipeline, source: str) -> _Facts:
        """Read all look-up tables to the end that they have."""
        lookups = Lookups(pipeline.tables, source, until_end=True, dead_letters=DeadLetters(None))
        lookups.close()
        return _Facts(lookups.tables, Counters(pipeline))

    def history_changes(self, since: int = 0) -> dict[str, Any]:
        """Nothing."""
        return {}


def _where(store: RedisStore) -> str:
    return f"namespace {store.space.namespace!r} in Redis at {store.url}"


def _served(store: RedisStore) -> VersionManifest:
    """Version that is served, which must be whole."""
    held = store.manifest_of(store.manifest_text())
    if held is None or not store.is_complete(held):
        raise ConfigError(
            f"{_where(store)} holds no whole version, so that its look-up rows may be missing, too; let "
            "the trainer publish, then roll back"
        )
    return held


def _check_same(store: RedisStore, held: VersionManifest, manifest: Manifest, pipeline: Pipeline) -> None:
    """Raise MismatchError unless a generation may take the place of a version."""
    run = (manifest.cursor or {}).get("run_id")
    if held.fingerprint != pipeline.fingerprint or run != held.run_id:
        what = "pipeline" if held.fingerprint != pipeline.fingerprint else "run"
        raise MismatchError(
            f"{_where(store)} serves version {held.version} of another {what}; name the checkpoint of the "
            "run that published it"
        )


def _step(
    pipeline: Pipeline, settings: Settings, restored: Restored, collectives: Any
) -> tuple[DesStep, Contents]:
    """Model of a generation, and the content that its sub-models look at."""
    folders = content_folders(settings.content)
    contents = Contents(pipeline.content, folders, checkpoint=restored.checkpoint, rank=0, world=1)
    seed = restored.manifest.identity["seed"]
    step = DesStep(pipeline, seed=seed, collectives=collectives, content=contents.stores)
    restored.load_tables(step.tables)
    step.storage.drop()
    step.load_dense(restored.dense())
    return step, contents


def _snapshot(
    pipeline: Pipeline, restored: Restored, step: DesStep, facts: _Facts, store: RedisStore
) -> tuple[VersionSnapshot, PublishedModel]:
    source: ExampleSource = facts  # type: ignore[assignment]  # the two that a snapshot asks for
    statistics, control = Statistics(pipeline.plan).load(restored.statistics()), Control()
    snapshots = Snapshotter(
        pipeline,
        step,
        control,
        statistics,
        ValueCopier(source, control, store.space),
        ItemCopier(pipeline, step, source, Extractor(pipeline.plan), statistics, control),
        champion_of(restored.state(CONTEST)),
    )
    segments = [(s.name, s.dim) for s in step.spec.layout.segments]
    model = PublishedModel(pipeline.fingerprint, segments, restored.manifest.identity["seed"])
    return replace(snapshots.take(restored.manifest.step, None), values=(), kept=None), model


def _publish(
    store: RedisStore, manifest: Manifest, snapshot: VersionSnapshot, model: PublishedModel, hold: Hold
) -> VersionManifest:
    """Steps 1 to 5."""
    try:
        # 1 hold
        store.client.set(store.space.hold, hold.to_json())
        # 2 a new epoch, of the same owner
        store.fence.share_owner()
        before, highest = store.manifest_text(), None
        while highest is None:
            before = store.manifest_text()
            highest = store.fence.take(before)
        served = store.manifest_of(before)
        if served is None:
            raise LostError("the published version is gone")
        # 3 all rows
        version = _version(store, manifest, served, snapshot, model, highest + 1)
        names = {name: list(blobs) for name, blobs in version.content.items()}
        share = Share(0, snapshot, version, names, full=True)
        items = share.item_vectors(Control())
        servers = store.servers()
        share.open(store)
        share.write(store, items=items, stopped=lambda: False)
        store.pushed(0, version, servers)
        store.seal(version)
        # 4 flip
        store.flip(version.to_json(), version.version, before or b"", world=1, over_hold=True)
    except FencedError:
        raise UserError("a trainer started while the version was written; run the rollback again") from None
    except PUSH_ERRORS as error:
        raise UserError(
            f"the rollback was not published ({error}); the version before is served and held: run it again, "
            "or say `livectr versions release`"
        ) from None
    # 5 requests that began under the version before still read its rows
    time.sleep(COLLECT_AFTER_S)
    collect_garbage(store, version)
    return version


def _version(
    store: RedisStore,
    manifest: Manifest,
    served: VersionManifest,
    snapshot: VersionSnapshot,
    model: PublishedModel,
    number: int,
) -> VersionManifest:
    blob, epoch = store.space.blob, store.connection.epoch
    segments = model.served(snapshot.champion)
    return VersionManifest(
        version=number,
        epoch=epoch,
        row_set=row_set_name(epoch, 0),
        step=snapshot.step,
        fingerprint=model.fingerprint,
        world=1,
        created_ms=time.time_ns() // 1_000_000,
        dim=sum(dim for _, dim in segments),
        segments=segments,
        tables=dict(snapshot.table_rows),
        dense=(blob(number, f"dense-{epoch}-0"),),
        changed=(blob(number, f"changed-{epoch}-0"),),
        item_vectors=snapshot.item_names(lambda tag: blob(number, f"items-{epoch}-{tag}"), None),
        content={
            name: tuple(blob(number, f"content-{name}-{epoch}-0-{tag}") for tag in precompute.tags)
            for name, precompute in snapshot.content.items()
        },
        seed=model.seed,
        sentinel=secrets.token_hex(8),
        evictions=store.evictions(),
        run_id=served.run_id,
        examples=manifest.examples,
        # The trainer, which has learned more, resumes from any of its checkpoints.
        committed=manifest.examples,
        champion=snapshot.champion,
    )
