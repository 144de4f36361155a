"""Decoding: messages, lines and file batches become Arrow batches with the declared columns."""
