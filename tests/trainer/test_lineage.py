"""Lineage and draft of versions: numbers, row sets and manifests, without a connection."""

import numpy as np

from livectr.store.evictions import Evictions
from livectr.store.keyspace import Keyspace
from livectr.store.manifest import Freshness
from livectr.trainer.publish.draft import Draft, Learning, ShareNotice
from livectr.trainer.publish.lineage import Lineage
from livectr.trainer.publish.version import Pending, PublishedModel, VersionSnapshot

MODEL = PublishedModel("f", (("rank.v", 3),), seed=1)
EPOCH = 4


def drafted(lineage: Lineage, step: int, epoch: int = EPOCH) -> Draft:
    """Draft of two ranks' next version, with 2 and 3 rows."""
    keys = np.arange(5)
    parts = [VersionSnapshot(step, {"ad": (k, np.zeros((len(k), 3), np.float32))}, {"ad": len(k)}, b"")
             for k in (keys[:2], keys[2:])]  # fmt: skip
    shares = [ShareNotice.of(part, epoch, lineage.number + 1) for part in parts]
    learning = Learning(7, 5, Freshness())
    return Draft.of(shares, lineage, MODEL, parts[0], learning, Keyspace(), Evictions())


def flip(lineage: Lineage, step: int) -> Draft:
    draft = drafted(lineage, step)
    lineage.flipped(Pending(draft.manifest, draft.manifest.to_json(), draft.rows, lineage.full))
    return draft


def test_a_delta_extends_the_version_before_and_a_complete_one_begins_a_row_set() -> None:
    lineage = Lineage.resumed(6, "run", b"")
    first, second = flip(lineage, 1), flip(lineage, 2)
    assert (first.manifest.version, second.manifest.version) == (7, 8)
    assert first.manifest.row_set == second.manifest.row_set == "4-0"
    assert first.manifest.sentinel == second.manifest.sentinel
    assert second.manifest.earlier == {7: first.manifest.changed}
    lineage.begin_again()
    assert lineage.full and lineage.base is None
    third = flip(lineage, 3)
    assert third.manifest.row_set == "4-1" and third.manifest.earlier == {}
    assert third.manifest.sentinel != second.manifest.sentinel
    assert (third.rows, third.manifest.tables, third.manifest.world) == (5, {"ad": 5}, 2)
    assert (third.manifest.examples, third.manifest.committed) == (7, 5)


def test_a_cursor_names_the_version_that_begins() -> None:
    lineage = Lineage.resumed(6, "run", b"")
    begun = lineage.cursor(1, EPOCH, begins=True, busy=False)
    assert begun.is_at(drafted(lineage, 1).manifest)
    assert (begun.served, begun.served_row_set) == (0, "")
    flip(lineage, 1)
    idle, busy = (lineage.cursor(2, EPOCH, begins=False, busy=busy) for busy in (False, True))
    assert (idle.version, busy.version) == (7, 8)
    assert (idle.row_set, idle.served, idle.served_row_set) == ("", 7, "4-0")


def test_a_resumed_lineage_extends_the_version_in_redis_and_skips_pushes_that_were_cut_off() -> None:
    before = Lineage.resumed(0, "run", b"")
    flip(before, 1)
    served = flip(before, 2).manifest
    after = Lineage.resumed(5, "run", served.to_json())
    assert after.last == served and after.text == served.to_json() and not after.full
    after.skip_unflipped()
    delta = drafted(after, 3, epoch=9).manifest
    assert (delta.version, delta.epoch, delta.row_set) == (6, 9, served.row_set)
    assert delta.earlier[5] == ()
