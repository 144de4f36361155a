"""Numbers as pages show them."""


def number(value: float | None) -> str:
    """Three digits, or whole thousands with commas; – for none."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
