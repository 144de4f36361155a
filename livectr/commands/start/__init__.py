"""Commands to begin with on one machine: the demo, a pipeline file, a broker, a Redis."""
