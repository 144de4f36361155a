"""The step, metrics, checkpoint and publishing."""
