"""Names of the blobs of a version's content and item vectors: of those that are written and that stay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from livectr.trainer.content.precompute import Precompute
from livectr.trainer.content.refresh import NEWER

LEFT = "left"
"""Tag of the blob of items that have left."""


def described(content: Mapping[str, Precompute]) -> dict[str, Any]:
    """Blobs that a rank writes, as JSON for the other ranks."""
    return {name: {"tags": list(p.tags), "whole": p.whole} for name, p in content.items()}


@dataclass(frozen=True)
class ContentNames:
    """Names of the blobs of one content of a version.

    Args:
        ranks: names of the blobs that each rank writes, in the order of its tags.
        stay: of the version before.
    """

    ranks: Sequence[Sequence[str]]
    stay: Sequence[str]

    @staticmethod
    def of(
        shares: Sequence[Mapping[str, Any]], blob: Callable[[int, str], str], before: Sequence[str]
    ) -> ContentNames:
        """Names of all ranks' blobs, alike on every rank.

        Args:
            shares: of each rank, the value of `described`.
            blob: name of a blob by rank and tag, ending with the tag.
            before: names of the version before; () if this one is complete.
        """
        ranks = [[blob(rank, tag) for tag in share["tags"]] for rank, share in enumerate(shares)]
        if any(share["whole"] for share in shares):
            return ContentNames(ranks, ())
        changed = {NEWER, *chain.from_iterable(share["tags"] for share in shares)}
        return ContentNames(ranks, [name for name in before if tag_of(name) not in changed])

    @property
    def all(self) -> tuple[str, ...]:
        """All names; of an id in two blobs, the later counts."""
        new = list(chain.from_iterable(self.ranks))
        return (*self.stay, *sorted(new, key=lambda name: tag_of(name) == NEWER))


def names_of(
    shares: Sequence[Mapping[str, Any]],
    blob: Callable[[str, int, str], str],
    before: Mapping[str, Sequence[str]],
) -> dict[str, ContentNames]:
    """Content name → its blobs, alike on every rank.

    Args:
        shares: of each rank, its `described`.
        blob: name of a blob by content, rank and tag.
        before: content name → blobs of the version that this one extends.
    """
    return {
        name: ContentNames.of([share[name] for share in shares], partial(blob, name), before.get(name, ()))
        for name in shares[0]
    }


def item_names(
    tags: Sequence[str], blob: Callable[[str], str], before: Sequence[str], *, whole: bool
) -> tuple[str, ...]:
    """Names of the blobs of item vectors of a version, which rank 0 writes.

    Args:
        tags: of the blobs that are written.
        blob: name of a blob by tag, ending with the tag.
        before: names of the version before; () if this one is complete.
        whole: none of them stays.
    """
    return ContentNames.of([{"tags": tags, "whole": whole}], lambda _, tag: blob(tag), before).all


def tag_of(name: str) -> str:
    """Tag of a blob's name."""
    return name.rpartition("-")[2]
