"""Feature plan: the DAG of a pipeline's nodes in layers, its memory layout, and its placement on devices."""
