"""Each aggregator against a loop over samples and behaviors, values and gradients; the activation unit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from livectr.models import attention
from livectr.models.aggregators import AGGREGATORS, Aggregator, AggregatorName, aggregator
from livectr.models.inputs import Ragged
from livectr.models.ragged import RepeatedList, SharedLists, per_vector
from tests.models.inputs import lists
from tests.models.references import aggregate

W, K, LENGTH = 4, 3, 3
LENGTHS = (0, 2, 5, 0, 0, 1, 3, 7, 0)


def build(name: AggregatorName, *, ad_image: bool = True, widths: tuple[int, ...] = (6, 5)) -> Aggregator:
    """Builds in float64, with no parameter at a special place."""
    built = aggregator(
        name, image_dim=W, id_dim=K, length=LENGTH, attention=widths, seed=1, ad_image=ad_image
    ).double()
    source = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=source, dtype=torch.float64))
    return built


def inputs(lengths: tuple[int, ...] = LENGTHS) -> tuple[Ragged, Tensor, Tensor]:
    """Behaviors, two of which are the same picture, ad images and ad IDs: leaves."""
    source = torch.Generator().manual_seed(sum(lengths))

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=source, dtype=torch.float64)

    offsets = torch.tensor([0, *lengths]).cumsum(0)
    values = normal(int(offsets[-1]), W)
    if len(values) > 6:
        values[6] = values[2]
    return (
        Ragged(values.requires_grad_(), offsets),
        normal(len(lengths), W).requires_grad_(),
        normal(len(lengths), K).requires_grad_(),
    )


CASES = [(name, True) for name in AGGREGATORS] + [("multi_query_attentive", False)]


@pytest.mark.parametrize("attended", [attention.fused, attention.composed])
@pytest.mark.parametrize(("name", "ad_image"), CASES)
def test_equals_a_plain_loop_with_all_gradients(
    name: AggregatorName, ad_image: bool, attended: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "fused", attended)
    built = build(name, ad_image=ad_image)
    p = {n: w.detach().clone().requires_grad_() for n, w in built.named_parameters()}
    (seen, image, ad), (seen_2, image_2, ad_2) = inputs(), inputs()
    one = built(seen, image if ad_image else None, ad)
    rows = [
        aggregate(name, p, "", es, image_2[b] if ad_image else None, ad_2[b], LENGTH)
        for b, es in enumerate(lists(seen_2))
    ]
    other = torch.stack(rows)
    assert one.shape == (len(LENGTHS), built.width)
    torch.testing.assert_close(one, other)
    assert not one[[0, 3, 4, 8]].any(), "an empty list is zero"
    weights = torch.linspace(-1, 2, one.numel(), dtype=torch.float64).reshape(one.shape)
    (one * weights).sum().backward()
    (other * weights).sum().backward()  # type: ignore[no-untyped-call]
    pairs = [(seen.values, seen_2.values), (image, image_2), (ad, ad_2)]
    for got, wanted in pairs + [(w, p[n]) for n, w in built.named_parameters()]:
        zeros = torch.zeros_like(got)
        torch.testing.assert_close(
            zeros if got.grad is None else got.grad, zeros if wanted.grad is None else wanted.grad
        )


@pytest.mark.parametrize("name", [name for name in AGGREGATORS if name != "max"])
def test_gradients_against_finite_differences(name: AggregatorName) -> None:
    built = build(name, widths=(5,))
    seen, image, ad = inputs((2, 0, 4))

    def out(values: Tensor, image: Tensor, ad: Tensor, *parameters: Tensor) -> Tensor:
        named = dict(zip((n for n, _ in built.named_parameters()), parameters, strict=True))
        arguments = (Ragged(values, seen.offsets), image, ad)
        result: Tensor = torch.func.functional_call(built, named, arguments)
        return result

    leaves = [w.detach().clone().requires_grad_() for w in built.parameters()]
    assert torch.autograd.gradcheck(out, (seen.values, image, ad, *leaves))


@pytest.mark.parametrize("name", AGGREGATORS)
@pytest.mark.parametrize("lengths", [(), (0, 0, 0)])
def test_no_behaviors_at_all(name: AggregatorName, lengths: tuple[int, ...]) -> None:
    built = build(name)
    seen, image, ad = inputs(lengths)
    out = built(seen, image, ad)
    assert out.shape == (len(lengths), built.width) and not out.any()
    out.sum().backward()
    assert seen.values.grad is None or seen.values.grad.shape == (0, W)


@pytest.mark.parametrize("name", AGGREGATORS)
def test_the_same_bits_again_whatever_is_beside(name: AggregatorName) -> None:
    """The same batch gives the same bits, and a sample does not see its neighbours."""
    built = build(name).float()
    seen, image, ad = inputs()
    values, image, ad = (x.detach().float() for x in (seen.values, image, ad))
    outs, grads = [], []
    for _ in range(2):
        leaf = values.clone().requires_grad_()
        out = built(Ragged(leaf, seen.offsets), image, ad)
        out.square().sum().backward()
        assert leaf.grad is not None
        outs.append(out.detach())
        grads.append(leaf.grad)
    assert torch.equal(*outs) and torch.equal(*grads)
    first, last = seen.offsets[2:4].tolist()
    alone = built(Ragged(values[first:last], torch.tensor([0, last - first])), image[2:3], ad[2:3])
    torch.testing.assert_close(alone[0], outs[0][2])


def test_the_concatenated_are_the_newest() -> None:
    values = torch.arange(10.0).reshape(5, 2)
    out = build("concat")(Ragged(values, torch.tensor([0, 4, 5])), None, None)
    assert out.tolist() == [[6.0, 7.0, 4.0, 5.0, 2.0, 3.0], [8.0, 9.0, 0.0, 0.0, 0.0, 0.0]]


def test_the_largest_shared_shares_its_gradient() -> None:
    values = torch.tensor([[1.0], [3.0], [3.0], [-2.0]], requires_grad=True)
    out = build("max")(Ragged(values, torch.tensor([0, 3, 3, 4])), None, None)
    assert out.tolist() == [[3.0], [0.0], [-2.0]]
    out.sum().backward()
    assert values.grad is not None and values.grad.squeeze(1).tolist() == [0.0, 0.5, 0.5, 1.0]


def test_a_missing_query_or_a_wrong_name_is_told() -> None:
    seen, image, _ = inputs()
    with pytest.raises(ValueError, match="from the ad's image; give it"):
        build("attentive")(seen, None, None)
    with pytest.raises(ValueError, match="from the ad's ID vector; give it"):
        build("multi_query_attentive")(seen, image, None)
    with pytest.raises(ValueError, match="aggregator is 'median', but must be one of concat, sum, mean, max"):
        build("median")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="looks from the ad's image"):
        build("attentive", ad_image=False)


@pytest.mark.parametrize("length", [0, 1, 5])
def test_one_list_that_all_queries_look_at(length: int) -> None:
    """Shared lists, as in a request, give the same as equal lists."""
    built = build("multi_query_attentive")
    (seen, image, ad) = inputs((length,) * 5)
    own = seen.values[:length].repeat(5, 1)
    with torch.no_grad():
        each = built(Ragged(own, seen.offsets), image, ad)
        once = built(Ragged(own, seen.offsets, same=True), image, ad)
        repeated = RepeatedList(seen.values[:length], 5)
        without_copies = built(repeated, image, ad)
    assert "values" not in vars(repeated), "the list was copied"
    assert torch.equal(without_copies, once) and torch.equal(once, each)
    assert torch.equal(repeated.values, own) and torch.equal(repeated.offsets, seen.offsets)
    learned = built(Ragged(own, seen.offsets, same=True), image, ad)
    assert learned.requires_grad, "where it is trained, a list is looked at as any other"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("name", "ad_image"), CASES)
def test_lists_of_groups_equal_their_copies(name: AggregatorName, ad_image: bool, dtype: torch.dtype) -> None:
    """Seven samples share four lists; the same bits, and gradients but for the order of sums."""
    built, (seen, *_) = build(name, ad_image=ad_image).to(dtype), inputs((3, 0, 7, 2))
    _, image, ad = (part.to(dtype) if isinstance(part, Tensor) else part for part in inputs((1,) * 7))
    list_of = torch.tensor([2, 0, 2, 3, 1, 0, 2])
    found = []
    for copied in (False, True):
        once = seen.values.detach().to(dtype).requires_grad_()
        shared = SharedLists(Ragged(once, seen.offsets), list_of)
        given = Ragged(shared.values, shared.offsets) if copied else shared
        out = built(given, image if ad_image else None, ad)
        weights = torch.linspace(-1, 2, out.numel(), dtype=dtype).reshape(out.shape)
        grads = torch.autograd.grad((out * weights).sum(), [once, *built.parameters()])
        found.append([out.detach(), *grads])
    assert torch.equal(found[0][0], found[1][0])
    torch.testing.assert_close(*found)


def test_a_new_unit_has_slopes_of_a_quarter_and_other_weights_in_each_layer() -> None:
    unit = attention.ActivationUnit("unit", 2, (8, 8), seed=1)
    assert [len(slope) for slope in unit.slopes] == [8, 8]
    assert all((slope == 0.25).all() for slope in unit.slopes)
    assert not any(bias.any() for bias in unit.biases)
    first, second, _ = unit.weights
    assert first.shape == second.shape and not torch.equal(first, second)


def test_a_unit_reads_shared_lists_without_copies() -> None:
    seen, image, _ = inputs((2, 3))
    shared = SharedLists(seen, torch.tensor([1, 0]))
    unit = attention.ActivationUnit("unit", W, (3,), seed=1).double()
    unit(shared, image).sum().backward()
    assert "values" not in vars(shared), "the lists were copied"
    assert seen.values.grad is not None and seen.values.grad.any()


def test_a_unit_without_hidden_layers_is_a_bilinear_form() -> None:
    seen, query, _ = inputs((2, 0, 3))
    unit = attention.ActivationUnit("unit", W, (), seed=1).double()
    (weight,) = unit.weights
    rows = []
    for b, vectors in enumerate(lists(seen)):
        q = query[b].expand_as(vectors)
        a = torch.cat([vectors, q, vectors - q, vectors * q], dim=1) @ weight
        rows.append((a * vectors).sum(0))
    torch.testing.assert_close(unit(seen, query), torch.stack(rows))


def test_a_sample_for_each_of_its_vectors_and_back() -> None:
    """Its gradient is a sum in the order of the list, not a scatter of additions."""
    rows = torch.arange(6, dtype=torch.float64).reshape(3, 2).requires_grad_()
    offsets = torch.tensor([0, 2, 2, 5])
    out = per_vector(rows, offsets, 5)
    assert out.tolist() == [[0, 1], [0, 1], [4, 5], [4, 5], [4, 5]]
    assert torch.autograd.gradcheck(lambda x: per_vector(x, offsets, 5), (rows,))
    weights = torch.arange(10, dtype=torch.float64).reshape(5, 2)
    (out * weights).sum().backward()  # type: ignore[no-untyped-call]
    assert rows.grad is not None and rows.grad.tolist() == [[2, 4], [0, 0], [18, 21]]


@pytest.mark.parametrize("name", ["mean", "max", "attentive", "multi_query_attentive"])
def test_long_history_is_no_larger_than_a_short_one(name: AggregatorName) -> None:
    """A list of each vector ten times is pooled to the same vector: a sum would be ten times as large."""
    built = build(name)
    seen, image, ad = inputs((2, 3))
    again = Ragged(torch.cat([vectors.repeat(10, 1) for vectors in lists(seen)]), 10 * seen.offsets)
    torch.testing.assert_close(built(again, image, ad), built(seen, image, ad))
