"""Commands about data: a pipeline file, the logs, and what is made of them ahead of training."""
