"""Each model is its paper's formula, in logits and in every gradient; the law of DES: any split of the
features gives the same."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from models import ModelConfig
from models.base import Columns
from tests.models import references
from tests.models.examples import DENSE, EXAMPLES, FIELDS
from tests.models.inputs import Inputs, build


@pytest.fixture(params=EXAMPLES)
def config(request: pytest.FixtureRequest) -> ModelConfig:
    """Every example once."""
    return EXAMPLES[request.param][0]


def weighed(logits: Tensor) -> Tensor:
    """A number that depends on every logit in its own way."""
    return (logits * torch.arange(1, len(logits) + 1)).sum() + logits.square().sum()


def test_equals_the_papers_formula_with_all_gradients(config: ModelConfig) -> None:
    model = build(config)
    ours, theirs = Inputs.of(config).leaves(), Inputs.of(config).leaves()
    state = model.local_state() | model.shared_state()
    p = {name: tensor.clone().requires_grad_() for name, tensor in state.items()}
    one, other = ours.logits(config, model), references.logits(config, p, theirs)
    torch.testing.assert_close(one, other)
    assert one.detach().std() > 1e-2, "the samples must differ for this test to see anything"
    weighed(one).backward()  # type: ignore[no-untyped-call]
    weighed(other).backward()  # type: ignore[no-untyped-call]
    grads = {n: w.grad if w.grad is not None else torch.zeros_like(w) for n, w in model.named_parameters()}
    local, shared = model.by_name(grads)
    for name, grad in (local | shared).items():
        wanted = p[name].grad
        torch.testing.assert_close(grad, torch.zeros_like(grad) if wanted is None else wanted, msg=name)
    for name, tensor in ours.tensors().items():
        wanted = theirs.tensors()[name].grad
        got = tensor.grad
        assert (got is None) == (wanted is None) or not (got if wanted is None else wanted).any(), name
        if got is not None and wanted is not None:
            torch.testing.assert_close(got, wanted, msg=name)


def test_gradients_against_finite_differences(config: ModelConfig) -> None:
    model, inputs = build(config), Inputs.of(config, rows=3)
    names = [name for name, _ in model.named_parameters()]
    tensors = inputs.tensors()

    def logits(*of: Tensor) -> Tensor:
        parameters = dict(zip(names, of, strict=False))
        values, dense, *lists = of[len(names) :]
        sequences = {
            name: type(r)(new, r.offsets)
            for (name, r), new in zip(inputs.sequences.items(), lists, strict=True)
        }
        moved = Inputs(values, dense, sequences)
        return torch.func.functional_call(model, parameters, (values, dense, moved.gathered(config)))

    leaves = [w.detach().clone() for _, w in model.named_parameters()] + list(tensors.values())
    # fast: against random directions of every tensor, in place of every entry (minutes)
    assert torch.autograd.gradcheck(logits, tuple(x.requires_grad_() for x in leaves), fast_mode=True)


@pytest.mark.parametrize("ranks", [2, 3, 6])
def test_any_split_of_the_fields_gives_the_same(config: ModelConfig, ranks: int) -> None:
    inputs, whole = Inputs.of(config), build(config)
    order = torch.randperm(len(FIELDS), generator=torch.Generator().manual_seed(ranks)).tolist()
    total, parts = torch.zeros((), dtype=torch.float64), {}
    for rank in range(ranks):
        own = sorted(order[rank::ranks])
        holds_dense = rank == ranks - 1
        part = build(config, tuple(FIELDS[f] for f in own), dense_local=holds_dense)
        total = total + part.partial(inputs.values[:, own], inputs.dense if holds_dense else None)
        parts |= part.local_state()
        assert part.partial_size == whole.partial_size == total.shape[1]
        for name, tensor in whole.shared_state().items():
            assert torch.equal(part.shared_state()[name], tensor), name
    torch.testing.assert_close(part.finish(total, inputs.gathered(config)), inputs.logits(config, whole))
    assert parts.keys() == whole.local_state().keys()
    for name, tensor in whole.local_state().items():
        assert torch.equal(parts[name], tensor), name


@pytest.mark.parametrize(
    "columns", [Columns((0, 2), (1,)), Columns((1, 2, 3, 5), ()), Columns((), (0, 1, 2)), Columns((), ())]
)
def test_parts_add_up_with_all_gradients(config: ModelConfig, columns: Columns) -> None:
    """What rows share may be computed apart: DICM's common features."""
    inputs = Inputs.of(config)
    others = Columns(
        tuple(f for f in range(len(FIELDS)) if f not in columns.fields),
        tuple(d for d in range(len(DENSE)) if d not in columns.dense),
    )
    split, whole = build(config), build(config)
    parts = [
        split.partial(inputs.values[:, list(c.fields)], inputs.dense[:, list(c.dense)], c)
        for c in (columns, others)
    ]
    one, other = split.finish(parts[0] + parts[1], inputs.gathered(config)), inputs.logits(config, whole)
    torch.testing.assert_close(one, other)
    for logits in (one, other):
        weighed(logits).backward()  # type: ignore[no-untyped-call]
    wanted = dict(whole.named_parameters())
    for name, parameter in split.named_parameters():
        if wanted[name].grad is None:
            assert parameter.grad is None or not parameter.grad.any(), name
        else:
            torch.testing.assert_close(parameter.grad, wanted[name].grad, msg=name)
