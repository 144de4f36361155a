"""Drawing of a plan: parsed as XML, a box per node, a path per edge, no overlaps."""

from __future__ import annotations

import random
from itertools import combinations, pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.features import display_ads
from livectr.ingest import operators as op
from livectr.ingest.language.expr import ColumnRef, column, constant
from livectr.ingest.plan.dag import FeaturePlan
from livectr.ingest.plan.dag_layout import LANE, Arrangement, arrange
from livectr.ingest.plan.drawing import to_svg
from livectr.ingest.plan.placement import place
from tests.ingest.random_plans import random_dag

SVG = "{http://www.w3.org/2000/svg}"


def wide() -> FeaturePlan:
    nodes = random_dag(random.Random(7), 150)
    return FeaturePlan({f"f{i}": node for i, node in enumerate(nodes) if "float" not in node.dtype})


def boxes(drawing: ElementTree.Element) -> list[tuple[float, float, float, float]]:
    """(left, top, right, bottom) of every box."""
    rects = [rect for rect in drawing.iter(f"{SVG}rect") if rect.get("class") == "box"]
    sides = [[float(rect.get(name) or 0) for name in ("x", "y", "width", "height")] for rect in rects]
    return [(x, y, x + width, y + height) for x, y, width, height in sides]


@pytest.mark.parametrize("plan", [display_ads().plan, wide()], ids=["display ads", "150 calls"])
@pytest.mark.parametrize("share", [1.0, 0.97])
def test_a_box_per_node_and_a_path_per_edge(plan: FeaturePlan, share: float) -> None:
    peak = place(plan, budget_bytes=None, rows=1000).device_memory.peak
    placed = place(plan, budget_bytes=int(share * peak), rows=1000)
    assert bool(placed.cpu) == (share < 1)
    drawing = ElementTree.fromstring(to_svg(placed))
    outputs = [*plan.sparse.values(), *plan.dense.values()]
    drawn = boxes(drawing)
    assert len(drawn) == len(plan.nodes) + len(outputs)
    titles = [title.text or "" for title in drawing.iter(f"{SVG}title")]
    assert [title.split("\n")[0] for title in titles[: len(plan.nodes)]] == [*map(str, plan.nodes)]
    calls = {(id(s), id(node)) for node in plan.nodes for s in node.inputs if s.op != "constant"}
    paths = list(drawing.iter(f"{SVG}path"))
    assert len(paths) == len(calls) + sum(node.op != "constant" for node in outputs)

    width, height = float(drawing.get("width") or 0), float(drawing.get("height") or 0)
    for left, top, right, bottom in drawn:
        assert 0 <= left < right <= width and 0 <= top < bottom <= height
    for a, b in combinations(drawn, 2):
        assert a[0] >= b[2] or b[0] >= a[2] or a[1] >= b[3] or b[1] >= a[3], (a, b)
    lefts = [left for left, *_ in drawn[: len(plan.nodes)]]
    columns = sorted(set(lefts))
    assert lefts == [columns[node.layer] for node in plan.nodes]


def test_devices_have_their_colours() -> None:
    text = column(ColumnRef("t", "s"), "string")
    plan = FeaturePlan({"words": op.split(op.lower(text), " "), "whole": op.lower(text)})
    placed = place(plan, budget_bytes=900, rows=1)
    drawing = ElementTree.fromstring(to_svg(placed))
    kinds = [group.get("class") for group in drawing.iter(f"{SVG}g") if group.find(f"{SVG}title") is not None]
    assert kinds == ["node column", *["node gpu"] * 4, "node field", "node field"]
    placed = place(plan, budget_bytes=placed.device_memory.peak - 1, rows=1)
    drawing = ElementTree.fromstring(to_svg(placed))
    kinds = [group.get("class") for group in drawing.iter(f"{SVG}g") if group.find(f"{SVG}title") is not None]
    assert kinds[1] == "node both" and kinds.count("node cpu") == 2, kinds
    assert sum("copy" in (path.get("class") or "") for path in drawing.iter(f"{SVG}path")) == 1


def test_any_name_can_be_drawn() -> None:
    root = column(ColumnRef("<t>", "a&\x00\x1b\ud800\"'"), "string")
    plan = FeaturePlan({"<&>": op.split(root, "<\x01>"), "]]>": root, "one": constant(3, "int64") + 0})
    drawing = ElementTree.fromstring(to_svg(place(plan, budget_bytes=None, rows=1)).encode())
    titles = [title.text or "" for title in drawing.iter(f"{SVG}title")]
    assert titles[0].startswith("<t>.a&\ufffd\ufffd\ufffd\"'")
    assert any(title.startswith("field <&> = key(split(") for title in titles)


def test_a_plan_of_constants_can_be_drawn() -> None:
    plan = FeaturePlan({}, {"one": constant(1.0, "float64")})
    drawing = ElementTree.fromstring(to_svg(place(plan, budget_bytes=0, rows=1)))
    assert len(boxes(drawing)) == 1 and not list(drawing.iter(f"{SVG}path"))


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[int], list[float], list[tuple[int, int]]]:
    layers = draw(st.lists(st.integers(0, 5), min_size=1, max_size=25))
    heights = draw(st.lists(st.sampled_from([20.0, 33.0]), min_size=len(layers), max_size=len(layers)))
    pairs = [(a, b) for a in range(len(layers)) for b in range(len(layers)) if layers[a] < layers[b]]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=40)) if pairs else []
    return layers, heights, edges


@given(graphs())
def test_lanes_and_boxes_never_overlap(graph: tuple[list[int], list[float], list[tuple[int, int]]]) -> None:
    layers, heights, edges = graph
    placed = arrange(layers, heights, edges)
    for layer in range(6):
        spans = [(placed.y[v], heights[v]) for v in range(len(layers)) if layers[v] == layer]
        spans += [(y, LANE) for (_, at), y in placed.lanes.items() if at == layer]
        for (y, height), (below, other) in pairwise(sorted(spans)):
            assert y + height / 2 < below - other / 2 + 1e-6
        for y, height in spans:
            assert y - height / 2 >= -1e-6 and y + height / 2 <= placed.height + 1e-6
    needed = {(a, layer) for a, b in edges for layer in range(layers[a] + 1, layers[b])}
    assert set(placed.lanes) == needed


def test_neighbours_are_near_and_edges_do_not_cross_when_they_need_not() -> None:
    """Ten chains whose vertices come in another order in each layer become ten straight lines."""
    layers = [layer for layer in range(3) for _ in range(10)]
    edges = [(i, 10 + (7 * i) % 10) for i in range(10)] + [(10 + i, 20 + (3 * i) % 10) for i in range(10)]
    placed: Arrangement = arrange(layers, [20.0] * 30, edges)
    assert all(placed.y[a] == pytest.approx(placed.y[b]) for a, b in edges)
