"""Adam (Kingma & Ba 2014) for the networks' own parameters, with a state that is exported by parameter name.

Gradients arrive as sums over the batch and are averaged here (`trainer.des.step`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from livectr.models.base import CTRModel, ModelConfig, copy_named
from livectr.models.embedding import SubModel, SubNetwork
from livectr.models.layers import NUMBERS, SCALE
from livectr.system.errors import MismatchError

MOMENTS = ("exp_avg", "exp_avg_sq")
CENTRE = "centre"
"""Moment of the weights of dense features besides `MOMENTS`."""
SIZES_KEY = "adam.numbers"
"""Key of a state whose weights of numbers have sizes as "exp_avg". Without it they are Adam's."""

Kind = Literal["network", "bias", "scale", "number"]
_KINDS: Mapping[str, Kind] = {"bias": "bias", SCALE: "scale", NUMBERS: "number"}
"""Parameter that Adam does not learn → its kind."""


@dataclass
class _Group:
    """Parameters with a common learning rate; `base` is the rate that `DenseAdam.set_rate` multiplies."""

    role: str
    parameters: list[nn.Parameter]
    base: float
    rate: float
    kind: Kind = "network"


@dataclass(frozen=True)
class Scales:
    """Scales of the fields of a model's first order.

    Attributes:
        fields: names of the F fields.
        everywhere: every rank has these fields.
        scale, squares: views f32[F] of the scales and of their sums of squares.
    """

    fields: tuple[str, ...]
    everywhere: bool
    scale: Tensor
    squares: Tensor


@dataclass(frozen=True)
class Squares:
    """Squared gradients of a role's logits, of all examples of a batch.

    Attributes:
        total: Σ g².
        by_feature: f32[Dd], Σ g² x of each dense feature.
    """

    total: float
    by_feature: Tensor


class DenseAdam:
    """Adam over the parameters of several models and of sub-models of content.

    Gradients of few examples are mostly noise, and Adam moves as far as by those of many. So the rate of a
    batch of B < `STEADY` examples is B / STEADY of the network's: 64 examples move it as far as a batch of 64
    does. By √(B / STEADY), which would keep the noise of many steps (Malladi et al. 2022), a network of few
    clicks ends behind its own first order.

    A bias b is taught by every example: in small batches by one after the other (`trainer.des.online`), else
    by AdaGrad (Duchi et al. 2011) from the summed gradient G: fast at first, ever more slowly with the
    examples seen. Of a large batch, G is large even where it is noise. So b moves by no more than Newton's
    step. The sum of squares N is kept as "exp_avg_sq":

        N ← N + G²,   b ← b − G / max(√(1 + N) / BIAS_RATE, H),   H = Σ p (1 − p)

    Where labels come late (`models.losses.Lesson`), N is added to H, up to a bound (`trainer.des.biases`). As
    E[G²] = E[H] at the true rates, that is the curvature of all examples so far, and b their maximum
    likelihood, step by step: what a new key needs is learned by its own weight, and not by b. Else b would
    move keys that have stopped with it.

    Scales of fields (`models.layers.FirstOrder`) learn in the same way, without H, and stay at 0 or above.
    With lessons they settle, as b does: s ← s − G / max(√(1 + N) / SCALE_RATE, N).

    The weight u of a dense feature x in a first order learns by normalised AdaGrad (Ross, Mineiro & Langford
    2013, "Normalized online learning", algorithm NAG): its rate fits features of 1e9 as well as of 1e-3. The
    size n, kept as "exp_avg", is the largest |x| so far:

        u ← u n / n',  n ← n';    N ← N + (G / n)²,  u ← u − NUMBER_RATE · G / n² / √(.01 + N)

    Deviations: .01 under the root bounds the first steps; a batch with a larger |x| is scored before u
    shrinks; the factor for the mean of (x / n)² is left out.

    A step of u moves the mean of all logits by its product with the mean of x, which the bias of a small
    batch takes back, as it does for keys (`trainer.des.online`). That mean, kept as "centre", is one by
    squared gradients, with N of the bias: c ← c + Σ g² (x − c) / (N + 4).

    The step is torch's function. Its class `torch.optim.Adam` would import torch's compiler, which takes as
    long as importing the rest of torch.

    Args:
        models: role → network of the field-parallel fields.
        configs: role → configuration.
        sample_parallel: role → network of the sample-parallel fields.
        content: name → configuration and network of a sub-model; its parameters are exported as
            "content.<name>.<parameter>".
    """

    STEADY = 64
    BIAS_RATE = 0.5
    SCALE_RATE = 0.1
    NUMBER_RATE = 0.2
    TRUSTED = 16.0

    def __init__(
        self,
        models: Mapping[str, CTRModel],
        configs: Mapping[str, ModelConfig],
        sample_parallel: Mapping[str, CTRModel] = {},
        content: Mapping[str, tuple[SubModel, SubNetwork]] = {},
    ) -> None:
        self.models, self.sample_parallel = dict(models), dict(sample_parallel)
        self.content = {f"content.{name}": network for name, (_, network) in content.items()}
        self._groups: list[_Group] = []
        self._places: dict[str, slice] = {}  # role → its parameters
        for role, model in models.items():
            begin, lr = sum(len(group.parameters) for group in self._groups), configs[role].dense_lr
            named = [*model.named_parameters(), *self._sample_parallel(role).items()]
            self._add(role, [p for n, p in named if n not in _KINDS], lr)
            self._add(role, [model.bias], self.BIAS_RATE, "bias")
            self._add(role, [p for n, p in named if n == SCALE], self.SCALE_RATE, "scale")
            self._add(role, [p for n, p in named if n == NUMBERS], self.NUMBER_RATE, "number")
            self._places[role] = slice(begin, sum(len(group.parameters) for group in self._groups))
        for name, (config, module) in content.items():
            self._add(f"content.{name}", list(module.parameters()), config.lr)
        self._clock = next(iter(models.values())).bias  # a parameter that learns in every step
        self.parameters = [p for group in self._groups for p in group.parameters]
        self._count = 0  # as `_steps` of the clock, which may be on a device
        self._counts = torch.zeros(len(self.parameters), device=self._clock.device)
        self._steps = dict(zip(self.parameters, self._counts.unbind(), strict=True))
        self._moments = {moment: {p: torch.zeros_like(p) for p in self.parameters} for moment in MOMENTS}
        numbers = [p for group in self._groups if group.kind == "number" for p in group.parameters]
        self._centres = {p: torch.zeros_like(p) for p in numbers}
        self._scales = {role: list(self._find_scales(role)) for role in models}

    def _find_scales(self, role: str) -> Iterator[Scales]:
        for everywhere, model in ((False, self.models[role]), (True, self.sample_parallel.get(role))):
            parameter = None if model is None else dict(model.named_parameters()).get(SCALE)
            if model is not None and parameter is not None:
                squares = self._moments["exp_avg_sq"][parameter]
                yield Scales(tuple(model.local_axes[SCALE]), everywhere, parameter.detach(), squares)

    def _add(self, role: str, parameters: list[nn.Parameter], rate: float, kind: Kind = "network") -> None:
        self._groups.append(_Group(role, parameters, rate, rate, kind))

    def _sample_parallel(self, role: str) -> dict[str, nn.Parameter]:
        """Parameters of the sample-parallel fields by name: on every rank, as shared parameters are."""
        if (model := self.sample_parallel.get(role)) is None:
            return {}
        return {n: p for n, p in model.named_parameters() if n in model.local_axes}

    @property
    def steps(self) -> int:
        """Number of updates, with those before a restore."""
        return self._count

    def set_rate(self, role: str, factor: float) -> None:
        """Set the rate of a role's network, or of "content.<name>", to `factor` times its base rate."""
        for group in self._groups:
            if group.role == role:
                group.rate = group.base * factor

    def sums(self) -> list[Tensor]:
        """Sum of all gradients' absolute values, f32[]; not finite where a gradient is not."""
        grads = [p.grad for p in self.parameters if p.grad is not None]
        return [torch.stack(torch._foreach_norm(grads, 1)).sum()] if grads else []

    def reduce(self, begin: Callable[[Tensor], Callable[[], Tensor]]) -> Callable[[], None]:
        """Begin to all-reduce the gradients of replicated parameters as one tensor; the result waits."""
        replicated = [
            p
            for role, model in self.models.items()
            for p in (
                *(p for n, p in model.named_parameters() if n not in model.local_axes),
                *self._sample_parallel(role).values(),
            )
        ]
        return self._reduce([*replicated, *self._content()], begin)

    def reduce_content(self, begin: Callable[[Tensor], Callable[[], Tensor]]) -> Callable[[], None]:
        """`reduce` of the sub-models alone; each rank has embedded other ids (SERVERUPDATE, DICM §4)."""
        return self._reduce(self._content(), begin)

    def _content(self) -> list[nn.Parameter]:
        return [p for network in self.content.values() for p in network.parameters()]

    def _reduce(
        self, parameters: Sequence[nn.Parameter], begin: Callable[[Tensor], Callable[[], Tensor]]
    ) -> Callable[[], None]:
        grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters]
        reduced = begin(torch.cat([grad.reshape(-1) for grad in grads]))

        def wait() -> None:
            parts = torch.split(reduced(), [p.numel() for p in parameters])
            for p, part in zip(parameters, parts, strict=True):
                p.grad = part.view_as(p)

        return wait

    def clear(self) -> None:
        """Forget the gradients."""
        for p in self.parameters:
            p.grad = None

    def has_numbers(self, roles: Collection[str]) -> bool:
        """True if this rank has weights of dense features in a first order of these roles."""
        numbers = (group for group in self._groups if group.kind == "number" and group.role in roles)
        return any(group.parameters for group in numbers)

    @torch.no_grad()
    def step(
        self,
        samples: int,
        curvature: Mapping[str, float],
        largest: Tensor | None = None,
        *,
        settles: bool = False,
        still: Collection[str] = (),
        squares: Mapping[str, Squares] = MappingProxyType({}),
    ) -> dict[str, Tensor]:
        """Update with the gradients of a batch; clears them.

        Args:
            samples: number of examples that the gradients are sums over.
            curvature: role → H, Σ p (1 − p) of these examples; with lessons, N is added.
            largest: f32[Dd], largest |x| of each dense feature among them; None if not `has_numbers` of roles
                with gradients.
            settles: lessons of labels that come late teach the batch.
            still: roles whose bias has been learned (`trainer.des.online`).
            squares: role → squared gradients; of those `still` with numbers.

        Returns:
            Role → change f32[] of the mean of all logits by this rank's dense features, which the bias has to
            take back; of `squares`.
        """
        small, moved = self.small(samples), dict[str, Tensor]()
        for group in self._groups:
            learned = [p for p in group.parameters if p.grad is not None]
            if not learned:
                continue
            grads = [p.grad for p in learned if p.grad is not None]
            means, sums = ([moment[p] for p in learned] for moment in self._moments.values())
            if group.kind == "bias":
                (bias,), (grad,), (square,) = learned, grads, sums
                if group.role not in still:
                    size = square.addcmul_(grad, grad).add(1.0).sqrt_().div_(group.rate)
                    bias.sub_(grad / size.clamp_(min=curvature[group.role]))
                self._steps[bias] += 1
                self._count += bias is self._clock
                continue
            if group.kind == "scale":
                torch._foreach_addcmul_(sums, grads, grads)
                sizes = torch._foreach_add(sums, 1.0)
                torch._foreach_sqrt_(sizes)
                if settles:
                    torch._foreach_div_(sizes, group.rate)
                    torch._foreach_maximum_(sizes, sums)
                rate = 1.0 if settles else group.rate
                torch._foreach_addcdiv_(list[Tensor](learned), grads, sizes, value=-rate)
                torch._foreach_clamp_min_(list[Tensor](learned), 0.0)
                continue
            if group.kind == "number":
                assert largest is not None
                for weight, grad, mean, square in zip(learned, grads, means, sums, strict=True):
                    step = _learn_numbers(weight, grad, mean, square, largest, group.rate)
                    if (of_role := squares.get(group.role)) is not None:
                        of_bias = self._moments["exp_avg_sq"][self.models[group.role].bias]
                        change = _take_centre(self._centres[weight], step, of_role, of_bias)
                        moved[group.role] = moved.get(group.role, 0) + change
                continue
            torch._foreach_mul_(grads, 1.0 / samples)
            adam(
                list[Tensor](learned),
                grads,
                means,
                sums,
                [],
                [self._steps[p] for p in learned],
                fused=True,
                amsgrad=False,
                beta1=0.9,
                beta2=0.999,
                lr=group.rate * small,
                weight_decay=0.0,
                eps=1e-8,
                maximize=False,
            )
        self.clear()
        return moved

    def move_bias(self, role: str, by: float) -> None:
        """Take back a change of the mean of all logits."""
        if by:
            self.models[role].bias.data.sub_(by)

    def small(self, samples: int) -> float:
        """Factor of the network's rate for a batch of few examples."""
        return min(1.0, samples / self.STEADY)

    # ── for updates outside of torch (trainer.des.small_batch) ──

    def learned(self, parameter: nn.Parameter) -> tuple[Tensor, Tensor, Tensor]:
        """Live value of a parameter, its mean gradient and its mean square."""
        mean, square = (self._moments[moment][parameter] for moment in MOMENTS)
        return parameter.detach(), mean, square

    def centre(self, parameter: nn.Parameter) -> Tensor:
        """Live means f32[Dd] of the dense features that a weight of the first order has."""
        return self._centres[parameter]

    def trust_biases(self) -> None:
        """Give biases of another run the weight of `TRUSTED` clicks."""
        for model in self.models.values():
            self._moments["exp_avg_sq"][model.bias].clamp_(min=self.TRUSTED)

    def bias_squares(self, role: str) -> float:
        """Sum of squares N of a role's bias."""
        return self._moments["exp_avg_sq"][self.models[role].bias].item()

    def rates(self, role: str) -> dict[Kind, float]:
        """Learning rates of a role's parameters."""
        return {group.kind: group.rate for group in self._groups if group.role == role}

    def updated(self, steps: int = 1, roles: Iterable[str] | None = None) -> None:
        """Count updates of the parameters of some roles that were made elsewhere; None: of all."""
        if roles is None:
            self._counts += steps
            self._count += steps
            return
        for role in roles:
            self._counts[self._places[role]] += steps
            self._count += steps * (self.models[role].bias is self._clock)

    def scales(self, role: str) -> list[Scales]:
        """Scales of the fields of a role's first order (`models.layers.FirstOrder`)."""
        return self._scales.get(role, [])

    def leave_scales(self, role: str) -> None:
        """Forget the gradients of a role's scales, which have been learned."""
        for group in self._groups:
            if group.role == role and group.kind == "scale":
                for p in group.parameters:
                    if p.grad is not None:  # to set it costs more than to look
                        p.grad = None

    def weights(self, *, shared: bool) -> dict[str, Tensor]:
        """Live parameters by "<role>.<name>": of own fields, and replicated parameters if `shared`."""
        return self._named({p: p.detach() for p in self.parameters}, shared)

    def state(self, *, shared: bool) -> dict[str, Tensor]:
        """Live parameters and their moments by name, and the number of steps if `shared`."""
        state = self.weights(shared=shared)
        for moment in MOMENTS:
            named = self._named(self._moments[moment], shared)
            state |= {f"adam.{moment}.{name}": tensor for name, tensor in named.items()}
        centres = {p: self._centres.get(p, p) for p in self.parameters}
        state |= {
            f"adam.{CENTRE}.{name}": tensor.detach()
            for name, tensor in self._named(centres, shared).items()
            if _NUMBER in name
        }
        if shared:
            state["adam.step"] = self._steps[self._clock]
            state[SIZES_KEY] = torch.tensor(1)
        return state

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore this rank's share of the merged states of all ranks.

        Raises:
            MismatchError: the state belongs to another model.
        """
        live = self.state(shared=True)
        del live[SIZES_KEY]
        centres = {n: torch.zeros_like(t) for n, t in live.items() if n.startswith(f"adam.{CENTRE}.")}
        state = {**centres, **state}  # checkpoints of before have none
        try:
            copy_named(live, state)
        except KeyError as missing:
            raise MismatchError(
                f"the saved model has no parameter {missing}; it belongs to another pipeline"
            ) from None
        except ValueError as error:
            raise MismatchError(f"the saved model belongs to another pipeline: {error}") from None
        if SIZES_KEY not in state:  # of Adam: sizes are learned again
            for name, tensor in live.items():
                if of_number(name):
                    tensor.zero_()
        self._count = int(state["adam.step"])
        for step in self._steps.values():
            step.copy_(state["adam.step"])

    def start_from(self, weights: Mapping[str, Tensor]) -> None:
        """Copy weights by "<role>.<name>" into parameters of the same name.

        Moments stay as they are, but for those `of_number` among `weights`.

        Raises:
            ValueError: a weight has another shape than its parameter.
        """
        live = self.weights(shared=True)
        live |= {name: tensor for name, tensor in self.state(shared=True).items() if of_number(name)}
        copy_named({name: tensor for name, tensor in live.items() if name in weights}, weights)

    def _named(self, tensors: Mapping[nn.Parameter, Tensor], shared: bool) -> dict[str, Tensor]:
        """Tensors by the exported names of their parameters."""
        named: dict[str, Tensor] = {}
        for role, model in self.models.items():
            local, replicated = model.by_name({n: tensors[p] for n, p in model.named_parameters()})
            if (other := self.sample_parallel.get(role)) is not None:
                replicated |= other.by_name(
                    {n: tensors[p] for n, p in other.named_parameters() if n in other.local_axes}
                )[0]
            named |= {f"{role}.{name}": t for name, t in (local | (replicated if shared else {})).items()}
        if shared:
            for role, network in self.content.items():
                named |= {f"{role}.{name}": tensors[p] for name, p in network.named_parameters()}
        return named

    def replicated(self) -> dict[str, Tensor]:
        """Live parameters that every rank has, by "<role>.<name>"."""
        own = self.weights(shared=False)
        return {name: t for name, t in self.weights(shared=True).items() if name not in own}


def of_number(name: str) -> bool:
    """Tell whether a name of a state is that of a moment of a dense feature's weight."""
    return name.startswith("adam.") and _NUMBER in name


_NUMBER = f".{NUMBERS}/"
"""In the name of a dense feature's weight in a first order."""


_LEAST_SIZE = 1e-30
"""Size below which a dense feature's weight is not learned: its square root of float32's range."""
_FEW = 4.0
"""Squared gradients below which a centre is not known."""
_FIRST = 0.01
"""Under the root of a weight's rate, as Vowpal Wabbit's β of .1 in FTRL: first examples teach much."""


def _learn_numbers(
    u: Tensor, grad: Tensor, size: Tensor, square: Tensor, largest: Tensor, rate: float
) -> Tensor:
    """Learn weights u f32[Dd] from summed gradients; sizes and sums of squares, too (`DenseAdam`).

    Returns:
        Steps f32[Dd] that were subtracted.
    """
    grown = torch.maximum(size, largest)
    shrink = torch.where(size > 0, size / grown.clamp_min(_LEAST_SIZE), 1.0)
    size.copy_(grown)
    known = size >= _LEAST_SIZE
    unit = torch.where(known, grad / size, 0.0)
    square.addcmul_(unit, unit)
    step = torch.where(known, unit / (_FIRST + square).sqrt_() / size, 0.0).mul_(rate)
    u.mul_(shrink).sub_(step)
    return step


def _take_centre(centre: Tensor, step: Tensor, of_batch: Squares, of_bias: Tensor) -> Tensor:
    """Change f32[] of the mean of all logits by steps of weights; centres learn the batch (`DenseAdam`)."""
    moved = -(step * centre).sum()
    everyone = (of_bias + _FEW).clamp_(min=of_batch.total)
    centre.add_((of_batch.by_feature - centre * of_batch.total) / everyone)
    return torch.where(moved.isfinite(), moved, 0.0)
