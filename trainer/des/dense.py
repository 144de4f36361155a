"""Adam (Kingma & Ba 2014) for the networks' own parameters, with a state that is exported by parameter name.

Gradients arrive as sums over the batch and are averaged here: see `trainer.des.step`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from livectr.kernels.errors import MismatchError
from livectr.models.base import CTRModel, ModelConfig, copy_named
from livectr.models.embedding import SubModel, SubNetwork

MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass
class _Group:
    """Parameters that learn at one rate; base: the rate that `DenseAdam.set_rate` multiplies."""

    role: str
    parameters: list[nn.Parameter]
    base: float
    rate: float


class DenseAdam:
    """Adam over the parameters of several models (role → model), and of the sub-models of content (name →
    configuration and network), which are named "content.<name>.<parameter>".

    Where clicks are rare, a bias' gradient is mostly noise, and Adam, which divides by the gradient's size,
    follows the rest slowly. A bias has every example to learn from: it learns `BIAS_SPEED` times faster.

    The step is torch's function; making its class `torch.optim.Adam` would import torch's compiler, which
    takes as long as importing the rest of torch.
    """

    BIAS_SPEED = 10.0

    def __init__(
        self,
        models: Mapping[str, CTRModel],
        configs: Mapping[str, ModelConfig],
        near: Mapping[str, CTRModel] = {},
        content: Mapping[str, tuple[SubModel, SubNetwork]] = {},
    ) -> None:
        self.models, self.near = dict(models), dict(near)
        self.content = {f"content.{name}": network for name, (_, network) in content.items()}
        self._groups: list[_Group] = []
        for role, model in models.items():
            lr = configs[role].dense_lr
            network = [p for n, p in model.named_parameters() if n != "bias"]
            self._add(role, [*network, *self._near(role)], lr)
            self._add(role, [model.bias], lr * self.BIAS_SPEED)
        for name, (config, module) in content.items():
            self._add(f"content.{name}", list(module.parameters()), config.lr)
        self._clock = next(iter(models.values())).bias  # a parameter that learns in every step
        self.parameters = [p for group in self._groups for p in group.parameters]
        self._steps = {p: torch.zeros((), device=p.device) for p in self.parameters}
        self._moments = {moment: {p: torch.zeros_like(p) for p in self.parameters} for moment in MOMENTS}

    def _add(self, role: str, parameters: list[nn.Parameter], rate: float) -> None:
        self._groups.append(_Group(role, parameters, rate, rate))

    def _near(self, role: str) -> list[nn.Parameter]:
        """The near fields' parameters: on every rank, as shared ones are."""
        model = self.near.get(role)
        return [p for n, p in model.named_parameters() if n in model.local_axes] if model is not None else []

    @property
    def steps(self) -> int:
        """Updates so far, those before a restore included."""
        return int(self._steps[self._clock].item())

    def set_rate(self, role: str, factor: float) -> None:
        """From here on, a role's network, or "content.<name>", learns at `factor` times its rate."""
        for group in self._groups:
            if group.role == role:
                group.rate = group.base * factor

    @property
    def finite(self) -> bool:
        """Whether all gradients are numbers."""
        grads = [p.grad.sum() for p in self.parameters if p.grad is not None]
        return not grads or bool(torch.isfinite(torch.stack(grads)).all())

    def reduce(self, all_reduce: Callable[[Tensor], Tensor], vote: float) -> float:
        """Sums the gradients of all parameters that every rank has, in one piece; returns the votes' sum."""
        replicated = [
            p
            for role, model in self.models.items()
            for p in (
                *(p for n, p in model.named_parameters() if n not in model.local_axes),
                *self._near(role),
            )
        ]
        return self._reduce([*replicated, *self._content()], all_reduce, vote)

    def reduce_content(self, all_reduce: Callable[[Tensor], Tensor], vote: float) -> float:
        """`reduce` of the sub-models alone, of which each rank has embedded other ids (SERVERUPDATE of DICM's
        Algorithm 1)."""
        return self._reduce(self._content(), all_reduce, vote)

    def _content(self) -> list[nn.Parameter]:
        return [p for network in self.content.values() for p in network.parameters()]

    def _reduce(
        self, parameters: Sequence[nn.Parameter], all_reduce: Callable[[Tensor], Tensor], vote: float
    ) -> float:
        grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters]
        told = torch.tensor([vote], device=self._clock.device)
        flat = all_reduce(torch.cat([*(grad.reshape(-1) for grad in grads), told]))
        parts = torch.split(flat, [*(p.numel() for p in parameters), 1])
        for p, part in zip(parameters, parts, strict=False):
            p.grad = part.view_as(p)
        return float(parts[-1])

    def clear(self) -> None:
        """Forget the gradients."""
        for p in self.parameters:
            p.grad = None

    @torch.no_grad()
    def step(self, samples: int) -> None:
        """One update with the mean gradient over `samples`; clears the gradients."""
        for group in self._groups:
            learned = [p for p in group.parameters if p.grad is not None]
            if not learned:
                continue
            grads = [p.grad for p in learned if p.grad is not None]
            means, squares = ([of[p] for p in learned] for of in self._moments.values())
            torch._foreach_mul_(grads, 1.0 / samples)
            adam(
                list[Tensor](learned),
                grads,
                means,
                squares,
                [],
                [self._steps[p] for p in learned],
                fused=True,
                amsgrad=False,
                beta1=0.9,
                beta2=0.999,
                lr=group.rate,
                weight_decay=0.0,
                eps=1e-8,
                maximize=False,
            )
        self.clear()

    def weights(self, *, shared: bool) -> dict[str, Tensor]:
        """Live parameters as "<role>.<name>": those of own fields, and the replicated ones if `shared`."""
        return self._named({p: p.detach() for p in self.parameters}, shared)

    def state(self, *, shared: bool) -> dict[str, Tensor]:
        """Live parameters and their moments by name, and the number of steps if `shared`."""
        state = self.weights(shared=shared)
        for moment in MOMENTS:
            named = self._named(self._moments[moment], shared)
            state |= {f"adam.{moment}.{name}": tensor for name, tensor in named.items()}
        if shared:
            state["adam.step"] = self._steps[self._clock]
        return state

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restores this rank's share of the states of all ranks put together.

        Raises MismatchError when the state is another model's.
        """
        try:
            copy_named(self.state(shared=True), state)
        except KeyError as missing:
            raise MismatchError(
                f"the saved model has no parameter {missing}; it belongs to another pipeline"
            ) from None
        except ValueError as error:
            raise MismatchError(f"the saved model belongs to another pipeline: {error}") from None
        for step in self._steps.values():
            step.copy_(state["adam.step"])

    def start_from(self, weights: Mapping[str, Tensor]) -> None:
        """Copies those of its parameters that are named "<role>.<name>"; the moments stay as they are.

        Raises ValueError for one of another shape.
        """
        live = self.weights(shared=True)
        copy_named({name: tensor for name, tensor in live.items() if name in weights}, weights)

    def _named(self, tensors: Mapping[nn.Parameter, Tensor], shared: bool) -> dict[str, Tensor]:
        """Tensors that belong to parameters, by exported name."""
        named: dict[str, Tensor] = {}
        for role, model in self.models.items():
            local, replicated = model.by_name({n: tensors[p] for n, p in model.named_parameters()})
            if (near := self.near.get(role)) is not None:
                replicated |= near.by_name(
                    {n: tensors[p] for n, p in near.named_parameters() if n in near.local_axes}
                )[0]
            named |= {f"{role}.{name}": t for name, t in (local | (replicated if shared else {})).items()}
        if shared:
            for role, network in self.content.items():
                named |= {f"{role}.{name}": tensors[p] for name, p in network.named_parameters()}
        return named

    def replicated(self) -> dict[str, Tensor]:
        """Live parameters that every rank has, as "<role>.<name>"."""
        own = self.weights(shared=False)
        return {name: t for name, t in self.weights(shared=True).items() if name not in own}
