"""The two tiers of tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

from tests.tiers import TRIED, Worlds, examples, few


def test_few_members_of_a_product_stay() -> None:
    values = few([("a", 1), ("a", 2), ("b", 1)], ("a", 2))
    assert values[1] == ("a", 2)
    for value, words in ((values[0], ("a", 1)), (values[2], ("b", 1))):
        assert value.values == words and [mark.name for mark in value.marks] == ["full"]
    with pytest.raises(AssertionError, match="not all among"):
        few([1, 2], 3)
    with pytest.raises(AssertionError, match="not all among"):
        few([1, 2])


def test_a_property_has_fewer_examples_in_the_first_tier() -> None:
    before = settings.get_current_profile_name()
    try:
        for profile, wanted in (("same", [TRIED, 30, 8]), ("search", [200, 30, 200])):
            settings.load_profile(profile)
            found = (examples(200), examples(30), examples(200, tried=8))
            assert [one.max_examples for one in found] == wanted
    finally:
        settings.load_profile(before)


def test_worlds_are_made_when_they_are_asked_for() -> None:
    made: list[int] = []

    def make(world: int) -> Path:
        made.append(world)
        return Path(str(world))

    worlds = Worlds(make)
    assert not made and [worlds[2], worlds[2], worlds[1]] == [Path("2"), Path("2"), Path("1")]
    assert made == [2, 1]
