"""Each model is its paper's formula, in logits and in every gradient; the law of DES: any split of the
features gives the same."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from livectr.models import ModelConfig
from livectr.models.inputs import Columns
from tests.models import references
from tests.models.examples import CONTENT_EXAMPLES, DENSE, EXAMPLES, FIELDS
from tests.models.inputs import Inputs, build

CONFIGS = {name: example[0] for name, example in (EXAMPLES | CONTENT_EXAMPLES).items()}


@pytest.fixture(params=CONFIGS)
def config(request: pytest.FixtureRequest) -> ModelConfig:
    """Every example once."""
    return CONFIGS[request.param]


def test_equals_the_papers_formula_with_all_gradients(config: ModelConfig) -> None:
    references.check(config)


def test_gradients_against_finite_differences(config: ModelConfig) -> None:
    model, inputs = build(config), Inputs.of(config, rows=3)
    names = [name for name, _ in model.named_parameters()]
    tensors = inputs.tensors()

    def logits(*of: Tensor) -> Tensor:
        parameters = dict(zip(names, of, strict=False))
        moved = inputs.moved(of[len(names) :])
        arguments = (moved.values, moved.dense, moved.gathered(config))
        return torch.func.functional_call(model, parameters, arguments)

    leaves = [w.detach().clone() for _, w in model.named_parameters()] + list(tensors.values())
    # fast: against random directions of every tensor, in place of every entry (minutes)
    assert torch.autograd.gradcheck(logits, tuple(x.requires_grad_() for x in leaves), fast_mode=True)


@pytest.mark.parametrize("ranks", [2, 3, 6])
def test_any_split_of_the_fields_gives_the_same(config: ModelConfig, ranks: int) -> None:
    inputs, whole = Inputs.of(config), build(config)
    order = torch.randperm(len(FIELDS), generator=torch.Generator().manual_seed(ranks)).tolist()
    total = torch.zeros((), dtype=torch.float64)
    parts: dict[str, torch.Tensor] = {}
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
    """Shared features may be computed apart: DICM's common features."""
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
        references.weighed(logits).backward()  # type: ignore[no-untyped-call]
    wanted = dict(whole.named_parameters())
    for name, parameter in split.named_parameters():
        if wanted[name].grad is None:
            assert parameter.grad is None or not parameter.grad.any(), name
        else:
            torch.testing.assert_close(parameter.grad, wanted[name].grad, msg=name)
