"""Operators on lists."""

from __future__ import annotations

from livectr.ingest.language import dtypes
from livectr.ingest.language.device_code import Device
from livectr.ingest.language.expr import C_TYPES, Expr, Operand, as_expr, need
from livectr.system.errors import ConfigError


def head(x: Operand, n: int) -> Expr:
    """First `n` items of a list, or all of a shorter list: a list of the same type.

    Example: `head(log.clicked_categories, 5)`.
    """
    return _end("head", x, n)


def tail(x: Operand, n: int) -> Expr:
    """Last `n` items of a list in their order, or all of a shorter list: a list of the same type.

    Example: `tail(log.clicked_categories, 5)`.
    """
    return _end("tail", x, n)


def unique(x: Operand) -> Expr:
    """Distinct items of a list in the order of their first occurrence: a list of the same type.

    Strings are compared by their bytes. All NaN are equal, and so are 0.0 and -0.0. The time is linear in the
    length up to some hundred items, and quadratic in the worst case (kernels/operators/lists.cuh).

    Example: `unique(split(lower(log.query), " "))`.
    """
    node = _list("unique", x)
    call = "lists::unique({0}, {sink})"
    return Expr("unique", (node,), dtype=node.dtype, device=Device(call, rowwise=True))


def total(x: Operand) -> Expr:
    """Sum of a list of numbers or bools, 0 for an empty list.

    Whole numbers and bools give int64, which wraps around; floats give float64, added in order.

    Example: `total(log.prices_seen)`.
    """
    node = _list("total", x, dtypes.FIXED, "a list of numbers or bools")
    dtype = "float64" if dtypes.element(node.dtype).startswith("float") else "int64"
    device = Device(f"lists::total<{C_TYPES[dtype]}>({{0}})", rowwise=True)
    return Expr("total", (node,), dtype=dtype, device=device)


def mean(x: Operand) -> Expr:
    """Mean of a list of numbers or bools, added in order as float64: float64, 0 for an empty list.

    Example: `mean(log.prices_seen)`.
    """
    node = _list("mean", x, dtypes.FIXED, "a list of numbers or bools")
    return Expr("mean", (node,), dtype="float64", device=Device("lists::mean({0})", rowwise=True))


def largest(x: Operand) -> Expr:
    """Maximum of a list of numbers, in the list's type; NaN is ignored. It is 0 for a list without numbers.

    Example: `largest(log.prices_seen)`.
    """
    return _extreme("largest", x)


def smallest(x: Operand) -> Expr:
    """Minimum of a list of numbers, in the list's type; NaN is ignored. It is 0 for a list without numbers.

    Example: `smallest(log.prices_seen)`.
    """
    return _extreme("smallest", x)


def item(x: Operand, index: Operand) -> Expr:
    """Item of a list by index, in the list's type; 0, false or "" for an index outside of the list.

    Args:
        x: list.
        index: 0 is the first item, -1 the last; a constant or an expression.

    Example: `item(users.recent_ads, -1)`.
    """
    node, at = _list("item", x), as_expr(index, "item", "int64")
    if at.dtype not in ("int32", "int64"):
        raise ConfigError(
            f"item needs a whole number as index into {node} ({node.dtype}), but {at} is {at.dtype}"
        )
    dtype = dtypes.element(node.dtype)
    call = "lists::item({0}, {1})"
    call = f"{{sink}}.append({call})" if dtype == "string" else call
    device = Device(call, rowwise=True, casts=("", "int64"))
    return Expr("item", (node, at), dtype=dtype, device=device)


def count_of(x: Operand, value: Operand) -> Expr:
    """Count of a value in a list: int32. Numbers are compared in the type that holds both, as by `==`.

    Args:
        x: list.
        value: constant or expression; a string for a list of strings, else a number.

    Example: `count_of(users.recent_categories, ads.category)`, the user's clicks on the ad's category.
    """
    return _search("count_of", "count", x, value, "int32")


def contains_item(x: Operand, value: Operand) -> Expr:
    """Membership of a value in a list, as `count_of(x, value) > 0`: bool.

    Example: `contains_item(users.interests, ads.category)`.
    """
    return _search("contains_item", "contains", x, value, "bool")


def _list(op: str, x: Operand, allowed: tuple[str, ...] = dtypes.SCALARS, what: str = "a list") -> Expr:
    node = as_expr(x, op)
    if not dtypes.is_list(node.dtype):
        raise ConfigError(f"{op} needs {what}, but {node} is {node.dtype}")
    need(op, node, allowed, what)
    return node


def _end(op: str, x: Operand, n: int) -> Expr:
    node = _list(op, x)
    if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n < 2**31:
        raise ConfigError(f"{op}({node}): n must be a whole number of at least 1, not {n!r}")
    device = Device(f"lists::{op}({{0}}, {{a[0]}}, {{sink}})", rowwise=True, arguments=(("int32", n),))
    return Expr(op, (node,), dtype=node.dtype, device=device, params=(n,))


def _extreme(op: str, x: Operand) -> Expr:
    node = _list(op, x, dtypes.NUMBERS, "a list of numbers")
    call = f"lists::extreme<{'true' if op == 'largest' else 'false'}>({{0}})"
    return Expr(op, (node,), dtype=dtypes.element(node.dtype), device=Device(call, rowwise=True))


def _search(op: str, function: str, x: Operand, value: Operand, dtype: str) -> Expr:
    node = _list(op, x)
    wanted = as_expr(value, op, node.dtype) if not isinstance(value, str) else as_expr(value, op)
    kinds = [dtypes.element(node.dtype), wanted.dtype]
    casts: tuple[str, ...]
    if all(kind in dtypes.FIXED for kind in kinds):
        promoted = dtypes.promote(*kinds)
        common, casts = C_TYPES[promoted], ("", promoted)
    elif kinds == ["string", "string"]:
        common, casts = "Str", ()
    else:
        raise ConfigError(
            f"{op} needs a list and one value of its type, but {node} is {node.dtype} "
            f"and {wanted} is {wanted.dtype}"
        )
    device = Device(f"lists::{function}<{common}>({{0}}, {{1}})", rowwise=True, casts=casts)
    return Expr(op, (node, wanted), dtype=dtype, device=device)
