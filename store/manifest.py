"""Manifest of a published version: the names of its parts in Redis (see `store.layout`)."""

import json
from dataclasses import asdict, dataclass, field, fields

import numpy as np
import numpy.typing as npt

from livectr.store.evictions import Evictions
from livectr.store.plain import from_plain, read_json
from livectr.system.errors import MismatchError

FRESHNESS_BIN_MS = 100
"""Width in ms of a bin of a version's event-time histogram."""
FRESHNESS_BINS = 2000
"""Most bins of the histogram."""

I64 = npt.NDArray[np.int64]

FORMAT = 5
"""Format of the JSON: it rises with every change of a field's name or meaning."""


@dataclass(frozen=True)
class Freshness:
    """Histogram of the event times that a version learned.

    Bins are FRESHNESS_BIN_MS wide; above FRESHNESS_BINS bins, neighbors are merged. A server that begins to
    serve the version observes `now - start` for each bin, `counts` times: the event-to-servable delay,
    rounded up.

    Args:
        bin_ms: start of each bin, ms since 1970.
        counts: examples of each bin.
    """

    bin_ms: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()

    @staticmethod
    def of(times_ms: I64) -> "Freshness":
        """Histogram of event times i64[n] in ms."""
        return Freshness._binned(times_ms, np.ones(len(times_ms), np.int64))

    def plus(self, times_ms: I64) -> "Freshness":
        """Histogram with event times i64[n] in ms added."""
        return self.merged(Freshness.of(times_ms))

    def merged(self, other: "Freshness") -> "Freshness":
        """Sum of both histograms."""
        starts = np.array(self.bin_ms + other.bin_ms, np.int64)
        return Freshness._binned(starts, np.array(self.counts + other.counts, np.int64))

    @staticmethod
    def _binned(starts: I64, weights: I64) -> "Freshness":
        width = FRESHNESS_BIN_MS
        while True:
            bins, at = np.unique(starts // width, return_inverse=True)
            if len(bins) <= FRESHNESS_BINS:
                counts = np.zeros(len(bins), np.int64)
                np.add.at(counts, at, weights)
                return Freshness(tuple((bins * width).tolist()), tuple(counts.tolist()))
            width *= 2


_IF_OTHER = {"champion": "rank", "from_zero": ()}
"""Fields that the JSON names only where they have another value."""


@dataclass(frozen=True)
class VersionManifest:
    """Published version: the names of its parts in Redis.

    Field names are keys of the JSON in Redis, and `format` is FORMAT.

    Args:
        version: number of the version.
        epoch: number of the trainer that published it.
        row_set: name of the rows that a complete publish began and later versions extend.
        step: training step.
        fingerprint: of the pipeline: features, layout and models.
        world: N, number of ranks.
        created_ms: time of publishing, ms since 1970.
        dim: D, values of a row.
        segments: (name, dim) of each segment of a row, in order.
        tables: rows of each table.
        dense: blob of dense tensors of each rank.
        changed: blob of changed keys of each rank: of tables, and of look-up tables after
            `store.layout.LOOKUP`.
        earlier: `changed` of earlier versions that are still kept and extend the same row set.
        item_vectors: blobs of item vectors; () without a pre-rank model. Of an item in two, the later counts.
            A blob of vectors without numbers lists items that have left.
        content: content name → blobs of vectors of all ranks; of an id in two, the later counts.
        freshness: event times that the version learned.
        seed: of the tables; a server computes from it the initial values of a row that was never published.
        sentinel: value of the sentinels of the row set, drawn by the complete publish that began it.
        evictions: evictions of Redis before that publish began.
        run_id: shared by all processes of a run, which continue from each other's checkpoints.
        examples: examples that the model has learned.
        committed: of these, examples in the oldest checkpoint that the trainer kept when it began the
            version; 0: none.
        champion: role of the ranking model that the version holds; the JSON names it unless it is "rank", so
            that other programs of this format refuse what they cannot serve.
        from_zero: (role, table) whose rows that were never published are zero in the role's segments, in
            place of the seed's values; the JSON names them only if there are any.
    """

    version: int
    epoch: int
    row_set: str
    step: int
    fingerprint: str
    world: int
    created_ms: int
    dim: int
    segments: tuple[tuple[str, int], ...]
    tables: dict[str, int]
    dense: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    earlier: dict[int, tuple[str, ...]] = field(default_factory=dict)
    item_vectors: tuple[str, ...] = ()
    content: dict[str, tuple[str, ...]] = field(default_factory=dict)
    freshness: Freshness = Freshness()
    seed: int = 1
    sentinel: str = ""
    evictions: Evictions = Evictions()
    run_id: str = ""
    examples: int = 0
    committed: int = 0
    champion: str = "rank"
    from_zero: tuple[tuple[str, str], ...] = ()

    def changed_since(self, version: int, row_set: str) -> tuple[str, ...] | None:
        """Blobs of keys that changed after `version` of a row set; None: unknown, drop all cached rows."""
        if row_set != self.row_set or version > self.version:
            return None
        blobs: list[str] = []
        for v in range(version + 1, self.version):
            if v not in self.earlier:
                return None
            blobs += self.earlier[v]
        return (*blobs, *self.changed) if version < self.version else ()

    def to_json(self) -> bytes:
        """Encode the manifest as JSON."""
        values = asdict(self)
        values = {n: v for n, v in values.items() if n not in _IF_OTHER or v != _IF_OTHER[n]}
        return json.dumps({"format": FORMAT, **values}, separators=(",", ":")).encode()

    @staticmethod
    def from_json(text: bytes | str) -> "VersionManifest":
        """Decode the result of `to_json`.

        Raises:
            MismatchError: another format.
            ValueError: not JSON, or fields of other names or types.
        """
        values = read_json(text)
        if not isinstance(values, dict) or "fingerprint" not in values:
            raise ValueError("no version manifest: it names no fingerprint of a pipeline")
        written = values.pop("format", 1)
        if written != FORMAT:
            raise MismatchError(
                f"Redis holds a version of format {written!r}, and this LiveCTR reads format {FORMAT}; run "
                "trainer and servers of one release (`livectr train --take-over` replaces the version), or "
                "use another namespace"
            )
        known = {f.name for f in fields(VersionManifest)}
        if set(values) | {*_IF_OTHER} != known:
            raise ValueError(f"version manifest with unexpected fields: {sorted(set(values) ^ known)}")
        manifest: VersionManifest = from_plain(VersionManifest, values)
        if len(manifest.freshness.bin_ms) != len(manifest.freshness.counts):
            raise ValueError("version manifest with a histogram of unequal parts")
        return manifest
