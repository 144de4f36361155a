"""64-bit keys: combined, deduplicated, grouped, and encoded for the wire."""
