"""The ways of docs/architecture.md are those that a profiler hook finds."""

import pytest

from tests.docs.ways import GOALS, PAGE, about, listed, measured, page


def test_the_lists_are_made_by_the_program() -> None:
    text = PAGE.read_text()
    assert text == page(text, listed(text)), "python -m tests.docs.ways"
    assert all(about(name) for names in listed(text).values() for name in names)


@pytest.mark.full
@pytest.mark.parametrize("way", GOALS)
def test_a_way_passes_what_the_page_lists(way: str) -> None:
    names, found = listed(PAGE.read_text())[way], measured(way)
    assert not set(names) - set(found), "python -m tests.docs.ways"
    # what a moment's timing adds: a publish that is garbage-collected, a partition that was silent
    assert len(set(found) - set(names)) <= 5, sorted(set(found) - set(names))
