"""Order of a reply: packed bytes equal what NumPy sorts and protobuf packs."""

import numpy as np
import pytest

from livectr.kernels.network.reply import ReplyPacker
from livectr.protos import livectr_pb2 as pb

PACK = ReplyPacker(4, 5, 6)


def unpacked(pctr: np.ndarray, bids: np.ndarray) -> pb.RankResponse:
    return pb.RankResponse.FromString(PACK(pctr, bids))


@pytest.mark.parametrize("rows", [1, 2, 127, 129, 20_000])
def test_a_packed_reply_has_the_order_and_the_numbers_of_numpy(rows: int) -> None:
    rng = np.random.default_rng(rows)
    pctr, bids = rng.random(rows), rng.integers(0, 4, rows).astype(np.float64)
    pctr[rng.random(rows) < 0.3] = 0.25  # equal revenues keep the order of the candidates
    order = np.argsort(-(bids * pctr), kind="stable")

    expected = pb.RankResponse(index=order, pctr=pctr[order], ecpm=(bids * pctr)[order])

    assert unpacked(pctr, bids) == expected
    assert PACK(pctr, bids) == expected.SerializeToString()


def test_values_are_packed_beside_their_thousandfold() -> None:
    rng = np.random.default_rng(0)
    pctr, bids, values = rng.random(300), rng.random(300), rng.integers(0, 9, 300).astype(np.float64)
    pack = ReplyPacker(4, 5, 6, 9)
    for given in (None, values):
        each = bids * pctr if given is None else given
        order = np.argsort(-each, kind="stable")
        expected = pb.RankResponse(index=order, pctr=pctr[order], ecpm=1000 * each[order], value=each[order])
        assert pb.RankResponse.FromString(pack(pctr, bids, given)) == expected


def test_candidates_without_a_probability_come_last() -> None:
    reply = unpacked(np.array([np.nan, 0.5, np.nan, 0.75]), np.ones(4))

    assert list(reply.index) == [3, 1, 0, 2]


def test_the_order_is_that_of_any_numbers() -> None:
    bids = np.array([1.0, -2.0, 0.0, -0.0, np.inf, 5e-324, -5e-324, 2.0, -1e300])

    order = np.argsort(-bids, kind="stable")

    assert list(unpacked(np.ones(9), bids).index) == order.tolist()


def test_another_number_of_bids_is_refused() -> None:
    with pytest.raises(ValueError, match="shape"):
        PACK(np.ones(3), np.ones(3)[None])
    with pytest.raises(ValueError, match="bids"):
        PACK(np.ones(3), np.ones(2))
