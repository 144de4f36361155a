"""Aho–Corasick automaton of a keyword dictionary, as the arrays of `Keywords` in operators/keywords.cuh."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
DENSE = 4096
STATE = np.dtype([("first", "i4"), ("children", "u2"), ("label", "u2"), ("fail", "i4"), ("suffix", "i4")])


def automaton(words: Sequence[bytes], dense: int = DENSE) -> tuple[Array, Array, Array, Array]:
    """Builds the automaton of S states.

    Args:
        words: distinct, not empty; a word's index is its place here.
        dense: number of states with a full row of transitions.

    Returns:
        rows int32[D, 256], states STATE[S], labels uint16[S], words int32[S], with D = min(S, dense).
    """
    levels, labels, parents, word = _trie(words)
    states = len(word)
    # Edges in the order of (parent, byte), which is the order of the children.
    edges = parents * 256 + labels
    first = np.searchsorted(parents, np.arange(states + 1))
    fail, suffix = np.zeros(states, np.int64), np.zeros(states, np.int64)
    for begin, end in levels[1:]:
        nodes = np.arange(begin, end)
        fail[begin:end] = _fails(nodes, parents, labels, edges, fail)
        back = fail[begin:end]
        suffix[begin:end] = np.where(word[back] >= 0, back, suffix[back])
    ends = (word >= 0) | (suffix > 0)
    rows = np.zeros((min(states, dense), 256), np.int64)
    for state in range(len(rows)):
        rows[state] = rows[fail[state]]  # a suffix is shorter, so its row is there
        children = np.arange(first[state], first[state + 1])
        rows[state, labels[children]] = 2 * children + ends[children]
    place = _places(levels, parents, len(rows))
    order = np.argsort(place)
    marked = (labels + 256 * ends).astype(np.uint16)
    table = np.zeros(states, STATE)
    child = np.minimum(first[:-1], states - 1)
    table["first"], table["children"], table["label"] = place[child], np.diff(first), marked[child]
    table["fail"], table["suffix"] = place[fail], place[suffix]
    moved = 2 * place[rows // 2] + rows % 2
    return moved.astype(np.int32), table[order], marked[order], word[order].astype(np.int32)


def _places(levels: list[tuple[int, int]], parents: Array, dense: int) -> Array:
    """Memory order of the states, int64[S]: the first `dense` keep their place.

    Children of any other state follow soon behind it, side by side, so that the rest of a word lies in few
    cache lines.
    """
    size = np.ones(len(parents), np.int64)
    for begin, end in reversed(levels[1:]):
        np.add.at(size, parents[begin:end], size[begin:end])
    rank = np.zeros(len(parents), np.int64)  # depth first
    for begin, end in levels[1:]:
        ends = np.cumsum(size[begin:end])
        parent = parents[begin:end]
        eldest = np.searchsorted(parent, parent)
        rank[begin:end] = rank[parent] + 1 + ends - size[begin:end] - (ends - size[begin:end])[eldest]
    # Children are placed at their parent's turn; children of a dense state at their own.
    turn = np.where(parents >= dense, 2 * rank[parents] + 1, 2 * rank)
    turn[:dense] = -1
    place = np.empty(len(parents), np.int64)
    place[np.argsort(turn, kind="stable")] = np.arange(len(parents))
    return place


def _trie(words: Sequence[bytes]) -> tuple[list[tuple[int, int]], Array, Array, Array]:
    """Builds the trie, breadth first.

    Returns:
        (first, last + 1) of each level, and of each state the byte that leads to it, its parent (-1 for the
            root),
        and the index of its word (-1: none).
    """
    order = np.array(sorted(range(len(words)), key=words.__getitem__), np.int64)
    sizes = np.array([len(words[index]) for index in order], np.int64)
    starts = np.cumsum(sizes) - sizes
    data = np.frombuffer(b"".join(words[index] for index in order), np.uint8).astype(np.int64)
    at = np.zeros(len(words), np.int64)  # the state of each word's prefix; words of one prefix are neighbours
    levels, labels, parents = [(0, 1)], [np.zeros(1, np.int64)], [np.array([-1])]
    ends: list[tuple[Array, Array]] = []
    active = np.arange(len(words))
    depth = 0
    while len(active):
        parent, byte = at[active], data[starts[active] + depth]
        fresh = np.ones(len(active), bool)
        fresh[1:] = (parent[1:] != parent[:-1]) | (byte[1:] != byte[:-1])
        begin = levels[-1][1]
        at[active] = begin - 1 + np.cumsum(fresh)
        levels.append((begin, begin + int(fresh.sum())))
        labels.append(byte[fresh])
        parents.append(parent[fresh])
        depth += 1
        done = sizes[active] == depth
        ends.append((at[active[done]], order[active[done]]))
        active = active[~done]
    word = np.full(levels[-1][1], -1, np.int64)
    for state, index in ends:
        word[state] = index
    return levels, np.concatenate(labels), np.concatenate(parents), word


def _fails(nodes: Array, parents: Array, labels: Array, edges: Array, fail: Array) -> Array:
    """Failure links of a level.

    The nearest suffix of a node's parent with a child along the node's byte gives this child.
    """
    result = np.zeros(len(nodes), np.int64)
    left = np.flatnonzero(parents[nodes] > 0)  # a child of the root falls back to the root
    suffix = fail[parents[nodes[left]]]
    while len(left):
        wanted = suffix * 256 + labels[nodes[left]]
        child = np.minimum(np.searchsorted(edges, wanted), len(edges) - 1)
        hit = edges[child] == wanted
        result[left[hit]] = child[hit]
        going = ~hit & (suffix > 0)
        left, suffix = left[going], fail[suffix[going]]
    return result
