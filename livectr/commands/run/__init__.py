"""Commands of a running system: trainer, servers, and their client."""
