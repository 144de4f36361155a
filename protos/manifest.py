"""The manifest of a published version: what a server needs to find its parts (see `protos.store`)."""

import json
from dataclasses import asdict, dataclass, field, fields

import numpy as np
import numpy.typing as npt

from livectr.protos.evictions import Evictions

FRESHNESS_BIN_MS = 100
"""Width of a bin of the event-time histogram that a version carries."""
FRESHNESS_BINS = 2000
"""Most bins of it."""

I64 = npt.NDArray[np.int64]

_LATER = {"whole", "evictions", "run", "examples", "committed"}
"""Fields that an older trainer's manifest lacks; without them no name space is known to be whole, and no
trainer is known to be the successor."""


@dataclass(frozen=True)
class Freshness:
    """Event times of what a version learned: the start of each bin (ms since 1970) and its examples.

    A bin is FRESHNESS_BIN_MS wide; when a version holds so much event time that there were more than
    FRESHNESS_BINS, neighbours are merged. A server that begins to serve the version observes `now - start`
    for each bin, `counts` times: the event-to-servable delay, never too small.
    """

    bin_ms: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()

    @staticmethod
    def of(times_ms: I64) -> "Freshness":
        """The histogram of event times i64[n]."""
        return Freshness._binned(times_ms, np.ones(len(times_ms), np.int64))

    def plus(self, times_ms: I64) -> "Freshness":
        """This histogram and event times i64[n] more."""
        return self.merged(Freshness.of(times_ms))

    def merged(self, other: "Freshness") -> "Freshness":
        """Both histograms together."""
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


@dataclass(frozen=True)
class VersionManifest:
    """One published version: everything a server needs to find its parts.

    `dense` and `changed` name one blob for each of `world` ranks. `earlier` holds the `changed` blobs of the
    versions before it that are still kept and whose rows live under the same `ns`. `content` names the blobs
    of all ranks with the vectors of a content's ids; no id is in two of them.
    """

    version: int
    epoch: int
    ns: str
    step: int
    fingerprint: str
    world: int
    created_ms: int
    dim: int
    """D: values of a row."""
    segments: tuple[tuple[str, int], ...]
    """(name, dim) of each segment of a row, in order."""
    tables: dict[str, int]
    """Rows of each table."""
    dense: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    earlier: dict[int, tuple[str, ...]] = field(default_factory=dict)
    item_vectors: str | None = None
    content: dict[str, tuple[str, ...]] = field(default_factory=dict)
    freshness: Freshness = Freshness()
    seed: int = 1
    """Of the tables: with it a server gives a row that was never published its initial value."""
    whole: str = ""
    """Value of the sentinels of `ns`: drawn by the complete publish that began it."""
    evictions: Evictions = Evictions()
    """What Redis had evicted when that publish began."""
    run: str = ""
    """One word for all processes of a run, which go on from each other's checkpoints."""
    examples: int = 0
    """Learned by the model."""
    committed: int = 0
    """Of these, those in the oldest checkpoint that its trainer kept when it began the version; 0: none."""

    def changed_since(self, version: int, ns: str) -> tuple[str, ...] | None:
        """Blobs of all keys that changed after `version` of `ns`; None: unknown, so drop every cached row."""
        if ns != self.ns or version > self.version:
            return None
        blobs: list[str] = []
        for v in range(version + 1, self.version):
            if v not in self.earlier:
                return None
            blobs += self.earlier[v]
        return (*blobs, *self.changed) if version < self.version else ()

    def to_json(self) -> bytes:
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @staticmethod
    def from_json(text: bytes | str) -> "VersionManifest":
        """The inverse of `to_json`.

        Raises:
            ValueError: not JSON, or its fields are not those of this class.
        """
        values = json.loads(text)
        known = {f.name for f in fields(VersionManifest)}
        if not isinstance(values, dict) or not known - _LATER <= set(values) <= known:
            got = set(values) if isinstance(values, dict) else set()
            raise ValueError(f"version manifest with unexpected fields: {sorted(got ^ known)}")
        bins, evictions = values.pop("freshness"), values.pop("evictions", {})
        return VersionManifest(
            **{
                **values,
                "segments": tuple((str(name), int(dim)) for name, dim in values["segments"]),
                "dense": tuple(values["dense"]),
                "changed": tuple(values["changed"]),
                "earlier": {int(v): tuple(keys) for v, keys in values["earlier"].items()},
                "content": {str(name): tuple(blobs) for name, blobs in values["content"].items()},
                "freshness": Freshness(tuple(bins["bin_ms"]), tuple(bins["counts"])),
                "evictions": Evictions(**evictions),
            }
        )
