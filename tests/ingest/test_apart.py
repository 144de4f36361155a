"""Clicks in another partition than their impression: found in samples of both topics, whatever their size."""

from __future__ import annotations

import json

import numpy as np
import numpy.typing as npt
import pytest

from livectr.ingest.join.apart import CLICKED, ROOM, SHOWN, Apart, KeySample, Sampled, apart_of, together

PARTITIONS = 4


def samples(
    shown: npt.NDArray[np.int64], clicked: npt.NDArray[np.int64], *, user: int = 50, other: int = 0
) -> list[KeySample]:
    """Samples of partitions whose events come in batches, in turn.

    Args:
        shown: int64[n], partition of impression i, whose join key is i.
        clicked: int64[n], partition of its click; -1: it has none.
        user: number of users.
        other: added to the user of a click.
    """
    found = [KeySample(number) for number in range(PARTITIONS)]
    keys = np.arange(len(shown))
    for start in range(0, len(shown), 1000):
        some = slice(start, start + 1000)
        for topic, place in ((SHOWN, shown[some]), (CLICKED, clicked[some])):
            for number in range(PARTITIONS):
                key = keys[some][place == number]
                users = key % user + (other if topic == CLICKED else 0)
                found[number].add(np.full(len(key), topic, np.uint8), key, users)
    return found


def found_in(parts: list[KeySample]) -> Apart:
    return apart_of(together(part.found for part in parts))


def test_clicks_beside_their_impression_are_not_apart() -> None:
    shown = np.arange(3000) % 50 % PARTITIONS
    clicked = np.where(np.arange(3000) % 7 == 0, shown, -1)
    found = found_in(samples(shown, clicked))
    assert (found.clicks, found.apart, found.share, found.whole) == (429, 0, 0.0, True)
    assert found.spread == ((0, 50), (0, 50))
    assert found_in([]) == Apart()


def test_a_topic_that_is_keyed_otherwise_is_told_from_other_causes() -> None:
    shown = np.arange(3000) % 50 % PARTITIONS
    other_key = np.arange(3000) * 7919 // 50 % PARTITIONS  # no function of the user
    found = found_in(samples(shown, other_key))
    assert found.apart == np.count_nonzero(shown != other_key) and found.other_user == 0
    assert found.spread[SHOWN] == (0, 50) and found.spread[CLICKED][0] > 40
    fewer = found_in(samples(shown, np.arange(3000) % 50 % 3))
    assert [spread for spread, _ in fewer.spread] == [0, 0]
    assert fewer.partitions == (4, 3) and fewer.apart > 2000
    users = found_in(samples(shown, (shown + 1) % PARTITIONS, other=1000))
    assert users.other_user == users.apart == 3000


@pytest.mark.parametrize("rows", [ROOM, 50 * ROOM])
def test_a_sample_has_room_for_a_log_of_any_length(rows: int) -> None:
    """Its share of clicks that are apart is that of the log, for it has both events of a key or none."""
    shown = np.arange(rows) % 50 % PARTITIONS
    clicked = np.where(np.arange(rows) % 10 == 0, (shown + (np.arange(rows) % 3 == 0)) % PARTITIONS, -1)
    parts = samples(shown, clicked)
    assert all(len(part.found) <= ROOM for part in parts)
    found = found_in(parts)
    assert found.whole == (rows == ROOM)
    assert found.share == pytest.approx(1 / 3, abs=0.05) and found.clicks >= 200


def test_ranks_send_their_samples() -> None:
    shown = np.arange(20 * ROOM) % 50 % PARTITIONS
    parts = samples(shown, (shown + 1) % PARTITIONS)
    ranks = [together(part.found for part in parts[rank::2]) for rank in range(2)]
    sent = [json.loads(json.dumps(rank.as_json())) for rank in ranks]
    assert all(len(one["key"]) <= ROOM for one in sent)
    found = apart_of(together(Sampled.from_json(one) for one in sent))
    assert found.apart == found.clicks > 1000


def test_a_click_that_repeats_elsewhere_is_not_apart() -> None:
    """A producer's second try may end in another partition."""
    first, second = KeySample(0), KeySample(1)
    for sample, topics in ((first, [SHOWN, CLICKED, CLICKED]), (second, [CLICKED, SHOWN])):
        ones = np.ones(len(topics), np.int64)
        sample.add(np.array(topics, np.uint8), ones, ones)
    found = found_in([first, second])
    assert (found.clicks, found.apart) == (1, 0)
