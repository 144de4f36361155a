"""Manifest of a version: JSON round trip, and the changes since another version."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from livectr.store.evictions import Evictions
from livectr.store.manifest import FORMAT, FRESHNESS_BINS, Freshness, VersionManifest
from livectr.system.errors import MismatchError


def manifest(**changes: object) -> VersionManifest:
    values: dict[str, object] = dict(
        version=7, epoch=2, row_set="2", step=40, fingerprint="f", world=2, created_ms=1, dim=3,
        segments=(("rank.w", 1), ("rank.v", 2)), tables={"ad": 5}, dense=("d0", "d1"), changed=("c7",),
        earlier={6: ("c6",), 5: ("c5",)}, item_vectors=("iv", "iw"), content={"images": ("i0", "i1")},
        freshness=Freshness.of(np.array([250, 299, 10])),
        sentinel="w", evictions=Evictions("r", "noeviction", 3),
    )  # fmt: skip
    return VersionManifest(**{**values, **changes})  # type: ignore[arg-type]


def test_manifest_round_trips_and_refuses_other_fields() -> None:
    assert VersionManifest.from_json(manifest().to_json()) == manifest()
    assert manifest().freshness == Freshness((0, 200), (1, 2))
    with pytest.raises(ValueError, match="colour"):
        VersionManifest.from_json(manifest().to_json().replace(b'"epoch"', b'"colour"'))
    with pytest.raises(ValueError):
        VersionManifest.from_json(b"[]")


def test_the_champion_is_named_unless_it_is_the_pipelines_rank_model() -> None:
    """Programs that know no champion refuse a version that they could not serve, and read every other."""
    assert b"champion" not in manifest().to_json()
    fm = manifest(champion="fm")
    assert VersionManifest.from_json(fm.to_json()) == fm != manifest()
    assert json.loads(fm.to_json())["champion"] == "fm"


def test_tables_that_begin_at_zero_are_named_if_there_are_any() -> None:
    """Programs that do not know of them would serve other values of rows that nobody has published."""
    assert b"from_zero" not in manifest().to_json()
    some = manifest(from_zero=(("rank", "words"),))
    assert VersionManifest.from_json(some.to_json()) == some != manifest()
    assert json.loads(some.to_json())["from_zero"] == [["rank", "words"]]


@pytest.mark.parametrize("written", [None, FORMAT - 1, FORMAT + 1, "2"])
def test_another_format_is_refused_with_advice(written: object) -> None:
    """The first format had no number."""
    values = json.loads(manifest().to_json())
    assert values.pop("format") == FORMAT
    if written is not None:
        values["format"] = written
    with pytest.raises(
        MismatchError,
        match=rf"reads format {FORMAT}; run trainer .* of one release \(`livectr train --take-over`",
    ):
        VersionManifest.from_json(json.dumps(values))


@given(st.lists(st.lists(st.integers(0, 10**7), max_size=30), max_size=5))
def test_freshness_counts_every_event_in_bounded_space(parts: list[list[int]]) -> None:
    found = Freshness()
    for part in parts:
        found = found.plus(np.array(part, np.int64))
    times = np.array([t for part in parts for t in part], np.int64)
    assert found == Freshness.of(times)
    wide = Freshness.of(np.arange(0, 10**9, 100_000))
    assert len(wide.bin_ms) <= FRESHNESS_BINS and sum(wide.counts) == 10_000


def test_changed_keys_are_known_back_to_the_kept_versions() -> None:
    assert manifest().changed_since(7, "2") == ()
    assert manifest().changed_since(6, "2") == ("c7",)
    assert manifest().changed_since(4, "2") == ("c5", "c6", "c7")
    assert manifest().changed_since(3, "2") is None
    assert manifest().changed_since(6, "1") is None
    assert manifest().changed_since(8, "2") is None
