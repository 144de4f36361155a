"""Operators of a feature plan on a terminal: nodes, layers, and why nodes run on the CPU."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from livectr.ingest.language.expr import Expr
from livectr.ingest.plan.memory import resident_bytes, result_bytes, working_set
from livectr.ingest.plan.placement import DevicePlacement, place
from livectr.system.byte_units import show_bytes

UNCUT_WIDTH = 100_000
COLUMNS = ("layer", "node", "type", "on", "memory", "gives")


def show_operators(placement: DevicePlacement, console: Console, *, cut: bool) -> None:
    """Print the tables. With `cut`, expressions are shortened to the console's width."""
    budget = placement.budget_bytes
    with_gpu = "without a limit" if budget is None else f"with {show_bytes(budget)}"
    wide = console if cut else Console(width=UNCUT_WIDTH, file=console.file)
    title = f"operators of a batch of {placement.rows:,} rows, placed for a GPU {with_gpu}"
    rows = _nodes(placement)
    table = Table(title=title, title_justify="left")
    for name, width in zip(COLUMNS, _widths(rows, wide.width), strict=True):
        right = name in ("layer", "memory")
        table.add_column(name, no_wrap=True, max_width=width, justify="right" if right else "left")
    for layer, *cells in rows:
        table.add_row(layer, *map(Text, cells))
    wide.print(table)
    console.print(_layers(placement))
    if placement.host_nodes:
        wide.print(_on_cpu(placement, wide.width))
    for line in _summary(placement):
        console.print(line, highlight=False)


def _nodes(placement: DevicePlacement) -> list[tuple[str, ...]]:
    plan, gives = placement.plan, dict[int, list[str]]()
    for kind, outputs in (("field", plan.sparse), ("dense", plan.dense)):
        for name, node in outputs.items():
            gives.setdefault(id(node), []).append(f"{kind} {name}")
    return [
        (
            str(node.layer),
            str(node),
            node.dtype,
            "" if node.is_root else placement.device_of(node),
            _memory(placement, node),
            ", ".join(gives.get(id(node), [])),
        )
        for node in plan.nodes
    ]


def _memory(placement: DevicePlacement, node: Expr) -> str:
    held = resident_bytes(node)
    size = show_bytes(result_bytes(node, placement.rows, placement.sizes))
    return f"{show_bytes(held)} + {size}" if held else size


def _widths(rows: list[tuple[str, ...]], width: int) -> list[int]:
    """Widths of the columns in a table of `width`: first the expression is shortened, then its outputs."""
    widths = [max(map(len, column)) for column in zip(COLUMNS, *rows, strict=True)]
    room = width - 3 * len(widths) - 1 - sum(widths[i] for i in (0, 2, 3, 4))
    widths[5] = min(widths[5], max(room // 3, room - widths[1], len(COLUMNS[5])))
    widths[1] = min(widths[1], max(room - widths[5], 8))
    return widths


def _layers(placement: DevicePlacement) -> Table:
    """One launch per layer and device."""
    table = Table(title="layers", title_justify="left")
    for name in ("layer", "nodes", "GPU", "CPU", "launches", "GPU writes", "live", "copied from CPU"):
        table.add_column(name, justify="right")
    total = [0] * 6
    for number, (layer, used) in enumerate(
        zip(placement.layers, placement.device_memory.layers, strict=True)
    ):
        copied = sum(result_bytes(node, placement.rows, placement.sizes) for node in layer.copied)
        counts = [len(placement.plan.layers[number]), len(layer.gpu), len(layer.cpu)]
        launches = bool(layer.gpu) + bool(layer.cpu) if number else 0
        written = used.written - copied
        total = [a + b for a, b in zip(total, [*counts, launches, written, copied], strict=True)]
        sizes = map(show_bytes, (written, used.live, copied))
        table.add_row(str(number), *map(str, counts), str(launches), *sizes)
    table.add_section()
    table.add_row("all", *map(str, total[:4]), show_bytes(total[4]), "", show_bytes(total[5]))
    return table


def _on_cpu(placement: DevicePlacement, width: int) -> Table:
    too_big, copied = set(map(id, placement.too_big)), set(map(id, placement.cpu))
    table = Table(title="on the CPU", title_justify="left")
    table.add_column("node", no_wrap=True, max_width=max(width - 62, 8))
    table.add_column("working set", justify="right", no_wrap=True)
    table.add_column("why", no_wrap=True)
    for node in placement.host_nodes:
        if not node.is_root:
            why = "does not fit" if id(node) in too_big else "needed by a node on the CPU"
            why += ", result copied" if id(node) in copied else ""
            size = show_bytes(working_set(node, placement.rows, placement.sizes))
            table.add_row(Text(str(node)), size, why)
    return table


def _summary(placement: DevicePlacement) -> list[str]:
    memory, sizes, budget = placement.device_memory, placement.sizes, placement.budget_bytes
    peak = (
        f"peak on the GPU  {show_bytes(memory.peak)} a batch, {show_bytes(memory.resident)} of it resident "
        f"(strings taken as {sizes.string_bytes} bytes, lists as {sizes.list_items} items)"
    )
    if not placement.host_nodes:
        fits = "there is no gpu_budget" if budget is None else f"all fits into {show_bytes(budget)}"
        return [peak, f"on the CPU  nothing: {fits}"]
    whole = place(placement.plan, budget_bytes=None, rows=placement.rows, sizes=sizes).device_memory.peak
    computed = sum(not node.is_root for node in placement.host_nodes)
    return [
        peak,
        f"on the CPU  {computed} nodes, {show_bytes(placement.copied_bytes)} copied a batch; "
        f"a gpu_budget of {show_bytes(whole)} would keep all on the GPU",
    ]
