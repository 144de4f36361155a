"""Parts of a plan that are computed once for each different text: functions of one text column.

    title ─► lower ─► split ─► key ══► field           ═ kept by the title's bytes: a title that comes again
                        └─► ngrams ─► key ══► field      is looked up (kernels/extract/recall.hpp)

Only columns that become lists are worth it: a look-up costs about as much as one hash of the text.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from livectr.ingest.language import dtypes
from livectr.ingest.language.expr import Expr


@dataclass(frozen=True)
class Recalled:
    """Functions of one text.

    Args:
        root: column of the text.
        nodes: its functions, layer by layer.
        kept: those of `nodes` that other nodes or outputs read.
        alone: nothing but `nodes` reads the root.
    """

    root: Expr
    nodes: tuple[Expr, ...]
    kept: tuple[Expr, ...]
    alone: bool

    @property
    def keeps_text(self) -> bool:
        """True when a kept value points to bytes of texts."""
        return any(dtypes.element(node.dtype) in dtypes.TEXTS for node in self.kept)


def recalled(
    nodes: Sequence[Expr], outputs: Collection[Expr], fused: Mapping[int, Expr]
) -> tuple[Recalled, ...]:
    """Parts of a plan that are worth it.

    Args:
        nodes: of the plan, layer by layer.
        outputs: what is read after the last layer.
        fused: id of a node → node that is computed with it, whose inputs it reads instead.
    """
    roots: dict[int, Expr] = {}  # id of a node → the only text that it is a function of
    read = {id(node) for node in outputs}  # nodes that others than functions of the same text read
    for node in nodes:
        sources = [source for source in node.inputs if source.op != "constant"]
        found = {id(roots[id(source)]): roots[id(source)] for source in sources if id(source) in roots}
        if node.is_root and node.dtype in dtypes.TEXTS:
            roots[id(node)] = node
        elif len(found) == 1 and all(id(source) in roots for source in sources) and not _moves(node):
            (roots[id(node)],) = found.values()
        else:
            read |= {id(source) for source in sources}
    skipped = {id(node) for node in fused.values()}
    parts = []
    for root in nodes:
        own = [n for n in nodes if roots.get(id(n)) is root and n is not root and id(n) not in skipped]
        if root.is_root and any(dtypes.is_list(node.dtype) for node in own):
            kept = tuple(node for node in own if id(node) in read)
            parts.append(Recalled(root, tuple(own), kept, id(root) not in read))
    return tuple(parts)


def _moves(node: Expr) -> bool:
    """True when the node's function changes with a running statistic."""
    return node.device is not None and node.device.statistic is not None
