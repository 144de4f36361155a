"""A request to a server, compiled: bytes → columns, and look up → score → reply."""
