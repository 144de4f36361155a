"""Drawing of a plan's DAG as a self-contained SVG: a column per layer, a box per node, coloured by device.

A tooltip shows the whole expression of a box. Dashed edges are copies from the CPU to the device.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from xml.sax.saxutils import escape

from livectr.ingest.language.expr import Expr, RecentRef
from livectr.ingest.plan.dag_layout import Arrangement, arrange
from livectr.ingest.plan.memory import resident_bytes, result_bytes
from livectr.ingest.plan.placement import DevicePlacement
from livectr.system.byte_units import show_bytes

LETTER = 6.63
"""Width of a letter of the 11 px monospace font."""
SMALL = 9.5 / 11
"""Size of the smaller font relative to the larger."""
LABEL_LETTERS = (14, 32)
BOX, CHIP = 33.0, 21.0
PADDING = 12.0
BETWEEN = 76.0
MARGIN = 28.0
TOP = 128.0
LEAST_WIDTH = 760.0

STYLE = """
.plan { font-family: ui-monospace, 'SFMono-Regular', Menlo, 'DejaVu Sans Mono', monospace; font-size: 11px }
.plan .page { fill: #fbfcfe } .plan .band { fill: #f1f4f9 }
.plan .title { font-size: 17px; font-weight: 700; fill: #0f172a }
.plan .note { font-size: 11px; fill: #475569 }
.plan .layer { font-size: 12px; font-weight: 700; fill: #334155 }
.plan .faint { font-size: 9.5px; fill: #64748b }
.plan .edge { fill: none; stroke: #94a3b8; stroke-width: 1.1; stroke-opacity: .6 }
.plan .edge.copy { stroke: #ea580c; stroke-width: 1.5; stroke-dasharray: 5 3; stroke-opacity: .9 }
.plan .node rect { stroke-width: 1.1 }
.plan .node text { fill: #0f172a } .plan .node .op { font-weight: 700 } .plan .node .faint { fill: #526077 }
.plan .node:hover rect { stroke-width: 2.4 }
.plan .column rect { fill: #ffffff; stroke: #94a3b8 }
.plan .gpu rect { fill: #e9f8ef; stroke: #2f9e5f }
.plan .cpu rect { fill: #fff0e2; stroke: #e0701a }
.plan .both rect { fill: #fdf8d8; stroke: #b59a16 }
.plan .field rect { fill: #e8ecfe; stroke: #5b6ee1 }
.plan .dense rect { fill: #f5e9fd; stroke: #a25bd6 }
"""
LEGEND = (
    ("column", "column of the batch"),
    ("gpu", "GPU"),
    ("cpu", "CPU"),
    ("both", "on both"),
    ("field", "sparse field"),
    ("dense", "dense feature"),
)


@dataclass(frozen=True)
class _Box:
    """Box of a node or an output."""

    layer: int
    kind: str
    name: str
    detail: str
    below: str
    about: str

    @property
    def letters(self) -> int:
        return len(self.name) + len(self.detail)

    @property
    def height(self) -> float:
        return BOX if self.below else CHIP


def to_svg(placement: DevicePlacement) -> str:
    """Draw a placement: an SVG document as text."""
    plan = placement.plan
    boxes = [_node(placement, node) for node in plan.nodes]
    number = {id(node): index for index, node in enumerate(plan.nodes)}
    edges = dict.fromkeys(
        (number[id(source)], number[id(node)])
        for node in plan.nodes
        for source in node.inputs
        if source.op != "constant"
    )
    for kind, outputs in (("field", plan.sparse), ("dense", plan.dense)):
        for name, node in outputs.items():
            if id(node) in number:
                edges[number[id(node)], len(boxes)] = None
            boxes.append(_Box(len(plan.layers), kind, name, "", "", f"{kind} {name} = {node}"))
    places = arrange([box.layer for box in boxes], [box.height for box in boxes], [*edges])
    columns = _columns(boxes, len(plan.layers) + 1)
    width = max(LEAST_WIDTH, columns[-1][1] + MARGIN)
    height = TOP + places.height + MARGIN
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="plan" width="{width:.0f}" height="{height:.0f}" '
            f'viewBox="0 0 {width:.0f} {height:.0f}" role="img">',
            f"<style>{STYLE}</style>",
            f'<rect class="page" width="{width:.0f}" height="{height:.0f}" rx="10"/>',
            *_header(placement),
            *_bands(placement, columns, height),
            *_edges(placement, boxes, [*edges], places, columns),
            *(_drawn(box, TOP + y, columns[box.layer]) for box, y in zip(boxes, places.y, strict=True)),
            "</svg>\n",
        ]
    )


def _node(placement: DevicePlacement, node: Expr) -> _Box:
    size = show_bytes(result_bytes(node, placement.rows, placement.sizes))
    held = resident_bytes(node)
    device = placement.device_of(node)
    about = f"{node}\n{node.dtype}, {size} per batch"
    about += f", holds {show_bytes(held)}" if held else ""
    below = f"{node.dtype} · {size}" + (f" + {show_bytes(held)} held" if held else "")
    if node.is_root:
        ref = node.ref
        detail = f"{ref.source}, last {ref.n}" if isinstance(ref, RecentRef) else ref.source
        return _Box(0, "column", ref.column, f" {detail}", below, about)
    constants = [str(source) for source in node.inputs if source.op == "constant"]
    detail = " ".join([*constants, *map(repr, node.params)])
    about += f"\ncomputed on {'GPU and CPU' if device == 'both' else device}"
    return _Box(node.layer, device.lower(), node.op, f" {detail}" if detail else "", below, about)


def _columns(boxes: list[_Box], count: int) -> list[tuple[float, float]]:
    """Left and right of each column: as wide as its longest label, within limits."""
    columns, x = list[tuple[float, float]](), MARGIN
    for layer in range(count):
        mine = [box for box in boxes if box.layer == layer]
        letters = max((max(box.letters, ceil(len(box.below) * SMALL)) for box in mine), default=0)
        width = min(max(letters, LABEL_LETTERS[0]), LABEL_LETTERS[1]) * LETTER + 2 * PADDING
        columns.append((x, x + width))
        x += width + BETWEEN
    return columns


def _header(placement: DevicePlacement) -> Iterator[str]:
    plan, memory = placement.plan, placement.device_memory
    budget = placement.budget_bytes
    yield (
        f'<text class="title" x="{MARGIN}" y="36">{len(plan.nodes)} nodes in {len(plan.layers)} layers</text>'
    )
    limit = "" if budget is None else f" of a budget of {show_bytes(budget)}"
    note = f"batches of {placement.rows:,} rows: at most {show_bytes(memory.peak)}{limit} on the GPU"
    if placement.cpu:
        note += f", {show_bytes(placement.copied_bytes)} copied from the CPU"
    yield f'<text class="note" x="{MARGIN}" y="55">{note}</text>'
    x = MARGIN
    for kind, text in LEGEND:
        yield f'<g class="node {kind}"><rect x="{x:.1f}" y="67" width="13" height="11" rx="3"/>'
        yield f'<text class="faint" x="{x + 18:.1f}" y="76">{text}</text></g>'
        x += 18 + len(text) * LETTER * SMALL + 18
    if placement.cpu:
        yield f'<line class="edge copy" x1="{x:.1f}" y1="72.5" x2="{x + 28:.1f}" y2="72.5"/>'
        yield f'<text class="faint" x="{x + 33:.1f}" y="76">copied from the CPU to the GPU</text>'


def _bands(placement: DevicePlacement, columns: list[tuple[float, float]], height: float) -> Iterator[str]:
    memory = placement.device_memory
    for number, (left, right) in enumerate(columns):
        title, notes = "features", [f"{len(placement.plan.sparse)} sparse, {len(placement.plan.dense)} dense"]
        if number < len(placement.layers):
            layer, used = placement.layers[number], memory.layers[number]
            title = f"layer {number}"
            notes = [f"{len(layer.gpu)} GPU" + (f", {len(layer.cpu)} CPU" if layer.cpu else "")]
            if number == 0:
                title, notes = "layer 0: the batch", [f"{len(placement.plan.layers[0])} columns"]
            notes += [f"{show_bytes(used.written)} written", f"{show_bytes(used.live)} live"]
        yield (
            f'<rect class="band" x="{left - 12:.1f}" y="{TOP - 38}" width="{right - left + 24:.1f}" '
            f'height="{height - TOP + 38 - 12:.1f}" rx="8"/>'
        )
        yield f'<text class="layer" x="{left:.1f}" y="{TOP - 22}">{title}</text>'
        room = int((right - left) / (LETTER * SMALL))
        yield f'<text class="faint" x="{left:.1f}" y="{TOP - 10}">{_joined(notes, room)}</text>'


def _joined(notes: list[str], room: int) -> str:
    """As many of the notes as fit into `room` letters."""
    while len(notes) > 1 and len(" · ".join(notes)) > room:
        notes = notes[:-1]
    return " · ".join(notes)


def _edges(
    placement: DevicePlacement,
    boxes: list[_Box],
    edges: list[tuple[int, int]],
    places: Arrangement,
    columns: list[tuple[float, float]],
) -> Iterator[str]:
    copied = {id(node) for node in placement.cpu}
    for source, target in edges:
        x, y = columns[boxes[source].layer][1], TOP + places.y[source]
        path = f"M{x:.1f} {y:.1f}"
        for layer in range(boxes[source].layer + 1, boxes[target].layer + 1):
            left, right = columns[layer]
            to = TOP + (places.y[target] if layer == boxes[target].layer else places.lanes[source, layer])
            middle = (x + left) / 2
            path += f"C{middle:.1f} {y:.1f} {middle:.1f} {to:.1f} {left:.1f} {to:.1f}"
            if layer < boxes[target].layer:
                path += f"H{right:.1f}"
            x, y = right, to
        is_copy = id(placement.plan.nodes[source]) in copied and boxes[target].kind != "cpu"
        yield f'<path class="edge{" copy" if is_copy else ""}" d="{path}"/>'


def _drawn(box: _Box, y: float, column: tuple[float, float]) -> str:
    left, right = column
    top, room = y - box.height / 2, round((right - left - 2 * PADDING) / LETTER)
    name = _cut(box.name, room)
    detail = _cut(box.detail, room - len(name))
    radius = 7 if box.below else box.height / 2
    x = left + PADDING
    first = top + (14 if box.below else 14.5)
    lines = f'<text x="{x:.1f}" y="{first:.1f}"><tspan class="op">{_text(name)}</tspan>{_text(detail)}</text>'
    if box.below:
        below = _text(_cut(box.below, int(room / SMALL)))
        lines += f'<text class="faint" x="{x:.1f}" y="{top + 26:.1f}">{below}</text>'
    return (
        f'<g class="node {box.kind}"><title>{_text(box.about)}</title>'
        f'<rect class="box" x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" height="{box.height}" '
        f'rx="{radius:.1f}"/>{lines}</g>'
    )


def _cut(text: str, letters: int) -> str:
    return text if len(text) <= letters else text[: max(0, letters - 1)] + "…" if letters > 1 else ""


def _text(text: str) -> str:
    """Escape text and replace characters that XML cannot hold."""
    return escape(re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text))
