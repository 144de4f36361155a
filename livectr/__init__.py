"""LiveCTR: learn click-through rates from a live log stream, and serve them while they are learned."""
