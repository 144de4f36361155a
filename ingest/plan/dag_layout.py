"""Coordinates for the drawing of a layered DAG (Sugiyama's method).

An edge that skips layers runs through a lane in each of them, shared by all edges of its source, so that no
edge crosses a box. Vertices and lanes of a layer are ordered by the barycentre of their neighbours, to reduce
crossings. Then each is moved as near to its neighbours as order and gaps allow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

SWEEPS = 3
LANE = 6.0
GAP = 7.0
LANE_GAP = 3.0


@dataclass(frozen=True)
class Arrangement:
    """Vertical centres; the topmost edge is at 0.

    Args:
        y: centre of each vertex.
        lanes: (source, layer) → centre of the lane for the source's edges in that layer.
        height: of the drawing.
    """

    y: list[float]
    lanes: dict[tuple[int, int], float]
    height: float


def arrange(layers: Sequence[int], heights: Sequence[float], edges: Sequence[tuple[int, int]]) -> Arrangement:
    """Place vertices of the given layers and heights.

    Args:
        layers: layer of each vertex.
        heights: height of each vertex.
        edges: (source, target), each to a higher layer.
    """
    vertices, sizes = len(layers), list(heights)
    rows: list[list[int]] = [[] for _ in range(max(layers, default=-1) + 1)]
    for vertex, layer in enumerate(layers):
        rows[layer].append(vertex)
    lane: dict[tuple[int, int], int] = {}
    before: list[list[int]] = [[] for _ in layers]
    after: list[list[int]] = [[] for _ in layers]
    for source, target in sorted(edges, key=lambda edge: layers[edge[1]]):
        at = source
        for layer in range(layers[source] + 1, layers[target]):
            if (source, layer) not in lane:
                lane[source, layer] = len(sizes)
                rows[layer].append(len(sizes))
                sizes.append(LANE)
                before.append([at])
                after.append([])
                after[at].append(lane[source, layer])
            at = lane[source, layer]
        before[target].append(at)
        after[at].append(target)

    for _ in range(SWEEPS):
        _order(rows[1:], rows, before)
        _order(rows[-2::-1], rows, after)
    _order(rows[1:], rows, before)

    y = [0.0] * len(sizes)
    for row in rows:
        for vertex, centre in zip(row, _stacked(row, sizes, vertices), strict=True):
            y[vertex] = centre
    for _ in range(SWEEPS):
        for direction, near in ((rows[1:], before), (rows[-2::-1], after)):
            for row in direction:
                wanted = [_mean([y[n] for n in near[vertex]], y[vertex]) for vertex in row]
                for vertex, centre in zip(row, _nearest(wanted, row, sizes, vertices), strict=True):
                    y[vertex] = centre
    top = min((y[v] - sizes[v] / 2 for v in range(len(sizes))), default=0.0)
    bottom = max((y[v] + sizes[v] / 2 for v in range(len(sizes))), default=0.0)
    y = [centre - top for centre in y]
    return Arrangement(y[:vertices], {key: y[vertex] for key, vertex in lane.items()}, bottom - top)


def _mean(values: list[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _order(direction: Sequence[list[int]], rows: Sequence[list[int]], near: Sequence[list[int]]) -> None:
    """Sort each row by the mean relative position of its neighbours.

    Vertices without neighbours keep their position.
    """
    place = {vertex: (i + 0.5) / len(row) for row in rows for i, vertex in enumerate(row)}
    for row in direction:
        row.sort(key=lambda vertex: _mean([place[n] for n in near[vertex]], place[vertex]))
        place |= {vertex: (i + 0.5) / len(row) for i, vertex in enumerate(row)}


def _stacked(row: Sequence[int], sizes: Sequence[float], vertices: int) -> list[float]:
    """Centres of a row packed as closely as the gaps allow, around 0."""
    steps = [
        (sizes[a] + sizes[b]) / 2 + (LANE_GAP if a >= vertices or b >= vertices else GAP)
        for a, b in pairwise(row)
    ]
    centres = [*accumulate(steps, initial=0.0)]
    return [centre - centres[-1] / 2 for centre in centres[: len(row)]]


def _nearest(
    wanted: Sequence[float], row: Sequence[int], sizes: Sequence[float], vertices: int
) -> list[float]:
    """Centres nearest to `wanted` (least squares) that keep order and gaps.

    This is an isotonic regression of the difference to the packed row, by pooling adjacent violators.
    """
    packed = _stacked(row, sizes, vertices)
    pools: list[tuple[float, int]] = []
    for wish, centre in zip(wanted, packed, strict=True):
        total, count = wish - centre, 1
        while pools and pools[-1][0] / pools[-1][1] > total / count:
            total, count = total + pools[-1][0], count + pools[-1][1]
            pools.pop()
        pools.append((total, count))
    shifts = [total / count for total, count in pools for _ in range(count)]
    return [centre + shift for centre, shift in zip(packed, shifts, strict=True)]
