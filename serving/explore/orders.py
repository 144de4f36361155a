"""Drawn orders of candidates with known propensities: a mixture of the best order and Plackett-Luce.

    greedy       the order of the values v, best first; equal ones as they are
    drawn        the best N with v > 0 by log(v) / T + Gumbel noise, then the others as in greedy
    answered     drawn with probability ε, else greedy: a function of seed and request id

Sorting by logits with Gumbel noise draws from Plackett-Luce (Yellott, 1977; Kool et al., 2019, §2.3): the
places are filled from the first, each by a softmax over the candidates that are left (Plackett, 1975). So the
first k places o₁ … o_k have the propensity

    (1 − ε) · [o₁ … o_k is greedy] + ε · Π_{j ≤ k} w(o_j) / Σ_{l left at j} w(l),    w = v^(1/T)

which is that of the answer whether or not it was drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from livectr.serving.canary import SIDE
from livectr.serving.explore.options import ExploreOptions

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

_SALT = b"livectr explore"


@dataclass(frozen=True)
class Drawn:
    """Order of n candidates.

    Args:
        explored: the order is drawn; False: it is that of the values.
        order: i64[n], places of the candidates, as they are answered.
        propensity: f64[m], of the first 1 … m places; m is the least of n and the `top` of the options. More
            places have the propensity of m.
        values: f64[n], by which it was drawn.
        options: in the form that `ExploreOptions.parse` reads.
    """

    explored: bool
    order: I64
    propensity: F64
    values: F64
    options: str


class Explorer:
    """Draws orders, and knows their propensities. Thread-safe: it has no state.

    Args:
        options: share, temperature, top and seed count.
    """

    def __init__(self, options: ExploreOptions) -> None:
        self.options = options
        self._text = str(options)

    @staticmethod
    def of(options: ExploreOptions | None) -> Explorer | None:
        """Explorer of the side that this thread works for; None: it does not explore."""
        if options is None or options.side not in ("", SIDE.get()):
            return None
        return Explorer(options)

    def draw(self, request_id: str, values: F64) -> Drawn:
        """Order candidates of these values f64[n] for a request."""
        words = blake2b(
            f"{self.options.seed}\n{request_id}".encode("utf-8", "replace"), digest_size=16, salt=_SALT
        ).digest()
        explored = int.from_bytes(words[:8], "little") < self.options.share * 2.0**64
        order = greedy(values)
        if explored:
            m = self._movable(values)
            raw = np.random.Philox(key=int.from_bytes(words[8:], "little")).random_raw(m)
            uniform = ((raw >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
            noisy = self._logits(values[order[:m]]) - np.log(-np.log(uniform))
            order[:m] = order[:m][np.argsort(-noisy, kind="stable")]
        propensity = self.propensity(values, order[: self.options.top])
        return Drawn(explored, order, propensity, values, self._text)

    def propensity(self, values: F64, places: I64) -> F64:
        """Propensities f64[k] of the first 1 … k places of an answer.

        Args:
            values: f64[n] of the candidates.
            places: i64[k], the candidates that are answered there, each once; k ≤ n.
        """
        best, m, k = greedy(values), self._movable(values), len(places)
        head, movable = places[:m], best[:m]
        possible = np.append(np.isin(head, movable), places[m:] == best[m:k])
        possible = np.logical_and.accumulate(possible)
        known = head[possible[: len(head)]]
        logits = self._logits(values[np.append(known, movable[~np.isin(movable, known)])])
        left = np.logaddexp.accumulate(logits[::-1])[::-1]
        drawn = possible.astype(np.float64)
        chain = np.exp(np.cumsum((logits - left)[: len(known)]))
        drawn[: len(known)] = chain
        if len(known):
            drawn[len(known) :] *= chain[-1]
        same = np.logical_and.accumulate(places == best[:k])
        found: F64 = (1.0 - self.options.share) * same + self.options.share * drawn
        return found

    def _movable(self, values: F64) -> int:
        """Number of the best candidates that change places: worthless ones stay."""
        return min(self.options.top, int(np.count_nonzero(values > 0)))

    def _logits(self, values: F64) -> F64:
        logits: F64 = np.log(values) / self.options.temperature
        return logits


def greedy(values: F64) -> I64:
    """Order i64[n] of values: best first, equal ones as they are."""
    return np.argsort(-values, kind="stable")
