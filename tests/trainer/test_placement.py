"""Fields on ranks."""

import pytest

from livectr.system.errors import ConfigError
from livectr.trainer.placement.placement import place


def test_field_f_lives_on_rank_f_mod_n() -> None:
    placement = place(["a", "b", "c", "d", "e"], 2)
    assert placement.owner == (0, 1, 0, 1, 0)
    assert placement.fields_of(0) == (0, 2, 4)
    assert placement.dense_owner == 1


def test_fields_of_a_table_stay_together_and_every_rank_holds_one() -> None:
    placement = place(["a", "a", "b", "a", "c"], 3)
    assert placement.owner == (0, 0, 1, 0, 2)
    assert all(placement.fields_of(r) for r in range(3))


def test_too_many_ranks() -> None:
    with pytest.raises(ConfigError, match="at most 2 ranks"):
        place(["a", "b", "a"], 3)
