"""Messages and lines to Arrow batches with the declared columns."""
