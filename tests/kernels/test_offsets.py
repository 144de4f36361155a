"""Offsets that int32 does not hold are refused, wherever Arrow's are made."""

from __future__ import annotations

import numpy as np
import pytest

from livectr.ingest.extract.transfer import _texts
from livectr.kernels.runtime.offsets import MOST, check_offsets, offsets_of
from livectr.system.errors import InternalError


def test_offsets_reach_to_the_last_int32() -> None:
    assert offsets_of(np.array([2, 0, 3]), "x").tolist() == [0, 2, 2, 5]
    assert offsets_of(np.array([MOST], np.int64), "x").tolist() == [0, MOST]
    assert offsets_of(np.empty(0, np.int32), "x").tolist() == [0]
    check_offsets(MOST, "x")


@pytest.mark.parametrize("lengths", [[MOST, 1], [2**30, 2**30], [2**31 - 1] * 4])
def test_more_is_refused_with_what_there_is_too_much_of(lengths: list[int]) -> None:
    with pytest.raises(InternalError, match=f"clicks: {sum(lengths)} values"):
        offsets_of(np.array(lengths, np.int32), "clicks")
    with pytest.raises(InternalError, match="bytes of strings"):
        _texts(np.array(lengths, np.int64), np.empty(0, np.int64), "string")
