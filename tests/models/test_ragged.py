"""Every branch of `models.ragged` against loops over own, shared and repeated lists, with gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from livectr.models.inputs import Gathered, Ragged
from livectr.models.ragged import (
    RepeatedList,
    SharedLists,
    content,
    example_of,
    gather_rows,
    lengths,
    list_columns,
    list_max,
    list_mean,
    list_sum,
    newest,
    padded,
    per_vector,
    pooled_content,
    segment_sums,
    shared_list,
)
from tests.models.inputs import lists

W = 3
LENGTHS = st.lists(st.integers(0, 5), max_size=6)
Pool = Callable[[Ragged], Tensor]


def ragged(counts: list[int], *, wanted: bool = True) -> Ragged:
    """Lists of f64[nnz, W] whose vectors are a leaf, with some equal numbers."""
    source = torch.Generator().manual_seed(sum(counts) + 7 * len(counts))
    values = torch.randint(-9, 9, (sum(counts), W), generator=source).double() / 2
    return Ragged(values.requires_grad_(wanted), torch.tensor([0, *counts]).cumsum(0))


def sum_of(vectors: Tensor) -> Tensor:
    return vectors.sum(0)


def mean_of(vectors: Tensor) -> Tensor:
    return vectors.sum(0) / max(len(vectors), 1)


def max_of(vectors: Tensor) -> Tensor:
    return vectors.amax(0) if len(vectors) else vectors.sum(0)


POOLS = [(list_sum, sum_of), (list_mean, mean_of), (list_max, max_of)]


def by_list(seen: Ragged, of: Callable[[Tensor], Tensor]) -> Tensor:
    """`of` each list, f64[B, W]."""
    return torch.stack([seen.values.new_zeros(0, W).sum(0), *map(of, lists(seen))])[1:]


def gradient(out: Tensor, leaf: Tensor) -> Tensor:
    """Gradient of the leaf by `out`, each number of which has another weight."""
    if not out.requires_grad:  # there is no list
        return torch.zeros_like(leaf)
    weights = torch.linspace(-1, 2, out.numel(), dtype=out.dtype).reshape(out.shape)
    (found,) = torch.autograd.grad((out * weights).sum(), leaf, allow_unused=True)
    return torch.zeros_like(leaf) if found is None else found


def agree(ours: Tensor, our_leaf: Tensor, theirs: Tensor, their_leaf: Tensor) -> None:
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(gradient(ours, our_leaf), gradient(theirs, their_leaf))


@pytest.mark.parametrize(("pool", "of"), POOLS)
@given(LENGTHS)
def test_pools_equal_a_loop(pool: Pool, of: Callable[[Tensor], Tensor], counts: list[int]) -> None:
    ours, theirs = ragged(counts), ragged(counts)
    agree(pool(ours), ours.values, by_list(theirs, of), theirs.values)
    with torch.no_grad():
        torch.testing.assert_close(pool(ours), by_list(theirs, of))


@st.composite
def shared(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Lengths of G lists, and the list of each of B examples."""
    counts = draw(st.lists(st.integers(0, 5), min_size=1, max_size=5))
    return counts, draw(st.lists(st.integers(0, len(counts) - 1), max_size=8))


def both(counts: list[int], list_of: list[int], dtype: torch.dtype) -> tuple[SharedLists, Ragged, Tensor]:
    """Shared lists, their copies made by a loop, and the leaf of the copies."""
    once, leaf = ragged(counts), ragged(counts).values.detach().to(dtype).requires_grad_()
    given_once = Ragged(once.values.detach().to(dtype).requires_grad_(), once.offsets)
    each = lists(Ragged(leaf, once.offsets))
    values = torch.cat([leaf[:0], *(each[at] for at in list_of)])
    ends = torch.tensor([0, *(counts[at] for at in list_of)]).cumsum(0)
    nnz = len(values) if len(list_of) % 2 else None
    return SharedLists(given_once, torch.tensor(list_of, dtype=torch.int64), nnz), Ragged(values, ends), leaf


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(shared())
def test_shared_lists_are_their_copies(dtype: torch.dtype, drawn: tuple[list[int], list[int]]) -> None:
    """float32 has a kernel for the gradient."""
    seen, copies, leaf = both(*drawn, dtype)
    assert not seen.same and torch.equal(seen.offsets, copies.offsets)
    agree(seen.values, seen.once.values, copies.values, leaf)
    for columns in (slice(1, None), slice(0, 2)):
        some, of_copies = list_columns(seen, columns), list_columns(copies, columns)
        assert isinstance(some, SharedLists) and torch.equal(some.offsets, of_copies.offsets)
        assert torch.equal(of_copies.values, copies.values[:, columns])
        assert torch.equal(some.values, of_copies.values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("pool", "of"), POOLS)
@given(shared())
def test_shared_lists_are_pooled_once(
    dtype: torch.dtype, pool: Pool, of: Callable[[Tensor], Tensor], drawn: tuple[list[int], list[int]]
) -> None:
    seen, copies, leaf = both(*drawn, dtype)
    agree(pool(seen), seen.once.values, by_list(copies, of), leaf)
    assert "values" not in vars(seen), "the lists were copied"


@given(shared())
def test_content_of_shared_lists_is_their_mean(drawn: tuple[list[int], list[int]]) -> None:
    seen, copies, leaf = both(*drawn, torch.float64)
    given_content = Gathered(seen.once.values, {}, content={"images": seen})
    agree(pooled_content(given_content, "images"), seen.once.values, by_list(copies, mean_of), leaf)
    assert "values" not in vars(seen), "the lists were copied"
    with torch.no_grad():
        torch.testing.assert_close(pooled_content(given_content, "images"), by_list(copies, mean_of))


@pytest.mark.parametrize("counts", [[1, 1, 1], [2, 0, 1], [0, 3], [2, 2], [0, 0], [], [1]])
def test_content_is_the_mean_of_its_vectors(counts: list[int]) -> None:
    """One vector for each example takes no sums without a gradient; as many vectors as examples may still be
    0 and 2 of them.
    """
    ours, theirs = ragged(counts), ragged(counts)
    given_content = Gathered(ours.values, {}, content={"images": ours})
    agree(pooled_content(given_content, "images"), ours.values, by_list(theirs, mean_of), theirs.values)
    with torch.no_grad():
        torch.testing.assert_close(pooled_content(given_content, "images"), by_list(theirs, mean_of))
    assert content(given_content, "images") is ours
    with pytest.raises(ValueError, match="the content of 'other', which gathers"):
        pooled_content(given_content, "other")


@pytest.mark.parametrize("count", [0, 1, 4])
@pytest.mark.parametrize("length", [0, 1, 3])
def test_a_repeated_list_is_its_copies(length: int, count: int) -> None:
    once = ragged([length], wanted=False).values
    seen = RepeatedList(once, count)
    assert seen.same and shared_list(seen) is once and "values" not in vars(seen)
    assert seen.offsets.tolist() == [length * b for b in range(count + 1)]
    assert torch.equal(seen.values, torch.cat([once[:0], *[once] * count]))
    assert [each.tolist() for each in lists(seen)] == [once.tolist()] * count


def test_a_list_is_shared_where_it_is_said_to_be() -> None:
    values = ragged([4], wanted=False).values
    offsets = torch.tensor([0, 2, 4])
    same = shared_list(Ragged(values, offsets, same=True))
    assert same is not None and torch.equal(same, values[:2])
    assert shared_list(Ragged(values, offsets)) is None
    behind = shared_list(Ragged(values, torch.tensor([1, 3]), same=True))
    assert behind is not None and torch.equal(behind, values[1:3])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gathered_rows_add_their_gradients(dtype: torch.dtype) -> None:
    values = torch.arange(8, dtype=dtype).reshape(4, 2).requires_grad_()
    index = torch.tensor([3, 0, 3, 3, 1])
    out = gather_rows(values, index)
    assert out.tolist() == [[6, 7], [0, 1], [6, 7], [6, 7], [2, 3]]
    weights = torch.tensor([[1, 2], [3, 4], [5, 6], [7, 8], [9, 10]], dtype=dtype)
    (out * weights).sum().backward()  # type: ignore[no-untyped-call]
    assert values.grad is not None and values.grad.tolist() == [[3, 4], [9, 10], [0, 0], [13, 16]]
    with torch.no_grad():
        assert torch.equal(gather_rows(values, index), out)


@given(LENGTHS)
def test_examples_and_lengths_of_lists(counts: list[int]) -> None:
    seen = ragged(counts)
    assert example_of(seen.offsets, sum(counts)).tolist() == [
        b for b, n in enumerate(counts) for _ in range(n)
    ]
    for dtype in (torch.float32, torch.float64):
        divisors = lengths(seen.offsets, seen.values.to(dtype))
        assert divisors.dtype == dtype and divisors.shape == (len(counts), 1)
        assert divisors.flatten().tolist() == [max(n, 1) for n in counts]


@given(LENGTHS)
def test_rows_of_examples_are_repeated(counts: list[int]) -> None:
    seen = ragged(counts)
    ours, theirs = (ragged([len(counts)]).values for _ in range(2))
    wanted = [theirs[b : b + 1].expand(n, W) for b, n in enumerate(counts)]
    agree(per_vector(ours, seen.offsets, sum(counts)), ours, torch.cat([theirs[:0], *wanted]), theirs)


@given(LENGTHS, st.integers(1, 4))
def test_newest_vectors_lead(counts: list[int], count: int) -> None:
    ours, theirs = ragged(counts), ragged(counts)

    def of(vectors: Tensor) -> Tensor:
        last = vectors.flip(0)[:count]
        return torch.cat([last, last.new_zeros(count - len(last), W)]).flatten()

    wanted = torch.stack([torch.zeros(count * W, dtype=torch.float64), *map(of, lists(theirs))])[1:]
    agree(newest(ours, count), ours.values, wanted, theirs.values)


@given(LENGTHS)
def test_padded_lists_say_which_vectors_are_there(counts: list[int]) -> None:
    ours, theirs = ragged(counts), ragged(counts)
    out, there = padded(ours)
    longest = max(counts, default=0)
    assert there.tolist() == [[t < n for t in range(longest)] for n in counts]
    assert out.shape == (len(counts), longest, W)
    each = [torch.cat([one, one.new_zeros(longest - len(one), W)]) for one in lists(theirs)]
    wanted = torch.stack([theirs.values.new_zeros(longest, W), *each])[1:]
    agree(out, ours.values, wanted, theirs.values)


@given(LENGTHS)
def test_segment_sums(counts: list[int]) -> None:
    seen = ragged(counts, wanted=False)
    torch.testing.assert_close(segment_sums(seen.values, seen.offsets), by_list(seen, sum_of))
    strided = torch.cat([seen.values, seen.values], dim=1)[:, :W]
    torch.testing.assert_close(segment_sums(strided, seen.offsets), by_list(seen, sum_of))
