"""Deep Interest Evolution Network (Zhou et al., AAAI 2019; DES Table 3): recurrent interests with attention.

Behaviors v_1 … v_T, oldest first, and the target v_t (h_0 = g_0 = 0):

    h_t = GRU(v_t, h_{t−1})                                     interest extractor layer
    a_t = softmax_t(h_t W v_target)                             attention
    g_t = (1 − ũ_t) ∘ g_{t−1} + ũ_t ∘ g̃_t,  ũ_t = a_t u_t       AUGRU over h_1 … h_T: interest evolving layer
    interest = g_T

    GRU, AUGRU:  u = σ(x W_u + s U_u + b_u), r = σ(x W_r + s U_r + b_r), s̃ = tanh(x W_s + r ∘ (s U_s) + b_s)

`models.interest` has the rest: the pairs of fields, the sub-operators and the gathered vectors; in DES Table
3 "same as DNN".  ⊕: H₁ float32 per example; gathered: K for each target and each behavior.

Training adds α L_aux, the extractor's auxiliary loss (§4.2, eq. 6), with the positives e_{t+1} = v_{t+1}:

    L_aux = −1/B Σ_i Σ_t [log σ(h_t · e_{t+1}) + log(1 − σ(h_t · ê))]         i: the batch's examples

Deviations: each pair of fields has its own GRUs and loss, instead of joined vectors.

The paper samples ê for each step from all items but the clicked. Samples out of other examples would depend
on the rank that finishes an example. So ê is the target of the example itself where its label is 0: an item
that this user was shown and did not click. It is the same at all steps. A step whose next click is that item,
and a clicked example, have no second term. A late positive has no auxiliary loss: its history was learned
with the provisional negative.

Where `state` is not `dim`, h_t W takes the place of h_t, by the attention's W. The paper names no α; its
authors' code adds the mean over padded steps with α = 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from livectr.models.base import CTRModel
from livectr.models.inputs import Gathered, Part, Ragged
from livectr.models.interest import InterestConfig, InterestModel
from livectr.models.layers import matrix
from livectr.models.losses import LATE
from livectr.models.products import product
from livectr.models.ragged import padded


@dataclass(frozen=True)
class DIEN(InterestConfig):
    """Deep Interest Evolution Network (Zhou et al., AAAI 2019, §4): GRU and AUGRU over a user's behaviors.

    interest = g_T of an AUGRU over h_1 … h_T, weighted by softmax_t(h_t W v_target). Use it where the order
    of a user's clicks matters. Do not use it for long lists at low latency: the steps of a GRU run in
    sequence; `DIN` pools all behaviors at once.

    Args:
        target: field of the scored item for each field of `behaviors`; a pair shares a table.
        behaviors: sequence fields, oldest item first.
        dim: K, float32 values of a vector v.
        hidden: units of the MLP's hidden layers, H₁ first; at least one layer.
        optimiser: table optimiser of the vectors v.
        init_scale: vectors start uniform in (-init_scale, init_scale).
        dense_lr: Adam's learning rate of the network's parameters.
        state: units of a GRU's state, and float32 values of an interest.
        auxiliary: α, weight of the auxiliary loss; 0: none. Serving never computes it.
        activation: "relu" or "prelu" (a learned slope per unit) of the MLP.
        schedule: learning rates over the number of batches.

    Example:
        >>> import torch
        >>> from livectr.models import DIEN, Gathered, Ragged
        >>> config = DIEN(target=("ad",), behaviors=("clicked_ads",), dim=8, hidden=(32, 16), state=4)
        >>> fields = ("user", "ad", "clicked_ads")
        >>> model = config.build(fields, fields, (), dense_local=False, seed=1)
        >>> values = torch.zeros(2, len(fields), config.width)  # rows v of 2 examples
        >>> clicks = Ragged(torch.zeros(3, config.width), torch.tensor([0, 3, 3]))  # 3 clicks, none
        >>> gathered = Gathered(pooled=values[:, 1:2], sequences={"clicked_ads": clicks})
        >>> model.partial_size, model(values, None, gathered).shape
        (32, torch.Size([2]))
    """

    state: int = 16
    auxiliary: float = 1.0

    def network(self, part: Part) -> CTRModel:
        """See `ModelConfig.network`."""
        return DIENModel(self, part)


class DIENModel(InterestModel):
    """Network of `DIEN`; S = H₁, an interest has `state` float32."""

    def __init__(self, config: DIEN, part: Part) -> None:
        super().__init__(config, part, config.state)
        names = config.behaviors
        dim, state, seed = config.dim, config.state, part.seed
        self.auxiliary = config.auxiliary
        self.extractors = nn.ModuleList(Gru(f"extractor/{n}", dim, state, seed) for n in names)
        self.attention = nn.ParameterList(matrix(seed, f"attention/{n}", state, dim) for n in names)
        self.evolution = nn.ModuleList(Gru(f"evolution/{n}", state, state, seed) for n in names)

    def interest(self, pair: int, behaviors: Ragged, target: Tensor) -> Tensor:
        """See `InterestModel.interest`."""
        seen, there = padded(behaviors)
        return self._evolved(pair, self.extractors[pair](seen, there)[0], there, target)

    def finish_with_loss(
        self, aggregated: Tensor, gathered: Gathered | None, label: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """See `CTRModel.finish_with_loss`; the loss is α L_aux · B."""
        if not self.auxiliary:
            return super().finish_with_loss(aggregated, gathered, label)
        interests, losses = [], []
        for pair, (behaviors, target) in enumerate(self.pairs(gathered)):
            seen, there = padded(behaviors)
            states, _ = self.extractors[pair](seen, there)
            interests.append(self._evolved(pair, states, there, target))
            like = states if states.shape[2] == seen.shape[2] else states @ self.attention[pair]
            losses.append(next_click_loss(like, seen, there, target, label))
        return self.logits(aggregated, interests), self.auxiliary * torch.stack(losses).sum()

    def _evolved(self, pair: int, states: Tensor, there: Tensor, target: Tensor) -> Tensor:
        """Interest f32[B, state] of the extractor's states f32[B, T, state]."""
        scores = (states @ self.attention[pair] @ target.unsqueeze(2)).squeeze(2)
        scores = scores.masked_fill(~there, torch.finfo(scores.dtype).min)
        last: Tensor = self.evolution[pair](states, there, torch.softmax(scores, dim=1))[1]
        return last


def next_click_loss(states: Tensor, seen: Tensor, there: Tensor, target: Tensor, label: Tensor) -> Tensor:
    """Sum over examples and steps of −log σ(h_t · e_{t+1}) − log(1 − σ(h_t · ê)) (§4.2, eq. 6).

    Args:
        states: h, f32[B, T, K].
        seen: e, f32[B, T, K], the vectors of the clicked items.
        there: bool[B, T], False behind a list's end.
        target: ê, f32[B, K], the vector of the shown item.
        label: f32[B] in {0, 1, LATE}.

    Returns:
        f32[]; 0 for lists of fewer than two clicks.
    """
    before, following = states[:, :-1], seen[:, 1:]
    positive = there[:, 1:] & (label != LATE).unsqueeze(1)
    shown = target.unsqueeze(1)
    negative = positive & (label == 0).unsqueeze(1) & (following != shown).any(dim=2)
    losses = softplus(-(before * following).sum(dim=2)).masked_fill(~positive, 0.0)
    losses = losses + softplus((before * shown).sum(dim=2)).masked_fill(~negative, 0.0)
    return losses.sum()


class Gru(nn.Module):
    """Gated recurrent unit over padded lists; with attention, AUGRU. Gates are side by side: u, r, s̃.

    Attributes:
        inputs: W, f32[in, 3·state].
        states: U, f32[state, 3·state].
        biases: b, f32[3·state].
    """

    def __init__(self, name: str, width: int, state: int, seed: int) -> None:
        super().__init__()
        self.inputs = nn.Parameter(_gates(f"{name}.inputs", width, state, seed))
        self.states = nn.Parameter(_gates(f"{name}.states", state, state, seed))
        self.biases = nn.Parameter(torch.zeros(3 * state))

    def forward(self, x: Tensor, there: Tensor, attention: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Runs the unit over lists; behind a list's end the state stays unchanged.

        Args:
            x: f32[B, T, in].
            there: bool[B, T], False behind a list's end.
            attention: a f32[B, T] of AUGRU, or None.

        Returns:
            All states f32[B, T, state] and each list's last state f32[B, state].
        """
        gates = product(x, self.inputs) + self.biases
        size = len(self.states)
        state = x.new_zeros(len(x), size)
        states = []
        for t in range(x.shape[1]):
            from_x, from_state = gates[:, t], product(state, self.states)
            update, reset = torch.sigmoid(from_x[:, : 2 * size] + from_state[:, : 2 * size]).chunk(2, dim=1)
            candidate = torch.tanh(from_x[:, 2 * size :] + reset * from_state[:, 2 * size :])
            if attention is not None:
                update = attention[:, t, None] * update
            state = torch.where(there[:, t, None], state + update * (candidate - state), state)
            states.append(state)
        whole = torch.stack(states, dim=1) if states else x.new_zeros(len(x), 0, size)
        return whole, state


def _gates(name: str, width: int, state: int, seed: int) -> Tensor:
    return torch.cat([matrix(seed, f"{name}.{gate}", width, state).detach() for gate in "urs"], dim=1)
