"""From the example source to batches that are ready to learn."""
