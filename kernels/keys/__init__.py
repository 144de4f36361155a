"""64-bit keys: combined, made unique, grouped, and coded for the wire."""
