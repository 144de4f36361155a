"""The feature DAG of a pipeline: nodes in layers, memory, and which device computes which node."""
