"""Calls of a client: their channels, errors, retries and hedges."""
