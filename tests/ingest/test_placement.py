"""Memory estimates and placement: exact cases, and laws for any DAG and budget."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.features import display_ads
from livectr.ingest import operators as op
from livectr.ingest.language.device_code import Device
from livectr.ingest.language.expr import ColumnRef, Expr, RecentRef, column
from livectr.ingest.language.resources import Array, Resource, Statistic
from livectr.ingest.plan.dag import FeaturePlan
from livectr.ingest.plan.memory import Memory, Sizes, memory_of, resident_bytes, result_bytes, working_set
from livectr.ingest.plan.placement import DevicePlacement, place
from livectr.system.byte_units import parse_bytes, show_bytes
from livectr.system.errors import ConfigError

A, TEXT = column(ColumnRef("t", "a"), "int64"), column(ColumnRef("t", "s"), "string")
FLAG = column(ColumnRef("t", "f"), "bool")
HISTORY = Expr("column", dtype="list<int64>", params=(RecentRef("t", "a", 3, 1000),))
WORDS = op.split(TEXT, " ")
ROWS = 10


def lookup(source: Expr, kilobytes: int, dtype: str = "int64", name: str = "lookup") -> Expr:
    """Node with a resource."""
    held = Resource("Dictionary<int64_t>", [np.full(1000 * kilobytes, len(name), np.uint8)])
    return Expr(name, (source,), dtype=dtype, device=Device("find({resource}, {0})", resource=held))


class Average(Statistic):
    def initial(self) -> Array:
        return np.zeros(5)

    def update(self, state: Array, observed: Array) -> Array:
        return state + observed.sum()


@st.composite
def plans(draw: st.DrawFn) -> FeaturePlan:
    """DAGs of up to 24 calls on earlier nodes; some have resources of up to 4 kB."""
    kinds = ("int64", "bool", "string", "list<int64>", "list<string>")
    nodes = [column(ColumnRef("t", f"{kind}{i}"), kind) for kind in kinds for i in range(2)]
    for number in range(draw(st.integers(1, 24))):
        inputs = draw(st.lists(st.sampled_from(nodes), min_size=1, max_size=3, unique_by=id))
        size = draw(st.sampled_from((0, 0, 0, 100, 700, 4000)))
        held = Resource("Bytes", [np.zeros(size, np.uint8)], [number]) if size else None
        device = Device("f({0})", rowwise=True, resource=held)
        dtype = draw(st.sampled_from(kinds))
        nodes.append(Expr("call", inputs, dtype=dtype, params=(number,), device=device))
    outputs = draw(st.lists(st.sampled_from(nodes), min_size=1, max_size=6, unique_by=id))
    return FeaturePlan({f"f{i}": node for i, node in enumerate([*outputs, nodes[-1]])})


def least_budget(plan: FeaturePlan) -> int:
    return sum(result_bytes(node, ROWS, Sizes()) for node in {id(o): o for o in plan.outputs}.values())


def ids(nodes: tuple[Expr, ...]) -> set[int]:
    return set(map(id, nodes))


@given(plans(), st.integers(0, 20_000))
def test_what_a_node_needs_is_where_the_node_is_computed(plan: FeaturePlan, above: int) -> None:
    budget = least_budget(plan) + above
    placed = place(plan, budget_bytes=budget, rows=ROWS)
    host, device, gpu, cpu = map(ids, (placed.host_nodes, placed.device_nodes, placed.gpu, placed.cpu))
    roots = ids(plan.roots)
    assert ids(plan.outputs) <= device
    assert host | device == ids(plan.nodes)
    assert cpu <= host and gpu == device - cpu - roots
    for node in plan.nodes:
        inputs = ids(node.inputs)
        if id(node) in host:
            assert inputs <= host
        if id(node) in gpu:
            assert inputs <= device
    used = {id(source) for node in placed.gpu for source in node.inputs} | ids(plan.outputs)
    assert device == used, "the device holds nothing that it does not need"
    assert placed.device_memory.peak <= budget
    assert placed.copied_bytes == sum(result_bytes(node, ROWS, Sizes()) for node in placed.cpu)
    assert ids(placed.too_big) >= cpu and not ids(placed.too_big) & gpu


@given(plans(), st.integers(0, 20_000), st.integers(0, 20_000))
def test_a_larger_budget_only_moves_nodes_to_the_gpu(plan: FeaturePlan, above: int, more: int) -> None:
    budget = least_budget(plan) + above
    tight = place(plan, budget_bytes=budget, rows=ROWS)
    wide = place(plan, budget_bytes=budget + more, rows=ROWS)
    assert ids(wide.host_nodes) <= ids(tight.host_nodes)
    assert ids(wide.gpu) >= ids(tight.gpu)
    assert ids(wide.too_big) <= ids(tight.too_big)


@given(plans(), st.integers(0, 20_000))
def test_layers_hold_every_placed_node_once(plan: FeaturePlan, above: int) -> None:
    placed = place(plan, budget_bytes=least_budget(plan) + above, rows=ROWS)
    again = place(plan, budget_bytes=placed.budget_bytes, rows=ROWS)
    assert len(placed.layers) == len(plan.layers)
    for number, (layer, other) in enumerate(zip(placed.layers, again.layers, strict=True)):
        assert all(node.layer == number for node in (*layer.gpu, *layer.cpu))
        assert ids(layer.copied) <= ids(layer.cpu) and not ids(layer.gpu) & ids(layer.copied)
        for name in ("gpu", "cpu", "copied"):
            assert [*map(id, getattr(layer, name))] == [*map(id, getattr(other, name))], "deterministic"
    gpu = [id(node) for layer in placed.layers[1:] for node in layer.gpu]
    assert gpu == [*map(id, placed.gpu)]
    assert [id(n) for layer in placed.layers for n in layer.cpu] == [*map(id, placed.host_nodes)]
    assert [id(n) for layer in placed.layers for n in layer.copied] == [*map(id, placed.cpu)]


@given(plans())
def test_the_least_budget_and_none_are_the_ends(plan: FeaturePlan) -> None:
    whole = place(plan, budget_bytes=None, rows=ROWS)
    assert not whole.cpu and not whole.host_nodes and whole.device_memory == memory_of(plan, ROWS, Sizes())
    assert not place(plan, budget_bytes=whole.device_memory.peak, rows=ROWS).too_big
    least = least_budget(plan)
    assert place(plan, budget_bytes=least, rows=ROWS).device_memory.peak <= least
    if least:
        with pytest.raises(ConfigError, match=rf"\({least:,} bytes\); raise it, or lower batch_size"):
            place(plan, budget_bytes=least - 1, rows=ROWS)


class TestADictionaryThatDoesNotFit:
    small, big = lookup(op.key(TEXT), 1), lookup(op.key(TEXT), 100, name="big_lookup")
    plan = FeaturePlan({"small": small + 1, "big": big + 1, "words": WORDS})
    whole = place(plan, budget_bytes=None, rows=ROWS)

    def test_only_it_and_what_it_needs_go_to_the_cpu(self) -> None:
        placed = place(self.plan, budget_bytes=self.whole.device_memory.peak - 1, rows=ROWS)
        assert placed.cpu == (self.big,) and placed.copied_bytes == 8 * ROWS
        assert [str(node) for node in placed.host_nodes] == ["t.s", "key(t.s)", str(self.big)]
        places = {str(node): placed.device_of(node) for node in self.plan.nodes}
        assert places["key(t.s)"] == "both" and places[str(self.big + 1)] == "GPU"
        assert places[str(self.big)] == "CPU" and places[str(self.small)] == "GPU"
        assert placed.device_memory.resident == 1000

    def test_what_only_it_needs_leaves_the_gpu(self) -> None:
        plan = FeaturePlan({"big": self.big + 1, "a": A})
        placed = place(plan, budget_bytes=1000, rows=ROWS)
        assert [str(node) for node in placed.device_nodes] == ["t.a", str(self.big), str(self.big + 1)]

    def test_the_least_budget_is_told(self) -> None:
        with pytest.raises(ConfigError, match=r"gpu_budget is 10 B, but the features alone of a batch of 10"):
            place(self.plan, budget_bytes=10, rows=ROWS)

    def test_fewer_rows_fit_where_more_do_not(self) -> None:
        with pytest.raises(ConfigError):
            place(self.plan, budget_bytes=20_000, rows=100_000)
        assert place(self.plan, budget_bytes=20_000, rows=10).cpu == (self.big,)


class TestMemory:
    @pytest.mark.parametrize(
        ("node", "expected"),
        [
            (A, 80),
            (FLAG, 2),
            (FLAG & FLAG, 10),
            (TEXT, 4 * 11 + 24 * 10),
            (HISTORY, 4 * 11 + 8 * 30),
            (WORDS, 4 * 11 + 4 * 81 + 24 * 80),
            (op.key(WORDS), 4 * 11 + 8 * 80),
            (op.cross(WORDS, HISTORY), 4 * 11 + 8 * 240),
            (op.length(WORDS), 40),
        ],
        ids=str,
    )
    def test_bytes_of_a_column(self, node: Expr, expected: int) -> None:
        assert result_bytes(node, ROWS, Sizes()) == expected

    def test_sizes_are_settings(self) -> None:
        assert result_bytes(TEXT, ROWS, Sizes(string_bytes=100)) == 44 + 1000
        assert result_bytes(op.key(WORDS), ROWS, Sizes(list_items=2)) == 44 + 160

    def test_items_of_one_row_have_the_extractor_s_limit(self) -> None:
        node = WORDS
        for _ in range(9):
            node = op.cross(node, WORDS)
        assert result_bytes(node, 1, Sizes()) == 8 + 8 * 65_536

    def test_resources_and_statistics_are_exact(self) -> None:
        assert resident_bytes(lookup(A, 3)) == 3000
        assert (
            resident_bytes(Expr("z", (A,), dtype="float32", device=Device("{0}", statistic=Average()))) == 40
        )
        assert working_set(lookup(A, 3), ROWS, Sizes()) == 3000 + 80 + 80

    def test_a_result_lives_from_its_layer_to_its_last_use(self) -> None:
        """a → b = a + 1 → c = b + a → d = c + 1; d and b are outputs."""
        b = A + 1
        c = b + A
        memory = memory_of(FeaturePlan({"d": c + 1, "b": b}), ROWS, Sizes())
        assert [layer.written for layer in memory.layers] == [80, 80, 80, 80]
        assert [layer.live for layer in memory.layers] == [80, 160, 240, 240]
        assert memory.peak == 240 and memory.resident == 0

    def test_nothing_takes_nothing(self) -> None:
        assert Memory((), 7).peak == 7


def test_display_ads_fits_a_small_gpu() -> None:
    placed: DevicePlacement = place(display_ads().plan, budget_bytes=64 << 20, rows=4096)
    assert not placed.too_big and placed.device_memory.peak < 64 << 20


@pytest.mark.parametrize(
    ("text", "count"),
    [("8GiB", 8 << 30), ("1.5 KiB", 1536), ("2gb", 2_000_000_000), ("4096", 4096), (12, 12), ("3B", 3)],
)
def test_amounts_of_memory(text: str | int, count: int) -> None:
    assert parse_bytes(text, "here") == count


@pytest.mark.parametrize("text", ["much", "8 GiBs", "-1", "", "1e3", True, "9" * 400, "1.GiB"])
def test_what_is_no_amount_of_memory(text: str) -> None:
    with pytest.raises(ConfigError, match=r"here: .*; write"):
        parse_bytes(text, "here")


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1240, "1.21 KiB"), (40 << 20, "40.0 MiB"), (200 << 30, "200 GiB")],
)
def test_amounts_are_shown_in_three_digits(count: int, text: str) -> None:
    assert show_bytes(count) == text
