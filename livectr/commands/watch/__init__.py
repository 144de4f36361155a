"""Commands that show a pipeline, a checkpoint, what is published, and the quality of a run."""
